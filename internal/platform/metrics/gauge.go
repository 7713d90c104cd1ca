// Package metrics makes Prometheus gauges that compute their value at each scrape, and the HTTP
// handler that answers health probes ([ProbeHandler]).
//
// A gauge asks the part that has the value, so that the part need not report each change of it.
package metrics

import "github.com/prometheus/client_golang/prometheus"

// GaugeOf returns the gauge name, which is what value returns then. Value is called by any
// number of goroutines at once, and must not wait.
func GaugeOf(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

// GaugeIf returns the gauge name, which is 1 while holds returns true, and else 0; see [GaugeOf].
func GaugeIf(name, help string, holds func() bool) prometheus.Collector {
	return GaugeOf(name, help, func() float64 {
		if holds() {
			return 1
		}
		return 0
	})
}
