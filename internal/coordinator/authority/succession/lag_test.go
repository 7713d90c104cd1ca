package succession_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// falls counts how often coordinators say that they fell into recovery mode.
type falls struct {
	slog.Handler
	n      *atomic.Int64
	reason *atomic.Value
}

func newFalls(next slog.Handler) falls { return falls{next, new(atomic.Int64), new(atomic.Value)} }

func (h falls) Enabled(context.Context, slog.Level) bool { return true }

func (h falls) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "coordinator state" {
		recovery, reason := false, ""
		r.Attrs(func(a slog.Attr) bool {
			recovery = recovery || a.Key == "phase" && a.Value.String() == authority.Recovery.String()
			if a.Key == "reason" {
				reason = a.Value.String()
			}
			return true
		})
		if recovery {
			h.n.Add(1)
			h.reason.Store(reason)
		}
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// setAs sets a manifest through f as the command does: it takes the head from the preview,
// signs for it, and sends.
func setAs(f *coordinatortest.Fleet, c *coordinatortest.Clients, m []byte) error {
	ctx := f.Context()
	p, err := c.Manifest.PreviewManifest(ctx, &fealtyv1.PreviewManifestRequest{Manifest: m})
	if err != nil {
		return err
	}
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	f.Sign(req, history.Hash(p.GetTransition().GetHash()))
	_, err = c.Manifest.SetManifest(ctx, req)
	return err
}

// trio starts three coordinators on one store, ready at the first manifest.
func trio(t *testing.T, extra string) (all []*coordinatortest.Fleet, fell falls) {
	t.Helper()
	fell = newFalls(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	log := slog.New(fell)
	f := coordinatortest.NewFleet(t, func(cfg *coordinator.Config) { cfg.Log = log })
	all = []*coordinatortest.Fleet{f, coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)}
	if err := f.Set(f.Manifest(extra)); err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		r.Start()
		r.AwaitHead(f)
	}
	fell.n.Store(0)
	return all, fell
}

// Three coordinators set manifests at once, again and again: each set is acknowledged, or
// told that another one was first, and no coordinator falls into recovery mode for it.
func TestSetsAtOnce(t *testing.T) {
	t.Parallel()
	all, fell := trio(t, "")
	var swaps atomic.Int64
	for _, r := range all {
		// A store that takes its time, for two of three, so that sets come amid adoptions.
		r.Link.Hold(func(tx store.Tx) error {
			if slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == bundle.StateKey }) {
				time.Sleep(time.Duration(swaps.Add(1)%3) * 25 * time.Millisecond)
			}
			return nil
		})
	}
	const rounds = 4
	var made, stale atomic.Int64
	var g sync.WaitGroup
	for i, r := range all {
		c := r.Local()
		g.Go(func() {
			for n := range rounds {
				m := r.Manifest(fmt.Sprintf("  - {name: w-%d-%d, kind: witness, match: [\"token:w-%d-%d\"]}\n", i, n,
					i, n))
				switch err := setAs(r, c, m); {
				case err == nil:
					made.Add(1)
				case errcode.Of(err).Code == errcode.ManifestStale:
					stale.Add(1)
				default:
					t.Errorf("set %d through coordinator %d: %v", n, i+1, err)
				}
				// A member created under the newest manifest is created, whoever set
				// it.
				if _, err := c.Token.CreateToken(r.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool"}); err != nil {
					t.Errorf("token %d through coordinator %d: %v", n, i+1, err)
				}
			}
		})
	}
	g.Wait()
	for _, r := range all[1:] {
		coordinatortest.AwaitSameHead(t, all[0], r)
	}
	t.Logf("%d sets were made, %d were told that another was first", made.Load(), stale.Load())
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
	if got := all[0].State().Head.Index; got != uint64(made.Load())+1 {
		t.Errorf("the head is at index %d, and %d sets were acknowledged after the first", got, made.Load())
	}
}

// One operator goes from coordinator to coordinator: what one set, the next one knows. The
// epoch stays, so that nobody needs a key that it does not have.
func TestSetThroughTheNext(t *testing.T) {
	t.Parallel()
	all, fell := trio(t, "")
	var cs []*coordinatortest.Clients
	for _, r := range all {
		cs = append(cs, r.Local())
	}
	for i, r := range all {
		m := r.Manifest(fmt.Sprintf("  - {name: w-%d, kind: witness, match: [\"token:w-%d\"]}\n", i, i))
		if err := setAs(r, cs[i], m); err != nil {
			t.Fatalf("set %d through coordinator %d: %v", i, i+1, err)
		}
		next := cs[(i+1)%len(cs)]
		got, err := next.Manifest.GetManifest(r.Context(), &fealtyv1.GetManifestRequest{})
		if err != nil {
			t.Fatalf("get after set %d: %v", i, err)
		}
		if string(got.GetManifest()) != string(m) {
			t.Errorf("set %d: the next coordinator shows the manifest at index %d", i, got.GetTransition().GetIndex())
		}
		st, err := cs[(i+2)%len(cs)].Status.GetStatus(r.Context(), &fealtyv1.GetStatusRequest{PageSize: 1})
		if want := got.GetTransition().GetIndex(); err != nil || st.GetHistoryIndex() != want {
			t.Errorf("set %d: the one after it is at index %d, want %d: %v", i, st.GetHistoryIndex(), want, err)
		}
	}
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
}

// stops has the next n adoptions of f stop at their beginning, where each says so, until
// it is told to go on.
func stops(t *testing.T, f *coordinatortest.Fleet, n int) (adopting, goOn chan struct{}) {
	adopting, goOn = make(chan struct{}), make(chan struct{})
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	var hits atomic.Int64
	f.Faults.Arm("adopt.begin", func() error {
		if hits.Add(1) > int64(n) {
			return nil
		}
		for _, step := range []func(){
			func() {
				select {
				case adopting <- struct{}{}:
				case <-over:
				}
			},
			func() {
				select {
				case <-goOn:
				case <-over:
				}
			},
		} {
			step()
		}
		return nil
	})
	return adopting, goOn
}

// A head that moves on while it is adopted: the state of before serves reads, what changes
// or certifies waits for the newer head, no longer than who called, and nothing is
// certified under the manifest of before, not even while the store is out of reach.
func TestHeadMovesOnWhileAdopted(t *testing.T) {
	t.Parallel()
	all, fell := trio(t, "")
	a, b := all[0], all[1]
	member := b.Member("node-1")
	before := b.State()

	adopting, goOn := stops(t, b, 2)
	set := func(name string) {
		t.Helper()
		m := a.Manifest(fmt.Sprintf("  - {name: %s, kind: witness, match: [\"token:%s\"]}\n", name, name))
		if err := a.Set(m); err != nil {
			t.Fatal(err)
		}
	}
	set("second")
	<-adopting
	set("third")
	goOn <- struct{}{} // and loses to the third
	<-adopting
	if s := b.State(); s != before {
		t.Fatalf("the state of before did not stay: it is in phase %s: %s", s.Phase, s.Reason)
	}
	local := b.Local()
	if _, err := local.Member.ListMembers(b.Context(), &fealtyv1.ListMembersRequest{}); err != nil {
		t.Errorf("a read is refused: %v", err)
	}
	create := &fealtyv1.CreateTokenRequest{Entry: "third"}
	short, cancel := context.WithTimeout(b.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := local.Token.CreateToken(short, create); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a change under the manifest of before: %v, want that it waits for as long as its caller", err)
	}
	b.Link.Cut(coordinatortest.ErrKilled)
	peer := identity.Peer{ID: member.ID, Leaf: member.Chain[0], Key: identity.KeyOf(member.Chain[0])}
	_, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](b.C.Parts().Admission.RegisterServices).Renew(
		identity.NewContext(b.Context(), peer),
		&fealtyv1.RenewRequest{Name: member.ID.Name(), Csr: coordinatortest.MustCSR(t, member.Key), RecordedKey: true})
	coordinatortest.WantCode(t, err, errcode.HeadNotFollowed)
	b.Link.Cut(nil)

	created := make(chan error, 1)
	go func() {
		_, err := local.Token.CreateToken(b.Context(), create)
		created <- err
	}()
	goOn <- struct{}{}
	if err := <-created; err != nil {
		t.Errorf("a change that waited for the newer head: %v", err)
	}
	b.AwaitHead(a)
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
	// A change is told once, by whoever did it.
	moves := make(map[string]int)
	for _, e := range coordinatortest.Audited(a, "manifest.set") {
		moves[e.Target]++
	}
	if len(moves) != 2 || moves[a.State().Head.Hash.String()] != 1 {
		t.Errorf("the audit log tells of the sets %v", moves)
	}
}

// awaitsHead fails unless f still serves reads under the state before, and has a change wait.
func awaitsHead(f *coordinatortest.Fleet, before *authority.State) {
	f.T.Helper()
	if s := f.State(); s != before {
		f.T.Fatalf("the state of before did not stay: it is in phase %s: %s", s.Phase, s.Reason)
	}
	local := f.Local()
	if _, err := local.Member.ListMembers(f.Context(), &fealtyv1.ListMembersRequest{}); err != nil {
		f.T.Errorf("a read is refused: %v", err)
	}
	short, cancel := context.WithTimeout(f.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := local.Token.CreateToken(short,
		&fealtyv1.CreateTokenRequest{Entry: "pool"}); status.Code(err) != codes.DeadlineExceeded {
		f.T.Errorf("a change under the manifest of before: %v, want that it waits for as long as its caller", err)
	}
}

// The authority moves while a coordinator is still adopting the head before: it could not
// take the new key in advance. It serves reads while it asks the others for it, and does
// not fall into recovery mode.
func TestAuthorityMovesPastWhoLags(t *testing.T) {
	t.Parallel()
	all, fell := trio(t, "")
	a, b, c := all[0], all[1], all[2]
	before := b.State()
	adopting, goOn := stops(t, b, 1)
	if err := a.Set(a.Manifest("  - {name: second, kind: witness, match: [\"token:second\"]}\n")); err != nil {
		t.Fatal(err)
	}
	<-adopting
	if err := a.Set(a.Manifest(coordinatortest.MoreCoordinators(t))); err != nil {
		t.Fatal(err)
	}
	c.AwaitHead(a)
	asked, answer := make(chan struct{}, 64), make(chan struct{})
	give := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(give)
	for _, giver := range []*coordinatortest.Fleet{a, c} {
		giver.Faults.Arm("peer.before-reread", func() error {
			asked <- struct{}{}
			<-answer
			return nil
		})
	}
	goOn <- struct{}{} // and loses to the third
	<-asked
	awaitsHead(b, before)
	give()
	b.AwaitHead(a)
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
}

// The coordinator that moved the head is not ready at it yet, and gives its key to
// nobody: others that could not be prepared serve reads until it is, however often they
// have to ask.
func TestAuthorityMovesBeforeTheSetterIsReady(t *testing.T) {
	t.Parallel()
	fell := newFalls(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	log := slog.New(fell)
	a, rs := coordinatortest.NewPeerFleet(t, 1, func(cfg *coordinator.Config) { cfg.Log = log })
	b := rs[0]
	b.Start()
	b.AwaitHead(a)
	fell.n.Store(0)
	before := b.State()
	b.Faults.Fail("peer.before-reread", coordinatortest.ErrCrash) // it is not prepared
	asked := make(chan struct{}, 64)
	a.Faults.Arm("peer.before-reread", func() error {
		asked <- struct{}{}
		return nil
	})
	adopting, goOn := stops(t, a, 1)
	set := make(chan error, 1)
	go func() { set <- coordinatortest.SetPeople(a, coordinatortest.MoreCoordinators(t)) }()
	<-adopting
	<-asked
	<-asked // once more: nobody had it before
	awaitsHead(b, before)
	goOn <- struct{}{}
	if err := <-set; err != nil {
		t.Error(err)
	}
	b.AwaitHead(a)
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
}

// A coordinator that did not come to say that it followed is prepared all the same: a
// setter that dies right after the swap of a head costs nothing.
func TestWhoDidNotSayItFollowedIsPrepared(t *testing.T) {
	t.Parallel()
	a, rs := coordinatortest.NewPeerFleet(t, 1, nil)
	b := rs[0]
	b.Start()
	b.AwaitHead(a)
	coordinatortest.AwaitReplica(b, func(r peer.Record) bool { return r.Phase == "ready" })
	b.Link.Hold(func(tx store.Tx) error {
		for _, w := range tx.Put {
			if strings.HasPrefix(w.Key, peer.Prefix) {
				return coordinatortest.ErrCrash
			}
		}
		return nil
	})
	if err := coordinatortest.SetPeople(a,
		"  - {name: second, kind: witness, match: [\"token:second\"]}\n"); err != nil {
		t.Fatal(err)
	}
	b.AwaitHead(a)
	mv := coordinatortest.Candidate(a, coordinatortest.MoreCoordinators(t), nil)
	if took := a.C.Parts().Secrets.PeerRecovery.Prepare(a.Context(),
		mv); len(took) != 1 || !slices.Contains(b.C.Parts().Secrets.Keys.Brought(), mv.Mesh.KeyID()) {
		t.Errorf("prepared for the next head: %v", took)
	}
}

// The setter itself is overtaken before it is ready at its own head: it keeps the key that
// it made, tells the audit log of it once, and goes on to the newer head.
func TestSetterIsOvertaken(t *testing.T) {
	t.Parallel()
	all, fell := trio(t, "")
	a, b := all[0], all[1]
	adopting, goOn := stops(t, a, 1)
	set := make(chan error, 1)
	more := coordinatortest.CoordinatorEntry(t, 9) // with it comes a new mesh CA key
	m, local := a.Manifest(more), a.Local()
	go func() { set <- setAs(a, local, m) }()
	<-adopting
	// The epoch stays, and so does the key: of those that are asked only b has it too.
	if err := setAs(b, b.Local(), b.Manifest(more+"  - {name: w, kind: witness, match: [\"token:w\"]}\n")); err != nil {
		t.Fatal(err)
	}
	goOn <- struct{}{}
	if err := <-set; err != nil {
		t.Errorf("a set whose head moved on: %v", err)
	}
	coordinatortest.AwaitSameHead(t, a, b)
	if n := fell.n.Load(); n > 0 {
		t.Errorf("coordinators fell into recovery mode %d times, the last one because %v", n, fell.reason.Load())
	}
	targets := make(map[string]int)
	for _, e := range coordinatortest.Audited(a, "manifest.set", transition.ActionMeshMade) {
		targets[e.Action+" "+e.Target+e.Fields["head"]]++
	}
	for what, n := range targets {
		if n != 1 {
			t.Errorf("%s is told %d times", what, n)
		}
	}
	if n := len(coordinatortest.Audited(a, "manifest.set")); n != 2 {
		t.Errorf("%d sets are told of, want 2", n)
	}
}

// A coordinator that is overtaken each time it adopts a head pauses before the next time: its
// own notice to look again does not wake it.
func TestOvertakenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.NewDesk(t)
		other, err := d.Another("other")
		coordinatortest.WantOnlyNil(t, err)
		defer func() { coordinatortest.WantOnlyNil(t, other.Close()) }()
		both := strings.Replace(string(d.Manifest(coordinatortest.PoolEntries)), `match: ["key:`,
			fmt.Sprintf(`match: ["key:%s", "key:`, other.Parts().Self.EnrolmentKey()), 1)
		_, err = d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request([]byte(both)), true)
		coordinatortest.WantOnlyNil(t, err)
		other.Parts().Moves.Succession.Look(t.Context())
		_, err = d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request([]byte(both+"# again\n")), true)
		coordinatortest.WantOnlyNil(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		var at []time.Time
		d.Faults.Arm("adopt.begin", func() error {
			if at = append(at, time.Now()); len(at) == 20 {
				cancel()
			}
			return store.ErrConflict
		})
		if err := other.Parts().Moves.Succession.Follow(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		d.Faults.Disarm("adopt.begin")
		for i := range at[1:] {
			if !at[i+1].After(at[i]) {
				t.Fatalf("attempt %d began with no pause after the one before", i+1)
			}
		}
	})
}
