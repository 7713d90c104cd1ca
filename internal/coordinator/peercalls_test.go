package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
)

// Strangers from many addresses, who claim to be a coordinator and then say nothing, hold
// all places; a coordinator is answered nonetheless, and the oldest of them gives way.
func TestStrangersDoNotKeepPeersOut(t *testing.T) {
	f, rs := peerFleet(t, 1, nil)
	rs[0].start()
	rs[0].awaitHead(f)
	var first *peerCall
	gone := make([]<-chan struct{}, peersAtOnce)
	for i := range peersAtOnce {
		ctx, call := f.c.peerCalls.enter(t.Context(), fmt.Sprintf("192.0.2.%d", i), time.Now())
		if call == nil {
			t.Fatal("no place")
		}
		if first == nil {
			first = call
		}
		gone[i] = ctx.Done()
	}
	f.c.peerCalls.proves(first)
	if _, err := askAs(f, rs[0], rs[0].key, nil); err != nil {
		t.Fatalf("a coordinator among strangers: %v", err)
	}
	for i, done := range gone[:3] {
		select {
		case <-done:
			if i != 1 {
				t.Errorf("call %d gave way", i)
			}
		default:
			if i == 1 {
				t.Error("the oldest stranger did not give way")
			}
		}
	}
	// Those that have proven themselves give way to nobody.
	f.c.peerCalls.mu.Lock()
	for _, call := range f.c.peerCalls.calls {
		call.proven = true
	}
	n := len(f.c.peerCalls.calls)
	f.c.peerCalls.mu.Unlock()
	for i := n; i < peersAtOnce; i++ {
		_, call := f.c.peerCalls.enter(t.Context(), "198.51.100.1", time.Now())
		f.c.peerCalls.proves(call)
	}
	_, err := askAs(f, rs[0], rs[0].key, nil)
	wantCode(t, err, explain.RateLimited)
}
