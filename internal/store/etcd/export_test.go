package etcd

import (
	"context"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// CompactAfter returns o for a store that gives up what etcd keeps of its revisions, with
// compaction=everything, after d.
func (o Options) CompactAfter(d time.Duration) Options {
	o.history = d
	return o
}

// UsableOps is how many operations a step of a large commit has.
const UsableOps = usableOps

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
