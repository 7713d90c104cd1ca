package agent

import (
	"sync"
	"sync/atomic"
)

// believed holds the beliefs in use, and wakes who waits for others.
type believed struct {
	current atomic.Pointer[beliefs]
	changed bell
}

func (b *believed) Load() *beliefs { return b.current.Load() }

func (b *believed) Store(next *beliefs) {
	b.current.Store(next)
	b.changed.ring()
}

// bell wakes all who wait for it. The zero value is ready.
type bell struct {
	mu sync.Mutex
	ch chan struct{} // closed when it rings; guarded by mu
}

// wait returns a channel that is closed when the bell rings. Take it before looking.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
