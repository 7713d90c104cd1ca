package process

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TurnedAway returns how many callers were not served, by why.
func (c *Counts) TurnedAway() map[string]float64 {
	out := make(map[string]float64)
	metrics := make(chan prometheus.Metric, 16)
	c.away.Collect(metrics)
	close(metrics)
	for m := range metrics {
		var d dto.Metric
		if err := m.Write(&d); err != nil {
			panic(err)
		}
		out[d.GetLabel()[0].GetValue()] = d.GetCounter().GetValue()
	}
	return out
}
