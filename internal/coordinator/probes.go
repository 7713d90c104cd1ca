package coordinator

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// probeAnswer is the JSON body of every probe.
type probeAnswer struct {
	OK     bool   `json:"ok"`
	Phase  string `json:"phase"`
	Reason string `json:"reason,omitempty"`
	Store  string `json:"store,omitempty"` // "ok" or "degraded"
}

// metricsHandler serves metrics and probes (manifest.md, Probes). It carries no
// control authority and serves no profiles: a heap profile holds the seed (I8).
//
//	/probe/startup    200 once all ports serve
//	/probe/readiness  200 with a manifest in force, its head confirmed in the
//	                  store within maxHeadAge
//	/probe/liveness   200 while the process answers; it does not look at the
//	                  store, for an outage would otherwise kill every replica and
//	                  with them every copy of the seed
func (c *Coordinator) metricsHandler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /probe/startup", func(w http.ResponseWriter, _ *http.Request) {
		a := probeAnswer{OK: c.serving.Load(), Phase: c.state.Load().phase.String()}
		if !a.OK {
			a.Reason = "the listeners do not serve yet"
		}
		answer(w, a)
	})
	mux.HandleFunc("GET /probe/readiness", func(w http.ResponseWriter, _ *http.Request) {
		s := c.state.Load()
		a := probeAnswer{OK: s.phase == phaseReady, Phase: s.phase.String(), Reason: s.reason, Store: "ok"}
		age := c.now().Sub(time.Unix(0, c.headConfirmed.Load()))
		if s.phase == phaseReady && age > headDegradedAfter {
			a.Store = "degraded"
			a.Reason = "the head of the history was last confirmed " + age.Round(time.Second).String() + " ago"
			a.OK = age <= maxHeadAge
		}
		answer(w, a)
	})
	mux.HandleFunc("GET /probe/liveness", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, probeAnswer{OK: true, Phase: c.state.Load().phase.String()})
	})
	return mux
}

func answer(w http.ResponseWriter, a probeAnswer) {
	w.Header().Set("Content-Type", "application/json")
	if !a.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a) // the prober went away: nobody is left to tell
}
