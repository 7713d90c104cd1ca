package backup_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// movable is an address under which one database stands, and later another one: what a
// server is whose database is thrown away and made anew under those who use it.
type movable struct {
	mu    sync.Mutex
	st    store.Store   // guarded by mu
	moved chan struct{} // closed when st is another one; guarded by mu
}

func newMovable(st store.Store) *movable { return &movable{st: st, moved: make(chan struct{})} }

func (m *movable) at() (store.Store, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.st, m.moved
}

// to makes st the database; who watches the one of before is cut off.
func (m *movable) to(st store.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.st = st
	close(m.moved)
	m.moved = make(chan struct{})
}

func (m *movable) Get(ctx context.Context, key string) (store.Entry, error) {
	st, _ := m.at()
	return st.Get(ctx, key)
}

func (m *movable) List(ctx context.Context, prefix string) (store.Listing, error) {
	st, _ := m.at()
	return st.List(ctx, prefix)
}

func (m *movable) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision,
	error) {
	st, _ := m.at()
	return st.CompareAndSwap(ctx, key, old, value)
}

func (m *movable) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	st, _ := m.at()
	return st.Commit(ctx, tx)
}

func (m *movable) Outcome(ctx context.Context, id string) (store.Revision, error) {
	st, _ := m.at()
	return st.Outcome(ctx, id)
}

func (m *movable) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return overMove(ctx, m,
		func(ctx context.Context, st store.Store) iter.Seq2[store.Entry, error] { return st.Watch(ctx, key) })
}

func (m *movable) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return overMove(ctx, m, func(ctx context.Context, st store.Store) iter.Seq2[store.Change, error] {
		return st.Changes(ctx, prefix, after)
	})
}

func (m *movable) Close() error { return nil }

var errMoved = errors.New("the connection to the database is gone")

// overMove ends what watches when the database is another one.
func overMove[T any](ctx context.Context, m *movable,
	watch func(context.Context, store.Store) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		st, moved := m.at()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			select {
			case <-moved:
				cancel(errMoved)
			case <-stop:
			}
		}()
		for v, err := range watch(ctx, st) {
			if err != nil && context.Cause(ctx) != nil {
				err = context.Cause(ctx)
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// A database server is emptied and restored while three coordinators run, and never
// stop: each follows the restore, by whoever is first, forgets what it knew of the
// time since the backup, and does all its work on what was restored.
func TestRestoreUnderRunningCoordinators(t *testing.T) {
	t.Parallel()
	old, next := storetest.NewMemory(0).Open(), storetest.NewMemory(0).Open()
	base := newMovable(old)
	owners := coordinatortest.NewPeople(t, "alice")
	f := coordinatortest.NewFleetOn(t,
		func() store.Store { return base }, func(c *coordinator.Config) {
			c.Timing.Lease, c.Timing.Beat = election.DefaultLease/2,
				election.DefaultBeat/2
		})
	all := []*coordinatortest.Fleet{f, coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)}
	if err := f.Set(coordinatortest.WithSeed(f.Manifest(""), owners.Seed(1, ""))); err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		r.Start()
		r.AwaitHead(f)
	}
	put := func(f *coordinatortest.Fleet, text string) error {
		_, err := fealtyv1.NewConfigServiceClient(f.LocalConn()).PutConfig(f.Context(), coordinatortest.PutRequest(text))
		return err
	}
	f.Member("kept")
	coordinatortest.WantOnly(t, "put", put(f, "kind: qos\nname: a\npriority: 1\n"), "")
	b := coordinatortest.Save(f, owners).Signed(f.Signer)

	// The changes that the backup does not know: config, a member, a ban, a head.
	for _, name := range []string{"b", "c", "d"} {
		coordinatortest.WantOnly(t, "put", put(f, "kind: qos\nname: "+name+"\npriority: 1\n"), "")
	}
	f.Member("lost")
	coordinatortest.BanIn(f, f.Member("banned"))
	if err := f.Set(coordinatortest.WithSeed(f.Manifest("  - {name: extra, kind: witness, match: [\"token:extra\"]}\n"),
		owners.Seed(1, ""))); err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		r.AwaitHead(f)
	}
	for _, r := range all {
		coordinatortest.AwaitTold(r, "data/lost")
	}
	leader, term, _ := coordinatortest.AwaitLeader(t, all...)
	before, was := leader.State(), leader.C.Parts().Publication.View()
	l, err := old.List(t.Context(), "")
	coordinatortest.WantOnly(t, "list", err, "")

	b.Planned().Signed(f.Signer)
	r, err := backup.Open(bytes.NewReader(b.File), []age.Identity{owners.Keys["alice"]})
	coordinatortest.WantOnly(t, "open", err, "")
	_, err = backup.Restore(t.Context(), next, b.Plan, r, nil)
	coordinatortest.WantOnly(t, "restore", err, "")
	// Where the others are nobody knows then, and for a moment nobody says so.
	for _, r := range all {
		r.Link.Lie(coordinatortest.HideReplicas)
	}
	base.to(next)
	for _, r := range all {
		r.AwaitState("the restore, or that nobody has it", func(s *authority.State) bool {
			return s.Phase == authority.Ready && s.LastRestore() != nil || strings.Contains(s.Reason,
				peer.ErrNoPeers.Error())
		})
	}
	for _, r := range all {
		r.Link.Lie(nil)
	}
	for _, r := range all {
		r.AwaitState("the restore",
			func(s *authority.State) bool { return s.Phase == authority.Ready && s.LastRestore() != nil })
	}
	s := f.State()
	for _, r := range all[1:] {
		r.AwaitHead(f)
	}
	if s.Head.Index <= before.Head.Index || s.Head.AuthorityEpoch <= before.Head.AuthorityEpoch ||
		s.HeadVersion <= l.Revision || s.MeshKey == before.MeshKey {
		t.Errorf("after index %d of epoch %d at %d it is at index %d of epoch %d at %d", before.Head.Index,
			before.Head.AuthorityEpoch, before.HeadVersion,
			s.Head.Index, s.Head.AuthorityEpoch, s.HeadVersion)
	}
	// One wrote the transition, and the others have its secrets from it: nobody made
	// another mesh CA key because the backup holds no word of where the others are.
	if s.Head.Previous != b.V.Current().Hash || s.Head.Kind != history.KindRestore {
		t.Errorf("after the backup comes %s at index %d, %s", s.Head.Kind, s.Head.Index, s.Head.Reason)
	}
	_, again, _ := coordinatortest.AwaitLeader(t, all...)
	if again <= term {
		t.Errorf("term %d comes after %d", again, term)
	}
	// All of them compile of what was restored, and take what is new.
	for i, name := range []string{"e", "g", "h"} {
		coordinatortest.WantOnly(t, "put after the restore", put(all[i], "kind: qos\nname: "+name+"\npriority: 1\n"),
			"")
	}
	f.Member("new")
	for _, r := range all {
		coordinatortest.AwaitTold(r, "data/new")
		coordinatortest.AwaitTold(r, "data/kept")
		p := r.C.Parts().Publication.View()
		if _, ok := p.Find(publication.RuntimePath("data/lost")); ok {
			t.Error("members are told of one that the backup does not know")
		}
		if p.State.Value.Generation <= was.State.Value.Generation {
			t.Errorf("generation %d comes after %d", p.State.Value.Generation, was.State.Value.Generation)
		}
		set, version, ok := r.C.Parts().Desired.Configured()
		e, err := next.Get(t.Context(), desired.StateKey)
		coordinatortest.WantOnly(t, "config", err, "")
		if !ok || version != e.Version || set.Len() != 4 {
			t.Errorf("its config is of version %d and has %d records; the store has version %d", version, set.Len(),
				e.Version)
		}
		if n := coordinatortest.ForgedRecords(r.C); n != 0 {
			t.Errorf("it says of %v records that somebody altered them", n)
		}
		if r.C.Parts().Bundle.View().Version <= uint64(b.Plan.Floor) {
			t.Errorf("its trust bundle is of version %d", r.C.Parts().Bundle.View().Version)
		}
	}
}
