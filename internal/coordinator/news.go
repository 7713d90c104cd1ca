package coordinator

import (
	"context"
	"sync/atomic"
	"time"
)

// news tells any number of waiters that something changed. Waiting takes no lock:
// after each change a whole fleet of streams waits again.
type news struct {
	ch atomic.Pointer[chan struct{}] // closed at the next change; nil before the first wait
}

// wait returns a channel that is closed at the next change. Take it before
// looking at what may change.
func (n *news) wait() <-chan struct{} {
	for {
		if ch := n.ch.Load(); ch != nil {
			return *ch
		}
		ch := make(chan struct{})
		if n.ch.CompareAndSwap(nil, &ch) {
			return ch
		}
	}
}

// tell wakes everybody who waits.
func (n *news) tell() {
	ch := make(chan struct{})
	if old := n.ch.Swap(&ch); old != nil {
		close(*old)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error { return sleepUntil(ctx, d, nil) }

// sleepUntil waits for d, until event is closed, or until ctx ends.
func sleepUntil(ctx context.Context, d time.Duration, event <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-event:
	case <-ctx.Done():
	}
	return ctx.Err() // several may be ready
}
