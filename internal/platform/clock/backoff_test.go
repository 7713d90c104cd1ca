package clock_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/clock"
)

func TestBackoff(t *testing.T) {
	var b clock.Backoff
	for i, want := range []time.Duration{200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000} {
		if got := b.Ceiling(); got != want*time.Millisecond {
			t.Errorf("ceiling %d is %v, want %v", i, got, want*time.Millisecond)
		}
		if got := b.Next(); got < 0 || got >= want*time.Millisecond {
			t.Errorf("pause %d is %v", i, got)
		}
	}
	for range 100 {
		b.Next()
	}
	if b.Ceiling() != clock.Cap {
		t.Error("beyond the cap")
	}
	// Full jitter: pauses spread over the whole range.
	low, high := 0, 0
	for range 1000 {
		switch d := b.Next(); {
		case d < clock.Cap/4:
			low++
		case d > clock.Cap*3/4:
			high++
		}
	}
	if low < 150 || high < 150 {
		t.Errorf("of 1000 pauses %d are short and %d long", low, high)
	}
	b.Reset()
	if b.Ceiling() != clock.Base {
		t.Error("not reset")
	}
}
