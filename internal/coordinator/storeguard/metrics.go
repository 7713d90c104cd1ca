package storeguard

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/store"
)

func newFailures() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_store_failures_total",
		Help: "Calls of the store that it did not do, by why: it takes no writes (full, read-only, forbidden, file-gone, " +
			"disk-failed), does not answer (unreachable, locked, login-refused, too-many-connections, standby, unsuitable, " +
			"unreadable), not in time (no-answer), or does not say (unknown).",
	}, []string{"reason"})
	for _, r := range store.Reasons() {
		c.WithLabelValues(Word(r))
	}
	for _, o := range store.Outages() {
		c.WithLabelValues(OutageWord(o))
	}
	c.WithLabelValues(noAnswer)
	c.WithLabelValues(unknown)
	return c
}

// RegisterMetrics registers what it noticed of the store.
func (g *Guard) RegisterMetrics(reg prometheus.Registerer) {
	reg.MustRegister(
		g.failures,
		metrics.GaugeIf("fealty_store_full",
			"1 while the store refuses writes, because it has no space left or was made read-only.",
			func() bool {
				r := g.writes.State(g.cfg.Now()).Reason
				return r == store.NoSpace || r == store.ReadOnly
			}),
		metrics.GaugeIf("fealty_store_refuses_writes",
			"1 while the store is read and refuses writes, for whatever reason; fealty status says which.",
			func() bool { return g.writes.State(g.cfg.Now()).Reason != 0 }),
		metrics.GaugeIf("fealty_store_seen_unwritten",
			"1 while what was seen of the store is not written down, for want of space or inodes: one that goes back "+
				"would not be noticed after a restart.",
			func() bool { return g.unkept.Load() != nil }),
		metrics.GaugeIf("fealty_store_went_back",
			"1 while the store is known to have gone back: nothing is changed before the signers restore it.",
			func() bool { return g.kept.Lost() != nil }),
	)
}
