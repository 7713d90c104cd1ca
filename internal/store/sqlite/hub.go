package sqlite

import "sync"

// hub wakes those who wait for commits. It carries no state: whoever is woken
// reads the database, so a wake too many costs a read, and none is missed
// because waiters subscribe before they read.
type hub struct {
	mu   sync.Mutex
	any  chan struct{}                         // closed at the next commit; guarded by mu
	keys map[string]map[chan struct{}]struct{} // waiters for a key, channels of capacity 1; guarded by mu
}

func newHub() hub {
	return hub{any: make(chan struct{}), keys: make(map[string]map[chan struct{}]struct{})}
}

// next returns a channel that is closed at the next commit.
func (h *hub) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.any
}

// subscribe returns a channel that holds a token after each commit that wrote
// key, and a function to stop that.
func (h *hub) subscribe(key string) (<-chan struct{}, func()) {
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

// committed wakes the waiters for keys and for any commit.
func (h *hub) committed(keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
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
