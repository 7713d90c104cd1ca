package devcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
)

// trap waits for one commit of a coordinator, and decides what becomes of it.
type trap struct {
	match func(store.Tx) bool
	act   func(ctx context.Context, tx store.Tx) (store.Revision, error)
}

// arm has the next commit that matches meet act in place of the store. The one before
// is disarmed.
func (w *wire) arm(t *trap) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trap = t
}

// trapped returns the trap that tx falls into, which is disarmed by that.
func (w *wire) trapped(tx store.Tx) *trap {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.trap
	if t == nil || !t.match(tx) {
		return nil
	}
	w.trap = nil
	return t
}

// writes matches commits that put a key with this prefix.
func writes(prefix string) func(store.Tx) bool {
	return func(tx store.Tx) bool {
		return slices.ContainsFunc(tx.Put, func(p store.Write) bool { return strings.HasPrefix(p.Key, prefix) })
	}
}

// loseAnswer has the next commit that matches reach the store, and its coordinator be
// cut off before anybody hears of it.
func (w *wire) loseAnswer(match func(store.Tx) bool) {
	w.arm(&trap{match, func(ctx context.Context, tx store.Tx) (store.Revision, error) {
		_, err := w.store.Commit(ctx, tx)
		w.cut()
		return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, errors.Join(errKilled, err))
	}})
}
