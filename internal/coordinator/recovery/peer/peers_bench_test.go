package peer_test

import (
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// From the start of a coordinator with nothing in memory until it is ready by what a
// peer gave: the store and the peer are on this machine.
func BenchmarkPeerRecovery(b *testing.B) {
	quiet := func(c *coordinator.Config) { c.Log = slog.New(slog.NewTextHandler(io.Discard, nil)) }
	f, rs := coordinatortest.NewPeerFleet(b, 1, quiet)
	f.C.Parts().Secrets.PeerRecovery.SetLimits(func(l *ratelimit.Limits) {
		l.PerSecond, l.Burst = 1e6, 1e6 // more often than anybody starts
	})
	r := rs[0]
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		r.Start()
		r.Await(authority.Ready)
		took = append(took, time.Since(begin))
		b.StopTimer()
		r.Stop()
		b.StartTimer()
	}
	slices.Sort(took)
	at := func(q float64) float64 {
		return took[min(int(q*float64(len(took))), len(took)-1)].Seconds() * 1e3
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
}
