package sim_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/store"
)

// link is the way of one process to the store: what the schedule has go wrong on it goes
// wrong for this process alone. The zero value does nothing.
type link struct {
	store.Store
	of *coordinatortest.Process

	mu    sync.Mutex
	cut   bool          // every call fails; guarded by mu
	news  chan struct{} // closed when it is cut; guarded by mu
	rng   *rand.Rand    // of what goes wrong; guarded by mu
	rates rates         // guarded by mu
	late  sync.WaitGroup
	saw   *counts
	bug   func(tx *store.Tx, all store.Listing) (written bool) // alters what is written; nil: none
}

// rates are how often something goes wrong with a write, in 1,000, and how long a call is
// under way at most.
type rates struct {
	fails   int // nothing is written
	lost    int // it is written, and the answer is lost
	dropped int // it is not, and that is not known
	later   int // it comes to the store after its caller gave up
	delay   time.Duration
}

var errCut = errors.New("the store is out of reach")

func (l *link) set(r rates) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rates = r
}

func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut && l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// fate is what becomes of one write.
type fate int

const (
	goesWell fate = iota
	fails
	lost
	dropped
	later
)

// begin is the way there of one call.
func (l *link) begin(ctx context.Context, write bool) (fate, time.Duration, error) {
	l.of.StandStill()
	l.mu.Lock()
	var there, back time.Duration
	if d := int64(l.rates.delay); d > 0 {
		there, back = time.Duration(l.rng.Int64N(d)), time.Duration(l.rng.Int64N(d))
	}
	f := goesWell
	if n := l.rng.IntN(1000); write {
		for _, x := range []struct {
			rate int
			fate fate
		}{{l.rates.fails, fails}, {l.rates.lost, lost}, {l.rates.dropped, dropped}, {l.rates.later, later}} {
			if n < x.rate && f == goesWell {
				f = x.fate
			}
			n -= x.rate
		}
	}
	l.mu.Unlock()
	if err := pause(ctx, there); err != nil {
		return f, back, fmt.Errorf("not begun: %w", err)
	}
	l.of.StandStill()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return f, back, errCut
	}
	if f == fails {
		l.saw.add("writes that failed")
		return f, back, errCut
	}
	return f, back, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write makes one write, and loses what fate says.
func (l *link) write(ctx context.Context, do func(context.Context) (store.Revision, error)) (store.Revision, error) {
	f, back, err := l.begin(ctx, true)
	if err != nil {
		return 0, err
	}
	unknown := fmt.Errorf("%w: the answer was lost", store.ErrUnknownOutcome)
	switch f {
	case lost:
		l.saw.add("answers that were lost")
		if _, err := do(ctx); err != nil {
			return 0, err
		}
		return 0, unknown
	case dropped:
		l.saw.add("requests that were lost")
		return 0, unknown
	case later:
		l.saw.add("writes that came late")
		l.late.Go(func() {
			time.Sleep(2 * back)
			_, _ = do(context.WithoutCancel(ctx))
		})
		return 0, unknown
	}
	rev, err := do(ctx)
	if err == nil && pause(ctx, back) != nil {
		return 0, unknown
	}
	l.of.StandStill()
	return rev, err
}

func (l *link) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	own := tx
	own.If, own.Put, own.Delete = append(own.If[:0:0], tx.If...), nil, append(own.Delete[:0:0], tx.Delete...)
	for _, w := range tx.Put { // the caller may use its bytes again
		w.Value = append([]byte{}, w.Value...)
		own.Put = append(own.Put, w)
	}
	return l.write(ctx, func(ctx context.Context) (store.Revision, error) {
		if l.bug != nil {
			all, err := l.Store.List(ctx, "")
			if err != nil || !l.bug(&own, all) {
				return all.Revision, err
			}
		}
		return l.Store.Commit(ctx, own)
	})
}

func (l *link) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	value = append([]byte{}, value...)
	return l.write(ctx, func(ctx context.Context) (store.Revision, error) { return l.Store.CompareAndSwap(ctx, key, old, value) })
}

func (l *link) Get(ctx context.Context, key string) (store.Entry, error) {
	_, back, err := l.begin(ctx, false)
	if err != nil {
		return store.Entry{}, err
	}
	e, err := l.Store.Get(ctx, key)
	if err == nil {
		err = pause(ctx, back)
	}
	l.of.StandStill()
	return e, err
}

func (l *link) List(ctx context.Context, prefix string) (store.Listing, error) {
	_, back, err := l.begin(ctx, false)
	if err != nil {
		return store.Listing{}, err
	}
	all, err := l.Store.List(ctx, prefix)
	if err == nil {
		err = pause(ctx, back)
	}
	l.of.StandStill()
	return all, err
}

func (l *link) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if _, _, err := l.begin(ctx, false); err != nil {
		return 0, err
	}
	return l.Store.Outcome(ctx, id)
}

func (l *link) Lift(ctx context.Context, floor store.Revision) error {
	return l.Store.(store.Lifter).Lift(ctx, floor)
}

func (l *link) Raise(ctx context.Context, floor store.Revision) error {
	return l.Store.(store.Lifter).Raise(ctx, floor)
}

func (l *link) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return whileLinked(ctx, l, func(ctx context.Context) iter.Seq2[store.Entry, error] { return l.Store.Watch(ctx, key) })
}

func (l *link) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return whileLinked(ctx, l, func(ctx context.Context) iter.Seq2[store.Change, error] {
		return l.Store.Changes(ctx, prefix, after)
	})
}

// whileLinked ends what follows the store when the way is cut.
func whileLinked[T any](ctx context.Context, l *link, follow func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if _, _, err := l.begin(ctx, false); err != nil {
			yield(none, err)
			return
		}
		l.mu.Lock()
		if l.news == nil {
			l.news = make(chan struct{})
		}
		news := l.news
		l.mu.Unlock()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var watching sync.WaitGroup
		watching.Go(func() {
			select {
			case <-news:
				cancel(errCut)
			case <-ctx.Done():
			}
		})
		defer watching.Wait()
		defer cancel(nil)
		for v, err := range follow(ctx) {
			l.of.StandStill()
			if err != nil && context.Cause(ctx) != nil {
				err = context.Cause(ctx)
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// Close waits for what is late, and closes the handle of this process.
func (l *link) Close() error {
	l.late.Wait()
	return l.Store.Close()
}
