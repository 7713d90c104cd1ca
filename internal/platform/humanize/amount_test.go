package humanize_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/humanize"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 900 * time.Millisecond: "0s", 59 * time.Second: "59s", time.Minute: "1m", 61 * time.Second: "1m 1s",
		25 * time.Hour: "1d 1h", 24*time.Hour + 5*time.Minute: "1d", 90 * 24 * time.Hour: "90d", 365 * 24 * time.Hour: "1y", 36524*24*time.Hour + 23*time.Hour: "100y 24d", -time.Hour: "-1h",
	} {
		if got := humanize.Span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
	if got := humanize.Relative(time.Time{}, time.Unix(1e9, 0)); got != "-" {
		t.Errorf("no time is shown as %s", got)
	}
	if got := humanize.Relative(time.Unix(1e9, 0).Add(-time.Hour), time.Unix(1e9, 0)); got != "1h ago" {
		t.Errorf("an hour ago is shown as %s", got)
	}
}
