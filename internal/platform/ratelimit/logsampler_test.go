package ratelimit_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Lines beyond the rate are left out, and counted in the next one.
func TestLogSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		log := slog.New(slog.NewTextHandler(&b, nil))
		s := ratelimit.NewLogSampler()
		for range 10 * ratelimit.LogBurst {
			s.Log(t.Context(), log, slog.LevelWarn, "refused")
		}
		if n := strings.Count(b.String(), "refused"); n != ratelimit.LogBurst || strings.Contains(b.String(), "left_out_before") {
			t.Fatalf("%d lines, want %d", n, ratelimit.LogBurst)
		}
		time.Sleep(time.Second / ratelimit.LogLines)
		b.Reset()
		for range 2 {
			s.Log(t.Context(), log, slog.LevelWarn, "refused")
		}
		if want := fmt.Sprintf("left_out_before=%d\n", 9*ratelimit.LogBurst); strings.Count(b.String(), "\n") != 1 || !strings.Contains(b.String(), want) {
			t.Errorf("when there is room for a line again it is\n%swant one with %s", b.String(), want)
		}
	})
}

// What anybody can make for as long as they like is a few lines of each kind, and then one a minute that counts.
func TestNoiseSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		log := slog.New(slog.NewTextHandler(&b, nil))
		var s ratelimit.NoiseSampler
		noise := func(kind string, n int) {
			for range n {
				s.Log(t.Context(), log, kind, slog.LevelInfo, kind)
			}
		}
		noise("Protocol", 1000)
		noise("Expired", 1)
		if all, other := strings.Count(b.String(), "msg=Protocol"), strings.Count(b.String(), "msg=Expired"); all != ratelimit.NoiseBurst || other != 1 {
			t.Errorf("at once it is %d lines, and %d of another kind", all, other)
		}
		b.Reset()
		const hours = 2
		for range hours * 3600 {
			time.Sleep(time.Second)
			noise("Protocol", 10)
		}
		if n := strings.Count(b.String(), "\n"); n != hours*60 || !strings.Contains(b.String(), "left_out_before=599\n") {
			t.Errorf("in %d hours it is %d lines, and the first is %.200s", hours, n, b.String())
		}
		b.Reset()
		for i := range 1000 { // a name for each, which no caller has
			noise(strings.Repeat("x", i), ratelimit.NoiseBurst)
		}
		if n := strings.Count(b.String(), "\n"); n > 40*ratelimit.NoiseBurst {
			t.Errorf("of a thousand kinds it is %d lines", n)
		}
	})
}
