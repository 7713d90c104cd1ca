package storeguard

import (
	"context"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
)

type ofRestore struct{}

// AsRestore returns ctx for the change that brings a restore into force: it is what a store
// that lost something waits for, and is made whatever is lost.
func AsRestore(ctx context.Context) context.Context { return context.WithValue(ctx, ofRestore{}, true) }

func isRestore(ctx context.Context) bool { return ctx.Value(ofRestore{}) != nil }

// Observe returns s as this guard sees it: it refuses every change while something of s is
// lost, and notes what s shows and how it takes writes. The error of a change that is
// refused is that of [Guard.LostError]. A change that [AsRestore] is of and one of the
// unguarded families alone are always tried.
//
// Get and Outcome show nothing that counts: whoever reads what has to go on compares it
// with [Guard.Compare].
func (g *Guard) Observe(s store.Store) store.Store { return observed{s, g} }

type observed struct {
	store.Store
	g *Guard
}

func (o observed) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := o.Store.Get(ctx, key)
	o.g.noteCall(err)
	return e, err
}

func (o observed) Outcome(ctx context.Context, txID string) (store.Revision, error) {
	rev, err := o.Store.Outcome(ctx, txID)
	o.g.noteCall(err)
	return rev, err
}

func (o observed) List(ctx context.Context, prefix string) (store.Listing, error) {
	began := o.g.kept.Revision()
	l, err := o.Store.List(ctx, prefix)
	o.g.noteCall(err)
	if err == nil {
		o.g.atRevision(ctx, began, l.Revision)
	}
	return l, err
}

func (o observed) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := o.g.mayWrite(ctx, tx); err != nil {
		return 0, err
	}
	// A transaction is applied once under its ID: when it is sent again because its answer
	// was lost, the revision is that of then. So a low one is no evidence; reads find it.
	rev, err := o.Store.Commit(ctx, tx)
	return o.wrote(ctx, rev, err)
}

func (o observed) CompareAndSwap(
	ctx context.Context, key string, old store.Revision, value []byte,
) (store.Revision, error) {
	if err := o.g.mayWrite(ctx, store.SwapTx(key, old, value)); err != nil {
		return 0, err
	}
	rev, err := o.Store.CompareAndSwap(ctx, key, old, value)
	return o.wrote(ctx, rev, err)
}

func (o observed) wrote(ctx context.Context, rev store.Revision, err error) (store.Revision, error) {
	o.g.noteWrite(err)
	o.g.noteCall(err)
	if err == nil {
		o.g.atRevision(ctx, 0, rev)
	}
	return rev, err
}

// atRevision notes a revision that the store showed to a call that began at began. A
// coordinator that is not ready notes none: the store may be that of another cluster, whose
// revisions are no evidence. On its way to being ready it compares all that it has seen, and
// notes the revision at which it read the trust state, which only its own cluster writes.
func (g *Guard) atRevision(ctx context.Context, began uint64, revision store.Revision) {
	head, ready := g.cfg.InForce()
	if !ready {
		return
	}
	if loss := g.kept.AtRevision(began, uint64(revision), g.cfg.Now()); loss != nil {
		g.Missed(context.WithoutCancel(ctx), head, loss)
	}
}

// mayWrite refuses a transaction that changes something while the store is known to have
// lost something.
func (g *Guard) mayWrite(ctx context.Context, tx store.Tx) error {
	if g.kept.Lost() == nil || isRestore(ctx) {
		return nil
	}
	for _, w := range tx.Put {
		if g.guards(w.Key) {
			return g.LostError()
		}
	}
	if slices.ContainsFunc(tx.Delete, g.guards) {
		return g.LostError()
	}
	return nil
}

// guards reports whether key is of a family that changes only while nothing is lost.
func (g *Guard) guards(key string) bool {
	return !slices.ContainsFunc(g.cfg.Unguarded, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
