package sqlite

import (
	"context"

	"github.com/fealty-io/fealty/internal/store"
)

// OpenWithoutCheckpointer is Open on a disk so slow that nothing is copied in the background.
func OpenWithoutCheckpointer(ctx context.Context, path string, opts Options) (*Store, error) {
	s, w, checkpoints, err := prepare(ctx, path, opts)
	if err != nil {
		return nil, err
	}
	s.running.Go(w.run)
	s.running.Go(func() {
		<-s.closing
		checkpoints.Close()
	})
	return s, nil
}

// Queued returns how many writes wait that the writer has not taken.
func (s *Store) Queued() int { return len(s.queue) }

// Pending is a commit under way.
type Pending struct {
	j    *job
	done chan struct{}
	r    store.Revision
	err  error
}

// Begin is Commit, without waiting for the answer.
func (s *Store) Begin(ctx context.Context, tx store.Tx) *Pending {
	j, err := commitJob(tx)
	if err != nil {
		panic(err)
	}
	p := &Pending{j: j, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.r, p.err = s.hand(ctx, j)
	}()
	return p
}

// Taken reports whether the writer has begun with it.
func (p *Pending) Taken() bool { return p.j.state.Load() == taken }

// Wait returns Commit's answer.
func (p *Pending) Wait() (store.Revision, error) {
	<-p.done
	return p.r, p.err
}
