package etcd

import (
	"context"

	"github.com/fealty-io/fealty/internal/store"
)

// Queued returns how many writes wait that the writer has not taken.
func (s *Store) Queued() int { return len(s.queue) }

// Pending is a commit under way.
type Pending struct {
	done chan struct{}
	r    store.Revision
	err  error
}

// Begin is Commit, without waiting for the answer.
func (s *Store) Begin(ctx context.Context, tx store.Tx) *Pending {
	p := &Pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.r, p.err = s.Commit(ctx, tx)
	}()
	return p
}

// Wait returns Commit's answer.
func (p *Pending) Wait() (store.Revision, error) {
	<-p.done
	return p.r, p.err
}
