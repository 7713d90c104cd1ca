package sqlite

import (
	"context"

	"github.com/fealty-io/fealty/internal/store"
)

// OpenWithoutCheckpointer is Open on a disk so slow that nothing is copied in the background.
func OpenWithoutCheckpointer(ctx context.Context, path string, opts Options) (*Store, error) {
	p, err := prepare(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	p.db.running.Go(func() {
		<-p.db.closing
		p.checkpoints.Close()
	})
	return p.start(), nil
}

// Pending is a commit under way.
type Pending struct {
	s    *Store
	done chan struct{}
	r    store.Revision
	err  error
}

// Begin is Commit, without waiting for the answer.
func (s *Store) Begin(ctx context.Context, tx store.Tx) *Pending {
	p := &Pending{s: s, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.r, p.err = s.Commit(ctx, tx)
	}()
	return p
}

// Taken reports whether the writer has begun with it, if it has no other.
func (p *Pending) Taken() bool { return p.s.Taken() > 0 }

// Wait returns Commit's answer.
func (p *Pending) Wait() (store.Revision, error) {
	<-p.done
	return p.r, p.err
}
