package peer_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/wait"
)

// Nothing is adopted, whatever a peer answers, that is not the secrets of the very head;
// and the failure says at which step, and with whom. The liar holds a key that the
// manifest names as a coordinator's: all that an admitted one can do.
func TestLyingPeer(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	old := f.State()
	oldMesh := old.MeshCA()
	if err := coordinatortest.SetPeople(f, "  - {name: more, kind: coordinator, match: [\"key:"+
		proof.KeyClaim(coordinatortest.NewTestKey(t).Public().(ed25519.PublicKey))+"\"]}\n"); err != nil {
		t.Fatal(err)
	}
	s := f.State()
	if s.MeshKey == old.MeshKey {
		t.Fatal("the test needs two mesh CA keys")
	}
	r, evil := rs[0], rs[1]
	l := &liar{key: evil.Key, state: s}
	addr := coordinatortest.ServePeer(t, l)
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = []string{addr} }
	// It does not come back by itself meanwhile: the loop finds the liar.
	l.first = func(fealtyv1.PeerService_RecoverServer) error { return errors.New("not now") }
	r.Start()
	loaded := coordinatortest.Loaded(r)
	otherKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	coordinatortest.WantOnly(t, "key", err, "")
	otherSeed := keyring.NewSeed()
	otherKeys, err := otherSeed.Derive(s.Head.Salt[:])
	coordinatortest.WantOnly(t, "derive", err, "")
	otherRoot, err := pki.Root(otherKeys.RootCA(), coordinatortest.Cluster, s.Root.NotBefore)
	coordinatortest.WantOnly(t, "root", err, "")
	otherMesh, err := pki.NewMeshCA(otherRoot, otherKeys.RootCA(),
		pki.MeshConfig{Cluster: coordinatortest.Cluster, Epoch: s.Head.AuthorityEpoch, Validity: time.Hour}, f.Clock())
	coordinatortest.WantOnly(t, "mesh", err, "")
	sameRootMesh, err := pki.NewMeshCA(s.Root, s.Secrets.RootCA(),
		pki.MeshConfig{Cluster: coordinatortest.Cluster, Epoch: s.Head.AuthorityEpoch, Validity: time.Hour}, f.Clock())
	coordinatortest.WantOnly(t, "mesh", err, "")
	stranger := coordinatortest.NewTestKey(t)
	// The key of the head, certified by the root of another seed.
	underOther, err := pki.RenewMeshCA(otherRoot, otherKeys.RootCA(), s.MeshCA(), coordinatortest.Cluster, time.Hour,
		f.Clock())
	coordinatortest.WantOnly(t, "mesh", err, "")

	hang := func(stream fealtyv1.PeerService_RecoverServer) error { <-stream.Context().Done(); return nil }
	for _, tc := range []struct {
		name string
		step peer.Step
		lie  func(l *liar)
	}{
		{"by a key that is no coordinator's", peer.StepProof, func(l *liar) { l.key = stranger }},
		{"a proof by another key", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Evidence = ed25519.Sign(stranger, []byte("x")) }
		}},
		{"no proof", peer.StepProof, func(
			l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Evidence = nil }
		}},
		{"a nonce of no bytes", peer.StepProof,
			func(l *liar) { l.challenge = func(c *fealtyv1.PeerChallenge) { c.Nonce = nil } }},
		{"a nonce that is not the one that was signed", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Nonce = bytes.Repeat([]byte{1}, 32) }
		}},
		{"a key that is none", peer.StepProof,
			func(l *liar) { l.challenge = func(c *fealtyv1.PeerChallenge) { c.Key = "ed25519:" } }},
		{"the key of another coordinator", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Key = f.C.EnrolmentKey() }
		}},
		{"the key of who asks: a reflection", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Key = r.C.EnrolmentKey() }
		}},
		{"the coordinator itself", peer.StepProof, func(l *liar) { l.key = r.Key }},
		{"a key of low order", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Key = proof.KeyClaim(make([]byte, 32)) }
		}},
		{"silence in place of a proof", peer.StepProof, func(l *liar) { l.first = hang }},
		{"secrets in place of a proof", peer.StepProof, func(l *liar) {
			l.first = func(s fealtyv1.PeerService_RecoverServer) error {
				return s.Send(&fealtyv1.PeerServiceRecoverResponse{Step: &fealtyv1.PeerServiceRecoverResponse_Secrets{Secrets: &fealtyv1.PeerSecrets{}}})
			}
		}},
		{"more than fits", peer.StepProof, func(l *liar) {
			l.challenge = func(c *fealtyv1.PeerChallenge) { c.Evidence = make([]byte, 2*ratelimit.MaxMessageBytes) }
		}},
		{"another challenge in place of secrets", peer.StepAnswer, func(l *liar) {
			l.last = func(s fealtyv1.PeerService_RecoverServer) error {
				return s.Send(&fealtyv1.PeerServiceRecoverResponse{Step: &fealtyv1.PeerServiceRecoverResponse_Challenge{Challenge: &fealtyv1.PeerChallenge{}}})
			}
		}},
		{"nothing", peer.StepAnswer, func(l *liar) {
			l.last = func(s fealtyv1.PeerService_RecoverServer) error {
				return s.Send(&fealtyv1.PeerServiceRecoverResponse{})
			}
		}},
		{"an end", peer.StepAnswer,
			func(l *liar) { l.last = func(fealtyv1.PeerService_RecoverServer) error { return nil } }},
		{"that it is behind", peer.StepAnswer, func(l *liar) {
			l.last = func(fealtyv1.PeerService_RecoverServer) error { return errcode.New(errcode.PeerBehind) }
		}},
		{"no secrets", peer.StepAnswer, func(
			l *liar) {
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.Sealed = nil }
		}},
		{"garbage", peer.StepAnswer, func(
			l *liar) {
			l.secrets = func(s *fealtyv1.PeerSecrets) { rand.Read(s.Sealed) }
		}},
		{"no seed", peer.StepAnswer, func(l *liar) {
			l.handed = func(
				h *keyring.Handed) {
				h.Seed = keyring.Seed{}
			}
		}},
		{"secrets for another head", peer.StepAnswer,
			func(l *liar) { l.handover = func(h *keyring.Handover) { h.Head = old.Head.Hash } }},
		{"secrets for another coordinator", peer.StepAnswer,
			func(l *liar) { l.handover = func(h *keyring.Handover) { h.To = f.C.EnrolmentKey() } }},
		{"secrets for another purpose", peer.StepAnswer,
			func(l *liar) { l.handover = func(h *keyring.Handover) { h.Purpose = string(proof.Prepare) } }},
		{"a stale manifest", peer.StepManifest,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { s.Manifest = old.Manifest.Bytes() } }},
		{"no manifest", peer.StepManifest,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { s.Manifest = nil } }},
		{"a manifest with one byte more", peer.StepManifest,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { s.Manifest = append(s.Manifest, '\n') } }},
		{"another seed", peer.StepHistory,
			func(l *liar) { l.handed = func(h *keyring.Handed) { h.Seed = otherSeed } }},
		{"another seed with its root and mesh CA", peer.StepHistory, func(l *liar) {
			l.handed = func(h *keyring.Handed) { h.Seed, h.Mesh = otherSeed, otherMesh.Key() }
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.Root, s.MeshCa = otherRoot.Raw, otherMesh.Certificate().Raw }
		}},
		{"a root that is garbage", peer.StepMesh,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { rand.Read(s.Root) } }},
		{"the root of another seed", peer.StepMesh,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { s.Root = otherRoot.Raw } }},
		{"the mesh CA key of the head under the root of another seed", peer.StepMesh, func(l *liar) {
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.Root, s.MeshCa = otherRoot.Raw, underOther.Certificate().Raw }
		}},
		{"another mesh CA key", peer.StepMesh,
			func(l *liar) { l.handed = func(h *keyring.Handed) { h.Mesh = otherKey } }},
		{"a certificate that the root did not sign", peer.StepMesh, func(l *liar) {
			l.handed = func(h *keyring.Handed) { h.Mesh = otherMesh.Key() }
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.MeshCa = otherMesh.Certificate().Raw }
		}},
		{"a mesh CA that the root signed, but no head names", peer.StepMesh, func(l *liar) {
			l.handed = func(h *keyring.Handed) { h.Mesh = sameRootMesh.Key() }
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.MeshCa = sameRootMesh.Certificate().Raw }
		}},
		{"the mesh CA of the head before: it lags", peer.StepMesh, func(l *liar) {
			l.handed = func(h *keyring.Handed) { h.Mesh = oldMesh.Key() }
			l.secrets = func(s *fealtyv1.PeerSecrets) { s.MeshCa = oldMesh.Certificate().Raw }
		}},
		{"no certificate", peer.StepMesh,
			func(l *liar) { l.secrets = func(s *fealtyv1.PeerSecrets) { s.MeshCa = nil } }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			one := &liar{key: evil.Key, state: s}
			tc.lie(one)
			at := coordinatortest.ServePeer(t, one)
			c := r.C.Parts().Secrets.PeerRecovery.WithPeers(at)
			got, err := c.FromPeers(r.Context(), loaded)
			if err == nil {
				t.Fatalf("adopted from %s", got.Peer)
			}
			failed := wantStep(t, err, tc.step, at)
			if tc.step > peer.StepProof && !strings.HasPrefix(failed.Peer, "coordinator-3 ") {
				t.Errorf("the failure is with %q, and not with the peer that proved itself", failed.Peer)
			}
			for _, secret := range [][]byte{coordinatortest.Steal(s).Seed.Reveal(), otherSeed.Reveal()} {
				if leaked := coordinatortest.FormOf([]byte(err.Error()), secret); leaked != "" {
					t.Errorf("the error holds a seed, in %s: %v", leaked, err)
				}
			}
		})
	}
	t.Run("nothing that is wrong", func(t *testing.T) {
		got, err := r.C.Parts().Secrets.PeerRecovery.WithPeers(coordinatortest.ServePeer(t, &liar{key: evil.Key,
			state: s})).FromPeers(r.Context(), loaded)
		if err != nil || got.Mesh.KeyID() != s.MeshKey || !got.Secrets.Same(s.Secrets) || got.Peer != "coordinator-3" {
			t.Errorf("the honest peer is refused: %v", err)
		}
	})
	r.AwaitState("the reason", func(s *authority.State) bool {
		return s.Phase == authority.Recovery && strings.Contains(s.Reason, addr) && strings.Contains(s.Reason,
			"step 2 (proof)")
	})
	if n := gathered(t, r, "fealty_peer_recoveries_total", "outcome", "mesh"); n < 7 {
		t.Errorf("the metric counts %v failures at step mesh", n)
	}
}

// gathered returns the value of a metric with a label.
func gathered(t testing.TB, f *coordinatortest.Fleet, name, label, value string) float64 {
	t.Helper()
	families, err := f.C.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label && l.GetValue() == value {
					total += m.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

// A store that shows a history that is not whole, or not signed by the seed of who
// gives, gets nobody to adopt it.
func TestLyingStore(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	for range 2 {
		if err := coordinatortest.SetPeople(f, ""); err != nil {
			t.Fatal(err)
		}
	}
	r, evil := rs[0], rs[1]
	s := f.State()
	honest := coordinatortest.ServePeer(t, &liar{key: evil.Key, state: s})
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = []string{"127.0.0.1:1"} }
	r.Start()
	whole := coordinatortest.Loaded(f)
	alter := func(change func(h *history.History)) *history.History {
		h := *whole
		h.Links, h.Manifests = slices.Clone(whole.Links), maps.Clone(whole.Manifests)
		change(&h)
		return &h
	}
	others, err := manifest.Parse(bytes.Replace(s.Manifest.Bytes(), []byte("max_members: 2"),
		[]byte("max_members: 3"), 1))
	coordinatortest.WantOnly(t, "parse", err, "")
	for _, tc := range []struct {
		name string
		step peer.Step
		h    *history.History
	}{
		{"no transitions", peer.StepLoad, alter(func(h *history.History) { h.Links = nil })},
		{"a head that is garbage", peer.StepLoad, alter(func(h *history.History) {
			h.Links[2] = []byte(
				"{}")
		})},
		{"the manifest is missing", peer.StepLoad, alter(func(h *history.History) { h.Manifests = nil })},
		{"other bytes under the manifest's name", peer.StepLoad,
			alter(func(h *history.History) { h.Manifests[s.Manifest.Hash()] = others.Bytes() })},
		{"a link is missing", peer.StepHistory, alter(func(h *history.History) {
			h.Links = slices.Delete(h.Links, 1,
				2)
		})},
		{"two links are swapped", peer.StepHistory,
			alter(func(h *history.History) { h.Links[0], h.Links[1] = h.Links[1], h.Links[0] })},
		{"a link was altered", peer.StepHistory,
			alter(func(h *history.History) {
				h.Links[1] = bytes.Replace(h.Links[1], []byte("test"), []byte("tset"),
					1)
			})},
		{"a head record that is not signed", peer.StepHistory,
			alter(func(h *history.History) { h.Head = slices.Clone(h.Head); h.Head[len(h.Head)-3] ^= 1 })},
		{"the version of another write", peer.StepMesh, alter(func(h *history.History) { h.Version++ })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := r.C.Parts().Secrets.PeerRecovery.WithPeers(honest).FromPeers(r.Context(), tc.h)
			wantStep(t, err, tc.step, "")
		})
	}
	if _, err := r.C.Parts().Secrets.PeerRecovery.WithPeers(honest).FromPeers(r.Context(), whole); err != nil {
		t.Errorf("the true history is refused: %v", err)
	}
}

// A store that shows an older head, alone and together with a peer that gives its
// secrets: who has seen the newer one does not go back.
func TestStoreAndPeerGoBackTogether(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	r, evil := rs[0], rs[1]
	old := f.State()
	oldHead, err := f.Store.Get(t.Context(), history.HeadKey)
	coordinatortest.WantOnly(t, "head", err, "")
	if err := coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	r.Stop()
	back := func(e store.Entry) store.Entry {
		if e.Key == history.HeadKey {
			return oldHead
		}
		return coordinatortest.HideReplicas(e)
	}
	r.Link.Lie(back)
	r.Config = func(c *coordinator.Config) { c.Peers = []string{f.Addr} }
	r.Start()
	loaded, err := r.C.Parts().Head.History().Load(t.Context())
	coordinatortest.WantOnly(t, "load", err, "")
	// An honest peer does not give what is older.
	_, err = r.C.Parts().Secrets.PeerRecovery.FromPeers(r.Context(), loaded)
	failed := wantStep(t, err, peer.StepAnswer, f.Addr)
	if !errors.Is(failed.Err, errcode.PeerBehind) {
		t.Errorf("the honest peer answers %v", failed.Err)
	}
	// One that does is no use: the mark stands against both.
	_, err = r.C.Parts().Secrets.PeerRecovery.WithPeers(coordinatortest.ServePeer(t, &liar{key: evil.Key,
		state: old})).FromPeers(
		r.Context(), loaded)
	failed = wantStep(t, err, peer.StepHistory, "coordinator-3")
	if !errors.Is(failed.Err, history.ErrRollback) {
		t.Errorf("going back failed for another reason: %v", failed.Err)
	}
	if got := r.State(); got.Phase != authority.Recovery {
		t.Errorf("it is %s", got.Phase)
	}
	// The lie ends: it comes back by itself.
	r.Link.Lie(nil)
	r.AwaitHead(f)
}

// A store under somebody's control shows a cluster of his own, whose manifest names
// this coordinator, and his peers give the seed of it: all of it verifies. A mark of the
// true history refuses it, and so does the pin of a blank coordinator.
func TestStoreAndPeersOfAnotherCluster(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	g := coordinatortest.NewFleet(t, nil)
	g.People = coordinatortest.NewPeople(t, "mallory")
	if err := coordinatortest.SetPeople(g, "  - {name: coordinator-2, kind: coordinator, match: [\"key:"+r.Enrolment+
		"\"]}\n"); err != nil {
		t.Fatal(err)
	}
	coordinatortest.AwaitReplica(g, func(r coordinatorpeer.Record) bool { return r.Phase == "ready" })
	for i := range 50 { // it shows higher revisions, which are no evidence against the true one
		if _, err := g.Store.CompareAndSwap(t.Context(), fmt.Sprint("more/", i), 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	pin := f.Pin()
	theirs := func(t *testing.T, config func(*coordinator.Config)) *coordinatortest.Fleet {
		one := &coordinatortest.Fleet{T: t, Dir: r.Dir, Addr: "127.0.0.1:0", Faults: r.Faults, Signer: g.Signer,
			Config: config,
			First:  g, Link: new(coordinatortest.StoreLink), StopC: func() {}}
		one.Start()
		t.Cleanup(func() { one.Stop() })
		return one
	}
	t.Run("a blank one with a pin", func(t *testing.T) {
		one := theirs(t, func(c *coordinator.Config) { c.Pin = pin })
		_, err := askOnce(one, coordinatortest.Loaded(g))
		failed := wantStep(t, err, peer.StepMesh, "coordinator-1")
		if !errors.Is(failed.Err, errcode.RootNotPinned) {
			t.Errorf("refused for another reason: %v", failed.Err)
		}
		if phase, why := one.C.Phase(); phase != "recovery" {
			t.Errorf("it is %s: %s", phase, why)
		}
		// What is wrong is told first, with its own remedy; that the keys are missing follows from it.
		wait.Until(t, "status says that the root is another one", func() bool {
			found := coordinatortest.GetStatus(one).GetFindings()
			return len(found) > 0 && found[0].GetCode() == string(errcode.RootNotPinned)
		})
		found := coordinatortest.GetStatus(one).GetFindings()
		if said := found[0].GetSummary(); !strings.Contains(said, g.Pin().String()) || !strings.Contains(said, pin.String()) ||
			!strings.Contains(found[0].GetRemedy(), "--root-pin") || found[0].GetSeverity() != finding.Critical {
			t.Errorf("first it finds %v", found[0])
		}
		for _, x := range found[1:] {
			if text := x.GetSummary() + x.GetRemedy(); x.GetCode() != string(errcode.RecoveryMode) ||
				strings.Contains(text, pin.String()) || strings.Contains(text, "--root-pin") || strings.Contains(text, "brings a share") ||
				!strings.Contains(text, "FE-R122") {
				t.Errorf("and then %v", x)
			}
		}
	})
	t.Run("one that has seen the true history", func(t *testing.T) {
		r.Start()
		r.AwaitHead(f)
		r.Stop()
		one := theirs(t, nil)
		_, err := askOnce(one, coordinatortest.Loaded(g))
		failed := wantStep(t, err, peer.StepHistory, "coordinator-1")
		if !errors.Is(failed.Err, history.ErrFork) && !errors.Is(failed.Err, history.ErrRollback) {
			t.Errorf("refused for another reason: %v", failed.Err)
		}
	})
	// The pin of the true cluster refuses nothing there.
	r.Config = func(c *coordinator.Config) { c.Pin = pin }
	r.Start()
	r.AwaitHead(f)
}

// A coordinator that pins a root sets no first manifest, whose root would be another.
func TestPinAndFirstSet(t *testing.T) {
	f := coordinatortest.NewFleet(t, func(c *coordinator.Config) { c.Pin[0] = 1 })
	coordinatortest.WantCode(t, f.Set(f.Manifest("")), errcode.RootNotPinned)
	if got := coordinatortest.Keys(f, "history/"); len(got) > 0 {
		t.Errorf("the history holds %v", got)
	}
}

// Somebody in the middle passes all messages on, each over a connection of its own.
func TestRelayedRecovery(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	mitm := &peerRelay{to: f.Addr, passed: make(chan string, 16)}
	at := coordinatortest.ServePeer(t, mitm)
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = []string{at} }
	r.Start()
	_, err := askOnce(r, coordinatortest.Loaded(r))
	failed := wantStep(t, err, peer.StepProof, at)
	if !errors.Is(failed.Err, proof.ErrRefused) {
		t.Errorf("refused for another reason: %v", failed.Err)
	}
	if len(mitm.passed) > 0 {
		t.Errorf("through the relay went the %s", <-mitm.passed)
	}
	if got := coordinatortest.Audited(f, "seed.given"); len(got) > 0 {
		t.Errorf("the seed was given: %v", got)
	}
	// Somebody in the middle who asks himself, with the asker's hello: without its key
	// he has no proof.
	_, err = askAs(f, r, coordinatortest.NewTestKey(t), func(a *peer.Asking) {
		forged := slices.Clone(a.Key())
		copy(forged[32:], r.Key[32:])
		a.By(enrolledAs(r, forged, r.C.Parts().Self.Certificate()))
	})
	wantStep(t, &peer.Error{Peer: "x", Step: peer.StepProof, Err: err}, peer.StepProof, "x")
	if !errors.Is(err, errcode.PeerRefused) {
		t.Errorf("a proof without the key: %v", err)
	}
}

// askAs asks f for the secrets of its head with another key than r's.
func askAs(f, r *coordinatortest.Fleet, key ed25519.PrivateKey,
	alter func(*peer.Asking)) (*peer.Received, error) {
	f.T.Helper()
	c := r.C.Parts().Secrets.PeerRecovery.WithPeers()
	c.Cfg().Self = enrolledAs(r, key, r.C.Parts().Self.Certificate())
	s := f.State()
	a := peer.NewAsking(c, coordinatortest.Loaded(f), s.Head, s.Manifest, f.Addr)
	if alter != nil {
		alter(a)
	}
	return a.Ask(f.Context())
}

// The giver decides by its own manifest, at the newest head, and writes it down first.
func TestWhoIsGivenNothing(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	r := rs[0]
	r.Link.Lie(coordinatortest.HideReplicas)
	r.Config = func(c *coordinator.Config) { c.Peers = []string{"127.0.0.1:1"} }
	r.Start()
	s := f.State()
	nothing := func(t *testing.T, err error, code errcode.Code) {
		t.Helper()
		if !errors.Is(err, code) {
			t.Errorf("answered %v, want %s", err, code)
		}
		if got := coordinatortest.Audited(f, "seed.given"); len(got) > 0 {
			t.Errorf("the seed was given: %v", got)
		}
	}
	settled := func(t *testing.T) { // it has followed what the test did to the head
		t.Helper()
		e, err := f.Store.Get(f.Context(), history.HeadKey)
		coordinatortest.WantOnly(t, "head", err, "")
		f.AwaitState("the head again",
			func(s *authority.State) bool { return s.Phase == authority.Ready && s.HeadVersion == e.Version })
	}
	t.Run("without an entry", func(t *testing.T) {
		_, err := askAs(f, r, coordinatortest.NewTestKey(t), nil)
		nothing(t, err, errcode.PeerRefused)
		// It is not even told who answers.
		conn, err := coordinatortest.DialUnproven(f.Addr)
		coordinatortest.WantOnly(t, "dial", err, "")
		defer conn.Close()
		stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(f.Context())
		coordinatortest.WantOnly(t, "call", err, "")
		hello := &fealtyv1.PeerHello{Cluster: coordinatortest.Cluster, Head: s.Head.Hash[:], Nonce: make([]byte, 32),
			Key: proof.KeyClaim(coordinatortest.NewTestKey(t).Public().(ed25519.PublicKey)), Recipient: "age1x"}
		coordinatortest.WantOnly(t,
			"hello", stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: hello}}), "")
		if first, err := stream.Recv(); err == nil {
			t.Errorf("a stranger got %v", first)
		}
	})
	t.Run("of another cluster", func(t *testing.T) {
		_, err := askAs(f, r, r.Key,
			func(a *peer.Asking) {
				a.For(func(_ *history.Link, m *manifest.Manifest) { m.Cluster = "other.example" })
			})
		nothing(t, err, errcode.PeerRefused)
	})
	t.Run("at another head", func(t *testing.T) {
		_, err := askAs(f, r, r.Key, func(a *peer.Asking) {
			a.For(func(l *history.Link, _ *manifest.Manifest) { l.Hash[0] ^= 1 })
		})
		nothing(t, err, errcode.PeerBehind)
	})
	t.Run("to another purpose", func(t *testing.T) {
		mv := &transition.Move{From: s, Manifest: s.Manifest, Link: s.Head, Mesh: s.MeshCA()}
		nothing(t, errcode.Of(r.C.Parts().Secrets.PeerRecovery.WithPeers().Bring(r.Context(), mv, f.Addr)),
			errcode.PeerRefused)
	})
	t.Run("while the head moves", func(t *testing.T) {
		moved := false
		f.Faults.Arm("peer.before-reread", func() error {
			if !moved {
				moved = true
				e, err := f.Store.Get(f.Context(), history.HeadKey)
				if err != nil {
					return err
				}
				_, err = f.Store.CompareAndSwap(f.Context(), history.HeadKey, e.Version,
					e.Value) // the version alone says so
				return err
			}
			return nil
		})
		_, err := askAs(f, r, r.Key, nil)
		nothing(t, err, errcode.PeerBehind)
		f.Faults.Arm("peer.before-reread", func() error { return nil })
		settled(t)
	})
	t.Run("between the look and the audit entry", func(t *testing.T) {
		f.Faults.Arm("peer.before-audit", func() error {
			e, err := f.Store.Get(f.Context(), history.HeadKey)
			if err == nil {
				_, err = f.Store.CompareAndSwap(f.Context(), history.HeadKey, e.Version, e.Value)
			}
			return err
		})
		_, err := askAs(f, r, r.Key, nil)
		nothing(t, err, errcode.PeerBehind)
		f.Faults.Arm("peer.before-audit", func() error { return nil })
		settled(t)
	})
	t.Run("if it cannot be written down", func(t *testing.T) {
		f.Faults.Arm("peer.before-audit", func() error { f.Link.Cut(errors.New("the store is gone")); return nil })
		_, err := askAs(f, r, r.Key, nil)
		f.Link.Cut(nil)
		f.Faults.Arm("peer.before-audit", func() error { return nil })
		nothing(t, err, errcode.StoreUnreachable)
	})
	t.Run("by one that is not ready", func(t *testing.T) {
		_, err := askAs(f, rs[0], rs[1].Key, func(a *peer.Asking) { a.Of(r.Addr) })
		nothing(t, err, errcode.RecoveryMode)
	})
	t.Run("too often", func(t *testing.T) {
		var err error
		for range 4 * peer.PeerBurst { // it refills meanwhile
			if _, err = askAs(f, r, coordinatortest.NewTestKey(t), nil); errors.Is(err, errcode.RateLimited) {
				break
			}
		}
		nothing(t, err, errcode.RateLimited)
	})
	if n := gathered(t, f, "fealty_peer_requests_total", "outcome", string(errcode.PeerRefused)); n < 3 {
		t.Errorf("the metric counts %v refusals", n)
	}
}

// A coordinator that was dismissed is given nothing, whatever the store that it looks at says.
func TestDismissedCoordinator(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	old, err := f.Store.Get(t.Context(), history.HeadKey)
	coordinatortest.WantOnly(t, "head", err, "")
	r.Stop()
	f.Replicas = nil // the next manifest does not name it
	if err := coordinatortest.SetPeople(f, ""); err != nil {
		t.Fatal(err)
	}
	f.Replicas = rs
	given := len(coordinatortest.Audited(f, "seed.given"))

	// By what the store says: it asks nobody.
	r.Start()
	_, err = askOnce(r, coordinatortest.Loaded(r))
	if failed := wantStep(t, err, peer.StepLoad, ""); !errors.Is(failed.Err, errcode.ManifestLeavesOut) {
		t.Errorf("refused for another reason: %v", failed.Err)
	}
	r.AwaitState("the reason", func(s *authority.State) bool { return strings.Contains(s.Reason, "step 1 (load)") })
	r.Stop()
	// A store that shows it the manifest of before.
	r.Link.Lie(func(e store.Entry) store.Entry {
		if e.Key == history.HeadKey {
			return old
		}
		return e
	})
	r.Start()
	loaded, err := r.C.Parts().Head.History().Load(t.Context())
	coordinatortest.WantOnly(t, "load", err, "")
	_, err = askOnce(r, loaded)
	if failed := wantStep(t, err, peer.StepProof, f.Addr); !errors.Is(failed.Err, errcode.PeerRefused) {
		t.Errorf("refused for another reason: %v", failed.Err)
	}
	if got := len(coordinatortest.Audited(f, "seed.given")); got != given {
		t.Errorf("the seed was given to who was dismissed")
	}
}
