package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	storeengine "github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// TestConformance holds it to every promise of package store, over several handles of
// one database in memory.
func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Engine{New: func(t testing.TB, retained int) conformance.Database {
		db := newDatabase()
		open := func() (store.Store, error) {
			return db.open(&engine{}, func(c *storeengine.Config) {
				if retained > 0 {
					c.Retain.Commits = retained
				}
			}), nil
		}
		return conformance.Database{
			Shared: true,
			Open:   open,
			Kill: func(s store.Store) (store.Store, error) {
				s.Close()
				return open()
			},
			Full: func(s store.Store, full bool) (store.Store, error) {
				db.mu.Lock()
				defer db.mu.Unlock()
				db.full = full
				return s, nil
			},
		}
	}})
}

// call is a commit, or the question what became of one, and its answer.
type call struct {
	tx       store.Tx
	asked    bool // Outcome of tx.ID
	revision store.Revision
	err      error
}

// TestOutcomes has clients commit, swap and ask, while the engine fails at each of its
// steps, calls are given up, and the store is closed or its machine crashes. In the end
// every answer has to agree with what the database holds.
func TestOutcomes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const clients, each = 4, 12
		seed := rapid.Uint64().Draw(t, "seed")
		trouble := rapid.IntRange(0, 60).Draw(t, "trouble")  // percent of steps
		leaving := rapid.IntRange(0, 30).Draw(t, "leaving")  // percent of steps at which somebody gives up
		ends := rapid.IntRange(0, 60).Draw(t, "ends after")  // steps
		crashes := rapid.Bool().Draw(t, "ends with a crash") // otherwise it is closed
		db := newDatabase()
		var s *storeengine.Store
		var mu sync.Mutex // guards cancels
		cancels := map[int]context.CancelFunc{}
		var closing sync.WaitGroup
		opened := make(chan struct{})
		random := rand.New(rand.NewPCG(seed, 0)) // of the writer's goroutine
		steps := 0
		e := &engine{fate: func(at step, p *storeengine.Plan) fate {
			<-opened
			if random.IntN(100) < leaving {
				mu.Lock()
				for _, cancel := range cancels { // any of them
					cancel()
					break
				}
				mu.Unlock()
			}
			if steps++; steps == ends && !crashes {
				closing.Go(func() { s.Close() })
			}
			switch {
			case crashes && steps > ends && at == reading:
				return fails // it is dead
			case crashes && steps > ends:
				return losesBoth
			case random.IntN(100) >= trouble:
				return well
			case at == reading:
				return []fate{fails, again, rejects}[random.IntN(3)]
			}
			if len(p.Changes) > 1 && random.IntN(2) == 0 {
				return rejects
			}
			return []fate{fails, again, losesBoth, losesNews}[random.IntN(4)]
		}}
		s = db.open(e, func(c *storeengine.Config) {
			c.Queue = 2
			c.Retain = storeengine.RetentionLimits{Age: 1 << 60, Commits: 1 << 40, Bytes: 1 << 40}
		})
		close(opened)

		watching, stop := context.WithCancel(context.Background())
		var following sync.WaitGroup
		var told []store.Change
		following.Go(func() {
			for c, err := range s.Changes(watching, "", 0) {
				if err != nil {
					return
				}
				told = append(told, c)
			}
		})
		answers := make([][]call, clients)
		var running sync.WaitGroup
		for n := range clients {
			running.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(n+1)))
				for i := range each {
					ctx, cancel := context.WithCancel(context.Background())
					mu.Lock()
					cancels[n] = cancel
					mu.Unlock()
					value := fmt.Sprint(n, "/", i)
					key := fmt.Sprint("k", random.IntN(3))
					c := call{tx: store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}}
					if random.IntN(2) == 0 {
						c.tx.ID = "id/" + value
					}
					if random.IntN(2) == 0 {
						old, _ := s.Get(context.Background(), key)
						c.tx.If = []store.Condition{{Key: key, Version: old.Version}}
					}
					c.revision, c.err = s.Commit(ctx, c.tx)
					answers[n] = append(answers[n], c)
					if c.tx.ID != "" && random.IntN(2) == 0 {
						asked := call{tx: c.tx, asked: true}
						asked.revision, asked.err = s.Outcome(ctx, c.tx.ID)
						answers[n] = append(answers[n], asked)
					}
					mu.Lock()
					delete(cancels, n)
					mu.Unlock()
					cancel()
				}
			})
		}
		running.Wait()
		stop()
		following.Wait()
		closing.Wait()
		s.Close()
		shown := db.content.clone()
		if crashes {
			db.crash()
		}

		holds := map[string]store.Revision{} // value → its one revision
		for _, c := range db.content.log {
			for _, x := range c.Put {
				if holds[string(x.Value)] != 0 {
					t.Fatalf("%s was written twice", x.Value)
				}
				holds[string(x.Value)] = c.Revision
			}
		}
		durable := func(r store.Revision) bool { return r <= db.content.revision }
		for _, c := range slices.Concat(answers...) {
			at := holds[string(c.tx.Put[0].Value)]
			conflict, met := errors.AsType[*store.ConflictError](c.err)
			switch {
			case c.err == nil && c.revision != at:
				t.Fatalf("%+v: it is at %d", c, at)
			case c.asked && errors.Is(c.err, store.ErrNotFound) && at != 0:
				t.Fatalf("%+v: said never to be applied, and is at %d", c, at)
			case !c.asked && c.err != nil && !errors.Is(c.err, store.ErrUnknownOutcome) && at != 0:
				t.Fatalf("%+v: nothing was written, and it is at %d", c, at)
			case met && !durable(conflict.Got):
				t.Fatalf("%+v: it met what did not last", c)
			}
		}
		for i, c := range told {
			if i >= len(shown.log) || c.Revision != shown.log[i].Revision || len(c.Put) != len(shown.log[i].Put) {
				t.Fatalf("change %d of %d is of %d", i, len(shown.log), c.Revision)
			}
		}
	})
}

// gated is an engine whose steps wait until they are let go, in a bubble.
type gated struct {
	engine
	at    step // where it waits
	gate  chan fate
	waits int
}

func newGated(at step) *gated {
	g := &gated{at: at, gate: make(chan fate)}
	g.fate = func(now step, p *storeengine.Plan) fate {
		if now != g.at {
			return well
		}
		g.waits++
		return <-g.gate
	}
	return g
}

func put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

// pending is a commit under way.
type pending struct {
	cancel context.CancelFunc
	ended  bool
	r      store.Revision
	err    error
}

func begin(s store.Store, tx store.Tx) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pending{cancel: cancel}
	go func() {
		p.r, p.err = s.Commit(ctx, tx)
		p.ended = true
	}()
	return p
}

// TestGiveUp gives up commits that wait outside of the queue, in it, in a group that is
// being read, and in one that is being written.
func TestGiveUp(t *testing.T) {
	for _, tt := range []struct {
		name  string
		at    step
		doubt bool
	}{{"while it is read", reading, false}, {"while it is written", writing, true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, db := newGated(tt.at), newDatabase()
				s := db.open(&g.engine, func(c *storeengine.Config) { c.Queue = 1 })
				var all []*pending
				for _, key := range []string{"taken", "queued", "outside"} {
					all = append(all, begin(s, put(key, key)))
					synctest.Wait()
				}
				if s.Queued() != 1 || s.Taken() != map[bool]int{true: 1}[tt.doubt] {
					t.Fatalf("%d wait in a queue of 1, %d are taken", s.Queued(), s.Taken())
				}
				for i, p := range all {
					p.cancel()
					synctest.Wait()
					doubt := i == 0 && tt.doubt
					if !p.ended || !errors.Is(p.err, context.Canceled) || errors.Is(p.err, store.ErrUnknownOutcome) != doubt {
						t.Errorf("call %d: %v, %v", i, p.ended, p.err)
					}
				}
				g.gate <- well
				synctest.Wait()
				for key := range db.content.entries {
					if key != "taken" || !tt.doubt {
						t.Errorf("%s was written although nothing was", key)
					}
				}
				if len(db.content.entries) != map[bool]int{true: 1}[tt.doubt] || s.Taken() != 0 {
					t.Errorf("%v, %d taken", db.content.entries, s.Taken())
				}
				if tt.at == reading {
					close(g.gate)
				}
				s.Close()
			})
		})
	}
}

// TestGiveUpBetween: what was taken can be given up again once its attempt failed.
func TestGiveUpBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, db := newGated(writing), newDatabase()
		s := db.open(&g.engine, nil)
		p := begin(s, put("k", "1"))
		synctest.Wait()
		g.at = reading // of the next attempt
		g.gate <- again
		synctest.Wait()
		p.cancel()
		synctest.Wait()
		if !p.ended || errors.Is(p.err, store.ErrUnknownOutcome) || s.Taken() != 0 {
			t.Errorf("%v, %v, %d taken", p.ended, p.err, s.Taken())
		}
		g.gate <- well
		synctest.Wait()
		if len(db.content.entries) != 0 {
			t.Error("it was written all the same")
		}
		s.Close()
	})
}

// TestCloseWhileQueued: what is in the queue is committed, and what finds the store
// closed is not.
func TestCloseWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, db := newGated(writing), newDatabase()
		s := db.open(&g.engine, func(c *storeengine.Config) { c.Queue = 1 })
		var all []*pending
		for i := range 3 {
			all = append(all, begin(s, put(fmt.Sprint("k", i), "x")))
			synctest.Wait()
		}
		var watched error
		go func() {
			for _, err := range s.Changes(context.Background(), "", 0) {
				watched = err
			}
		}()
		synctest.Wait()
		closed := false
		go func() { s.Close(); closed = true }()
		synctest.Wait()
		if closed || !errors.Is(watched, store.ErrClosed) {
			t.Fatalf("closed: %v with a commit under way; watch: %v", closed, watched)
		}
		if late := begin(s, put("late", "x")); true {
			synctest.Wait()
			if !errors.Is(late.err, store.ErrClosed) {
				t.Errorf("after Close: %v", late.err)
			}
		}
		close(g.gate)
		synctest.Wait()
		for i, p := range all {
			if !p.ended || p.err != nil || db.content.entries[fmt.Sprint("k", i)].Version != p.r {
				t.Errorf("commit %d: %v, %v", i, p.ended, p.err)
			}
		}
		if !closed {
			t.Error("it is still closing")
		}
	})
}

// group commits txs in one group, behind another commit, and tells how the writes of
// groups were met, that of the first not counted.
func group(t *testing.T, e *engine, txs []store.Tx, fates func(n int, p *storeengine.Plan) fate,
	adjust func(*storeengine.Config)) (all []*pending, db *database, sizes []int) {
	t.Helper()
	db = newDatabase()
	gate := make(chan struct{})
	e.fate = func(at step, p *storeengine.Plan) fate {
		if at == reading {
			return well
		}
		<-gate
		sizes = append(sizes, len(p.Changes))
		if n := len(sizes) - 1; n > 0 {
			return fates(n, p)
		}
		return well
	}
	s := db.open(e, adjust)
	first := begin(s, put("first", "x"))
	synctest.Wait()
	for _, tx := range txs {
		all = append(all, begin(s, tx))
		synctest.Wait()
	}
	close(gate)
	synctest.Wait()
	s.Close()
	if first.err != nil {
		t.Fatal(first.err)
	}
	return all, db, sizes[1:]
}

// TestRejectedAlone: of a group that the database rejects, what it can store is stored.
func TestRejectedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, db, sizes := group(t, &engine{}, []store.Tx{put("a", ""), put("bad", ""), put("c", "")},
			func(_ int, p *storeengine.Plan) fate {
				if slices.Contains(p.Keys(), "bad") {
					return rejects
				}
				return well
			}, nil)
		for i, p := range all {
			if (p.err != nil) != (i == 1) || errors.Is(p.err, store.ErrUnknownOutcome) {
				t.Errorf("commit %d: %v", i, p.err)
			}
		}
		if !slices.Equal(sizes, []int{3, 1, 1, 1}) || len(db.content.entries) != 3 {
			t.Errorf("groups of %v, %v", sizes, db.content.entries)
		}
	})
}

// TestLostGroup: of a group whose answer is lost, who has no part in what it writes gets
// an answer all the same.
func TestLostGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swap := func(key string, old store.Revision) store.Tx { return store.SwapTx(key, old, nil) }
		all, _, _ := group(t, &engine{}, []store.Tx{put("a", ""), swap("first", 9), swap("a", 9)},
			func(int, *storeengine.Plan) fate { return losesNews }, nil)
		if !errors.Is(all[0].err, store.ErrUnknownOutcome) {
			t.Errorf("who wrote: %v", all[0].err)
		}
		if !errors.Is(all[1].err, store.ErrConflict) {
			t.Errorf("who met what was there before: %v", all[1].err)
		}
		if err := all[2].err; err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("who met what may not be there: %v", err)
		}
	})
}

// TestUnsettled: after an answer was lost, nobody is answered by what may not last
// before something was confirmed.
func TestUnsettled(t *testing.T) {
	for _, settled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := newDatabase()
			e := &engine{}
			writes := 0
			e.fate = func(at step, _ *storeengine.Plan) fate {
				if at == writing {
					if writes++; writes == 1 {
						return losesNews
					}
				}
				return well
			}
			s := db.open(e, func(c *storeengine.Config) { c.Settled = settled })
			if _, err := s.Commit(t.Context(), put("k", "1")); !errors.Is(err, store.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			if _, err := s.CompareAndSwap(t.Context(), "k", 9, nil); !errors.Is(err, store.ErrConflict) {
				t.Fatal(err)
			}
			if (db.safe == nil) == settled || writes != map[bool]int{true: 1, false: 2}[settled] {
				t.Errorf("settled %v: %d writes", settled, writes)
			}
			s.CompareAndSwap(t.Context(), "k", 9, nil)
			if writes != map[bool]int{true: 1, false: 2}[settled] {
				t.Errorf("settled %v: %d writes, once it was confirmed", settled, writes)
			}
			s.Close()
		})
	}
}

// TestUnsettledTwice: a conflict with what may not last is no answer either, if the
// answer to the write that was to confirm it is lost, too.
func TestUnsettledTwice(t *testing.T) {
	db := newDatabase()
	e := &engine{fate: func(at step, _ *storeengine.Plan) fate {
		if at == writing {
			return losesNews
		}
		return well
	}}
	s := db.open(e, nil)
	defer s.Close()
	if _, err := s.Commit(t.Context(), put("k", "1")); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatal(err)
	}
	_, err := s.CompareAndSwap(t.Context(), "k", 9, nil)
	if err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatal(err)
	}
}

// TestMost: a group is cut by what it costs, and what costs more goes alone.
func TestMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		txs := []store.Tx{put("a", "12"), put("b", "12"), put("c", "123456789"), put("d", "1"), put("e", "1")}
		all, _, sizes := group(t, &engine{}, txs, func(int, *storeengine.Plan) fate { return well },
			func(c *storeengine.Config) { c.Most = storeengine.Cost{Bytes: 6} })
		if !slices.Equal(sizes, []int{2, 1, 2}) {
			t.Errorf("groups of %v", sizes)
		}
		for i, p := range all {
			if p.err != nil || i > 0 && p.r <= all[i-1].r {
				t.Errorf("commit %d: %d, %v", i, p.r, p.err)
			}
		}
	})
}

// TestPruning: pruning is no reason for a commit to fail, and goes on when it can.
func TestPruning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := newDatabase(), &engine{}
		broken := true
		e.fate = func(at step, p *storeengine.Plan) fate {
			if broken && at == writing && p.Prune != p.Compacted {
				return rejects
			}
			return well
		}
		s := db.open(e, func(c *storeengine.Config) { c.Retain.Commits = 8 })
		for i := range 40 {
			if _, err := s.Commit(t.Context(), put("k", fmt.Sprint(i))); err != nil {
				t.Fatalf("commit %d: %v", i, err)
			}
		}
		if db.content.compacted != 0 {
			t.Fatalf("pruned up to %d", db.content.compacted)
		}
		broken = false
		s.Close()
		s = db.open(&engine{}, func(c *storeengine.Config) { c.Retain.Commits = 8 })
		synctest.Wait()
		if got := db.content.compacted; got < 30 || len(db.content.log) > 10 {
			t.Errorf("pruned up to %d when nobody waits", got)
		}
		s.Close()
	})
}

// TestUpkeep: the engine hears when a group was answered, and when nobody waits.
func TestUpkeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := newDatabase(), &engine{}
		s := db.open(e, nil)
		for i := range 3 {
			if _, err := s.Commit(t.Context(), put("k", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.CompareAndSwap(t.Context(), "k", 9, nil); !errors.Is(err, store.ErrConflict) {
			t.Fatal(err)
		}
		s.Close()
		if e.answered != 4 || e.idle == 0 || e.left != 1 {
			t.Errorf("answered %d, idle %d, left %d", e.answered, e.idle, e.left)
		}
	})
}

// TestWentBack: a database that goes back under a running store, as one that is restored from
// an older copy does, is not pruned by what the store knew of the other one: nothing that is
// committed after it is taken away, and nothing is pruned that is not there yet.
func TestWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := newDatabase(), &engine{}
		e.fate = func(at step, p *storeengine.Plan) fate {
			if at == writing && p.Prune > p.Before {
				t.Errorf("revision %d is there, and %d is to be pruned", p.Before, p.Prune)
			}
			return well
		}
		s := db.open(e, func(c *storeengine.Config) { c.Retain.Age = time.Hour })
		commit := func(n int) {
			t.Helper()
			for i := range n {
				tx := put("k", fmt.Sprint(i))
				tx.ID = fmt.Sprintf("id-%d-%d", n, i)
				if _, err := s.Commit(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
			}
		}
		commit(50)
		before := db.content.clone()
		for range 5 { // all of these come of age, and more
			commit(40)
			time.Sleep(2 * time.Hour)
		}
		synctest.Wait()
		if db.content.compacted < 200 {
			t.Fatalf("pruned up to %d", db.content.compacted)
		}
		db.mu.Lock()
		db.content, db.safe = *before, nil
		db.mu.Unlock()
		commit(3)
		synctest.Wait()
		if c := &db.content; c.revision != 53 || c.compacted > 50 {
			t.Fatalf("at revision %d, pruned up to %d", c.revision, c.compacted)
		}
		if got := len(db.content.outcomes); got < 3 {
			t.Errorf("%d outcomes of what was committed after it went back", got)
		}
		time.Sleep(3 * time.Hour) // nobody writes
		synctest.Wait()
		if c := &db.content; c.compacted > c.revision {
			t.Errorf("at revision %d, pruned up to %d", c.revision, c.compacted)
		}
		s.Close()
	})
}

// TestUnknownIsTold: whoever waits for a change looks again after an answer was lost, as the
// change may be there, and nothing else may tell of it.
func TestUnknownIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := newDatabase(), &engine{}
		e.fate = func(at step, _ *storeengine.Plan) fate {
			if at == writing {
				return losesNews
			}
			return well
		}
		s := db.open(e, nil)
		told := make(chan store.Entry, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(told)
			for x, err := range s.Watch(ctx, "k") {
				if err != nil {
					return
				}
				told <- x
			}
		}()
		synctest.Wait()
		if x := <-told; x.Version != 0 {
			t.Fatalf("the first look found %+v", x)
		}
		if _, err := s.Commit(t.Context(), put("k", "1")); !errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case x := <-told:
			if x.Version != 1 {
				t.Errorf("the watch found %+v", x)
			}
		default:
			t.Error("the watch waits on")
		}
		cancel()
		s.Close()
		synctest.Wait()
	})
}

// TestTimeGoesOn: under a load that never lets the queue be empty the engine tidies and time
// goes on.
func TestTimeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := newDatabase(), &engine{busy: true}
		broken := true
		e.fate = func(at step, p *storeengine.Plan) fate {
			if at == writing {
				time.Sleep(time.Minute)
				if broken && p.Prune != p.Compacted {
					broken = false
					return rejects
				}
			}
			return well
		}
		s := db.open(e, func(c *storeengine.Config) {
			c.Retain, c.Most = storeengine.RetentionLimits{Age: time.Hour, Commits: 8, Bytes: 1 << 40}, storeengine.Cost{Bytes: 1}
		})
		var all sync.WaitGroup
		for w := range 4 {
			all.Go(func() {
				for i := range 60 {
					if _, err := s.Commit(t.Context(), put(fmt.Sprint("k", w), fmt.Sprint(i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		s.Close()
		if c := &db.content; c.revision != 240 || c.compacted < 100 || e.idle == 0 {
			t.Errorf("at revision %d, pruned up to %d, tidied %d times", c.revision, c.compacted, e.idle)
		}
	})
}
