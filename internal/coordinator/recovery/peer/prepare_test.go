package peer_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	coordinatorpeer "github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/wait"
)

// A coordinator takes no mesh CA key but that of a transition which would be the next
// link of its history, by the signers' will, from a coordinator; and never many.
func TestWhatIsNotTaken(t *testing.T) {
	t.Parallel()
	f, rs := coordinatortest.NewPeerFleet(t, 2, nil)
	r := rs[0]
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(r coordinatorpeer.Record) bool { return r.Phase == "ready" })
	seed := keyring.NewSeed()
	keys, err := seed.Derive(make([]byte, keyring.SaltBytes))
	coordinatortest.WantOnly(t, "derive", err, "")
	otherRoot, err := pki.Root(keys.RootCA(), coordinatortest.Cluster, f.Clock().Add(-time.Hour))
	coordinatortest.WantOnly(t, "root", err, "")
	others, err := pki.NewMeshCA(otherRoot, keys.RootCA(),
		pki.MeshConfig{Cluster: coordinatortest.Cluster, Epoch: 2, Validity: time.Hour}, f.Clock())
	coordinatortest.WantOnly(t, "mesh", err, "")
	bring := func(mv *transition.Move) error {
		c := f.C.Parts().Secrets.PeerRecovery.WithPeers()
		err := c.Bring(f.Context(), mv, r.Addr)
		if err != nil {
			return errcode.Of(err)
		}
		return nil
	}
	more := coordinatortest.MoreCoordinators(t)
	for _, tc := range []struct {
		name string
		mv   func() *transition.Move
	}{
		{"another link before it", func() *transition.Move {
			return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.Previous[0] ^= 1 })
		}},
		{"a link is left out",
			func() *transition.Move {
				return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.Index++ })
			}},
		{"no signature of the signers",
			func() *transition.Move {
				return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.Signatures = nil })
			}},
		{"a signature over something else", func() *transition.Move {
			return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.Signatures[0].Signature[5] ^= 1 })
		}},
		{"the mesh CA key of another transition", func() *transition.Move {
			return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.MeshCAKey[0] ^= 1 })
		}},
		{"the mesh CA key of before", func() *transition.Move { return coordinatortest.Candidate(f, "", nil) }},
		{"the certificate of another root", func() *transition.Move {
			mv := coordinatortest.Candidate(f, more, func(t *history.Transition) { t.MeshCAKey = others.KeyID() })
			mv.Mesh = others
			return mv
		}},
		{"a manifest without it", func() *transition.Move {
			f.Replicas = rs[1:]
			defer func() { f.Replicas = rs }()
			mv := coordinatortest.Candidate(f, more, nil)
			return mv
		}},
		{"an epoch of its own making",
			func() *transition.Move {
				return coordinatortest.Candidate(f, more, func(t *history.Transition) { t.AuthorityEpoch += 7 })
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := bring(tc.mv()); err == nil {
				t.Error("it was taken")
			}
			if n := len(r.C.Parts().Secrets.Keys.Brought()); n > 0 {
				t.Errorf("%d keys are kept", n)
			}
		})
	}
	t.Run("from who is no coordinator", func(t *testing.T) {
		c := f.C.Parts().Secrets.PeerRecovery.WithPeers()
		c.Cfg().Self = enrolledAs(f, coordinatortest.NewTestKey(t), f.C.Parts().Self.Certificate())
		if err := errcode.Of(c.Bring(f.Context(), coordinatortest.Candidate(f, more, nil),
			r.Addr)); err.Code != errcode.PeerRefused {
			t.Errorf("answered %v", err)
		}
	})
	t.Run("by who is a coordinator before or after alone", func(t *testing.T) {
		f.Replicas = rs[1:]
		mv := coordinatortest.Candidate(f, more, nil)
		f.Replicas = rs
		if err := f.C.Parts().Secrets.PeerRecovery.WithPeers().Bring(f.Context(), mv, r.Addr); err == nil ||
			!strings.Contains(
				err.Error(), "both before and after") {
			t.Errorf("the key is brought to who is dismissed: %v", err)
		}
		if got := f.C.Parts().Secrets.PeerRecovery.Prepare(f.Context(), mv); len(got) > 0 {
			t.Errorf("prepared %v", got)
		}
	})
	if got := coordinatortest.Audited(r, "mesh.prepared"); len(got) > 0 {
		t.Errorf("the audit log says that keys were taken: %v", got)
	}
	// A key that is in order is taken, up to a bound; the oldest goes.
	var brought []*transition.Move
	for range keychain.MaxPrepared + 2 {
		mv := coordinatortest.Candidate(f, coordinatortest.MoreCoordinators(t), nil)
		if err := bring(mv); err != nil {
			t.Fatal(err)
		}
		brought = append(brought, mv)
	}
	for i, mv := range brought {
		if have := slices.Contains(r.C.Parts().Secrets.Keys.Brought(), mv.Mesh.KeyID()); have != (i >= 2) {
			t.Errorf("key %d is kept: %v", i, have)
		}
	}
	// The head shows which of them counts; the others are forgotten.
	if err := coordinatortest.SetPeople(f, more); err != nil {
		t.Fatal(err)
	}
	r.AwaitHead(f)
	wait.Until(t, "no key is kept after the head", func() bool {
		return len(r.C.Parts().Secrets.Keys.Brought()) == 0
	})
}

// Nothing of what passes between coordinators, or is written, logged, counted or
// answered about it, holds a secret in a form that can be read.
func TestPeerRecoveryTellsNoSecret(t *testing.T) {
	t.Parallel()
	var log logs.Text
	f, rs := coordinatortest.NewPeerFleet(t, 2, func(c *coordinator.Config) {
		c.Log = log.Logger(slog.LevelDebug)
	})
	s := f.State()
	var said strings.Builder
	bad := coordinatortest.ServePeer(t, &liar{key: rs[1].Key, state: s, secrets: func(m *fealtyv1.PeerSecrets) {
		raw, err := proto.Marshal(m)
		coordinatortest.WantOnly(t, "marshal", err, "")
		said.Write(raw)
		fmt.Fprintf(&said, "%v %+v", m, m)
		m.MeshCa = nil
	}})
	config := f.Config
	rs[0].Config = func(c *coordinator.Config) { config(c); c.Peers = []string{bad} }
	rs[0].Start()
	rs[0].AwaitHead(f)
	rs[0].Link.Lie(coordinatortest.HideReplicas)
	_, err := rs[0].C.Parts().Secrets.PeerRecovery.WithPeers(bad).FromPeers(f.Context(), coordinatortest.Loaded(rs[0]))
	rs[0].Link.Lie(nil)
	wantStep(t, err, peer.StepMesh, bad)
	fmt.Fprintf(&said, "%v %+v", err, err)
	if err := coordinatortest.SetPeople(f, coordinatortest.MoreCoordinators(t)); err != nil {
		t.Fatal(err)
	}
	rs[0].AwaitHead(f)
	next := f.State()

	thief := coordinatortest.Steal(s)
	secrets := map[string][]byte{"seed": thief.Seed.Reveal(), "record MAC key": thief.Keys.RecordMAC(),
		"store key": thief.Keys.StoreSeal()}
	for what, st := range map[string]*authority.State{"mesh CA key": s, "next mesh CA key": next} {
		raw, err := st.MeshCA().Key().Bytes()
		coordinatortest.WantOnly(t, "mesh key", err, "")
		secrets[what] = raw
	}
	places := map[string][]byte{"log": log.Bytes(), "messages and errors": []byte(said.String())}
	l, err := f.Store.List(t.Context(), "")
	coordinatortest.WantOnly(t, "list", err, "")
	for _, e := range l.Entries {
		places["store "+e.Key] = e.Value
	}
	for _, x := range []*coordinatortest.Fleet{f, rs[0]} {
		families, err := x.C.Registry().Gather()
		coordinatortest.WantOnly(t, "gather", err, "")
		places["metrics"] = append(places["metrics"], fmt.Sprint(families)...)
	}
	if text := string(places["log"]); !strings.Contains(text, "secrets were handed over between coordinators") ||
		!strings.Contains(text, "peer recovery failed") {
		t.Error("the log says nothing of the recovery: this test looks at nothing")
	}
	for where, text := range places {
		for what, secret := range secrets {
			if leaked := coordinatortest.FormOf(text, secret); leaked != "" {
				t.Errorf("%s holds the %s in %s", where, what, leaked)
			}
		}
	}
}

// Secrets that a peer sends are refused or right, and never a panic: the secrets that it gives.
func FuzzPeerSecrets(f *testing.F) {
	d := coordinatortest.NewDesk(f)
	if err := d.Set(""); err != nil {
		f.Fatal(err)
	}
	s := d.State()
	mesh := s.MeshCA()
	loaded, err := d.C.Parts().Head.History().Load(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	d.C.Parts().Head.Put(&authority.State{Phase: authority.Recovery}, time.Time{})
	f.Add(s.Root.Raw, mesh.Certificate().Raw, s.Manifest.Bytes())
	f.Add([]byte{}, []byte{}, []byte{})
	f.Add(mesh.Certificate().Raw, s.Root.Raw, s.Manifest.Bytes())
	f.Add(s.Root.Raw, []byte("0"), s.Manifest.Bytes())
	f.Fuzz(func(t *testing.T, root, meshCA, m []byte) {
		a := peer.NewAsking(d.C.Parts().Secrets.PeerRecovery, loaded, s.Head, s.Manifest, "")
		secrets, key := coordinatortest.Brought(s)
		r := &peer.Received{Secrets: secrets}
		err := a.Verify(t.Context(), r, key, &fealtyv1.PeerSecrets{Root: root, MeshCa: meshCA, Manifest: m})
		if err == nil && (string(m) != string(s.Manifest.Bytes()) || r.Mesh.KeyID() != s.MeshKey ||
			!r.Root.Equal(s.Root)) {
			t.Fatal("something else was accepted")
		}
		if err != nil && (a.Step() < peer.StepManifest || a.Step() > peer.StepMesh) {
			t.Fatalf("failed at step %d: %v", a.Step(), err)
		}
	})
}

// And what it brings to prepare.
func FuzzPeerCandidate(f *testing.F) {
	d := coordinatortest.NewDesk(f)
	if err := d.Set(""); err != nil {
		f.Fatal(err)
	}
	s := d.State()
	mesh := s.MeshCA()
	recipient, err := keyring.NewEphemeral()
	if err != nil {
		f.Fatal(err)
	}
	tr, _ := s.Chain.Next(history.KindRekey, s.Manifest)
	tr.Reason = "x"
	mv := &transition.Move{From: s, Manifest: s.Manifest, Secrets: s.Secrets, Root: s.Root}
	if err := mv.NewMesh(tr, d.Clock()); err != nil {
		f.Fatal(err)
	}
	if err := mv.Seal(tr); err != nil {
		f.Fatal(err)
	}
	raw, err := mv.Link.Encode()
	if err != nil {
		f.Fatal(err)
	}
	shown, err := proof.OwnCoordinator(d.C.EnrolmentKey(), nil)
	if err != nil {
		f.Fatal(err)
	}
	g := peer.NewGreeted(s, d.C.EnrolmentKey(), shown)
	sealed, err := keyring.HandOver(recipient.Public(), keyring.Handover{Purpose: string(proof.Prepare),
		Cluster: s.Manifest.Cluster, From: d.C.EnrolmentKey(), To: d.C.EnrolmentKey(),
		Head: mv.Link.Hash}, keyring.Handed{Mesh: mv.Mesh.Key()})
	if err != nil {
		f.Fatal(err)
	}
	if k, err := d.C.Parts().Secrets.PeerRecovery.TakeKey(g, &fealtyv1.PeerCandidate{Transition: raw, Sealed: sealed,
		MeshCa: mv.Mesh.Certificate().Raw}, recipient); err != nil || k.Link.Hash != mv.Link.Hash {
		f.Fatalf("what is right is refused: %v", err)
	}
	f.Add(raw, s.Manifest.Bytes(), sealed, mv.Mesh.Certificate().Raw)
	f.Add(raw, []byte{}, sealed, mesh.Certificate().Raw)
	f.Add([]byte("{}"), []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, transition, m, sealed, cert []byte) {
		k, err := d.C.Parts().Secrets.PeerRecovery.TakeKey(g, &fealtyv1.PeerCandidate{Transition: transition,
			Manifest: m,
			Sealed:   sealed, MeshCa: cert}, recipient)
		if err == nil && (k.Link.Hash != mv.Link.Hash || k.Mesh.KeyID() != mv.Mesh.KeyID()) {
			t.Fatalf("took %x", transition)
		}
	})
}
