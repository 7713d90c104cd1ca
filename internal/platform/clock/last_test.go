package clock_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/fealty-io/fealty/internal/platform/clock"
)

// The age is what the clock says that moved further: a wall clock may be set back, and
// a monotonic one stands still while a machine sleeps.
func TestAge(t *testing.T) {
	var l clock.Last
	then := time.Now()
	l.Set(then)
	for name, tt := range map[string]struct{ wall, monotonic, want time.Duration }{
		"both go on":         {time.Minute, time.Minute, time.Minute},
		"the machine slept":  {time.Hour, time.Minute, time.Hour},
		"the wall went back": {-time.Hour, time.Minute, time.Minute},
	} {
		if got := l.Age(moved(t, then, tt.wall, tt.monotonic)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if !l.Get().Equal(then) {
		t.Errorf("it was at %v, and not at %v", then, l.Get())
	}
}

// moved returns a time at which the two clocks of then have moved on by different amounts,
// which no function of package time makes.
func moved(t *testing.T, then time.Time, wall, monotonic time.Duration) time.Time {
	t.Helper()
	at := then.Add(wall)
	(*struct {
		wall uint64
		ext  int64 // nanoseconds on the monotonic clock
		loc  *time.Location
	})(unsafe.Pointer(&at)).ext += int64(monotonic - wall)
	if at.Sub(then) != monotonic || at.Round(0).Sub(then.Round(0)) != wall {
		t.Fatalf("a time is made in another way now: %v after %v", at, then)
	}
	return at
}
