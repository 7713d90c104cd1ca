package scheduler

import (
	"maps"
	"slices"
)

// States returns all states, in the order of a machine's life.
func States() []State {
	return []State{Speculative, Creating, Idle, Configuring, Configured, Draining, Deleting, Failed}
}

// Held returns the tenants whose newest roll-up waits to be confirmed, sorted.
func (b *DemandBook) Held() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(b.tenants)) {
		if b.tenants[name].guard.Held() > 0 {
			out = append(out, name)
		}
	}
	return out
}
