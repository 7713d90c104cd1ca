package coordinator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peers"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/sealed"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// copyOf is a copy of a store in memory, which goes back to it.
func (m *memStore) copyOf() (back func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rev := m.rev
	m.mu.Unlock()
	entries := m.snapshot()
	m.mu.Lock()
	return func() {
		m.revert(entries)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rev = rev
	}
}

// wantWentBack checks that c says that its store went back wherever people look, and
// changes nothing.
func (d *desk) wantWentBack(when string) {
	d.t.Helper()
	c := d.c
	if s := d.state(); s.Phase != authority.Ready {
		d.t.Fatalf("%s: it is %v, %s", when, s.Phase, s.Reason)
	}
	st, err := coordinator.StatusOf(c).GetStatus(context.Background(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		d.t.Fatalf("%s: status: %v", when, err)
	}
	found := false
	for _, f := range st.GetFindings() {
		found = found || f.GetCode() == string(explain.StoreWentBack)
	}
	if !found {
		d.t.Errorf("%s: status finds %v", when, st.GetFindings())
	}
	answered := httptest.NewRecorder()
	c.MetricsHandler(c.Cfg().Registry).ServeHTTP(answered, httptest.NewRequest(http.MethodGet, "/probe/readiness", nil))
	var a coordinator.ProbeAnswer
	if err := json.Unmarshal(answered.Body.Bytes(), &a); err != nil || a.Store != "went back" || !a.OK ||
		!strings.Contains(a.Reason, "the store went back") {
		d.t.Errorf("%s: readiness says %s", when, answered.Body)
	}
	if _, _, leads := c.Rooms().Election.Leading(); leads {
		d.t.Errorf("%s: it leads", when)
	}
	_, err = served[fealtyv1.TokenServiceServer](c.Rooms().Admission.RegisterServices).CreateToken(context.Background(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"})
	if !errors.Is(err, explain.StoreWentBack) {
		d.t.Errorf("%s: a token: %v", when, err)
	}
	if err := d.set(d.extra); !errors.Is(err, explain.StoreWentBack) {
		d.t.Errorf("%s: a set: %v", when, err)
	}
}

// A dump of before a ban is put back, under the same head. The ban stays in force, nothing
// is changed and no bundle is signed, on the coordinators that run and on those that start
// on it; members are certified by what is known. A restore in place that the signers
// want is the way on, and a member that knows of the ban brings it back.
func TestStoreWentBack(t *testing.T) {
	d := testDesk(t)
	stays, gone := d.joined("a"), d.joined("b")
	back := d.store.copyOf()
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	banned := d.c.Rooms().Bundle.View()
	key := identity.KeyOf(gone.leaf)
	d.c.Rooms().StoreGuard.Keep(t.Context())
	back()

	// While it runs.
	if err := d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true); !errors.Is(err, explain.StoreWentBack) {
		t.Fatalf("the trust state of before: %v", err)
	}
	d.wantWentBack("while it runs")
	if forgedRecords(d.c) != 0 {
		t.Error("it says that somebody altered a record")
	}
	was := d.store.snapshot()
	for _, when := range []string{"while it runs", "after a restart", "after another one"} {
		if !d.c.Rooms().Bundle.Bans(gone.id, key) || d.c.Rooms().Bundle.View().Version != banned.Version {
			t.Errorf("%s: the ban is lifted, by bundle %d after %d", when, d.c.Rooms().Bundle.View().Version,
				banned.Version)
		}
		if chain, err := stays.recertify(); err != nil || len(chain) == 0 {
			t.Errorf("%s: a member is not certified again: %v", when, err)
		}
		if _, err := gone.recertify(); err == nil {
			t.Errorf("%s: the banned member is certified", when)
		}
		d.restart()
		d.wantWentBack("after a restart")
	}
	for key, e := range d.store.snapshot() { // the desk itself makes who starts the leader
		guarded := !slices.ContainsFunc(coordinator.Unguarded, func(family string) bool {
			return strings.HasPrefix(key,
				family)
		})
		if guarded && key != election.TermKey && was[key].Version != e.Version {
			t.Errorf("somebody wrote %s", key)
		}
	}

	// Not by itself, whatever the store shows later.
	d.store.mu.Lock()
	d.store.rev += 1000
	d.store.mu.Unlock()
	d.restart()
	d.wantWentBack("once its revisions are above")

	d.restoreInPlace(d.store, d.signer)
	d.restart()
	if s := d.state(); s.Phase != authority.Ready || s.Head.Kind != history.KindRestore {
		t.Fatalf("after the restore it is %v at a %s: %s", s.Phase, s.Head.Kind, s.Reason)
	}
	if d.c.Rooms().StoreGuard.Lost() != nil || d.c.Rooms().Bundle.View().Version <= banned.Version {
		t.Errorf("after the restore: %v, bundle %d", d.c.Rooms().StoreGuard.Lost(), d.c.Rooms().Bundle.View().Version)
	}
	if n, err := d.c.Rooms().Trust.TakePresented(t.Context(), banned.Signed); err != nil || n == 0 {
		t.Fatalf("what a member knows of bans: %d, %v", n, err)
	}
	if err := d.c.Rooms().Bundle.Apply(t.Context()); err != nil || !d.c.Rooms().Bundle.Bans(gone.id, key) {
		t.Errorf("the ban is not in force: %v", err)
	}
	d.joined("c")
	if err := d.banned(stays.id); err != nil {
		t.Error(err)
	}
	d.restart()
	if s := d.state(); s.Phase != authority.Ready || d.c.Rooms().StoreGuard.Lost() != nil ||
		!d.c.Rooms().Bundle.Bans(gone.id,
			key) || !d.c.Rooms().Bundle.Bans(stays.id, identity.KeyID{}) {
		t.Errorf("another start: %v, %v", s.Phase, d.c.Rooms().StoreGuard.Lost())
	}
}

// Nobody has the mesh CA key of the head, and the store under it went back: who has the
// seed makes no new key over what is missing, and says what is the matter. It does not
// look for somebody who wrote at once for ever.
func TestWentBackWithoutTheMeshKey(t *testing.T) {
	d := testDesk(t)
	gone := d.joined("a")
	back := d.store.copyOf()
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	d.c.Rooms().StoreGuard.Keep(t.Context())
	was := d.state()
	back()
	for key := range d.store.snapshot() {
		if strings.HasPrefix(key, sealed.Mesh(was.Head.Hash).Under()) {
			d.store.remove(key)
		}
	}
	d.restart()
	if s := d.state(); s.Phase != authority.Recovery {
		t.Fatalf("without the key of the head it is %v", s.Phase)
	}
	secrets := d.c.Rooms().Authority.Memory().Secrets(was.Head.Salt)
	if secrets == nil {
		t.Fatal("the keeper did not open the seed")
	}
	before, err := d.c.Rooms().Authority.StateBefore(t.Context(), was.Chain, secrets)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.c.Rooms().Authority.Rekey(t.Context(), before, "test", "test", nil); !errors.Is(err,
		explain.StoreWentBack) {
		t.Errorf("a new mesh CA key: %v", err)
	}
	st, err := coordinator.StatusOf(d.c).GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil || !slices.ContainsFunc(st.GetFindings(),
		func(f *fealtyv1.Finding) bool { return f.GetCode() == string(explain.StoreWentBack) }) {
		t.Errorf("status finds %v, %v", st.GetFindings(), err)
	}
	// Another coordinator asks for the seed, without which it knows of no loss.
	if _, _, err := d.c.Rooms().PeerRecovery.Greet(t.Context(), proof.Recover, &fealtyv1.PeerHello{}, ""); !errors.Is(err,
		explain.RecoveryMode) || !strings.Contains(err.Error(), string(explain.StoreWentBack)) {
		t.Errorf("who asks for the seed is told: %v", err)
	}

	d.restoreInPlace(d.store, d.signer)
	d.restart()
	s := d.state()
	if s.Phase != authority.Ready || s.Head.Kind != history.KindRestore || d.c.Rooms().StoreGuard.Lost() != nil {
		t.Errorf("after the restore it is %v at a %s: %v", s.Phase, s.Head.Kind, d.c.Rooms().StoreGuard.Lost())
	}
}

// recertify asks for the recorded key again.
func (m *machine) recertify() ([][]byte, error) { return m.renewWith(m.leaf, m.key) }

// restoreInPlace does what fealty backup restore --in-place does.
func (d *desk) restoreInPlace(st store.Store, signer any) {
	d.t.Helper()
	ctx := context.Background()
	found, err := backup.PlanInPlace(ctx, lifted{d.store}, d.clock(),
		func(m *manifest.Manifest) (store.Revision, error) { return replicas.SeenIn(ctx, st, m) }, "test", "test")
	if err != nil {
		d.t.Fatal(err)
	}
	request, err := found.Intent.Request(found.Manifest)
	if err != nil {
		d.t.Fatal(err)
	}
	if signer != nil {
		f, err := request.Sign(d.signer)
		if err != nil {
			d.t.Fatal(err)
		}
		found.Intent.Signatures = append(found.Intent.Signatures, f.Signature)
	}
	if err := backup.RestoreInPlace(ctx, lifted{d.store}, found, nil); err != nil {
		d.t.Fatal(err)
	}
}

// lifted is a memStore whose revisions can be raised.
type lifted struct{ *memStore }

func (l lifted) Raise(context.Context, store.Revision) error { return store.ErrNotEmpty }

func (l lifted) Lift(_ context.Context, floor store.Revision) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rev = max(l.rev, floor)
	return nil
}

// Who can write to the store puts back all of the trust state as it was before a ban, each
// record whole, in writes of their own: the ban stays in force, on the coordinator that
// runs and on one that starts.
func TestTrustPutBack(t *testing.T) {
	d := testDesk(t)
	d.joined("a")
	gone := d.joined("b")
	before := d.store.snapshot()
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	d.c.Rooms().StoreGuard.Keep(t.Context())
	version := d.c.Rooms().Bundle.View().Version
	for key := range d.store.snapshot() {
		if !strings.HasPrefix(key, bundle.Prefix) {
			continue
		}
		if e, ok := before[key]; ok {
			d.store.write(key, e.Value)
		} else {
			d.store.alter(key, func([]byte) []byte { return nil })
		}
	}
	for range 2 {
		_ = d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true)
		d.wantWentBack("with trust/* put back")
		if !d.c.Rooms().Bundle.Bans(gone.id, identity.KeyOf(gone.leaf)) || d.c.Rooms().Bundle.View().Version != version {
			t.Fatal("the ban is lifted")
		}
		d.restart()
	}
}

// A ban ends by an unban that names it: one of an older ban that is put back lifts
// nothing, also if somebody who has the key writes the trust state anew.
func TestBanWithoutUnban(t *testing.T) {
	for name, unban := range map[string]bool{"no unban": false, "an unban of an older ban": true} {
		t.Run(name, func(t *testing.T) {
			d := testDesk(t)
			gone := d.joined("b")
			if err := d.banned(gone.id); err != nil {
				t.Fatal(err)
			}
			if _, err := d.members().UnbanMember(t.Context(),
				&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "b"}); err != nil {
				t.Fatal(err)
			}
			if d.c.Rooms().Bundle.Bans(gone.id, identity.KeyID{}) || d.c.Rooms().StoreGuard.Lost() != nil {
				t.Fatalf("a ban that a person lifted: %v", d.c.Rooms().StoreGuard.Lost())
			}
			if err := d.banned(gone.id); err != nil {
				t.Fatal(err)
			}
			// As a coordinator writes it that does not know of the ban.
			s := d.state()
			in, err := d.c.Rooms().Bundle.Read(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			ban, err := record.Get[record.Ban](t.Context(), s.Records, record.BanIDKey("data", "b"))
			if err != nil || ban.Value.Counter == 0 {
				t.Fatalf("the ban has counter %d, %v", ban.Value.Counter, err)
			}
			ch := s.Records.NewChange(s.HeadVersion)
			ch.Delete(record.BanIDKey("data", "b"), ban.Version)
			if !unban {
				ch.Drop(record.UnbanKey("data", "b"))
			}
			next := in.State.Value
			next.Change++
			left := in.With(bundle.Delta{Unban: []identity.ID{gone.id}}, next)
			next.Bans = left.Sum()
			ch.Put(bundle.StateKey, in.State.Version, next)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = d.c.Rooms().Bundle.Refresh(t.Context(), s, true)
			d.wantWentBack("after a ban went without an unban")
			if !d.c.Rooms().Bundle.Bans(gone.id, identity.KeyID{}) {
				t.Error("the ban is lifted")
			}
		})
	}
}

// A store that an earlier release wrote has no counters of bans and no unbans, and what
// that release saw of it stands nowhere: it is taken over without an alarm, and from then
// on it is watched.
func TestTakesOverStoreOfBefore(t *testing.T) {
	d := testDesk(t)
	gone := d.joined("b")
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	s := d.state()
	in, err := d.c.Rooms().Bundle.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ban, err := record.Get[record.Ban](t.Context(), s.Records, record.BanIDKey("data", "b"))
	if err != nil {
		t.Fatal(err)
	}
	ban.Value.Counter, in.State.Value.UnbansFrom = 0, 0
	in.State.Value.Change++
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(record.BanIDKey("data", "b"), ban.Version, ban.Value)
	ch.Put(bundle.StateKey, in.State.Version, in.State.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.forgets(storeguard.StoreSeenFile, storeguard.TrustSeenFile)
	back := d.store.copyOf()
	if s := d.state(); s.Phase != authority.Ready || d.c.Rooms().StoreGuard.Lost() != nil ||
		!d.c.Rooms().Bundle.Bans(gone.id,
			identity.KeyID{}) {
		t.Fatalf("it is %v, %v", s.Phase, d.c.Rooms().StoreGuard.Lost())
	}
	if _, err := d.members().UnbanMember(t.Context(),
		&fealtyv1.UnbanMemberRequest{Kind: "data", Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if d.c.Rooms().Bundle.Bans(gone.id, identity.KeyID{}) || d.c.Rooms().StoreGuard.Lost() != nil {
		t.Errorf("its ban cannot be lifted: %v", d.c.Rooms().StoreGuard.Lost())
	}
	back()
	_ = d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true)
	d.wantWentBack("after it was taken over")
}

// banned bans a member.
func (d *desk) banned(id identity.ID) error {
	_, err := d.members().BanMember(context.Background(),
		&fealtyv1.BanMemberRequest{Kind: string(id.Kind()), Name: id.Name(), Reason: "test"})
	return err
}

// A coordinator that saw nothing, as on a new disk, believes another one by what the
// cluster signed. A number is told to people with the name of who says it, and holds up
// nothing.
func TestPeersProve(t *testing.T) {
	d := testDesk(t)
	gone := d.joined("b")
	back := d.store.copyOf()
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	proof := d.c.Rooms().Bundle.View()
	back()
	d.forgets(storeguard.StoreSeenFile, storeguard.TrustSeenFile)
	if d.c.Rooms().StoreGuard.Lost() != nil || d.c.Rooms().Bundle.Bans(gone.id, identity.KeyID{}) {
		t.Fatalf("it knows by itself: %v", d.c.Rooms().StoreGuard.Lost())
	}
	s := d.state()
	other := *proof
	for name, c := range map[string]struct {
		seen  *fealtyv1.GetSeenResponse
		claim string
	}{
		"nothing":           {&fealtyv1.GetSeenResponse{}, ""},
		"a number":          {&fealtyv1.GetSeenResponse{Revision: 1<<53 - 1}, "revision 9007199254740991"},
		"that it went back": {&fealtyv1.GetSeenResponse{Lost: true}, "it went back, it says"},
		"another restore":   {&fealtyv1.GetSeenResponse{Restored: 1_800_000_000, Revision: 1<<53 - 1, Lost: true}, ""},
		"what it " +
			"forged": {&fealtyv1.GetSeenResponse{TrustBundle: &fealtyv1.SignedSnapshot{Envelope: append([]byte(nil),
			other.Signed[:len(other.Signed)-2]...)}}, ""},
	} {
		claim, err := d.c.Rooms().Peers.Compare(t.Context(), s, "x", c.seen)
		if err != nil || !strings.Contains(claim, c.claim) || c.claim == "" && claim != "" {
			t.Errorf("who says %s: %q, %v", name, claim, err)
		}
		if loss := d.c.Rooms().StoreGuard.Lost(); loss != nil {
			t.Fatalf("who says %s holds it up: %v", name, loss)
		}
	}
	if _, err := (served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices)).CreateToken(t.Context(),
		&fealtyv1.CreateTokenRequest{Entry: "pool"}); err != nil {
		t.Errorf("a token: %v", err)
	}
	if claim, err := d.c.Rooms().Peers.Compare(t.Context(), s, "x",
		&fealtyv1.GetSeenResponse{TrustBundle: proof.Message()}); err != nil || claim != "" {
		t.Errorf("the bundle that the cluster signed: %q, %v", claim, err)
	}
	d.wantWentBack("after another one proved it")
	if loss := d.c.Rooms().StoreGuard.Lost(); loss.From != "coordinator x" {
		t.Errorf("nobody is named: %+v", loss)
	}
}

// A member that says that it holds the highest version there can be, of every scope, is
// named, and delays no bundle, ban, term or version of others.
func TestMemberThatClaims(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	r := newReplica(t, f)
	if err := f.set(f.manifest("")); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.awaitHead(f)
	liar, honest, other := f.member("liar"), f.member("honest"), f.member("other")
	_, term, _ := awaitLeader(t, f, r)
	const most = 1<<53 - 1
	said := &fealtyv1.ConnectRequest{Name: "liar"}
	for _, scope := range snapshot.Scopes() {
		said.Held = append(said.Held, &fealtyv1.HeldSnapshot{Scope: string(scope), AuthorityEpoch: most,
			ConfigVersion: most, Generation: most})
	}
	connect := func(n *node, req *fealtyv1.ConnectRequest) fealtyv1.AgentService_ConnectClient {
		ctx, cancel := context.WithCancel(f.ctx())
		t.Cleanup(cancel)
		stream, err := newClients(n.conn()).agent.Connect(ctx)
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
	until(t, lies, snapshot.ScopeTrustBundle)
	until(t, hears, snapshot.ScopeTrustBundle)
	f.ban(other)
	l, err := f.store.List(f.ctx(), bundle.StateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]fealtyv1.AgentService_ConnectClient{"who claims": lies, "another one": hears} {
		sent, _ := until(t, stream, snapshot.ScopeTrustBundle)
		bundle, h, err := f.c.Rooms().Head.State().Bundle.Open(sent.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		if h.ConfigVersion > uint64(l.Revision) || !slices.Contains(bundle.BannedIDs, other.id) {
			t.Errorf("%s is sent version %d, and the store is at %d; it bans %v", name, h.ConfigVersion, l.Revision,
				bundle.BannedIDs)
		}
	}
	f.member("late")
	for _, c := range []*fleet{f, r} {
		c.awaitTold("data/late")
		time.Sleep(peers.Fresh) // what was said before is not fresh any more
		st, named := c.getStatus(), 0
		for _, finding := range st.GetFindings() {
			switch {
			case finding.GetCode() == string(explain.StoreWentBack):
				t.Errorf("%s: it is believed: %v", c.dir, finding)
			case finding.GetCode() == string(explain.StoreClaimed):
				named++
				if !strings.Contains(finding.GetSummary(), "data/liar") {
					t.Errorf("somebody else is named: %v", finding)
				}
			}
		}
		if named != 1 {
			t.Errorf("%d findings name it: %v", named, st.GetFindings())
		}
		if c.c.Rooms().StoreGuard.Lost() != nil {
			t.Errorf("it holds up a coordinator: %v", c.c.Rooms().StoreGuard.Lost())
		}
	}
	if _, now, _ := awaitLeader(t, f, r); now >= most || now < term {
		t.Errorf("term %d after %d", now, term)
	}
}

// forgets starts the coordinator again without these files of its data directory.
func (d *desk) forgets(names ...string) {
	d.t.Helper()
	if err := d.c.Close(); err != nil {
		d.t.Fatal(err)
	}
	for _, name := range names {
		if err := d.disk.FS().Remove("/coordinator/" + name); err != nil {
			d.t.Fatal(err)
		}
	}
	d.open()
}

// A member shows the trust bundle that the cluster signed, and that its store does not
// have any more, to a coordinator that saw nothing of it. Anything else is refused.
func TestMemberProves(t *testing.T) {
	t.Parallel()
	f := readyFleet(t, nil)
	gone := f.member("gone")
	f.stop()
	file, was := filepath.Join(f.dir, "store", "db"), filepath.Join(t.TempDir(), "db")
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
	f.start()
	f.awaitPhase(authority.Ready)
	f.ban(gone)
	proof := f.c.Rooms().Bundle.View().Signed
	f.stop()
	for _, name := range []string{file + "-wal", file + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	copyFile(was, file)
	for _, name := range []string{storeguard.StoreSeenFile, storeguard.TrustSeenFile} {
		if err := os.Remove(filepath.Join(f.dir, "coordinator", name)); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	f.awaitPhase(authority.Ready)
	if f.c.Rooms().StoreGuard.Lost() != nil || f.c.Rooms().Bundle.Bans(gone.id, identity.KeyID{}) {
		t.Fatalf("it knows by itself: %v", f.c.Rooms().StoreGuard.Lost())
	}
	other := readyFleet(t, nil)
	for name, raw := range map[string][]byte{
		"altered": append(bytes.Clone(proof[:len(proof)-1]),
			proof[len(proof)-1]^1), "of another cluster": other.c.Rooms().Bundle.View().Signed, "its " +
			"own": f.c.Rooms().Bundle.View().Signed,
	} {
		if _, _, err := f.present(raw); name != "its own" && err == nil {
			t.Errorf("a bundle that is %s is taken", name)
		}
		if loss := f.c.Rooms().StoreGuard.Lost(); loss != nil {
			t.Fatalf("a bundle that is %s is a proof: %v", name, loss)
		}
	}
	first, _, err := f.present(proof)
	if err != nil || !first.GetCompares() {
		t.Errorf("presented: %v, %v", first, err)
	}
	if loss := f.c.Rooms().StoreGuard.Lost(); loss == nil || loss.From == "" {
		t.Errorf("what the cluster signed is no proof: %v", loss)
	}
}

// A bundle of the time in which bans ended without a record proves nothing of bans:
// whoever kept one cannot hold up a cluster by showing it.
func TestOldBundleProvesNoBan(t *testing.T) {
	d := testDesk(t)
	gone := d.joined("b")
	if err := d.banned(gone.id); err != nil {
		t.Fatal(err)
	}
	old := d.c.Rooms().Bundle.View()
	s := d.state()
	// As an earlier release lifts it, and this one takes over.
	in, err := d.c.Rooms().Bundle.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	next := in.State.Value
	next.Change, next.UnbansFrom = next.Change+1, 0
	next.Bans = in.With(bundle.Delta{Unban: []identity.ID{gone.id}}, next).Sum()
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Delete(record.BanIDKey("data", "b"), d.store.version(record.BanIDKey("data", "b")))
	ch.Put(bundle.StateKey, in.State.Version, next)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.c.Rooms().Bundle.Refresh(t.Context(), s, true); err != nil {
		t.Fatal(err)
	}
	if err := d.c.Rooms().Trust.Proven(t.Context(), "somebody",
		old.Signed); err != nil || d.c.Rooms().StoreGuard.Lost() != nil || d.c.Rooms().Bundle.Bans(gone.id,
		identity.KeyID{}) {
		t.Errorf("it ended with %v, and %v is lost", err, d.c.Rooms().StoreGuard.Lost())
	}
}

// A store goes back just after a coordinator started on it, and before it read anything else
// as a ready one: what it read on the way there counts.
func TestWentBackAfterTheStart(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	d.joined("a")
	wantOnlyNil(t, d.c.Close())
	back := d.store.copyOf()
	d.store.write("member/data/b", nil) // of another coordinator, and gone with the store of now
	d.store.remove("member/data/b")
	d.open()
	if loss := d.c.Rooms().StoreGuard.Lost(); d.state().Phase != authority.Ready || loss != nil {
		t.Fatalf("it is %v, and %v is lost", d.state().Phase, loss)
	}
	back()
	_, err := d.c.Store().List(t.Context(), record.MemberPrefix)
	wantOnlyNil(t, err)
	if d.c.Rooms().StoreGuard.Lost() == nil {
		t.Error("nobody noticed that the store went back")
	}
}
