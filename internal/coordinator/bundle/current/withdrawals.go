package current

import (
	"context"
	"errors"
	"sync"

	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
)

// Withdrawn reports whether a transaction of this coordinator may have banned or removed
// the member at path, and the bundle does not say so yet.
func (b *Current) Withdrawn(path string) bool { return b.withdrawn.has(path) }

// withdrawals are the members that a transaction of this coordinator banned or removed,
// as far as is known, until the trust bundle says so: the outage may begin in between.
type withdrawals struct {
	mu   sync.Mutex
	last uint64                // guarded by mu
	txs  map[uint64]withdrawal // by transaction; guarded by mu
}

type withdrawal struct {
	path    string // of the member
	settled bool   // its commit is over: what is read from now on shows it, or it was not made
}

func (w *withdrawals) add(path string) (tx uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.txs == nil {
		w.txs = make(map[uint64]withdrawal)
	}
	w.last++
	w.txs[w.last] = withdrawal{path: path}
	return w.last
}

func (w *withdrawals) has(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tx := range w.txs {
		if tx.path == path {
			return true
		}
	}
	return false
}

// settle notes that the commit of a transaction is over.
func (w *withdrawals) settle(tx uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.txs[tx]; ok {
		known.settled = true
		w.txs[tx] = known
	}
}

// settled returns the transactions whose commit is over.
func (w *withdrawals) settled() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []uint64
	for tx, known := range w.txs {
		if known.settled {
			out = append(out, tx)
		}
	}
	return out
}

func (w *withdrawals) forget(txs ...uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tx := range txs {
		delete(w.txs, tx)
	}
}

// Withdraw commits a change that may ban the keys of a member. From before that
// until the bundle shows it the member is not certified without the store.
func (b *Current) Withdraw(ctx context.Context, ch *record.Change) error {
	if ch.Withdraws == "" {
		_, err := ch.Commit(ctx)
		return err
	}
	tx := b.withdrawn.add(ch.Withdraws)
	defer b.withdrawn.settle(tx)
	_, err := ch.Commit(ctx)
	if err != nil && !errors.Is(err, store.ErrUnknownOutcome) {
		b.withdrawn.forget(tx) // nothing was written
	}
	return err
}
