package coordinator_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

func (f *fleet) reseedClient() fealtyv1.ReseedServiceClient {
	f.t.Helper()
	return fealtyv1.NewReseedServiceClient(f.localConn())
}

// prepare has the coordinator make a seed, and returns what commits it, signed.
func (f *fleet) prepare(m []byte) *fealtyv1.CommitReseedRequest {
	f.t.Helper()
	p, err := f.reseedClient().PrepareReseed(f.ctx(), &fealtyv1.PrepareReseedRequest{Manifest: m})
	if err != nil {
		f.t.Fatalf("prepare: %v", err)
	}
	return &fealtyv1.CommitReseedRequest{Change: p.GetChange(),
		Reason: "test", Signatures: f.signChange(p.GetChange(), f.signer)}
}

// signChange signs a change of root.
func (f *fleet) signChange(change []byte, signers ...ed25519.PrivateKey) (out []*fealtyv1.ManifestSignature) {
	for _, signer := range signers {
		key, err := manifest.NewKey(signer.Public().(ed25519.PublicKey))
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, &fealtyv1.ManifestSignature{Key: key.String(),
			Signature: ed25519.Sign(signer, snapshot.PAE(snapshot.TypeRootChange, testCluster, change))})
	}
	return out
}

// reseed gives the fleet a new seed.
func (f *fleet) reseed() *fealtyv1.CommitReseedResponse {
	f.t.Helper()
	resp, err := f.reseedClient().CommitReseed(f.ctx(), f.prepare(nil))
	if err != nil {
		f.t.Fatalf("reseed: %v", err)
	}
	return resp
}

// former is what somebody kept who had the seed before it was changed.
type former struct {
	seed   keyring.Seed
	keys   keyring.Keys
	root   *x509.Certificate
	bundle *identity.Bundle
	auth   *store.Authenticator
	chain  *history.Verified
}

func (f *fleet) keep() former {
	f.t.Helper()
	s := f.c.Rooms().Head.State()
	thief := steal(s)
	auth, err := store.NewAuthenticator(thief.keys.RecordMAC())
	if err != nil {
		f.t.Fatal(err)
	}
	return former{seed: thief.Seed, keys: thief.keys, root: s.Root, bundle: f.c.Rooms().Bundle.View().Bundle,
		auth: auth, chain: s.Chain}
}

// records returns what every record says, whatever seed it is under.
func (f *fleet) recordText() string {
	f.t.Helper()
	s := f.c.Rooms().Head.State()
	var out []string
	for _, prefix := range []string{record.MemberPrefix, record.CountPrefix, desired.Prefix, record.BanIDPrefix,
		record.BanKeyPrefix} {
		l, err := f.store.List(context.Background(), prefix)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, e := range l.Entries {
			plain, err := s.Records.Auth.Open(e.Key, e.Value)
			if err != nil {
				f.t.Fatalf("%s: %v", e.Key, err)
			}
			out = append(out, e.Key+" "+string(plain))
		}
	}
	return strings.Join(out, "\n")
}

// rejoin comes back by proof of the last key, under the root in force.
func (n *node) rejoin() error {
	n.f.t.Helper()
	prover := proof.NewSVIDProver(n.id.Kind(), n.id.Name(), n.key)
	key, err := newKey()
	if err != nil {
		return err
	}
	n.key = key
	return n.join(n.id.Kind(), prover)
}

// verified returns a trust bundle that was sent, as a node verifies it that pins
// configRoot.
func (n *node) verified(envelope []byte, configRoot ed25519.PublicKey) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(envelope)
	if err != nil {
		return nil, err
	}
	return snapshot.Verify(signed, snapshot.Trust{Me: n.id, Incarnation: identity.KeyID{1}, ConfigRoot: configRoot},
		snapshot.Marks{}, n.f.clock())
}

// A reseed changes every key and loses no member: streams stand, members are told
// by what the signers signed, and come under the new root.
func TestReseed(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	a, b := f.member("a"), f.member("b")
	banned := f.member("c")
	if _, err := f.local().member.BanMember(f.ctx(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "c", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	unused := f.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "late"})
	old := f.keep()
	held, err := a.verified(a.grant.GetTrustBundle().GetEnvelope(), f.c.Rooms().Head.State().Bundle.PublicRoot())
	if err != nil {
		t.Fatal(err)
	}
	a.believes = old.bundle // as a node does until it is told
	stream, err := newClients(a.conn()).agent.Connect(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	next := func(want func(*fealtyv1.ConnectResponse) bool) *fealtyv1.ConnectResponse {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatalf("the stream ended: %v", err)
			}
			if want(m) {
				return m
			}
		}
	}
	believed := func(m *fealtyv1.ConnectResponse) bool {
		return m.GetSnapshot().GetScope() == string(snapshot.ScopeTrustBundle)
	}
	next(believed)
	records := f.recordText()
	before := f.c.Rooms().Head.State()

	// Nothing happens before the signers signed.
	commit := f.prepare(nil)
	dry := &fealtyv1.CommitReseedRequest{Change: commit.Change, Signatures: commit.Signatures, DryRun: true}
	if _, err := f.reseedClient().CommitReseed(f.ctx(), dry); err != nil {
		t.Fatalf("dry run: %v", err)
	}
	if f.c.Rooms().Head.State().Head.Hash != before.Head.Hash {
		t.Fatal("a dry run moved the head")
	}
	done, err := f.reseedClient().CommitReseed(f.ctx(), commit)
	if err != nil {
		t.Fatal(err)
	}
	after := f.c.Rooms().Head.State()
	if after.Head.SeedEpoch != 2 || after.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
		after.RootPin == before.RootPin || after.MeshKey == before.MeshKey {
		t.Fatalf("seed epoch %d, authority epoch %d, root %s, mesh CA %s; before %s, %s", after.Head.SeedEpoch,
			after.Head.AuthorityEpoch, after.RootPin, after.MeshKey, before.RootPin, before.MeshKey)
	}
	if done.GetSeedEpoch() != 2 || done.GetMembers() != 3 || done.GetTokensVoided() != 4 ||
		string(done.GetRootKey()) != string(after.RootPin[:]) {
		t.Errorf("the answer says %v", done)
	}
	if got := f.recordText(); got != records {
		t.Errorf("the records are\n%s\nwant\n%s", got, records)
	}

	// The stream that stood is told, in the order in which it can verify it.
	changes := next(func(m *fealtyv1.ConnectResponse) bool {
		if believed(m) {
			if _, err := a.verified(m.GetSnapshot().GetEnvelope(), before.Bundle.PublicRoot()); err != nil {
				t.Fatalf("a bundle that it cannot verify comes first: %v", err)
			}
		}
		return m.GetRootChanges() != nil
	}).GetRootChanges()
	var signed []*snapshot.SignedRootChange
	for _, raw := range changes.GetChanges() {
		s, err := snapshot.UnmarshalRootChange(raw)
		if err != nil {
			t.Fatal(err)
		}
		signed = append(signed, s)
	}
	change, err := snapshot.VerifyRootChanges(signed, held, before.RootPin)
	if err != nil {
		t.Fatal(err)
	}
	if change.Root != after.RootPin || !change.ConfigRoot.Equal(after.Bundle.PublicRoot()) {
		t.Fatalf("the change of root says %+v", change)
	}
	v, err := a.verified(next(believed).GetSnapshot().GetEnvelope(), change.ConfigRoot)
	if err != nil {
		t.Fatal(err)
	}
	content, _ := v.TrustBundle()
	if len(content.Roots) != 1 || string(content.Roots[0]) != string(after.Root.Raw) ||
		len(content.RetiredRoots) != 1 || string(content.RetiredRoots[0]) != string(before.Root.Raw) {
		t.Fatalf("the bundle names %d roots and %d retired ones", len(content.Roots), len(content.RetiredRoots))
	}
	if next(func(m *fealtyv1.ConnectResponse) bool { return m.GetRenewNow() != nil }) == nil {
		t.Fatal("nobody asks for a renewal")
	}

	// Under the old root it is still a member, and gets under the new one.
	a.believes = nil
	if err := a.renew(true); err != nil {
		t.Fatalf("renew under the old root: %v", err)
	}
	if err := b.rejoin(); err != nil {
		t.Fatalf("rejoin: %v", err)
	}
	if _, err := after.MeshCA(), b.chain[1].CheckSignatureFrom(after.Root); err != nil {
		t.Errorf("b is not under the new root: %v", err)
	}
	wantCode(t, banned.rejoin(), explain.JoinBanned)
	// Who holds the stream all the while is not cut off.
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "a"}); err != nil {
		t.Errorf("the stream ended: %v", err)
	}

	// A token pins the root that is gone: it is void, also for who knows the new one.
	wantCode(t, f.node().join(identity.Data, proof.NewTokenProver(unused)), explain.TokenUnknown)
	f.member("d")
	if st, err := f.local().status.GetStatus(f.ctx(), &fealtyv1.GetStatusRequest{}); err != nil ||
		st.GetSeedEpoch() != 2 {
		t.Errorf("status: seed epoch %d, %v", st.GetSeedEpoch(), err)
	}
	audit, err := f.store.List(context.Background(), auditlog.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"manifest.reseed.prepare"`, `"manifest.reseed"`} {
		if !slices.ContainsFunc(audit.Entries,
			func(e store.Entry) bool { return strings.Contains(string(e.Value), want) }) {
			t.Errorf("no audit entry %s", want)
		}
	}

	// A restart comes up under the new seed; what was sealed of the old one is gone.
	for _, prefix := range []string{sealed.Prefix, coordinator.ReseedPrefix} {
		l, err := f.store.List(context.Background(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Entries {
			if strings.Contains(e.Key, fmt.Sprintf("%x", before.Head.Salt[:])) || strings.Contains(e.Key,
				before.Head.Hash.String()) || prefix == coordinator.ReseedPrefix {
				t.Errorf("%s is left", e.Key)
			}
		}
	}
	f.restart()
	if s := f.c.Rooms().Head.State(); s.Phase != authority.Ready || s.RootPin != after.RootPin || s.Head.SeedEpoch != 2 {
		t.Fatalf("after a restart: %s (%s), seed epoch %d", s.Phase, s.Reason, s.Head.SeedEpoch)
	}
	if err := b.renew(true); err != nil {
		t.Errorf("renew after a restart: %v", err)
	}

	// And once more.
	f.reseed()
	if s := f.c.Rooms().Head.State(); s.Head.SeedEpoch != 3 || len(s.Bundle.RootChanges) != 2 {
		t.Fatalf("after a second reseed: seed epoch %d, %d changes of root", s.Head.SeedEpoch,
			len(s.Bundle.RootChanges))
	}
	if err := b.rejoin(); err != nil {
		t.Errorf("rejoin after a second reseed: %v", err)
	}
	// Who missed both gets by on what the signers signed.
	signed = nil
	for _, raw := range f.rootChanges() {
		s, err := snapshot.UnmarshalRootChange(raw)
		if err != nil {
			t.Fatal(err)
		}
		signed = append(signed, s)
	}
	if change, err := snapshot.VerifyRootChanges(signed, held, before.RootPin); err != nil || change.Root != f.pin() {
		t.Errorf("both changes lead to %s, %v; want %s", change.Root, err, f.pin())
	}

	// The old root leaves the bundle with the last SVID under it.
	f.advance(26 * time.Hour)
	f.c.Rooms().Bundle.LookAgain()
	for deadline := time.Now().Add(time.Minute); len(f.c.Rooms().Bundle.View().Bundle.RetiredRoots()) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the old roots stay in the bundle")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// rootChanges asks as a stranger for the changes of root.
func (f *fleet) rootChanges() [][]byte {
	f.t.Helper()
	stream, err := fealtyv1.NewReseedServiceClient(f.stranger()).GetRootChanges(f.ctx())
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.GetChanges().GetChanges()
}

// What a reseed needs, and what it is refused without.
func TestReseedRefusals(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(edit func(*fealtyv1.CommitReseedRequest)) error {
		t.Helper()
		req := f.prepare(nil)
		edit(req)
		_, err := f.reseedClient().CommitReseed(f.ctx(), req)
		return err
	}
	head := f.c.Rooms().Head.State().Head.Hash
	for _, tc := range []struct {
		name string
		edit func(*fealtyv1.CommitReseedRequest)
		want explain.Code
	}{
		{"nobody signed", func(r *fealtyv1.CommitReseedRequest) { r.Signatures = nil }, explain.ManifestUnsigned},
		{"a stranger signed", func(r *fealtyv1.CommitReseedRequest) { r.Signatures = f.signChange(r.Change, stranger) },
			explain.SignatureForeign},
		{"another seed was signed", func(r *fealtyv1.CommitReseedRequest) {
			f.prepare(nil)
		}, explain.ReseedUnprepared},
		{"the change was altered",
			func(r *fealtyv1.CommitReseedRequest) { r.Change = append(slices.Clone(r.Change), ' ') }, explain.ReseedUnprepared},
		{"consent to a set", func(r *fealtyv1.CommitReseedRequest) {
			set := &fealtyv1.SetManifestRequest{Manifest: f.manifest("")}
			f.sign(set, head)
			r.Signatures = set.Signatures
		}, explain.ManifestMissigned},
		{"consent of another cluster", func(r *fealtyv1.CommitReseedRequest) {
			r.Signatures[0].Signature = ed25519.Sign(f.signer,
				snapshot.PAE(snapshot.TypeRootChange, "other.example", r.Change))
		}, explain.ManifestMissigned},
		{"too late", func(*fealtyv1.CommitReseedRequest) { f.advance(coordinator.PreparedLife) }, explain.ReseedUnprepared},
		{"a reason without end",
			func(r *fealtyv1.CommitReseedRequest) { r.Reason = strings.Repeat("x", record.MaxReasonBytes+1) },
			explain.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) { wantCode(t, commit(tc.edit), tc.want) })
	}
	if got := f.c.Rooms().Head.State().Head.Hash; got != head {
		t.Fatal("the head moved")
	}
	if _, err := f.reseedClient().PrepareReseed(f.ctx(),
		&fealtyv1.PrepareReseedRequest{Manifest: []byte(strings.Replace(string(f.manifest("")), testCluster,
			"other.example", 1))}); err == nil {
		t.Error("a seed was prepared for another cluster")
	}
	// The history moved on while people signed.
	req := f.prepare(nil)
	if err := f.set(f.manifest("  - {name: more, kind: data, match: [\"token:more\"]}\n")); err != nil {
		t.Fatal(err)
	}
	_, err = f.reseedClient().CommitReseed(f.ctx(), req)
	wantCode(t, err, explain.ManifestStale)
	// A restart forgets what was prepared.
	req = f.prepare(nil)
	f.restart()
	_, err = f.reseedClient().CommitReseed(f.ctx(), req)
	wantCode(t, err, explain.ReseedUnprepared)
	// And with everything in order it is done, with another manifest at once.
	more := f.manifest("  - {name: evenmore, kind: data, match: [\"token:evenmore\"]}\n")
	if _, err := f.reseedClient().CommitReseed(f.ctx(), f.prepare(more)); err != nil {
		t.Fatal(err)
	}
	if s := f.c.Rooms().Head.State(); s.Head.SeedEpoch != 2 || string(s.Manifest.Bytes()) != string(more) {
		t.Fatalf("seed epoch %d, manifest %s", s.Head.SeedEpoch, s.Manifest.Hash())
	}
}

// A coordinator that stops at any point of a reseed, or fails there and goes on,
// has one seed or the other, whole: every record, and every way back.
func TestReseedInterrupted(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for i, tc := range []struct {
		point string
		epoch uint64 // afterwards
	}{
		{"set.after-seed", 1},
		{"reseed.after-freeze", 1},
		{"reseed.after-ledger", 1},
		{"set.before-swap", 1},
		{"set.after-swap", 2},
		{"adopt.begin", 2},
		{"reseed.after-batch", 2},
		{"reseed.after-move", 2},
		{"adopt.before-identity", 2},
	} {
		for _, restart := range inTurn(i, false, true) {
			t.Run(fmt.Sprintf("%s/restart=%v", tc.point, restart), func(t *testing.T) {
				f := readyFleet(t, nil)
				a := f.member("a")
				f.member("b")
				records := f.recordText()
				req := f.prepare(nil)
				old := f.keep()
				f.faults.Fail(tc.point, crash)
				_, err := f.reseedClient().CommitReseed(f.ctx(), req)
				if tc.epoch == 1 && err == nil {
					t.Fatal("the crash was survived")
				}
				if restart {
					f.stop()
				}
				// Who has the old seed uses the gap.
				mallory := record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"}
				forged := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"), mallory)
				f.faults.Disarm(tc.point)
				if restart {
					f.start()
				} else {
					f.c.Rooms().Head.LookAgain()
				}
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
					s := f.c.Rooms().Head.State()
					if s.Phase == authority.Ready && s.Head.SeedEpoch == tc.epoch &&
						!f.c.Rooms().Authority.Unsettled().Load() && f.thawed() {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("phase %s (%s), want ready under seed epoch %d; thawed: %v", s.Phase, s.Reason,
							tc.epoch, f.thawed())
					}
				}
				if got := f.recordText(); got != records {
					t.Errorf("the records are\n%s\nwant\n%s", got, records)
				}
				if err := a.rejoin(); err != nil {
					t.Errorf("rejoin: %v", err)
				}
				f.member("new")
				if tc.epoch == 2 {
					if _, err := f.store.Commit(f.ctx(), store.Tx{Put: []store.Write{forged}}); err != nil {
						t.Fatal(err)
					}
					if _, err := record.Get[record.Member](f.ctx(), f.c.Rooms().Head.State().Records,
						forged.Key); !errors.Is(err, store.ErrForged) {
						t.Errorf("a record of the old seed: %v", err)
					}
					return
				}
				// The same signatures do, if the process still has the seed.
				_, err = f.reseedClient().CommitReseed(f.ctx(), req)
				if restart {
					wantCode(t, err, explain.ReseedUnprepared)
				} else if err != nil {
					t.Fatalf("once more: %v", err)
				}
			})
		}
	}
}

func (f *fleet) thawed() bool {
	_, err := f.store.Get(context.Background(), record.FreezeKey)
	return errors.Is(err, store.ErrNotFound)
}

type recordsOf struct{ auth *store.Authenticator }

func records0(o former) recordsOf { return recordsOf{o.auth} }

func (r recordsOf) mustPut(t testing.TB, key string, v any) store.Write {
	t.Helper()
	w, err := record.Records{Auth: r.auth}.Seal(key, v)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Changes that meet a reseed wait for it, and none is lost.
func TestJoinsDuringAReseed(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	var members []*node
	for i := range 4 {
		members = append(members, f.member(fmt.Sprintf("m%d", i)))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, n := range members {
		n.believes = f.c.Rooms().Bundle.View().Bundle
		conn := n.conn()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				key, err := newKey()
				if err != nil {
					t.Error(err)
					return
				}
				csr, err := ca.NewCSR(key)
				if err != nil {
					t.Error(err)
					return
				}
				// The connection stands over the change of root.
				if _, err := newClients(conn).admission.Renew(f.ctx(),
					&fealtyv1.RenewRequest{Name: n.id.Name(), Csr: csr}); err != nil {
					if errors.Is(explain.Of(err), explain.RenewOlderKey) {
						return // it goes on with another key than its connection's
					}
					t.Errorf("renew %s: %v", n.id.Name(), err)
					return
				}
			}
		})
	}
	for range 3 {
		f.reseed()
	}
	close(stop)
	wg.Wait()
	if got := strings.Count(f.recordText(), record.MemberPrefix); got != len(members) {
		t.Errorf("%d members, want %d", got, len(members))
	}
	if n := forgedRecords(f.c); n != 0 {
		t.Errorf("%v alarms of forged records", n)
	}
}

// Who kept the old seed can make nothing with it that anybody believes after the
// change: no head, no record, no mesh CA, no trust bundle, no change of root.
func TestFormerSeedIsWorthNothing(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	a := f.member("a")
	bystander, err := a.verified(a.grant.GetTrustBundle().GetEnvelope(), f.c.Rooms().Head.State().Bundle.PublicRoot())
	if err != nil {
		t.Fatal(err)
	}
	old := f.keep()
	before := f.c.Rooms().Head.State()
	input, err := f.c.Rooms().Bundle.Read(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	f.reseed()
	now := f.clock()
	s := f.c.Rooms().Head.State()
	believed := f.c.Rooms().Bundle.View().Bundle

	// A mesh CA of its own, with a coordinator and a member under it.
	mesh, err := ca.NewMeshCA(old.root, old.keys.RootCA(),
		ca.MeshConfig{Cluster: testCluster, Epoch: 7, Validity: time.Hour * 48}, now)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := ca.NewIssuer(mesh, testCluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range identity.Kinds() {
		id, err := identity.New(testCluster, kind, "mallory")
		if err != nil {
			t.Fatal(err)
		}
		key, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := issuer.Issue(ca.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour}, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range [][]*x509.Certificate{{leaf, mesh.Certificate()}, {leaf, mesh.Certificate(), old.root}} {
			if v, err := believed.Verify(chain, now); !errors.Is(err, identity.ErrUntrusted) {
				t.Errorf("%s under a mesh CA of the old root: %v, %v", kind, v.ID, err)
			}
		}
		// Nor does the mesh CA that was in force make a coordinator.
		if kind == identity.Coordinator {
			former, err := ca.NewIssuer(before.MeshCA(), testCluster)
			if err != nil {
				t.Fatal(err)
			}
			mine, err := former.Issue(ca.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour}, now)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := believed.Verify([]*x509.Certificate{mine, before.MeshCA().Certificate()},
				now); !errors.Is(err, identity.ErrUntrusted) {
				t.Errorf("a coordinator under the old mesh CA: %v", err)
			}
		}
	}

	// A trust bundle, as it would have been, under a higher version and epoch.
	forger := &authority.State{Manifest: before.Manifest, Head: before.Head,
		Secrets: secretsOf(old.seed, before.Head.Salt), Root: old.root, MeshKey: before.MeshKey}
	forger.Head.AuthorityEpoch += 10
	forger.Bundle = &bundle.Authority{
		Manifest: forger.Manifest, Head: forger.Head, Root: forger.Root, MeshKey: forger.MeshKey,
		ConfigRoot: old.keys.ConfigRoot, ConfigKey: old.keys.ConfigSigning,
	}
	forgedBundle, err := forger.Bundle.Sign(input, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.verified(forgedBundle.Signed, s.Bundle.PublicRoot()); !errors.Is(err, snapshot.ErrRejected) {
		t.Errorf("a trust bundle of the old config root key: %v", err)
	}

	// A record.
	w := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"),
		record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"})
	if _, err := f.store.Commit(t.Context(), store.Tx{Put: []store.Write{w}}); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Get[record.Member](t.Context(), s.Records, w.Key); !errors.Is(err, store.ErrForged) {
		t.Errorf("a record of the old seed: %v", err)
	}
	if _, err := f.store.Commit(t.Context(), store.Tx{Delete: []string{w.Key}}); err != nil {
		t.Fatal(err)
	}

	// A change of root to keys of its own: with no signature, with a stranger's, with
	// the old keys', with that of the change that was made, and one for elsewhere.
	changes := f.rootChanges()
	genuine, err := snapshot.UnmarshalRootChange(changes[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.VerifyRootChanges([]*snapshot.SignedRootChange{genuine}, bystander,
		before.RootPin); err != nil {
		t.Fatalf("the genuine change: %v", err)
	}
	mine := snapshot.RootChange{
		ClusterID: testCluster, Index: s.Head.Index, Previous: snapshot.Digest(before.Head.Hash),
		Manifest:       snapshot.Digest(before.Head.Manifest),
		AuthorityEpoch: 9, SeedEpoch: 2, PreviousRoot: before.RootPin, Root: identity.KeyID{6, 6, 6},
		ConfigRoot:     coordinator.Ed25519Public(old.keys.ConfigSigning(7)),
		TransactionKey: coordinator.Ed25519Public(old.keys.Transaction()),
	}
	raw, err := mine.Encode()
	if err != nil {
		t.Fatal(err)
	}
	statement, err := mine.Statement()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key keyring.Signer) snapshot.SignerSignature {
		sig, err := key.Sign(rand.Reader, statement, crypto.Hash(0))
		if err != nil {
			t.Fatal(err)
		}
		return snapshot.SignerSignature{Key: [32]byte(coordinator.Ed25519Public(key)), Signature: [64]byte(sig)}
	}
	asSigner := sign(old.keys.ConfigRoot())
	asSigner.Key = genuine.Signatures[0].Key
	for name, sigs := range map[string][]snapshot.SignerSignature{
		"nobody's": nil, "the old transaction key's": {sign(old.keys.Transaction())}, "the old config root " +
			"key's": {sign(old.keys.ConfigRoot())},
		"one in a signer's name": {asSigner}, "that of the change that was made": genuine.Signatures,
	} {
		if _, err := snapshot.VerifyRootChanges([]*snapshot.SignedRootChange{{Change: raw, Signatures: sigs}},
			bystander, before.RootPin); !errors.Is(err, snapshot.ErrNoRootChange) {
			t.Errorf("a change of root with %s signature: %v", name, err)
		}
	}
	// The change that was made leads nobody away from the new root.
	if _, err := snapshot.VerifyRootChanges([]*snapshot.SignedRootChange{genuine}, bystander,
		s.RootPin); !errors.Is(err, snapshot.ErrNoRootChange) {
		t.Errorf("the change that was made, once more: %v", err)
	}

	// A head: the old history goes on without the reseed.
	rekey, _ := old.chain.Next(history.KindRekey, old.chain.Manifest())
	rekey.MeshCAKey = mesh.KeyID()
	elsewhere := newMemStore()
	blobs, err := f.store.List(t.Context(), "history/")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range blobs.Entries {
		if e.Key == history.HeadKey {
			e.Value = old.chain.Head().Encode()
		}
		if _, err := elsewhere.CompareAndSwap(t.Context(), e.Key, 0, e.Value); err != nil {
			t.Fatal(err)
		}
	}
	base, err := history.New(elsewhere).Follow(t.Context(), nil, coordinator.Ed25519Public(old.keys.Transaction()))
	if err != nil {
		t.Fatal(err)
	}
	forked, err := history.New(elsewhere).Append(t.Context(), base, rekey, old.chain.Manifest(), old.keys.Transaction())
	if err != nil {
		t.Fatal(err)
	}
	l, err := elsewhere.List(t.Context(), "history/")
	if err != nil {
		t.Fatal(err)
	}
	tx := store.Tx{}
	for _, e := range l.Entries {
		tx.Put = append(tx.Put, store.Write{Key: e.Key, Value: e.Value})
	}
	genuineHead, err := f.store.Get(t.Context(), history.HeadKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	f.c.Rooms().Head.LookAgain()
	f.awaitPhase(authority.Recovery)
	f.restart()
	if s := f.c.Rooms().Head.State(); s.Phase != authority.Recovery {
		t.Fatalf("a restart under a forged head is %s, head %v (%v)", s.Phase, s.Head.Hash, forked.Head().Hash)
	}
	if _, err := f.store.Commit(t.Context(),
		store.Tx{Put: []store.Write{{Key: history.HeadKey, Value: genuineHead.Value}}}); err != nil {
		t.Fatal(err)
	}
	f.c.Rooms().Head.LookAgain()
	f.awaitPhase(authority.Ready)
}

func (f *fleet) awaitPhase(want authority.Phase) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); f.c.Rooms().Head.State().Phase != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s := f.c.Rooms().Head.State()
			f.t.Fatalf("phase %s (%s), want %s", s.Phase, s.Reason, want)
		}
	}
}

// What is between two seeds cannot be altered: a ledger that was exchanged, or a
// record that was, is not taken over.
func TestMovedRecordsAreThoseOfTheLedger(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, f *fleet, old former) (lost bool){
		"a record is altered under the old seed": func(t *testing.T, f *fleet, old former) bool {
			w := records0(old).mustPut(t, record.MemberKey(identity.Data, "a"),
				record.Member{Kind: identity.Data, Name: "a", State: record.Active,
					Entry: "pool", Organizations: []string{"evil"}})
			_, err := f.store.Commit(t.Context(), store.Tx{Put: []store.Write{w}})
			if err != nil {
				t.Fatal(err)
			}
			return false
		},
		"a record is added under the old seed": func(t *testing.T, f *fleet, old former) bool {
			w := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"),
				record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"})
			_, err := f.store.Commit(t.Context(), store.Tx{Put: []store.Write{w}})
			if err != nil {
				t.Fatal(err)
			}
			return false
		},
		"the ledger is sealed under the old seed": func(t *testing.T, f *fleet, old former) bool {
			l, err := f.store.List(t.Context(), coordinator.LedgerPrefix)
			if err != nil || len(l.Entries) != 1 {
				t.Fatalf("%d parts of a ledger, %v", len(l.Entries), err)
			}
			e := l.Entries[0]
			if _, err := f.store.Commit(t.Context(),
				store.Tx{Put: []store.Write{{Key: e.Key, Value: old.auth.Seal(e.Key, []byte("{}"))}}}); err != nil {
				t.Fatal(err)
			}
			return true
		},
		"the ledger is gone": func(t *testing.T, f *fleet, old former) bool {
			l, err := f.store.List(t.Context(), coordinator.LedgerPrefix)
			if err != nil || len(l.Entries) != 1 {
				t.Fatalf("%d parts of a ledger, %v", len(l.Entries), err)
			}
			if _, err := f.store.Commit(t.Context(), store.Tx{Delete: []string{l.Entries[0].Key}}); err != nil {
				t.Fatal(err)
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := readyFleet(t, nil)
			f.member("a")
			f.member("b")
			old := f.keep()
			f.faults.Fail("set.after-swap", errors.New("crash"))
			f.faults.Fail("adopt.begin", errors.New("crash")) // of whoever follows the head too
			if _, err := f.reseedClient().CommitReseed(f.ctx(), f.prepare(nil)); err == nil {
				t.Fatal("the crash was survived")
			}
			f.stop()
			f.faults.Disarm("set.after-swap")
			f.start()
			lost := spoil(t, f, old)
			f.faults.Disarm("adopt.begin")
			f.c.Rooms().Head.LookAgain()
			if lost {
				for deadline := time.Now().Add(time.Minute); !strings.Contains(f.c.Rooms().Head.State().Reason,
					"seed of the head"); time.Sleep(5 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: %s", f.c.Rooms().Head.State().Phase, f.c.Rooms().Head.State().Reason)
					}
				}
				return
			}
			f.awaitPhase(authority.Ready)
			s := f.c.Rooms().Head.State()
			for _, name := range []string{"a", "mallory"} {
				rec, err := record.Get[record.Member](t.Context(), s.Records, record.MemberKey(identity.Data, name))
				if err == nil && (name == "mallory" && rec.Exists() ||
					slices.Contains(rec.Value.Organizations, "evil")) {
					t.Errorf("%s is %+v", name, rec.Value)
				}
			}
			if rec, err := record.Get[record.Member](t.Context(), s.Records,
				record.MemberKey(identity.Data, "b")); err != nil || !rec.Exists() {
				t.Errorf("b: %v, %v", rec, err)
			}
		})
	}
}

// A coordinator that has not followed a reseed yet takes the records of members, which
// others moved under the new seed, for no forgeries, and for no whole list. One that was
// altered under the head that it follows is told, and left out.
func TestMovedRecordsAreNoForgeries(t *testing.T) {
	d := testDesk(t)
	d.joined("a")
	d.joined("b")
	d.mustPublish(publication.NewPublisher())
	before := d.state()
	if err := d.reseed(nil); err != nil {
		t.Fatal(err)
	}
	ch := d.state().Records.NewChange(d.state().HeadVersion)
	ch.Write(d.c.Rooms().Trust.RolloutKey(), trust.RolloutRecord{Number: 1})
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	before.Records.Next.Store(nil) // that it is of this process: another one knows no next keys
	list := func() []store.Entry {
		t.Helper()
		l, err := d.store.List(t.Context(), record.MemberPrefix)
		if err != nil {
			t.Fatal(err)
		}
		return l.Entries
	}
	all := list()
	for what, read := range map[string]func() error{
		"the members":     func() error { _, err := d.c.Rooms().Membership.Follow(t.Context(), before); return err },
		"the trust state": func() error { _, err := d.c.Rooms().Bundle.Ensure(t.Context(), before); return err },
		"the " +
			"publication": func() error { _, err := d.c.Rooms().Publication.Load(t.Context(), before); return err },
		"a rollout": func() error {
			_, _, _, err := d.c.Rooms().Trust.Progress(t.Context(), before, &bundle.Rotation{Number: 1})
			return err
		},
	} {
		if err := read(); !coordinator.Lost(err) || forgedRecords(d.c) != 0 {
			t.Errorf("%s under the head of before: %v, and %v forgeries", what, err,
				forgedRecords(d.c))
		}
	}
	// While nobody knows which head the store has, nothing is called a forgery either.
	d.store.setDown(errDown)
	err := d.c.Rooms().Head.ForgedUnder(t.Context(), before, authority.Suspect{What: all[0].Key, Err: store.ErrForged})
	d.store.setDown(nil)
	if n := forgedRecords(d.c); !errors.Is(err, errDown) || n != 0 {
		t.Errorf("without a store: %v, and %v forgeries", err, n)
	}
	d.store.alter(all[0].Key, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	adoption, err := d.c.Rooms().Membership.Follow(t.Context(), d.state())
	if err == nil {
		err = adoption.Present()
	}
	recs := d.c.Rooms().Membership.Roster().All()
	if n := forgedRecords(d.c); err != nil || n != 1 || len(recs) != len(all)-1 {
		t.Errorf("under the head in force: %d of %d records, %v, and %v forgeries", len(recs), len(all), err, n)
	}
}

// A freeze is ended by who made it, or by anybody after a minute: its coordinator may be
// at work, and the reseed would fail. One that lags, or starts, meanwhile is ready under
// the seed that is in force.
func TestFreezeOfAnotherStays(t *testing.T) {
	const one, another = "coordinator", "another"
	for name, tc := range map[string]struct {
		reseeded   bool // before
		by, starts string
		after      time.Duration
		thawed     bool
	}{
		"another one starts":               {by: one, starts: another},
		"another one that is ready starts": {by: another, starts: one},
		"another one, for a minute":        {by: another, starts: one, after: coordinator.FreezeLimit},
		"another one, after a minute": {by: another, starts: one, after: coordinator.FreezeLimit + time.Second,
			thawed: true},
		"it itself":                          {by: one, starts: one, thawed: true},
		"another one, after a reseed":        {reseeded: true, by: one, starts: another},
		"another one, ready, after a reseed": {reseeded: true, by: another, starts: one},
		"it itself, after a reseed":          {reseeded: true, by: one, starts: one, thawed: true},
		"another one, a minute, and a reseed": {reseeded: true, by: another, starts: one,
			after: coordinator.FreezeLimit + time.Second, thawed: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := testDesk(t)
			d.joined("a")
			if tc.reseeded {
				if err := d.reseed(nil); err != nil {
					t.Fatal(err)
				}
			}
			s, by := d.state(), d.c
			if tc.by == another {
				c, err := d.another(another)
				if err != nil {
					t.Fatal(err)
				}
				by = c
			}
			if _, _, err := by.Rooms().Authority.Freeze(t.Context(), s, history.Salt{1}); err != nil {
				t.Fatal(err)
			}
			// It follows the head that is in force, whose records are all moved.
			if err := d.c.Rooms().Authority.MoveRecords(t.Context(),
				s); err != nil || d.store.version(record.FreezeKey) == 0 || d.c.Rooms().Authority.Unsettled().Load() {
				t.Errorf("who follows the head: %v; frozen: %v", err, d.store.version(record.FreezeKey) != 0)
			}
			d.advance(tc.after)
			if tc.starts == one {
				d.restart()
				d.wantPhase(authority.Ready.String(), "")
			} else if _, err := d.another(another); err != nil {
				t.Fatal(err)
			}
			if thawed := d.store.version(record.FreezeKey) == 0; thawed != tc.thawed {
				t.Errorf("thawed: %v, want %v", thawed, tc.thawed)
			}
		})
	}
}

// The leader may be the only one that writes, or a coordinator that tries to lead: each has a
// freeze looked at that its write meets. One that is young is left alone.
func TestLeaderLooksAtTheFreeze(t *testing.T) {
	for after, want := range map[time.Duration]bool{0: false, coordinator.FreezeLimit: false,
		coordinator.FreezeLimit + time.Second: true} {
		d := testDesk(t)
		if _, _, err := d.c.Rooms().Authority.Freeze(t.Context(), d.state(), history.Salt{1}); err != nil {
			t.Fatal(err)
		}
		d.advance(after)
		d.lapse()
		tried := 0
		d.store.intercept(func(tx store.Tx) {
			if tx.Put[0].Key == election.TermKey || tx.Put[0].Key == election.BeatKey {
				tried++
			}
		})
		d.c.Rooms().Election.Step(t.Context())
		if tried == 0 {
			t.Errorf("%v after the freeze it did not try to lead", after)
		}
		if _, _, leads := d.c.Rooms().Election.Leading(); leads {
			t.Errorf("%v after the freeze it leads", after)
		}
		if got := d.c.Rooms().Authority.Unsettled().Load(); got != want {
			t.Errorf("%v after the freeze it was looked at: %v, want %v", after, got, want)
		}
	}
}

// A freeze over a head that cannot be followed keeps no coordinator from starting: it is in
// recovery mode, and says what is wrong with the history.
func TestFreezeOverADamagedHead(t *testing.T) {
	for name, damage := range map[string]func(d *desk, s *authority.State){
		"no record":   func(d *desk, _ *authority.State) { d.store.write(history.HeadKey, []byte("{")) },
		"no blob":     func(d *desk, s *authority.State) { d.store.remove(history.BlobKey(s.Head.Hash)) },
		"a false one": func(d *desk, s *authority.State) { d.store.write(history.BlobKey(s.Head.Hash), []byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			d := testDesk(t)
			s := d.state()
			if _, _, err := d.c.Rooms().Authority.Freeze(t.Context(), s, history.Salt{1}); err != nil {
				t.Fatal(err)
			}
			damage(d, s)
			d.restart()
			d.wantPhase(authority.Recovery.String(), "")
			if d.store.version(record.FreezeKey) == 0 {
				t.Error("the freeze ended, and nobody knows which head it is for")
			}
		})
	}
}

// A freeze whose coordinator does not come back ends without anybody's call: the next write
// of a coordinator that runs finds it.
func TestFreezeOfOneThatIsGoneEnds(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	f.member("a")
	records := f.recordText()
	value, err := json.Marshal(coordinator.Frozen{history.Salt{1}, "x", "gone",
		f.clock().Add(-coordinator.FreezeLimit - time.Second).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.CompareAndSwap(t.Context(), record.FreezeKey, 0, value); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !f.thawed(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the records are frozen")
		}
	}
	if got := f.recordText(); got != records {
		t.Errorf("the records are\n%s\nwant\n%s", got, records)
	}
	f.member("b")
}

// All coordinators move the records at once after a reseed. One that finds at any step that
// another did it first goes on, and takes nothing for a forgery.
func TestRecordsAreMovedByTwoAtOnce(t *testing.T) {
	t.Parallel()
	for first := 0; ; first++ {
		d := testDesk(t)
		d.joined("a")
		d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		step, done := 0, false
		d.store.intercept(func(tx store.Tx) {
			if !slices.ContainsFunc(tx.If,
				func(c store.Condition) bool { return c.Key == record.FreezeKey && c.Version != 0 }) ||
				tx.ID == "another" {
				return
			}
			if step++; step <= first || done {
				return
			}
			done = true
			tx.ID = "another"
			if _, err := d.store.Commit(t.Context(), tx); err != nil {
				t.Error(err)
			}
		})
		err := d.reseed(nil)
		s := d.state()
		n := forgedRecords(d.c)
		if err != nil || s.Phase != authority.Ready || s.Head.Kind != history.KindReseed || n != 0 {
			t.Fatalf("another was first at step %d: %v, %v at %s: %s; %v forgeries", first, err, s.Phase, s.Head.Kind,
				s.Reason, n)
		}
		if !done {
			if first < 3 {
				t.Fatalf("%d steps were seen", first)
			}
			return
		}
	}
}
