package storeguard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// Nobody has the mesh CA key of the head, and the store under it went back: who has the
// seed makes no new key over what is missing, and says what is the matter. It does not
// look for somebody who wrote at once for ever.
func TestWentBackWithoutTheMeshKey(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	gone := d.Joined("a")
	back := coordinatortest.CopyOf(d.Store)
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	d.C.Parts().StoreGuard.Keep(t.Context())
	was := d.State()
	back()
	for key := range d.Store.Snapshot() {
		if strings.HasPrefix(key, sealed.Mesh(was.Head.Hash).Under()) {
			d.Store.Remove(key)
		}
	}
	d.Restart()
	if s := d.State(); s.Phase != authority.Recovery {
		t.Fatalf("without the key of the head it is %v", s.Phase)
	}
	secrets := d.C.Parts().Secrets.Keys.Memory(d.State()).Secrets(was.Head.Salt)
	if secrets == nil {
		t.Fatal("the keeper did not open the seed")
	}
	before, err := d.C.Parts().Moves.Succession.StateBefore(t.Context(), was.Chain, secrets)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.C.Parts().Moves.Succession.Rekey(t.Context(), before, "test", "test", nil); !errors.Is(err,
		errcode.StoreWentBack) {
		t.Errorf("a new mesh CA key: %v", err)
	}
	st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
		&fealtyv1.GetStatusRequest{})
	if err != nil || !slices.ContainsFunc(st.GetFindings(),
		func(f *fealtyv1.Finding) bool { return f.GetCode() == string(errcode.StoreWentBack) }) {
		t.Errorf("status finds %v, %v", st.GetFindings(), err)
	}
	// Another coordinator asks for the seed, without which it knows of no loss.
	asked := coordinatortest.ServePeer(t, coordinatortest.Served[fealtyv1.PeerServiceServer](
		d.C.Parts().Secrets.PeerRecovery.RegisterServices))
	conn, err := coordinatortest.DialUnproven(asked)
	coordinatortest.WantOnlyNil(t, err)
	defer conn.Close()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(t.Context())
	coordinatortest.WantOnlyNil(t, err)
	coordinatortest.WantOnlyNil(t, stream.Send(&fealtyv1.PeerServiceRecoverRequest{
		Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: &fealtyv1.PeerHello{}}}))
	if _, err := stream.Recv(); !errors.Is(errcode.Of(err), errcode.RecoveryMode) ||
		!strings.Contains(err.Error(), string(errcode.StoreWentBack)) {
		t.Errorf("who asks for the seed is told: %v", err)
	}

	coordinatortest.RestoreInPlace(d, d.Store, d.Signer)
	d.Restart()
	s := d.State()
	if s.Phase != authority.Ready || s.Head.Kind != history.KindRestore || d.C.Parts().StoreGuard.Lost() != nil {
		t.Errorf("after the restore it is %v at a %s: %v", s.Phase, s.Head.Kind, d.C.Parts().StoreGuard.Lost())
	}
}

// A member that says that it holds the highest version there can be, of every scope, is
// named, and delays no bundle, ban, term or version of others.
func TestMemberThatClaims(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	liar, honest, other := f.Member("liar"), f.Member("honest"), f.Member("other")
	_, term, _ := coordinatortest.AwaitLeader(t, f, r)
	const most = 1<<53 - 1
	said := &fealtyv1.ConnectRequest{Name: "liar"}
	for _, scope := range snapshot.Scopes() {
		said.Held = append(said.Held, &fealtyv1.HeldSnapshot{Scope: string(scope), AuthorityEpoch: most,
			ConfigVersion: most, Generation: most})
	}
	connect := func(n *coordinatortest.Node, req *fealtyv1.ConnectRequest) fealtyv1.AgentService_ConnectClient {
		ctx, cancel := context.WithCancel(f.Context())
		t.Cleanup(cancel)
		stream, err := coordinatortest.NewClients(n.Conn()).Agent.Connect(ctx)
		if err == nil {
			err = stream.Send(req)
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	lies, hears := connect(liar, said), connect(honest, &fealtyv1.ConnectRequest{Name: "honest"})
	// It is sent what there is like anybody.
	coordinatortest.Until(t, lies, snapshot.ScopeTrustBundle)
	coordinatortest.Until(t, hears, snapshot.ScopeTrustBundle)
	coordinatortest.BanIn(f, other)
	l, err := f.Store.List(f.Context(), bundle.StateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]fealtyv1.AgentService_ConnectClient{"who claims": lies, "another one": hears} {
		sent, _ := coordinatortest.Until(t, stream, snapshot.ScopeTrustBundle)
		bundle, h, err := f.State().Bundle.Open(sent.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		if h.ConfigVersion > uint64(l.Revision) || !slices.Contains(bundle.BannedIDs, other.ID) {
			t.Errorf("%s is sent version %d, and the store is at %d; it bans %v", name, h.ConfigVersion, l.Revision,
				bundle.BannedIDs)
		}
	}
	f.Member("late")
	for _, c := range []*coordinatortest.Fleet{f, r} {
		coordinatortest.AwaitTold(c, "data/late")
		wait.UntilNil(t, "one finding names it", func() error {
			time.Sleep(status.Fresh) // what was said before is not fresh any more
			st, named := coordinatortest.GetStatus(c), 0
			for _, finding := range st.GetFindings() {
				switch {
				case finding.GetCode() == string(errcode.StoreWentBack):
					t.Errorf("%s: it is believed: %v", c.Dir, finding)
				case finding.GetCode() == string(errcode.StoreClaimed):
					named++
					if !strings.Contains(finding.GetSummary(), "data/liar") {
						t.Errorf("somebody else is named: %v", finding)
					}
				}
			}
			if named != 1 {
				return fmt.Errorf("%d do: %v", named, st.GetFindings())
			}
			return nil
		})
		if c.C.Parts().StoreGuard.Lost() != nil {
			t.Errorf("it holds up a coordinator: %v", c.C.Parts().StoreGuard.Lost())
		}
	}
	if _, now, _ := coordinatortest.AwaitLeader(t, f, r); now >= most || now < term {
		t.Errorf("term %d after %d", now, term)
	}
}

// A member shows the trust bundle that the cluster signed, and that its store does not
// have any more, to a coordinator that saw nothing of it. Anything else is refused.
func TestMemberProves(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	gone := f.Member("gone")
	f.Stop()
	file, was := filepath.Join(f.Dir, "store", "db"), filepath.Join(t.TempDir(), "db")
	copyFile := func(from, to string) {
		t.Helper()
		raw, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyFile(file, was)
	f.Start()
	f.Await(authority.Ready)
	coordinatortest.BanIn(f, gone)
	proof := f.C.Parts().Bundle.View().Signed
	f.Stop()
	for _, name := range []string{file + "-wal", file + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	copyFile(was, file)
	for _, name := range []string{storeguard.StoreSeenFile, storeguard.TrustSeenFile} {
		if err := os.Remove(filepath.Join(f.Dir, "coordinator", name)); err != nil {
			t.Fatal(err)
		}
	}
	f.Start()
	f.Await(authority.Ready)
	if f.C.Parts().StoreGuard.Lost() != nil || f.C.Parts().Bundle.Bans(gone.ID, identity.KeyID{}) {
		t.Fatalf("it knows by itself: %v", f.C.Parts().StoreGuard.Lost())
	}
	other := coordinatortest.ReadyFleet(t, nil)
	for name, raw := range map[string][]byte{
		"altered": append(bytes.Clone(proof[:len(proof)-1]),
			proof[len(proof)-1]^1), "of another cluster": other.C.Parts().Bundle.View().Signed, "its " +
			"own": f.C.Parts().Bundle.View().Signed,
	} {
		if _, _, err := coordinatortest.Present(f, raw); name != "its own" && err == nil {
			t.Errorf("a bundle that is %s is taken", name)
		}
		if loss := f.C.Parts().StoreGuard.Lost(); loss != nil {
			t.Fatalf("a bundle that is %s is a proof: %v", name, loss)
		}
	}
	first, _, err := coordinatortest.Present(f, proof)
	if err != nil || !first.GetCompares() {
		t.Errorf("presented: %v, %v", first, err)
	}
	if loss := f.C.Parts().StoreGuard.Lost(); loss == nil || loss.From == "" {
		t.Errorf("what the cluster signed is no proof: %v", loss)
	}
}

// A bundle of the time in which bans ended without a record proves nothing of bans:
// whoever kept one cannot hold up a cluster by showing it.
func TestOldBundleProvesNoBan(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	gone := d.Joined("b")
	if err := coordinatortest.TryBan(d, gone.ID); err != nil {
		t.Fatal(err)
	}
	old := d.C.Parts().Bundle.View()
	s := d.State()
	// As an earlier release lifts it, and this one takes over.
	in, err := d.C.Parts().Bundle.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	next := in.State.Value
	next.Change, next.UnbansFrom = next.Change+1, 0
	next.Bans = in.With(bundle.Delta{Unban: []identity.ID{gone.ID}}, next).Sum()
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Delete(record.BanIDKey("data", "b"), d.Store.Version(record.BanIDKey("data", "b")))
	ch.Put(bundle.StateKey, in.State.Version, next)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.C.Parts().Bundle.Refresh(t.Context(), s, true); err != nil {
		t.Fatal(err)
	}
	if err := d.C.Parts().Trust.Proven(t.Context(), "somebody",
		old.Signed); err != nil || d.C.Parts().StoreGuard.Lost() != nil || d.C.Parts().Bundle.Bans(gone.ID,
		identity.KeyID{}) {
		t.Errorf("it ended with %v, and %v is lost", err, d.C.Parts().StoreGuard.Lost())
	}
}
