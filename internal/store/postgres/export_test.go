package postgres

import (
	"context"

	"github.com/fealty-io/fealty/internal/store"
)

// Channel returns the channel of notices.
func (s *Store) Channel() string { return s.db.channel }

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

// Ended reports whether Wait would not wait.
func (p *Pending) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait returns Commit's answer.
func (p *Pending) Wait() (store.Revision, error) {
	<-p.done
	return p.r, p.err
}
