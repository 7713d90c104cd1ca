package mesh_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/mesh"
)

// However many come at once, as many begin as the rate allows, and those that are refused
// take nothing from those that come later.
func TestThoseRefusedTakeNoHandshakes(t *testing.T) {
	t.Parallel()
	const perSecond, burst, patience = 100, 50, 3
	b := mesh.NewRateLimiter(perSecond, burst, patience*time.Second)
	begin := func(now time.Time) int {
		var all sync.WaitGroup
		var in atomic.Int64
		for range 64 {
			all.Go(func() {
				for range 100 {
					if _, ok := b.Reserve("127.0.1.0/24", now); ok {
						in.Add(1)
					}
				}
			})
		}
		all.Wait()
		return int(in.Load())
	}
	now := time.Now()
	if got, want := begin(now), burst+perSecond*patience; got != want {
		t.Errorf("%d of 6,400 begin, want %d", got, want)
	}
	if got := begin(now.Add(time.Second)); got != perSecond {
		t.Errorf("a second later %d more begin, want %d", got, perSecond)
	}
}
