package engine

import (
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

// Hub wakes those who wait for commits. A waiter that is woken reads the database, so
// a wake too many costs a read, and none is missed because waiters subscribe
// before they read.
type Hub struct {
	mu     sync.Mutex
	any    chan struct{}                         // closed at the next commit; guarded by mu
	keys   map[string]map[chan struct{}]struct{} // waiters for a key, channels of capacity 1; guarded by mu
	seen   store.Revision                        // all commits up to here have woken; guarded by mu
	logged int64                                 // as of the last that was heard of; guarded by mu
}

// NewHub returns a Hub for which nobody waits.
func NewHub() *Hub {
	return &Hub{any: make(chan struct{}), keys: make(map[string]map[chan struct{}]struct{})}
}

// Next returns a channel that is closed at the next commit.
func (h *Hub) Next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.any
}

// Subscribe returns a channel that holds a token after each commit that wrote
// key, and a function to stop that.
func (h *Hub) Subscribe(key string) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys[key] == nil {
		h.keys[key] = make(map[chan struct{}]struct{})
	}
	h.keys[key][c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.keys[key], c)
		if len(h.keys[key]) == 0 {
			delete(h.keys, key)
		}
	}
}

// State returns the newest revision that is known here, and the bytes logged by
// then.
func (h *Hub) State() (store.Revision, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen, h.logged
}

// Committed is told by the writer what it committed: the revisions above before,
// up to last.
func (h *Hub) Committed(before, last store.Revision, logged int64, keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == before {
		h.seen = last // otherwise the listener has yet to read what came before
	}
	h.logged = max(h.logged, logged)
	h.wake(keys)
}

// Notify says that the listener read the log up to a revision. all wakes everyone,
// whatever they wait for.
func (h *Hub) Notify(revision store.Revision, logged int64, keys []string, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.logged = revision, logged
	if all {
		keys = keys[:0:0]
		for k := range h.keys {
			keys = append(keys, k)
		}
	}
	h.wake(keys)
}

// wake wakes the waiters for keys and for any commit; mu is held.
func (h *Hub) wake(keys []string) {
	close(h.any)
	h.any = make(chan struct{})
	if len(h.keys) == 0 {
		return
	}
	for _, k := range keys {
		for c := range h.keys[k] {
			select {
			case c <- struct{}{}:
			default: // a token is waiting already
			}
		}
	}
}
