package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

func testCancel(t T, e Engine) {
	s := open(t, e)
	base := MustCommit(t, s, Put("k", "1"))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()

	// Before the call begins: nothing happens, and the error says so.
	for _, c := range []struct {
		ctx  context.Context
		want error
	}{{ended, context.Canceled}, {expired, context.DeadlineExceeded}} {
		tx := Put("k", "never")
		tx.ID = store.NewTxID()
		for name, call := range map[string]func() error{
			"Get":            func() error { _, err := s.Get(c.ctx, "k"); return err },
			"List":           func() error { _, err := s.List(c.ctx, ""); return err },
			"CompareAndSwap": func() error { _, err := s.CompareAndSwap(c.ctx, "k", base, nil); return err },
			"Commit":         func() error { return commitError(s, c.ctx, tx) },
			"Outcome":        func() error { _, err := s.Outcome(c.ctx, tx.ID); return err },
			"Watch":          func() error { return only(s.Watch(c.ctx, "k")) },
			"Changes":        func() error { return only(s.Changes(c.ctx, "", base-1)) },
		} {
			WantError(t, name+" with an ended context", call(), c.want)
		}
		wantEntry(t, s, "k", "1", base)
		// An Outcome that was not asked has voided nothing.
		MustCommit(t, s, tx)
		base = MustCommit(t, s, Put("k", "1"))
	}

	// Somewhere in the middle: the answer is right, whatever it is.
	var unknown, known, applied atomic.Int32
	rng := random(t)
	var wg sync.WaitGroup
	for w := range 8 {
		delays := make([]time.Duration, 60)
		for i := range delays {
			delays[i] = time.Duration(rng.IntN(6000)) * time.Microsecond
		}
		wg.Go(func() {
			for i, delay := range delays {
				tx := Put(fmt.Sprintf("cancel/%d", w), fmt.Sprint(i))
				tx.ID = store.NewTxID()
				ctx, cancel := context.WithTimeout(Limited(t), delay)
				r, err := s.Commit(ctx, tx)
				cancel()
				got, outcome := s.Outcome(Limited(t), tx.ID)
				switch {
				case outcome != nil && !errors.Is(outcome, store.ErrNotFound):
					t.Errorf("Outcome: %v", outcome)
				case err == nil:
					applied.Add(1)
					if outcome != nil || got != r {
						t.Errorf("Commit = %d, but Outcome = %d, %v", r, got, outcome)
					}
				case !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("Commit: %v, want the context's error", err)
				case errors.Is(err, store.ErrUnknownOutcome):
					unknown.Add(1)
				default:
					known.Add(1)
					if outcome == nil {
						t.Errorf("Commit said that nothing was written (%v), Outcome says revision %d", err, got)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d applied, %d unknown, %d not begun", applied.Load(), unknown.Load(), known.Load())

	// While waiting: iterators end with the context's error.
	for name, run := range map[string]func(context.Context, chan<- struct{}) error{
		"Watch": func(ctx context.Context, waiting chan<- struct{}) error {
			for _, err := range s.Watch(ctx, "k") {
				if err != nil {
					return err
				}
				close(waiting)
			}
			return nil
		},
		"Changes": func(ctx context.Context, waiting chan<- struct{}) error {
			l := MustList(t, s, "")
			for _, err := range s.Changes(ctx, "", l.Revision-1) {
				if err != nil {
					return err
				}
				close(waiting)
			}
			return nil
		},
	} {
		MustCommit(t, s, Put("last", "x"))
		ctx, cancel := context.WithCancel(Limited(t))
		waiting := make(chan struct{})
		end := make(chan error, 1)
		go func() { end <- run(ctx, waiting) }()
		<-waiting
		cancel()
		WantError(t, name+", cancelled while it waits", <-end, context.Canceled)
	}
}

// ledger is what writers were told.
type ledger struct {
	mu    sync.Mutex
	acked map[string]store.Revision // key → version; guarded by mu
	tried int                       // guarded by mu
}

// write commits new keys through s from many sides until it fails or the team
// is stopped; a commit that was begun is waited for.
func (l *ledger) write(t T, s store.Store, writers int) *team {
	team := newTeam(t)
	for range writers {
		team.run(func(stopped context.Context) {
			for stopped.Err() == nil {
				l.mu.Lock()
				l.tried++
				key := fmt.Sprintf("ledger/%06d", l.tried)
				l.mu.Unlock()
				ctx, cancel := context.WithTimeout(context.Background(), Patience)
				r, err := s.CompareAndSwap(ctx, key, 0, []byte(key))
				cancel()
				if err != nil {
					return
				}
				l.mu.Lock()
				l.acked[key] = r
				l.mu.Unlock()
			}
		})
	}
	return team
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// check fails unless s holds all that was acknowledged, and nothing that was
// not tried.
func (l *ledger) check(t T, s store.Store) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	listed := MustList(t, s, "ledger/")
	have := map[string]store.Entry{}
	versions := map[store.Revision]string{}
	for _, e := range listed.Entries {
		have[e.Key] = e
		if string(e.Value) != e.Key || e.Version > listed.Revision {
			t.Fatalf("%s holds %q at %d in a listing at %d", e.Key, e.Value, e.Version, listed.Revision)
		}
		if other, twice := versions[e.Version]; twice {
			t.Fatalf("%s and %s have version %d", e.Key, other, e.Version)
		}
		versions[e.Version] = e.Key
	}
	for key, version := range l.acked {
		if have[key].Version != version {
			t.Fatalf("%s was acknowledged at %d, and is at %d", key, version, have[key].Version)
		}
	}
	if len(have) > l.tried {
		t.Fatalf("%d keys after %d tries", len(have), l.tried)
	}
	// The change log agrees with what it led to.
	r := replica{}
	if len(listed.Entries) > 0 {
		least, most := listed.Revision, store.Revision(0)
		for v := range versions {
			least, most = min(least, v), max(most, v)
		}
		for _, c := range Follow(t, s, "ledger/", least-1, most) {
			r.apply(t, c)
		}
		r.wantEqual(t, listed)
	}
}

func testRestart(t T, e Engine) {
	db := e.New(t, 0)
	s := MustOpen(t, db)
	l := &ledger{acked: map[string]store.Revision{}}
	for range 4 {
		target := l.count() + 50
		writers := l.write(t, s, 8)
		WaitFor(t, func() bool { return l.count() >= target })
		writers.stop()
		before := MustList(t, s, "")
		s = restart(t, db, s)
		if after := MustList(t, s, ""); after.Revision != before.Revision {
			t.Fatalf("revision %d before a restart, %d after", before.Revision, after.Revision)
		}
		l.check(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func testKill(t T, e Engine) {
	db := e.New(t, 0)
	if db.Kill == nil {
		t.Log("left to the engine's own tests: it cannot be killed from here")
		return
	}
	s := MustOpen(t, db)
	l := &ledger{acked: map[string]store.Revision{}}
	for range 6 {
		target := l.count() + 40
		writers := l.write(t, s, 8)
		WaitFor(t, func() bool { return l.count() >= target })
		killed, err := db.Kill(s)
		if err != nil {
			t.Fatalf("Kill: %v", err)
		}
		s = killed
		writers.stop()
		l.check(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// WaitFor polls where there is nothing to wait on.
func WaitFor(t T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("what should happen did not")
		}
		time.Sleep(time.Millisecond)
	}
}

func testClose(t T, e Engine) {
	db := e.New(t, 0)
	s := MustOpen(t, db)
	MustCommit(t, s, Put("k", "1"))

	// Watches that wait, and commits on their way.
	ends := make(chan error, 2)
	var waiting sync.WaitGroup
	waiting.Add(2)
	team := newTeam(t)
	team.run(func(ctx context.Context) {
		for _, err := range s.Watch(ctx, "k") {
			if err != nil {
				ends <- err
				return
			}
			waiting.Done()
		}
	})
	after := MustList(t, s, "").Revision - 1
	team.run(func(ctx context.Context) {
		for _, err := range s.Changes(ctx, "k", after) {
			if err != nil {
				ends <- err
				return
			}
			waiting.Done()
		}
	})
	waiting.Wait()
	l := &ledger{acked: map[string]store.Revision{}}
	for round := range 8 {
		if round > 0 {
			s = MustOpen(t, db)
		}
		busy(t, team, s, l, fmt.Sprintf("ledger/%d", round))
		target := l.count() + 20
		WaitFor(t, func() bool { return l.count() >= target })
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		team.wait()
	}
	for range 2 {
		WantError(t, "end of an iterator", <-ends, store.ErrClosed)
	}
	ctx := Limited(t)
	for name, call := range map[string]func() error{
		"Get":            func() error { _, err := s.Get(ctx, "k"); return err },
		"List":           func() error { _, err := s.List(ctx, ""); return err },
		"CompareAndSwap": func() error { _, err := s.CompareAndSwap(ctx, "k", 0, nil); return err },
		"Commit":         func() error { return commitError(s, ctx, Put("k", "2")) },
		"Outcome":        func() error { _, err := s.Outcome(ctx, "k"); return err },
		"Watch":          func() error { return only(s.Watch(ctx, "k")) },
		"Changes":        func() error { return only(s.Changes(ctx, "", 0)) },
	} {
		WantError(t, name+" after Close", call(), store.ErrClosed)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}

	s = MustOpen(t, db)
	defer s.Close()
	l.check(t, s)
}

// busy keeps s under load until it is closed, and fails if anything but that
// ends a call. A call that was under way is answered or fails as a whole.
func busy(t T, team *team, s store.Store, l *ledger, prefix string) {
	for w := range 6 {
		team.run(func(ctx context.Context) {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%s/%d-%d", prefix, w, i)
				r, err := s.CompareAndSwap(ctx, key, 0, []byte(key))
				l.mu.Lock()
				if err == nil {
					l.acked[key] = r
				}
				if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
					l.tried++ // other errors promise that it is not there, and check counts
				}
				l.mu.Unlock()
				if err != nil {
					if !errors.Is(err, store.ErrClosed) && !errors.Is(err, store.ErrUnknownOutcome) {
						t.Errorf("CompareAndSwap while the store is closed: %v", err)
					}
					return
				}
			}
		})
	}
	for name, read := range map[string]func(context.Context) error{
		"Get":     func(ctx context.Context) error { _, err := s.Get(ctx, "k"); return err },
		"List":    func(ctx context.Context) error { _, err := s.List(ctx, prefix); return err },
		"Outcome": func(ctx context.Context) error { _, err := s.Outcome(ctx, "not-applied"); return err },
		"Watch": func(ctx context.Context) error {
			for _, err := range s.Watch(ctx, "k") {
				return err
			}
			return nil
		},
	} {
		team.run(func(ctx context.Context) {
			for {
				err := read(ctx)
				if err == nil || errors.Is(err, store.ErrNotFound) {
					continue
				}
				if !errors.Is(err, store.ErrClosed) {
					t.Errorf("%s while the store is closed: %v", name, err)
				}
				return
			}
		})
	}
}

func testRaise(t T, e Engine) {
	db := e.New(t, 0)
	s := MustOpen(t, db)
	defer func() { s.Close() }()
	r, ok := s.(store.Raiser)
	if !ok {
		t.Log("not a Raiser")
		return
	}
	// A Unix time, as a restore takes it; or above what there is.
	floor := max(1_800_000_000, MustList(t, s, "").Revision+1000)
	for _, f := range []store.Revision{floor, 5, floor} {
		if err := r.Raise(Limited(t), f); err != nil {
			t.Fatalf("Raise(%d): %v", f, err)
		}
		if at := MustList(t, s, "").Revision; at < floor {
			t.Fatalf("revision %d after raising above %d and then %d", at, floor, f)
		}
	}
	WantError(t, "Raise too far", r.Raise(Limited(t), store.MaxRevision/2+1), store.ErrInvalid)
	s = restart(t, db, s)
	at := MustCommit(t, s, Put("k", "1"))
	if at <= floor {
		t.Fatalf("revision %d after raising above %d", at, floor)
	}
	if c := Follow(t, s, "", floor, at); len(c) != 1 || c[0].Revision != at {
		t.Fatalf("changes after raising: %+v", c)
	}
	WantError(t, "Raise of a store that is not empty", s.(store.Raiser).Raise(Limited(t), floor), store.ErrNotEmpty)
	wantEntry(t, s, "k", "1", at)
}

// testLift: what was there is there under its versions, conditions on it hold, and who
// followed the changes goes on over the gap or is told to list again.
func testLift(t T, e Engine) {
	db := e.New(t, 0)
	s := MustOpen(t, db)
	defer func() { s.Close() }()
	l, ok := s.(store.Lifter)
	if !ok {
		t.Log("not a Lifter")
		return
	}
	was := MustCommit(t, s, Put("k", "1"))
	gone := MustCommit(t, s, Put("gone", "1"))
	MustCommit(t, s, store.Tx{Delete: []string{"gone"}})
	floor := max(1_800_000_000, MustList(t, s, "").Revision+1000)
	for _, f := range []store.Revision{floor, 5, floor} {
		if err := l.Lift(Limited(t), f); err != nil {
			t.Fatalf("Lift(%d): %v", f, err)
		}
		if at := MustList(t, s, "").Revision; at < floor {
			t.Fatalf("revision %d after lifting above %d and then %d", at, floor, f)
		}
	}
	WantError(t, "Lift too far", l.Lift(Limited(t), store.MaxRevision/2+1), store.ErrInvalid)
	wantEntry(t, s, "k", "1", was)
	s = restart(t, db, s)
	wantEntry(t, s, "k", "1", was)
	at := MustCommit(t, s, store.Tx{If: []store.Condition{{Key: "k", Version: was}, {Key: "gone"}}, Put: []store.Write{{Key: "k", Value: []byte("2")}}})
	if at <= floor {
		t.Fatalf("revision %d after lifting above %d", at, floor)
	}
	wantEntry(t, s, "k", "2", at)
	if c := Follow(t, s, "", floor, at); len(c) != 1 || c[0].Revision != at {
		t.Fatalf("changes after lifting: %+v", c)
	}
	for c, err := range s.Changes(Limited(t), "", gone) {
		if err != nil {
			if !errors.Is(err, store.ErrCompacted) {
				t.Fatalf("changes over the gap: %v", err)
			}
			break
		}
		if c.Revision >= at {
			break
		}
	}
}

// testRaisedForgets: the revisions that a store was raised over hold nothing, and
// must not be counted through before the first change after them is forgotten.
func testRaisedForgets(t T, e Engine) {
	const retain = 32
	s := MustOpen(t, e.New(t, retain))
	defer func() { s.Close() }()
	r, ok := s.(store.Raiser)
	if !ok {
		t.Log("not a Raiser")
		return
	}
	early := MustCommit(t, s, store.Tx{Delete: []string{"nothing"}})
	floor := max(1_800_000_000, 2*early)
	if err := r.Raise(Limited(t), floor); err != nil {
		t.Fatalf("Raise(%d): %v", floor, err)
	}
	for i := range 8 * retain {
		MustCommit(t, s, Put("k", fmt.Sprint(i)))
	}
	WaitFor(t, func() bool {
		ctx, cancel := context.WithTimeout(Limited(t), time.Second) // while they are kept it would wait for more
		defer cancel()
		compacted, _ := errors.AsType[*store.CompactedError](only(s.Changes(ctx, "none/", early)))
		return compacted != nil && compacted.Oldest > floor
	})
}
