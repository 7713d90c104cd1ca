package mesh

import (
	"slices"
	"sync"
)

// FairQueue limits how many computations run at once. Networks take turns, so that many who wait in
// one hold up nobody of another; within one network it is first come, first served.
type FairQueue struct {
	mu      sync.Mutex
	free    int                        // guarded by mu
	waiting map[string][]chan struct{} // by network, none of them empty; guarded by mu
	order   []string                   // of these networks, the next one first; guarded by mu
}

// NewFairQueue returns turns that n may have at once.
func NewFairQueue(n int) *FairQueue {
	return &FairQueue{free: n, waiting: make(map[string][]chan struct{})}
}

// Ask asks for a turn for network. The channel is closed when it is there; who does not
// want it any more withdraws, and who had it gives it back.
func (t *FairQueue) Ask(network string) (turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	turn = make(chan struct{})
	if t.free > 0 {
		t.free--
		close(turn)
		return turn
	}
	if len(t.waiting[network]) == 0 {
		t.order = append(t.order, network)
	}
	t.waiting[network] = append(t.waiting[network], turn)
	return turn
}

// Withdraw ends the wait for a turn, or gives it back if it came meanwhile.
func (t *FairQueue) Withdraw(network string, turn chan struct{}) {
	t.mu.Lock()
	i := slices.Index(t.waiting[network], turn)
	if i < 0 {
		t.mu.Unlock()
		t.GiveBack()
		return
	}
	defer t.mu.Unlock()
	if t.waiting[network] = slices.Delete(t.waiting[network], i, i+1); len(t.waiting[network]) == 0 {
		delete(t.waiting, network)
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == network })
	}
}

// GiveBack hands a turn to who is next.
func (t *FairQueue) GiveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	network := t.order[0]
	t.order = slices.Delete(t.order, 0, 1)
	next := t.waiting[network]
	close(next[0])
	if next = slices.Delete(next, 0, 1); len(next) == 0 {
		delete(t.waiting, network)
		return
	}
	t.waiting[network] = next
	t.order = append(t.order, network)
}
