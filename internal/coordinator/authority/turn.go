package authority

import (
	"context"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Turn is held by one at a time. Make it with [NewTurn].
type Turn struct {
	silent   func() bool
	degraded func(what string, err error) error
	held     chan struct{} // by the one whose turn it is; capacity 1

	mu     sync.Mutex
	owners int                // that wait for it; guarded by mu
	end    context.CancelFunc // of what is asked now; nil: nothing; guarded by mu
}

// NewTurn returns a Turn that nobody has. silent reports whether the store does not answer: then a wait for
// another change is one for the store, and is taken from what the caller's patience has left. degraded
// words that the store kept a call from being done, as [Head.Degraded] does.
func NewTurn(silent func() bool, degraded func(what string, err error) error) *Turn {
	return &Turn{silent: silent, degraded: degraded, held: make(chan struct{}, 1)}
}

// Take waits until no other change is under way. The error is that of ctx, or that the store was waited
// for long enough. release is called once.
func (t *Turn) Take(ctx context.Context) (release func(), err error) {
	began := time.Now()
	for {
		left, granted := timeout.Left(ctx)
		if !granted {
			left = StorePatience
		}
		// The change that it waits for may wait for the store itself.
		timer := time.NewTimer(max(left-time.Since(began), time.Second))
		select {
		case t.held <- struct{}{}:
			timer.Stop()
			if t.silent() {
				timeout.Spend(ctx, time.Since(began))
			}
			return t.release, nil
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
			if granted && t.silent() {
				return nil, t.degraded("the wait for another change of the manifest", timeout.ErrOver)
			}
		}
	}
}

// Await is Take for a loop, which has nobody's patience to spend: it waits until ctx ends.
func (t *Turn) Await(ctx context.Context) (release func(), err error) {
	select {
	case t.held <- struct{}{}:
		return t.release, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Try takes the turn if nobody has it.
func (t *Turn) Try() (release func(), ok bool) {
	select {
	case t.held <- struct{}{}:
		return t.release, true
	default:
		return nil, false
	}
}

// TakeForOwner is Take for an owner that has proven itself: strangers end no search. A question
// that others are asked meanwhile ends.
func (t *Turn) TakeForOwner(ctx context.Context) (release func(), err error) {
	t.mu.Lock()
	t.owners++
	if t.end != nil {
		t.end()
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.owners--
	}()
	return t.Take(ctx)
}

// Asking returns a context for asking others, which ends when an owner comes. The caller has the turn, and
// calls asked after it: what was asked under ends then.
func (t *Turn) Asking(ctx context.Context) (asking context.Context, asked func()) {
	ctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.owners > 0 {
		cancel()
	}
	t.end = cancel
	return ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.end = nil
		cancel()
	}
}

func (t *Turn) release() { <-t.held }
