// Package timeout limits how long one request waits for a store that does not answer, over all
// calls that the request makes of the store.
//
// Each single call of a store that is out of reach ends after the engine's own timeouts. But a
// request makes several calls, one after the other, and without a common limit the client gives up
// before the last of them ends, and is never told why.
package timeout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// ErrOver is matched by the error of a call that the store did not answer while the
// request had patience left. It does not match ctx's errors: whoever asked still waits.
var ErrOver = errors.New("the store did not answer in time")

// grant is what a request may wait.
type grant struct {
	mu   sync.Mutex
	left time.Duration // guarded by mu
}

type key struct{}

// Grant returns ctx for a request that waits for at most d, in all its calls together
// that are not answered. A call that is answered costs nothing.
func Grant(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, key{}, &grant{left: d})
}

// Left returns what the request of ctx may still wait; false: ctx has no grant.
func Left(ctx context.Context) (time.Duration, bool) {
	g, _ := ctx.Value(key{}).(*grant)
	if g == nil {
		return 0, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, g.left), true
}

// Spend takes d from what the request of ctx may still wait: it waited for somebody who
// waits for the store.
func Spend(ctx context.Context, d time.Duration) {
	if g, _ := ctx.Value(key{}).(*grant); g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.left -= d
	}
}

// Beyond returns ctx, without its end and without a grant, for what is to be done even
// if whoever asked for it has given up.
func Beyond(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), key{}, (*grant)(nil))
}

// outcomeTime bounds the question what became of a write whose answer was lost.
const outcomeTime = 5 * time.Second

// Commit applies tx, which has an ID, and asks what became of it if the answer was lost. It asks
// even if whoever wanted it has given up or has no patience left, which may be why the
// answer was lost: the question is short.
//
// Errors: those of the store. One that matches [store.ErrConflict] also says that tx was not
// applied and never will be, and [store.ErrUnknownOutcome] that the question found no answer
// either.
func Commit(ctx context.Context, st store.Store, tx store.Tx) (store.Revision, error) {
	rev, err := st.Commit(ctx, tx)
	if !errors.Is(err, store.ErrUnknownOutcome) {
		return rev, err
	}
	ask, cancel := context.WithTimeout(Beyond(ctx), outcomeTime)
	defer cancel()
	switch found, asked := st.Outcome(ask, tx.ID); {
	case asked == nil:
		return found, nil
	case errors.Is(asked, store.ErrNotFound):
		return 0, fmt.Errorf("%w (it was not applied)", store.ErrConflict)
	}
	return 0, err
}

// Store returns st with calls that end when the patience of their request does. Changes
// and Watch wait by their nature, and are what they were.
func Store(st store.Store) store.Store { return bounded{st} }

type bounded struct{ store.Store }

func (b bounded) Get(ctx context.Context, key string) (e store.Entry, err error) {
	err = within(ctx, func(ctx context.Context) error { e, err = b.Store.Get(ctx, key); return err })
	return e, err
}

func (b bounded) List(ctx context.Context, prefix string) (l store.Listing, err error) {
	err = within(ctx, func(ctx context.Context) error { l, err = b.Store.List(ctx, prefix); return err })
	return l, err
}

func (b bounded) Commit(ctx context.Context, tx store.Tx) (rev store.Revision, err error) {
	err = within(ctx, func(ctx context.Context) error { rev, err = b.Store.Commit(ctx, tx); return err })
	return rev, err
}

func (b bounded) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (rev store.Revision, err error) {
	err = within(ctx, func(ctx context.Context) error { rev, err = b.Store.CompareAndSwap(ctx, key, old, value); return err })
	return rev, err
}

func (b bounded) Outcome(ctx context.Context, txID string) (rev store.Revision, err error) {
	err = within(ctx, func(ctx context.Context) error { rev, err = b.Store.Outcome(ctx, txID); return err })
	return rev, err
}

// within makes one call, with what is left of the grant.
func within(ctx context.Context, call func(context.Context) error) error {
	left, ok := Left(ctx)
	if !ok {
		return call(ctx)
	}
	if left <= 0 {
		return fmt.Errorf("%w: it is not asked again for a request that has waited for it for so long", ErrOver)
	}
	bounded, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	began := time.Now()
	err := call(bounded)
	if answered(err) {
		return err
	}
	Spend(ctx, time.Since(began))
	if bounded.Err() == nil || ctx.Err() != nil {
		return err
	}
	// The deadline was ours. The caller would take it for its own.
	if errors.Is(err, store.ErrUnknownOutcome) {
		return fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ErrOver)
	}
	return fmt.Errorf("%w: the request has no patience left", ErrOver)
}

// answered reports whether err, if it is one, is what the store said.
func answered(err error) bool {
	for _, said := range []error{store.ErrNotFound, store.ErrConflict, store.ErrInvalid, store.ErrVoided, store.ErrClosed, store.ErrCompacted} {
		if errors.Is(err, said) {
			return true
		}
	}
	return err == nil || store.ReasonOf(err) != 0
}
