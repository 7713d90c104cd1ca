package reseal_test

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
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/manifests"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sealed"
	internaltrust "github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// former is what somebody kept who had the seed before it was changed.
type former struct {
	seed   keyring.Seed
	keys   keyring.Keys
	root   *x509.Certificate
	bundle *identity.Bundle
	auth   *store.Authenticator
	chain  *history.Verified
}

func keep(f *coordinatortest.Fleet) former {
	f.T.Helper()
	s := f.State()
	thief := coordinatortest.Steal(s)
	auth, err := store.NewAuthenticator(thief.Keys.RecordMAC())
	if err != nil {
		f.T.Fatal(err)
	}
	return former{seed: thief.Seed, keys: thief.Keys, root: s.Root, bundle: f.C.Parts().Bundle.View().Bundle,
		auth: auth, chain: s.Chain}
}

// records returns what every record says, whatever seed it is under.
func recordText(f *coordinatortest.Fleet) string {
	f.T.Helper()
	s := f.State()
	var out []string
	for _, prefix := range []string{record.MemberPrefix, record.CountPrefix, desired.Prefix, record.BanIDPrefix,
		record.BanKeyPrefix} {
		l, err := f.Store.List(context.Background(), prefix)
		if err != nil {
			f.T.Fatal(err)
		}
		for _, e := range l.Entries {
			plain, err := s.Records.Auth.Open(e.Key, e.Value)
			if err != nil {
				f.T.Fatalf("%s: %v", e.Key, err)
			}
			out = append(out, e.Key+" "+string(plain))
		}
	}
	return strings.Join(out, "\n")
}

// rejoin comes back by proof of the last key, under the root in force.
func rejoin(n *coordinatortest.Node) error {
	n.Fleet.T.Helper()
	prover := proof.NewSVIDProver(n.ID.Kind(), n.ID.Name(), n.Key)
	key, err := coordinatortest.NewKey()
	if err != nil {
		return err
	}
	n.Key = key
	return n.Join(n.ID.Kind(), prover)
}

// verified returns a trust bundle that was sent, as a node verifies it that pins
// configRoot.
func verified(n *coordinatortest.Node, envelope []byte, configRoot ed25519.PublicKey) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(envelope)
	if err != nil {
		return nil, err
	}
	return snapshot.Verify(signed, snapshot.Trust{Me: n.ID, Incarnation: identity.KeyID{1}, ConfigRoot: configRoot},
		snapshot.Marks{}, n.Fleet.Clock())
}

// A reseed changes every key and loses no member: streams stand, members are told
// by what the signers signed, and come under the new root.
func TestReseed(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := f.Member("a"), f.Member("b")
	banned := f.Member("c")
	if _, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "c", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	unused := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "late"})
	old := keep(f)
	held, err := verified(a, a.Grant.GetTrustBundle().GetEnvelope(), f.State().Bundle.PublicRoot())
	if err != nil {
		t.Fatal(err)
	}
	a.Believes = old.bundle // as a node does until it is told
	stream, err := coordinatortest.NewClients(a.Conn()).Agent.Connect(f.Context())
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
	records := recordText(f)
	before := f.State()

	// Nothing happens before the signers signed.
	commit := coordinatortest.PrepareReseed(f, nil)
	dry := &fealtyv1.CommitReseedRequest{Change: commit.Change, Signatures: commit.Signatures, DryRun: true}
	if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), dry); err != nil {
		t.Fatalf("dry run: %v", err)
	}
	if f.State().Head.Hash != before.Head.Hash {
		t.Fatal("a dry run moved the head")
	}
	done, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), commit)
	if err != nil {
		t.Fatal(err)
	}
	after := f.State()
	if after.Head.SeedEpoch != 2 || after.Head.AuthorityEpoch != before.Head.AuthorityEpoch+1 ||
		after.RootPin == before.RootPin || after.MeshKey == before.MeshKey {
		t.Fatalf("seed epoch %d, authority epoch %d, root %s, mesh CA %s; before %s, %s", after.Head.SeedEpoch,
			after.Head.AuthorityEpoch, after.RootPin, after.MeshKey, before.RootPin, before.MeshKey)
	}
	if done.GetSeedEpoch() != 2 || done.GetMembers() != 3 || done.GetTokensVoided() != 4 ||
		string(done.GetRootKey()) != string(after.RootPin[:]) {
		t.Errorf("the answer says %v", done)
	}
	if got := recordText(f); got != records {
		t.Errorf("the records are\n%s\nwant\n%s", got, records)
	}

	// The stream that stood is told, in the order in which it can verify it.
	changes := next(func(m *fealtyv1.ConnectResponse) bool {
		if believed(m) {
			if _, err := verified(a, m.GetSnapshot().GetEnvelope(), before.Bundle.PublicRoot()); err != nil {
				t.Fatalf("a bundle that it cannot verify comes first: %v", err)
			}
		}
		return m.GetRootChanges() != nil
	}).GetRootChanges()
	var signed []*internaltrust.SignedRootChange
	for _, raw := range changes.GetChanges() {
		s, err := internaltrust.UnmarshalRootChange(raw)
		if err != nil {
			t.Fatal(err)
		}
		signed = append(signed, s)
	}
	change, err := internaltrust.VerifyRootChanges(signed, held, before.RootPin)
	if err != nil {
		t.Fatal(err)
	}
	if change.Root != after.RootPin || !change.ConfigRoot.Equal(after.Bundle.PublicRoot()) {
		t.Fatalf("the change of root says %+v", change)
	}
	v, err := verified(a, next(believed).GetSnapshot().GetEnvelope(), change.ConfigRoot)
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
	a.Believes = nil
	if err := a.Renew(true); err != nil {
		t.Fatalf("renew under the old root: %v", err)
	}
	if err := rejoin(b); err != nil {
		t.Fatalf("rejoin: %v", err)
	}
	if _, err := after.MeshCA(), b.Chain[1].CheckSignatureFrom(after.Root); err != nil {
		t.Errorf("b is not under the new root: %v", err)
	}
	coordinatortest.WantCode(t, rejoin(banned), errcode.JoinBanned)
	// A member that holds the stream all the while is not cut off.
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: "a"}); err != nil {
		t.Errorf("the stream ended: %v", err)
	}

	// A token pins the root that is gone: it is void, also for who knows the new one.
	coordinatortest.WantCode(t, f.Node().Join(identity.Data, proof.NewTokenProver(unused)), errcode.TokenUnknown)
	f.Member("d")
	if st, err := f.Local().Status.GetStatus(f.Context(), &fealtyv1.GetStatusRequest{}); err != nil ||
		st.GetSeedEpoch() != 2 {
		t.Errorf("status: seed epoch %d, %v", st.GetSeedEpoch(), err)
	}
	audit, err := f.Store.List(context.Background(), auditlog.Prefix)
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
	for _, prefix := range []string{sealed.Prefix, reseal.Prefix} {
		l, err := f.Store.List(context.Background(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Entries {
			if strings.Contains(e.Key, fmt.Sprintf("%x", before.Head.Salt[:])) || strings.Contains(e.Key,
				before.Head.Hash.String()) || prefix == reseal.Prefix {
				t.Errorf("%s is left", e.Key)
			}
		}
	}
	f.Restart()
	if s := f.State(); s.Phase != authority.Ready || s.RootPin != after.RootPin ||
		s.Head.SeedEpoch != 2 {
		t.Fatalf("after a restart: %s (%s), seed epoch %d", s.Phase, s.Reason, s.Head.SeedEpoch)
	}
	if err := b.Renew(true); err != nil {
		t.Errorf("renew after a restart: %v", err)
	}

	// And once more.
	coordinatortest.ReseedIn(f)
	if s := f.State(); s.Head.SeedEpoch != 3 || len(s.Bundle.RootChanges) != 2 {
		t.Fatalf("after a second reseed: seed epoch %d, %d changes of root", s.Head.SeedEpoch,
			len(s.Bundle.RootChanges))
	}
	if err := rejoin(b); err != nil {
		t.Errorf("rejoin after a second reseed: %v", err)
	}
	// A member that missed both gets by on what the signers signed.
	signed = nil
	for _, raw := range rootChanges(f) {
		s, err := internaltrust.UnmarshalRootChange(raw)
		if err != nil {
			t.Fatal(err)
		}
		signed = append(signed, s)
	}
	if change, err := internaltrust.VerifyRootChanges(signed, held, before.RootPin); err != nil || change.Root != f.Pin() {
		t.Errorf("both changes lead to %s, %v; want %s", change.Root, err, f.Pin())
	}

	// The old root leaves the bundle with the last SVID under it.
	f.Advance(26 * time.Hour)
	f.C.Parts().Bundle.LookAgain()
	wait.Until(t, "the old roots leave the bundle", func() bool {
		return len(f.C.Parts().Bundle.View().Bundle.RetiredRoots()) == 0
	})
}

// rootChanges asks as a stranger for the changes of root.
func rootChanges(f *coordinatortest.Fleet) [][]byte {
	f.T.Helper()
	stream, err := fealtyv1.NewReseedServiceClient(coordinatortest.Stranger(f)).GetRootChanges(f.Context())
	if err != nil {
		f.T.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		f.T.Fatal(err)
	}
	return resp.GetChanges().GetChanges()
}

// The needs of a reseed, without which it is refused.
func TestReseedRefusals(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(edit func(*fealtyv1.CommitReseedRequest)) error {
		t.Helper()
		req := coordinatortest.PrepareReseed(f, nil)
		edit(req)
		_, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req)
		return err
	}
	head := f.State().Head.Hash
	for _, tc := range []struct {
		name string
		edit func(*fealtyv1.CommitReseedRequest)
		want errcode.Code
	}{
		{"nobody signed", func(r *fealtyv1.CommitReseedRequest) { r.Signatures = nil }, errcode.ManifestUnsigned},
		{"a stranger signed", func(r *fealtyv1.CommitReseedRequest) {
			r.Signatures = coordinatortest.SignChange(f.T, r.Change,
				stranger)
		},
			errcode.SignatureForeign},
		{"another seed was signed", func(r *fealtyv1.CommitReseedRequest) {
			coordinatortest.PrepareReseed(f, nil)
		}, errcode.ReseedUnprepared},
		{"the change was altered",
			func(r *fealtyv1.CommitReseedRequest) {
				r.Change = append(slices.Clone(r.Change),
					' ')
			}, errcode.ReseedUnprepared},
		{"consent to a set", func(r *fealtyv1.CommitReseedRequest) {
			set := &fealtyv1.SetManifestRequest{Manifest: f.Manifest("")}
			f.Sign(set, head)
			r.Signatures = set.Signatures
		}, errcode.ManifestMissigned},
		{"consent of another cluster", func(r *fealtyv1.CommitReseedRequest) {
			r.Signatures[0].Signature = ed25519.Sign(f.Signer,
				internalsnapshot.PAE(internalsnapshot.TypeRootChange, "other.example", r.Change))
		}, errcode.ManifestMissigned},
		{"too late", func(*fealtyv1.CommitReseedRequest) { f.Advance(manifests.PreparedLife) },
			errcode.ReseedUnprepared},
		{"a reason without end",
			func(r *fealtyv1.CommitReseedRequest) { r.Reason = strings.Repeat("x", record.MaxReasonBytes+1) },
			errcode.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) { coordinatortest.WantCode(t, commit(tc.edit), tc.want) })
	}
	if got := f.State().Head.Hash; got != head {
		t.Fatal("the head moved")
	}
	if _, err := coordinatortest.ReseedClient(f).PrepareReseed(f.Context(),
		&fealtyv1.PrepareReseedRequest{Manifest: []byte(strings.Replace(string(f.Manifest("")), coordinatortest.Cluster,
			"other.example", 1))}); err == nil {
		t.Error("a seed was prepared for another cluster")
	}
	// The history moved on while people signed.
	req := coordinatortest.PrepareReseed(f, nil)
	if err := f.Set(f.Manifest("  - {name: more, kind: data, match: [\"token:more\"]}\n")); err != nil {
		t.Fatal(err)
	}
	_, err = coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req)
	coordinatortest.WantCode(t, err, errcode.ManifestStale)
	// A restart forgets what was prepared.
	req = coordinatortest.PrepareReseed(f, nil)
	f.Restart()
	_, err = coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req)
	coordinatortest.WantCode(t, err, errcode.ReseedUnprepared)
	// And with everything in order it is done, with another manifest at once.
	more := f.Manifest("  - {name: evenmore, kind: data, match: [\"token:evenmore\"]}\n")
	if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), coordinatortest.PrepareReseed(f, more)); err != nil {
		t.Fatal(err)
	}
	if s := f.State(); s.Head.SeedEpoch != 2 || string(s.Manifest.Bytes()) != string(more) {
		t.Fatalf("seed epoch %d, manifest %s", s.Head.SeedEpoch, s.Manifest.Hash())
	}
}

// A coordinator that stops at any point of a reseed, or fails there and goes on,
// has one seed or the other, whole: every record, and every way back.
func TestReseedInterrupted(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for _, tc := range []struct {
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
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", tc.point, restart), func(t *testing.T) {
				f := coordinatortest.ReadyFleet(t, nil)
				a := f.Member("a")
				f.Member("b")
				records := recordText(f)
				req := coordinatortest.PrepareReseed(f, nil)
				old := keep(f)
				f.Faults.Fail(tc.point, crash)
				_, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req)
				if tc.epoch == 1 && err == nil {
					t.Fatal("the crash was survived")
				}
				if restart {
					f.Stop()
				}
				// A thief with the old seed uses the gap.
				mallory := record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"}
				forged := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"), mallory)
				f.Faults.Disarm(tc.point)
				if restart {
					f.Start()
				} else {
					f.C.Parts().Head.LookAgain()
				}
				wait.UntilNil(t, "all is settled", func() error {
					s := f.State()
					if s.Phase == authority.Ready && s.Head.SeedEpoch == tc.epoch &&
						!f.C.Parts().Moves.Reseal.Unsettled() && unlocked(f) {
						return nil
					}
					return fmt.Errorf("phase %s (%s), want ready under seed epoch %d; unlocked: %v", s.Phase, s.Reason,
						tc.epoch, unlocked(f))
				})
				if got := recordText(f); got != records {
					t.Errorf("the records are\n%s\nwant\n%s", got, records)
				}
				if err := rejoin(a); err != nil {
					t.Errorf("rejoin: %v", err)
				}
				f.Member("new")
				if tc.epoch == 2 {
					if _, err := f.Store.Commit(f.Context(), store.Tx{Put: []store.Write{forged}}); err != nil {
						t.Fatal(err)
					}
					if _, err := record.Get[record.Member](f.Context(), f.State().Records,
						forged.Key); !errors.Is(err, store.ErrForged) {
						t.Errorf("a record of the old seed: %v", err)
					}
					return
				}
				// The same signatures do, if the process still has the seed.
				_, err = coordinatortest.ReseedClient(f).CommitReseed(f.Context(), req)
				if restart {
					coordinatortest.WantCode(t, err, errcode.ReseedUnprepared)
				} else if err != nil {
					t.Fatalf("once more: %v", err)
				}
			})
		}
	}
}

func unlocked(f *coordinatortest.Fleet) bool {
	_, err := f.Store.Get(context.Background(), record.LockKey)
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
	f := coordinatortest.ReadyFleet(t, nil)
	var members []*coordinatortest.Node
	for i := range 4 {
		members = append(members, f.Member(fmt.Sprintf("m%d", i)))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, n := range members {
		n.Believes = f.C.Parts().Bundle.View().Bundle
		conn := n.Conn()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				key, err := coordinatortest.NewKey()
				if err != nil {
					t.Error(err)
					return
				}
				csr, err := pki.NewCSR(key)
				if err != nil {
					t.Error(err)
					return
				}
				// The connection stands over the change of root.
				if _, err := coordinatortest.NewClients(conn).Admission.Renew(f.Context(),
					&fealtyv1.RenewRequest{Name: n.ID.Name(), Csr: csr}); err != nil {
					if errors.Is(errcode.Of(err), errcode.RenewOlderKey) {
						return // it goes on with another key than its connection's
					}
					t.Errorf("renew %s: %v", n.ID.Name(), err)
					return
				}
			}
		})
	}
	for range 3 {
		coordinatortest.ReseedIn(f)
	}
	close(stop)
	wg.Wait()
	if got := strings.Count(recordText(f), record.MemberPrefix); got != len(members) {
		t.Errorf("%d members, want %d", got, len(members))
	}
	if n := coordinatortest.ForgedRecords(f.C); n != 0 {
		t.Errorf("%v alarms of forged records", n)
	}
}

// A thief who kept the old seed can make nothing with it that anybody believes
// after the change: no head, no record, no mesh CA, no trust bundle, no change of
// root.
func TestFormerSeedIsWorthNothing(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := f.Member("a")
	bystander, err := verified(a, a.Grant.GetTrustBundle().GetEnvelope(), f.State().Bundle.PublicRoot())
	if err != nil {
		t.Fatal(err)
	}
	old := keep(f)
	before := f.State()
	input, err := f.C.Parts().Bundle.Read(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	coordinatortest.ReseedIn(f)
	now := f.Clock()
	s := f.State()
	believed := f.C.Parts().Bundle.View().Bundle

	// A mesh CA of its own, with a coordinator and a member under it.
	mesh, err := pki.NewMeshCA(old.root, old.keys.RootCA(),
		pki.MeshConfig{Cluster: coordinatortest.Cluster, Epoch: 7, Validity: time.Hour * 48}, now)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := pki.NewIssuer(mesh, coordinatortest.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range identity.Kinds() {
		id, err := identity.New(coordinatortest.Cluster, kind, "mallory")
		if err != nil {
			t.Fatal(err)
		}
		key, err := coordinatortest.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		request := pki.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour}
		if kind == identity.Workload {
			request.Voucher = internalidentity.VoucherName("data/mallory", identity.KeyID{1}.String())
		}
		leaf, err := issuer.Issue(request, now)
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
			former, err := pki.NewIssuer(before.MeshCA(), coordinatortest.Cluster)
			if err != nil {
				t.Fatal(err)
			}
			mine, err := former.Issue(pki.Request{PublicKey: key.Public(), ID: id, TTL: time.Hour}, now)
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
		Secrets: coordinatortest.SecretsOf(old.seed, before.Head.Salt), Root: old.root, MeshKey: before.MeshKey}
	forger.Head.AuthorityEpoch += 10
	forger.Bundle = &bundle.Authority{
		Manifest: forger.Manifest, Head: forger.Head, Root: forger.Root, MeshKey: forger.MeshKey,
		ConfigRoot: old.keys.ConfigRoot, ConfigKey: old.keys.ConfigSigning,
	}
	forgedBundle, err := forger.Bundle.Sign(input, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verified(a, forgedBundle.Signed, s.Bundle.PublicRoot()); !errors.Is(err, snapshot.ErrRejected) {
		t.Errorf("a trust bundle of the old config root key: %v", err)
	}

	// A record.
	w := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"),
		record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"})
	if _, err := f.Store.Commit(t.Context(), store.Tx{Put: []store.Write{w}}); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Get[record.Member](t.Context(), s.Records, w.Key); !errors.Is(err, store.ErrForged) {
		t.Errorf("a record of the old seed: %v", err)
	}
	if _, err := f.Store.Commit(t.Context(), store.Tx{Delete: []string{w.Key}}); err != nil {
		t.Fatal(err)
	}

	// A change of root to keys of its own: with no signature, with a stranger's, with
	// the old keys', with that of the change that was made, and one for elsewhere.
	changes := rootChanges(f)
	genuine, err := internaltrust.UnmarshalRootChange(changes[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := internaltrust.VerifyRootChanges([]*internaltrust.SignedRootChange{genuine}, bystander,
		before.RootPin); err != nil {
		t.Fatalf("the genuine change: %v", err)
	}
	mine := internaltrust.RootChange{
		ClusterID: coordinatortest.Cluster, Index: s.Head.Index, Previous: snapshot.Digest(before.Head.Hash),
		Manifest:       snapshot.Digest(before.Head.Manifest),
		AuthorityEpoch: 9, SeedEpoch: 2, PreviousRoot: before.RootPin, Root: identity.KeyID{6, 6, 6},
		ConfigRoot:     old.keys.ConfigSigning(7).Public().(ed25519.PublicKey),
		TransactionKey: old.keys.Transaction().Public().(ed25519.PublicKey),
	}
	raw, err := mine.Encode()
	if err != nil {
		t.Fatal(err)
	}
	statement, err := mine.Statement()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key keyring.Signer) internaltrust.SignerSignature {
		sig, err := key.Sign(rand.Reader, statement, crypto.Hash(0))
		if err != nil {
			t.Fatal(err)
		}
		return internaltrust.SignerSignature{Key: [32]byte(key.Public().(ed25519.PublicKey)), Signature: [64]byte(sig)}
	}
	asSigner := sign(old.keys.ConfigRoot())
	asSigner.Key = genuine.Signatures[0].Key
	for name, sigs := range map[string][]internaltrust.SignerSignature{
		"nobody's": nil, "the old transaction key's": {sign(old.keys.Transaction())}, "the old config root " +
			"key's": {sign(old.keys.ConfigRoot())},
		"one in a signer's name": {asSigner}, "that of the change that was made": genuine.Signatures,
	} {
		if _, err := internaltrust.VerifyRootChanges([]*internaltrust.SignedRootChange{{Change: raw, Signatures: sigs}},
			bystander, before.RootPin); !errors.Is(err, internaltrust.ErrNoRootChange) {
			t.Errorf("a change of root with %s signature: %v", name, err)
		}
	}
	// The change that was made leads nobody away from the new root.
	if _, err := internaltrust.VerifyRootChanges([]*internaltrust.SignedRootChange{genuine}, bystander,
		s.RootPin); !errors.Is(err, internaltrust.ErrNoRootChange) {
		t.Errorf("the change that was made, once more: %v", err)
	}

	// A head: the old history goes on without the reseed.
	rekey, _ := old.chain.Next(history.KindRekey, old.chain.Manifest())
	rekey.MeshCAKey = mesh.KeyID()
	elsewhere := coordinatortest.NewMemStore()
	blobs, err := f.Store.List(t.Context(), "history/")
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
	base, err := history.New(elsewhere).Follow(t.Context(), nil, old.keys.Transaction().Public().(ed25519.PublicKey))
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
	genuineHead, err := f.Store.Get(t.Context(), history.HeadKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Store.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	f.C.Parts().Head.LookAgain()
	f.Await(authority.Recovery)
	f.Restart()
	if s := f.State(); s.Phase != authority.Recovery {
		t.Fatalf("a restart under a forged head is %s, head %v (%v)", s.Phase, s.Head.Hash, forked.Head().Hash)
	}
	if _, err := f.Store.Commit(t.Context(),
		store.Tx{Put: []store.Write{{Key: history.HeadKey, Value: genuineHead.Value}}}); err != nil {
		t.Fatal(err)
	}
	f.C.Parts().Head.LookAgain()
	f.Await(authority.Ready)
}

// The transition between two seeds cannot be altered: a ledger that was exchanged,
// or a record that was, is not taken over.
func TestMovedRecordsAreThoseOfTheLedger(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, f *coordinatortest.Fleet, old former) (lost bool){
		"a record is altered under the old seed": func(t *testing.T, f *coordinatortest.Fleet, old former) bool {
			w := records0(old).mustPut(t, record.MemberKey(identity.Data, "a"),
				record.Member{Kind: identity.Data, Name: "a", State: record.Active,
					Entry: "pool", Organizations: []string{"evil"}})
			_, err := f.Store.Commit(t.Context(), store.Tx{Put: []store.Write{w}})
			if err != nil {
				t.Fatal(err)
			}
			return false
		},
		"a record is added under the old seed": func(t *testing.T, f *coordinatortest.Fleet, old former) bool {
			w := records0(old).mustPut(t, record.MemberKey(identity.Data, "mallory"),
				record.Member{Kind: identity.Data, Name: "mallory", State: record.Active, Entry: "pool"})
			_, err := f.Store.Commit(t.Context(), store.Tx{Put: []store.Write{w}})
			if err != nil {
				t.Fatal(err)
			}
			return false
		},
		"the ledger is sealed under the old seed": func(t *testing.T, f *coordinatortest.Fleet, old former) bool {
			l, err := f.Store.List(t.Context(), reseal.LedgerPrefix)
			if err != nil || len(l.Entries) != 1 {
				t.Fatalf("%d parts of a ledger, %v", len(l.Entries), err)
			}
			e := l.Entries[0]
			if _, err := f.Store.Commit(t.Context(),
				store.Tx{Put: []store.Write{{Key: e.Key, Value: old.auth.Seal(e.Key, []byte("{}"))}}}); err != nil {
				t.Fatal(err)
			}
			return true
		},
		"the ledger is gone": func(t *testing.T, f *coordinatortest.Fleet, old former) bool {
			l, err := f.Store.List(t.Context(), reseal.LedgerPrefix)
			if err != nil || len(l.Entries) != 1 {
				t.Fatalf("%d parts of a ledger, %v", len(l.Entries), err)
			}
			if _, err := f.Store.Commit(t.Context(), store.Tx{Delete: []string{l.Entries[0].Key}}); err != nil {
				t.Fatal(err)
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := coordinatortest.ReadyFleet(t, nil)
			f.Member("a")
			f.Member("b")
			old := keep(f)
			f.Faults.Fail("set.after-swap", errors.New("crash"))
			f.Faults.Fail("adopt.begin", errors.New("crash")) // of whoever follows the head too
			if _, err := coordinatortest.ReseedClient(f).CommitReseed(f.Context(),
				coordinatortest.PrepareReseed(f, nil)); err == nil {
				t.Fatal("the crash was survived")
			}
			f.Stop()
			f.Faults.Disarm("set.after-swap")
			f.Start()
			lost := spoil(t, f, old)
			f.Faults.Disarm("adopt.begin")
			f.C.Parts().Head.LookAgain()
			if lost {
				wait.Until(t, "the reason names the seed of the head", func() bool {
					return strings.Contains(f.State().Reason, "seed of the head")
				})
				return
			}
			f.Await(authority.Ready)
			s := f.State()
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
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	d.Joined("b")
	coordinatortest.MustPublish(d, publication.NewPublisher())
	before := d.State()
	if err := coordinatortest.ReseedAt(d, nil); err != nil {
		t.Fatal(err)
	}
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Write(d.C.Parts().Trust.RolloutKey(), trust.RolloutRecord{Number: 1})
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	before.Records.Next.Store(nil) // that it is of this process: another one knows no next keys
	list := func() []store.Entry {
		t.Helper()
		l, err := d.Store.List(t.Context(), record.MemberPrefix)
		if err != nil {
			t.Fatal(err)
		}
		return l.Entries
	}
	all := list()
	for what, read := range map[string]func() error{
		"the members":     func() error { _, err := d.C.Parts().Membership.Follow(t.Context(), before); return err },
		"the trust state": func() error { _, err := d.C.Parts().Bundle.Ensure(t.Context(), before); return err },
		"the " +
			"publication": func() error { _, err := d.C.Parts().Publication.Load(t.Context(), before); return err },
		"a rollout": func() error {
			_, _, _, err := d.C.Parts().Trust.Progress(t.Context(), before, &bundle.Rotation{Number: 1})
			return err
		},
	} {
		if err := read(); !errors.Is(err, store.ErrConflict) && !errors.Is(err, errcode.StoreBusy) ||
			coordinatortest.ForgedRecords(d.C) != 0 {
			t.Errorf("%s under the head of before: %v, and %v forgeries", what, err,
				coordinatortest.ForgedRecords(d.C))
		}
	}
	// While nobody knows which head the store has, nothing is called a forgery either.
	d.Store.SetDown(coordinatortest.ErrDown)
	err := d.C.Parts().Head.ForgedUnder(t.Context(), before, authority.Suspect{What: all[0].Key, Err: store.ErrForged})
	d.Store.SetDown(nil)
	if n := coordinatortest.ForgedRecords(d.C); !errors.Is(err, coordinatortest.ErrDown) || n != 0 {
		t.Errorf("without a store: %v, and %v forgeries", err, n)
	}
	d.Store.Alter(all[0].Key, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	adoption, err := d.C.Parts().Membership.Follow(t.Context(), d.State())
	if err == nil {
		err = adoption.Present()
	}
	recs := d.C.Parts().Membership.Roster().All()
	if n := coordinatortest.ForgedRecords(d.C); err != nil || n != 1 || len(recs) != len(all)-1 {
		t.Errorf("under the head in force: %d of %d records, %v, and %v forgeries", len(recs), len(all), err, n)
	}
}

// A record lock is ended by who made it, or by anybody after a minute: its coordinator may be
// at work, and the reseed would fail. One that lags, or starts, meanwhile is ready under
// the seed that is in force.
func TestRecordLockOfAnotherStays(t *testing.T) {
	const one, another = "coordinator", "another"
	for name, tc := range map[string]struct {
		reseeded   bool // before
		by, starts string
		after      time.Duration
		unlocked   bool
	}{
		"another one starts":               {by: one, starts: another},
		"another one that is ready starts": {by: another, starts: one},
		"another one, for a minute":        {by: another, starts: one, after: reseal.LockLimit},
		"another one, after a minute": {by: another, starts: one, after: reseal.LockLimit + time.Second,
			unlocked: true},
		"it itself":                          {by: one, starts: one, unlocked: true},
		"another one, after a reseed":        {reseeded: true, by: one, starts: another},
		"another one, ready, after a reseed": {reseeded: true, by: another, starts: one},
		"it itself, after a reseed":          {reseeded: true, by: one, starts: one, unlocked: true},
		"another one, a minute, and a reseed": {reseeded: true, by: another, starts: one,
			after: reseal.LockLimit + time.Second, unlocked: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			d.Joined("a")
			if tc.reseeded {
				if err := coordinatortest.ReseedAt(d, nil); err != nil {
					t.Fatal(err)
				}
			}
			s, by := d.State(), d.C
			if tc.by == another {
				c, err := d.Another(another)
				if err != nil {
					t.Fatal(err)
				}
				by = c
			}
			if _, _, err := by.Parts().Moves.Reseal.Lock(t.Context(), s, history.Salt{1}); err != nil {
				t.Fatal(err)
			}
			// It follows the head that is in force, whose records are all moved.
			if err := d.C.Parts().Moves.Reseal.Move(t.Context(),
				s); err != nil || d.Store.Version(record.LockKey) == 0 || d.C.Parts().Moves.Reseal.Unsettled() {
				t.Errorf("who follows the head: %v; locked: %v", err, d.Store.Version(record.LockKey) != 0)
			}
			d.Advance(tc.after)
			if tc.starts == one {
				d.Restart()
				coordinatortest.WantPhase(d, authority.Ready.String(), "")
			} else if _, err := d.Another(another); err != nil {
				t.Fatal(err)
			}
			if unlocked := d.Store.Version(record.LockKey) == 0; unlocked != tc.unlocked {
				t.Errorf("unlocked: %v, want %v", unlocked, tc.unlocked)
			}
		})
	}
}

// The leader may be the only one that writes, or a coordinator that tries to lead: each has a
// record lock looked at that its write meets. One that is young is left alone.
func TestLeaderLooksAtTheRecordLock(t *testing.T) {
	for after, want := range map[time.Duration]bool{0: false, reseal.LockLimit: false,
		reseal.LockLimit + time.Second: true} {
		d := coordinatortest.PoolDesk(t)
		if _, _, err := d.C.Parts().Moves.Reseal.Lock(t.Context(), d.State(), history.Salt{1}); err != nil {
			t.Fatal(err)
		}
		d.Advance(after)
		d.Lapse()
		tried := 0
		d.Store.Intercept(func(tx store.Tx) {
			if tx.Put[0].Key == election.TermKey || tx.Put[0].Key == election.BeatKey {
				tried++
			}
		})
		d.C.Parts().Election.Step(t.Context())
		if tried == 0 {
			t.Errorf("%v after the record lock it did not try to lead", after)
		}
		if _, _, leads := d.C.Parts().Election.Leading(); leads {
			t.Errorf("%v after the record lock it leads", after)
		}
		if got := d.C.Parts().Moves.Reseal.Unsettled(); got != want {
			t.Errorf("%v after the record lock it was looked at: %v, want %v", after, got, want)
		}
	}
}

// A record lock over a head that cannot be followed keeps no coordinator from starting: it is in
// recovery mode, and says what is wrong with the history.
func TestRecordLockOverADamagedHead(t *testing.T) {
	for name, damage := range map[string]func(d *coordinatortest.Desk, s *authority.State){
		"no record": func(d *coordinatortest.Desk, _ *authority.State) { d.Store.Write(history.HeadKey, []byte("{")) },
		"no blob":   func(d *coordinatortest.Desk, s *authority.State) { d.Store.Remove(history.BlobKey(s.Head.Hash)) },
		"a false one": func(d *coordinatortest.Desk, s *authority.State) {
			d.Store.Write(history.BlobKey(s.Head.Hash), []byte("{"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			s := d.State()
			if _, _, err := d.C.Parts().Moves.Reseal.Lock(t.Context(), s, history.Salt{1}); err != nil {
				t.Fatal(err)
			}
			damage(d, s)
			d.Restart()
			coordinatortest.WantPhase(d, authority.Recovery.String(), "")
			if d.Store.Version(record.LockKey) == 0 {
				t.Error("the record lock ended, and nobody knows which head it is for")
			}
		})
	}
}

// A record lock whose coordinator does not come back ends without anybody's call: the next write
// of a coordinator that runs finds it.
func TestRecordLockOfOneThatIsGoneEnds(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	records := recordText(f)
	value, err := json.Marshal(reseal.RecordLock{Salt: history.Salt{1}, Ledger: "x", By: "gone",
		At: f.Clock().Add(-reseal.LockLimit - time.Second).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Store.CompareAndSwap(t.Context(), record.LockKey, 0, value); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the records are not locked", func() bool { return unlocked(f) })
	if got := recordText(f); got != records {
		t.Errorf("the records are\n%s\nwant\n%s", got, records)
	}
	f.Member("b")
}

// All coordinators move the records at once after a reseed. One that finds at any step that
// another did it first goes on, and takes nothing for a forgery.
func TestRecordsAreMovedByTwoAtOnce(t *testing.T) {
	t.Parallel()
	for first := 0; ; first++ {
		d := coordinatortest.PoolDesk(t)
		d.Joined("a")
		d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		step, done := 0, false
		d.Store.Intercept(func(tx store.Tx) {
			if !slices.ContainsFunc(tx.If,
				func(c store.Condition) bool { return c.Key == record.LockKey && c.Version != 0 }) ||
				tx.ID == "another" {
				return
			}
			if step++; step <= first || done {
				return
			}
			done = true
			tx.ID = "another"
			if _, err := d.Store.Commit(t.Context(), tx); err != nil {
				t.Error(err)
			}
		})
		err := coordinatortest.ReseedAt(d, nil)
		s := d.State()
		n := coordinatortest.ForgedRecords(d.C)
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
