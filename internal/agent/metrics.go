package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/snapshot"
)

// metrics are what an agent counts.
type metrics struct {
	registry   *prometheus.Registry
	rejected   *prometheus.CounterVec
	received   *prometheus.CounterVec
	asked      *prometheus.CounterVec
	shared     *prometheus.CounterVec
	mirrors    *prometheus.CounterVec
	renewals   *prometheus.CounterVec
	handshakes *prometheus.CounterVec
	reloads    *prometheus.CounterVec
	hookRuns   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	entries    prometheus.Counter
}

// Metrics returns a collector that describes all that an agent counts, for the
// documentation. Nothing can be collected from it.
func Metrics() (prometheus.Collector, error) {
	a := &Agent{operator: new(credential.Files)}
	a.metrics = newMetrics(a, enterprise.NewFailures())
	a.metrics.registry.MustRegister(host.Refusals())
	_, _, err := a.authorizer()
	return a.metrics.registry, err
}

func newMetrics(a *Agent, reloads *prometheus.CounterVec) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		reloads:  reloads,
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_rejected_total",
			Help: "Snapshots that were refused, by scope and the check that failed.",
		}, []string{"scope", "reason"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_received_total",
			Help: "Snapshots that were received, by scope and how their content came: whole, held, patch or pulled.",
		}, []string{"scope", "form"}),
		mirrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_mirror_reads_total",
			Help: "Looks at mirrors by outcome: ok, stale for one that is behind what this node holds, or why " +
				"it had no news.",
		}, []string{"outcome"}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_asked_total",
			Help: "Sources that were asked for news because the stream brought none in time, by what they are " +
				"and the outcome: news, none or error.",
		}, []string{"source", "outcome"}),
		shared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_shared_total",
			Help: "Calls of other members for what is signed for them as well, by outcome: given; trust where the " +
				"caller did not show to be in this node's group; absent, limited, withheld, malformed or broken.",
		}, []string{"outcome"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_agent_renewals_total",
			Help: "Renewals and rejoins of this node by outcome: ok, error, or the code of the refusal.",
		}, []string{"action", "outcome"}),
		hookRuns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_agent_hook_runs_total",
			Help: "Runs of the program for changes, by scope and outcome: ok or error.",
		}, []string{"scope", "outcome"}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_mesh_handshake_failures_total",
			Help: "Handshakes that failed, by reason. Plain network failures are none.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_degraded_refused_total",
			Help: "Actions that the guard of degraded mode refused, by action and reason. An action that is not " +
				"in its table counts as other.",
		}, []string{"action", "reason"}),
	}
	m.registry.MustRegister(a.output.Collectors()...)
	m.entries = prometheus.NewCounter(prometheus.CounterOpts{Name: "fealty_degraded_entries_total",
		Help: "How often the node went into degraded mode: no news for an hour longer than announced."})
	if a.operator != nil {
		m.registry.MustRegister(platformmetrics.GaugeOf("fealty_operator_certificate_not_after_seconds",
			"When the certificate of the operator's PKI in use ends, in seconds since 1970.", func() float64 {
				return enterprise.NotAfter(a.operator)
			}))
	}
	m.registry.MustRegister(m.rejected, m.received, m.asked, m.shared, m.mirrors, m.renewals, m.handshakes,
		m.refused, m.entries, m.hookRuns, reloads,
		platformmetrics.GaugeIf("fealty_degraded", "1 while the node is in degraded mode and goes on by its policy alone.",
			func() bool { return a.node.Autonomy.Facts().Degraded(a.node.Now()) }),
		platformmetrics.GaugeOf("fealty_degraded_ends_seconds",
			"Until when the node's services go on if no news come, in seconds since 1970.", func() float64 {
				until, _ := a.node.Autonomy.DegradedUntil()
				return float64(until.Unix())
			}),
		platformmetrics.GaugeIf("fealty_agent_connected", "1 while the agent holds a stream to a coordinator.",
			func() bool { return a.node.Status().View().Connected }),
		platformmetrics.GaugeIf("fealty_agent_ready", "1 while the node has a valid identity and a trust bundle in use, and its sockets lead to it.",
			func() bool { return a.unready() == "" }),
		platformmetrics.GaugeOf("fealty_svid_not_after_seconds", "When the node's certificate ends, in seconds since 1970.",
			func() float64 {
				return float64(a.node.SVID().Leaf().NotAfter.Unix())
			}),
		platformmetrics.GaugeOf("fealty_agent_clock_behind_seconds",
			"How far the machine's clock is behind the time that was signed, beyond what clocks may differ; 0 "+
				"if it is not. The node goes by the later of the two.", func() float64 {
				return a.node.Clock.Behind().Seconds()
			}),
		snapshotVersions{a},
	)
	return m
}

var (
	versionDesc = prometheus.NewDesc("fealty_snapshot_config_version", "Config version of the snapshot in use.",
		[]string{"scope"}, nil)
	epochDesc = prometheus.NewDesc("fealty_snapshot_authority_epoch", "Authority epoch of the snapshot in use.",
		[]string{"scope"}, nil)

	generationDesc = prometheus.NewDesc("fealty_snapshot_generation",
		"Generation of the publication record over the snapshot in use.", []string{"scope"}, nil)
	quarantinedDesc = prometheus.NewDesc("fealty_snapshot_quarantined",
		"1 for a scope whose newest snapshot failed its trial, so that the one before is in use again if there "+
			"is one; else 0.", []string{"scope"}, nil)

	freshnessDesc = prometheus.NewDesc("fealty_snapshot_freshness",
		"State of the snapshot in use: 0 fresh, 1 stale, 2 degraded, 3 expired.", []string{"scope"}, nil)
)

// snapshotVersions shows the versions in use.
type snapshotVersions struct{ a *Agent }

func (s snapshotVersions) Describe(ch chan<- *prometheus.Desc) {
	ch <- versionDesc
	ch <- epochDesc
	ch <- generationDesc
	ch <- freshnessDesc
	ch <- quarantinedDesc
}

func (s snapshotVersions) Collect(ch chan<- prometheus.Metric) {
	b := s.a.node.TrustState()
	for _, scope := range state.Triable {
		value := 0.0
		if _, ok := b.Quarantined(scope); ok {
			value = 1
		}
		if b.Active[scope] != nil || value > 0 {
			ch <- prometheus.MustNewConstMetric(quarantinedDesc, prometheus.GaugeValue, value, string(scope))
		}
	}
	for _, h := range s.a.held() {
		ch <- prometheus.MustNewConstMetric(versionDesc, prometheus.GaugeValue, float64(h.GetConfigVersion()),
			h.GetScope())
		ch <- prometheus.MustNewConstMetric(epochDesc, prometheus.GaugeValue, float64(h.GetAuthorityEpoch()),
			h.GetScope())
		if h.GetGeneration() != 0 {
			ch <- prometheus.MustNewConstMetric(generationDesc, prometheus.GaugeValue, float64(h.GetGeneration()),
				h.GetScope())
		}
		if reached := snapshot.Freshness(h.GetFreshness()); reached != "" {
			ch <- prometheus.MustNewConstMetric(freshnessDesc, prometheus.GaugeValue, float64(guard.Rank(reached)),
				h.GetScope())
		}
	}
}

// probeAnswer is the JSON body of every probe.
type probeAnswer struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
	Log    string `json:"log,omitempty"` // why the log is lost; of readiness alone
}

// metricsHandler serves metrics and probes, which carry no authority:
//
//	/probe/liveness   200 while the process answers
//	/probe/readiness  200 with a valid identity and a trust bundle in use, and sockets that lead here
func (a *Agent) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /probe/liveness", func(w http.ResponseWriter,
		_ *http.Request) {
		answer(w, probeAnswer{OK: true})
	})
	mux.HandleFunc("GET /probe/readiness", func(w http.ResponseWriter, _ *http.Request) {
		reason := a.unready()
		answer(w, probeAnswer{OK: reason == "", Reason: reason, Log: a.output.Detail()})
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

// metricsServer serves metricsHandler.
func (a *Agent) metricsServer() *http.Server {
	return &http.Server{
		Handler: a.metricsHandler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
}

// ServiceHealth is what systemd is told. The agent serves from when its sockets do. One that another process took it takes back
// by itself, and says so meanwhile: if systemd ended the agent for it, the node would lose its renewals too.
func (a *Agent) ServiceHealth() sdnotify.Health {
	v := a.node.Status().View()
	status := "alone, within what it holds"
	if v.Connected {
		status = "connected to " + v.Coordinator
	}
	if reason := a.unready(); reason != "" {
		status = reason
	}
	return sdnotify.Health{Serves: a.serves.Load(), Status: status}
}

// unready says why the node is not ready, or "". Reachability of coordinators is
// no part of it: a node works without them (I16).
func (a *Agent) unready() string {
	if !a.contact.Presentable(context.Background()) {
		return "the node has no valid certificate: it ended at " + state.Stamp(a.node.SVID().Leaf().NotAfter)
	}
	if reason := a.node.TrustState().Ready(a.node.Now()); reason != "" {
		return reason
	}
	return strings.Join(a.sockets.lost(), "; ")
}
