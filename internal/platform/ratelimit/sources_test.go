package ratelimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// One source is bounded, all are together, and neither by what was refused.
func TestSources(t *testing.T) {
	l := ratelimit.NewSources(1, 3, 1, 10)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	admitted := func(addr string, tries int) (n int) {
		for range tries {
			if l.Allow(addr, now) {
				n++
			}
		}
		return n
	}
	if n := admitted("192.0.2.1:1", 100); n != 3 {
		t.Errorf("%d joins of one source at once, want 3", n)
	}
	if n := admitted("192.0.2.1:2", 1); n != 0 {
		t.Error("another port counted as another source")
	}
	// The noisy source's refused tries used up nothing of what is everybody's.
	n := 0
	for i := range 20 {
		n += admitted(fmt.Sprintf("198.51.100.%d:1", i), 1)
	}
	if n != 7 {
		t.Errorf("%d joins of others, want the 7 that are left of 10", n)
	}
	now = now.Add(-time.Hour) // a clock that goes back opens nothing
	if n := admitted("192.0.2.1:1", 100); n != 0 {
		t.Errorf("%d joins after the clock went back, want none", n)
	}
	now = now.Add(time.Hour + 2*time.Second)
	if n := admitted("192.0.2.1:1", 100); n != 2 {
		t.Errorf("%d joins after two seconds, want 2", n)
	}
	for i := range 2 * ratelimit.MaxSources {
		l.Allow(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), now)
	}
	if n := l.Len(); n != ratelimit.MaxSources {
		t.Errorf("%d sources remembered, want %d", n, ratelimit.MaxSources)
	}
	if err := l.Admit("joins", "192.0.2.1:1", now); !errors.Is(err, errcode.RateLimited) {
		t.Errorf("a join that is refused is told %v", err)
	}
	if got := l.Limit(); got != 1 {
		t.Errorf("a source may do %v per second, want 1", got)
	}
}
