// Package humanize writes durations, times, counts and sizes for people, and finds the known word
// closest to a mistyped one ([Suggest]).
package humanize

import (
	"fmt"
	"strconv"
	"time"
)

// Span says how long d is, in its two largest units: 3d 4h. A year has 365 days.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + Span(-d)
	}
	units := []struct {
		name string
		size time.Duration
	}{{"y", 365 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.size {
			continue
		}
		out := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			if rest := d % u.size / units[i+1].size; rest > 0 {
				out += " " + strconv.FormatInt(int64(rest), 10) + units[i+1].name
			}
		}
		return out
	}
	return "0s"
}

// Relative says how far t is from now.
func Relative(t, now time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero() || t.Unix() == 0:
		return "-"
	case d >= time.Second:
		return "in " + Span(d)
	case d > -time.Second:
		return "now"
	default:
		return Span(-d) + " ago"
	}
}

// Plural returns n with its noun.
func Plural[N int | uint32](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Size says how much n bytes are, in GiB from ten of them on.
func Size(n uint64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%d GiB", n>>30)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
