package cluster

import (
	"context"
	"fmt"
	"slices"

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

// HoldCommit has the next commit of a coordinator that matches wait outside of the store, for as long as its
// coordinator lives and then on: as in the buffers of a network after its sender died. The channel has what is held.
func (c *Cluster) HoldCommit(name string, match func(store.Tx) bool) (<-chan store.Tx, error) {
	r, err := c.replica(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	run := r.run
	c.mu.Unlock()
	if run == nil {
		return nil, fmt.Errorf("%s does not run", name)
	}
	held := make(chan store.Tx, 1)
	run.wire.arm(&trap{match, func(ctx context.Context, tx store.Tx) (store.Revision, error) {
		held <- cloneTx(tx)
		<-ctx.Done()
		return 0, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, context.Cause(ctx))
	}})
	return held, nil
}

// cloneTx copies tx, of which its owner may use everything again.
func cloneTx(tx store.Tx) store.Tx {
	tx.If, tx.Delete = slices.Clone(tx.If), slices.Clone(tx.Delete)
	tx.Put = slices.Clone(tx.Put)
	for i := range tx.Put {
		tx.Put[i].Value = slices.Clone(tx.Put[i].Value)
	}
	return tx
}
