package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

// Fate is what becomes of a call on its way to a store and back.
type Fate int

const (
	Pass        Fate = iota // nothing is lost
	LoseAnswer              // the store does it, the caller hears of a lost connection
	LoseRequest             // the store never hears of it, nor the caller of the store
	Delay                   // as LoseRequest, but a Commit arrives later, when Wrapper.Deliver is called
)

func (f Fate) String() string {
	return [...]string{"pass", "lose answer", "lose request", "delay"}[f]
}

// ErrLost is what a Wrapper's caller gets in place of a lost answer.
var ErrLost = errors.New("connection lost")

// Wrapper is a store over a connection that can be made to lose what passes. Its
// calls are safe for concurrent use.
type Wrapper struct {
	inner store.Store

	mu      sync.Mutex
	fate    func(call string) Fate // guarded by mu
	delayed []store.Tx             // guarded by mu
}

var _ store.Store = (*Wrapper)(nil)

// NewLossy returns a Wrapper around s that loses nothing yet. Closing it closes
// s.
func NewLossy(s store.Store) *Wrapper {
	return &Wrapper{inner: s, fate: func(string) Fate { return Pass }}
}

// SetFate gives all calls that begin later the same fate. An iterator that begins
// under one but Pass ends with an error, after one pair or none.
func (w *Wrapper) SetFate(f Fate) { w.SetFates(func(string) Fate { return f }) }

// SetFates asks f for the fate of each call; it gets the name of the method, and
// is not called twice at a time.
func (w *Wrapper) SetFates(f func(call string) Fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = f
}

// Deliver lets delayed commits arrive, and returns what the store answered.
func (w *Wrapper) Deliver(ctx context.Context) []error {
	w.mu.Lock()
	delayed := w.delayed
	w.delayed = nil
	w.mu.Unlock()
	var answers []error
	for _, tx := range delayed {
		_, err := w.inner.Commit(ctx, tx)
		answers = append(answers, err)
	}
	return answers
}

func (w *Wrapper) next(call string) Fate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fate(call)
}

// lossy makes a read through w.
func lossy[V any](w *Wrapper, name string, call func() (V, error)) (V, error) {
	var none V
	fate := w.next(name)
	if fate == LoseRequest || fate == Delay {
		return none, ErrLost
	}
	v, err := call()
	if fate == LoseAnswer {
		return none, ErrLost
	}
	return v, err
}

// Get implements store.KV.
func (w *Wrapper) Get(ctx context.Context, key string) (store.Entry, error) {
	return lossy(w, "Get", func() (store.Entry, error) { return w.inner.Get(ctx, key) })
}

// List implements store.Store.
func (w *Wrapper) List(ctx context.Context, prefix string) (store.Listing, error) {
	return lossy(w, "List", func() (store.Listing, error) { return w.inner.List(ctx, prefix) })
}

// Outcome implements store.Store.
func (w *Wrapper) Outcome(ctx context.Context, id string) (store.Revision, error) {
	return lossy(w, "Outcome", func() (store.Revision, error) { return w.inner.Outcome(ctx, id) })
}

// CompareAndSwap implements store.KV.
func (w *Wrapper) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return w.Commit(ctx, store.SwapTx(key, old, value))
}

// Commit implements store.Store.
func (w *Wrapper) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	fate := w.next("Commit")
	if err := tx.Validate(); err != nil {
		return 0, err // found out on this side of the connection
	}
	switch fate {
	case Pass:
		return w.inner.Commit(ctx, tx)
	case LoseAnswer:
		if _, err := w.inner.Commit(ctx, tx); errors.Is(err, store.ErrClosed) {
			return 0, err
		}
	case Delay:
		w.mu.Lock()
		w.delayed = append(w.delayed, tx.Clone())
		w.mu.Unlock()
	}
	return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ErrLost)
}

// cut passes a first pair of an iterator on LoseAnswer, and ends it.
func cut[V any](w *Wrapper, name string, seq iter.Seq2[V, error]) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		var none V
		fate := w.next(name)
		if fate == LoseRequest || fate == Delay {
			yield(none, ErrLost)
			return
		}
		for v, err := range seq {
			if !yield(v, err) {
				return
			}
			if fate == LoseAnswer {
				yield(none, ErrLost)
				return
			}
		}
	}
}

// Watch implements store.KV.
func (w *Wrapper) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return cut(w, "Watch", w.inner.Watch(ctx, key))
}

// Changes implements store.Store.
func (w *Wrapper) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return cut(w, "Changes", w.inner.Changes(ctx, prefix, after))
}

// Close implements store.Store.
func (w *Wrapper) Close() error { return w.inner.Close() }

// testLostAnswers loses each call, before and after it reached the store, and
// resolves it as a caller has to.
func testLostAnswers(t T, e Engine) {
	s := NewLossy(open(t, e))
	// lose makes a call whose answer is lost.
	lose := func(f Fate, call func(ctx context.Context) error) error {
		t.Helper()
		s.SetFate(f)
		defer s.SetFate(Pass)
		err := call(Limited(t))
		if err == nil {
			t.Fatalf("%v: the answer came through", f)
		}
		return err
	}

	for _, fate := range []Fate{LoseAnswer, LoseRequest} {
		t.Run(fate.String(), func(t T) {
			key := "lost/" + fate.String()
			MustCommit(t, s, Put("warm", "x"))

			// Commit: resolved by Outcome.
			tx := Put(key, "1")
			tx.ID = store.NewTxID()
			tx.If = []store.Condition{{Key: key}}
			err := lose(fate, func(ctx context.Context) error { return commitError(s, ctx, tx) })
			WantError(t, "lost Commit", err, store.ErrUnknownOutcome)
			r, err := s.Outcome(Limited(t), tx.ID)
			if fate == LoseAnswer {
				if err != nil {
					t.Fatalf("Outcome of a Tx that was applied: %v", err)
				}
				if again := MustCommit(t, s, tx); again != r {
					t.Fatalf("committed again at %d, first at %d", again, r)
				}
			} else {
				WantError(t, "Outcome of a Tx that was not applied", err, store.ErrNotFound)
				wantEntry(t, s, key, "", 0)
				WantError(t, "Commit after that", commitError(s, Limited(t), tx), store.ErrVoided)
				tx.ID = store.NewTxID()
				r = MustCommit(t, s, tx)
			}
			wantEntry(t, s, key, "1", r)

			// Commit: resolved by committing again.
			tx = Put(key, "2")
			tx.ID = store.NewTxID()
			tx.If = []store.Condition{{Key: key, Version: r}}
			err = lose(fate, func(ctx context.Context) error { return commitError(s, ctx, tx) })
			WantError(t, "lost Commit", err, store.ErrUnknownOutcome)
			r = MustCommit(t, s, tx)
			wantEntry(t, s, key, "2", r)

			// A conflict that was lost: the same error as for what was applied, and
			// Outcome knows better.
			tx = Put(key, "never")
			tx.ID = store.NewTxID()
			tx.If = []store.Condition{{Key: key}}
			err = lose(fate, func(ctx context.Context) error { return commitError(s, ctx, tx) })
			WantError(t, "lost conflict", err, store.ErrUnknownOutcome)
			_, err = s.Outcome(Limited(t), tx.ID)
			WantError(t, "Outcome of a conflict", err, store.ErrNotFound)
			wantEntry(t, s, key, "2", r)

			// CompareAndSwap: resolved by Get.
			err = lose(fate, func(ctx context.Context) error {
				_, err := s.CompareAndSwap(ctx, key, r, []byte("3"))
				return err
			})
			WantError(t, "lost CompareAndSwap", err, store.ErrUnknownOutcome)
			e, err := s.Get(Limited(t), key)
			if err != nil {
				t.Fatal(err)
			}
			if applied := e.Version != r; applied != (fate == LoseAnswer) || applied && string(e.Value) != "3" {
				t.Fatalf("after %v: %q at %d, before it %d", fate, e.Value, e.Version, r)
			}

			// Reads: nothing happened, whatever was lost.
			for name, call := range map[string]func(ctx context.Context) error{
				"Get":  func(ctx context.Context) error { _, err := s.Get(ctx, key); return err },
				"List": func(ctx context.Context) error { _, err := s.List(ctx, ""); return err },
			} {
				err := lose(fate, call)
				if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnknownOutcome) {
					t.Fatalf("lost %s: %v", name, err)
				}
			}
			wantEntry(t, s, key, string(e.Value), e.Version)

			// Outcome: ask again, the answer does not change.
			tx = Put(key+"/outcome", "4")
			tx.ID = store.NewTxID()
			r = MustCommit(t, s, tx)
			void := store.NewTxID()
			for range 2 {
				for _, id := range []string{tx.ID, void} {
					err := lose(fate, func(ctx context.Context) error { _, err := s.Outcome(ctx, id); return err })
					if errors.Is(err, store.ErrNotFound) {
						t.Fatalf("lost Outcome: %v", err)
					}
				}
				if got, err := s.Outcome(Limited(t), tx.ID); err != nil || got != r {
					t.Fatalf("Outcome = %d, %v, want %d", got, err, r)
				}
			}
			_, err = s.Outcome(Limited(t), void)
			WantError(t, "Outcome", err, store.ErrNotFound)

			// Iterators: begin again, with what was last seen.
			start := MustList(t, s, "").Revision
			last := start
			for i := range 5 {
				last = MustCommit(t, s, Put(key+"/stream", fmt.Sprint(i)))
			}
			var told []store.Revision
			for after := start; after < last; {
				// Half of the connections are lost.
				if len(told)%2 == 0 {
					lose(fate, func(ctx context.Context) error {
						for c, err := range s.Changes(ctx, key+"/stream", after) {
							if err != nil {
								return err
							}
							told = append(told, c.Revision)
							after = c.Revision
						}
						return nil
					})
				}
				for _, c := range Follow(t, s, key+"/stream", after, min(after+1, last)) {
					told = append(told, c.Revision)
					after = c.Revision
				}
			}
			for i, r := range told {
				if i > 0 && r <= told[i-1] {
					t.Fatalf("change %d told after %d", r, told[i-1])
				}
			}
			if len(told) != 5 {
				t.Fatalf("%d of 5 changes told", len(told))
			}
			lose(fate, func(ctx context.Context) error {
				for _, err := range s.Watch(ctx, key+"/stream") {
					if err != nil {
						return err
					}
				}
				return nil
			})
			for e, err := range s.Watch(Limited(t), key+"/stream") {
				if err != nil || e.Version != last {
					t.Fatalf("Watch after a lost one: version %d, %v, want %d", e.Version, err, last)
				}
				break
			}
		})
	}

	t.Run(Delay.String(), func(t T) {
		asked, unasked := Put("late/asked", "1"), Put("late/unasked", "1")
		asked.ID, unasked.ID = store.NewTxID(), store.NewTxID()
		s.SetFate(Delay)
		for _, tx := range []store.Tx{asked, unasked} {
			WantError(t, "delayed Commit", commitError(s, Limited(t), tx), store.ErrUnknownOutcome)
		}
		s.SetFate(Pass)
		_, err := s.Outcome(Limited(t), asked.ID)
		WantError(t, "Outcome before the Commit arrives", err, store.ErrNotFound)
		answers := s.Deliver(Limited(t))
		WantError(t, "Commit that arrives after its Outcome", answers[0], store.ErrVoided)
		wantEntry(t, s, "late/asked", "", 0)
		if answers[1] != nil {
			t.Fatalf("Commit that arrives late: %v", answers[1])
		}
		r, err := s.Outcome(Limited(t), unasked.ID)
		if err != nil {
			t.Fatalf("Outcome: %v", err)
		}
		wantEntry(t, s, "late/unasked", "1", r)
	})
}
