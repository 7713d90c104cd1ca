package coordinator

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/sdnotify"
	"github.com/fealty-io/fealty/internal/platform/watch"
)

// Bounds of [Timing.MaxHeadAge].
const (
	MinMaxHeadAge = time.Minute // above authority.DegradedAfter
	MaxMaxHeadAge = record.Stretch
)

const (
	defaultMaxHeadAge = time.Hour // without a confirmed head a coordinator is ready for so long
	watchdogPause     = time.Second
	stuckAfter        = 30 * time.Second // without a self-check
)

// probeAnswer is the JSON body of every probe.
type probeAnswer struct {
	OK     bool   `json:"ok"`
	Phase  string `json:"phase"`
	Reason string `json:"reason,omitempty"`
	Store  string `json:"store,omitempty"` // "ok", "failing", "degraded", "went back", or how it takes no writes (storeguard.Word)
	// Failure is why the store does not answer, by storeguard.OutageWord; empty if it does.
	Failure string `json:"store_failure,omitempty"`
	Log     string `json:"log,omitempty"` // why the log is lost; of readiness alone
	// Changes is "refused" where readiness is ok and nothing can be changed: it promises that
	// what is known is served, and members are certified again.
	Changes string `json:"changes,omitempty"`
}

// health is all that the probes are answered from.
type health struct {
	Serving     bool            // all ports serve
	Tried       bool            // to bring the keys back, from peers too
	Phase       authority.Phase //
	Reason      string          // why it is not ready
	HeadAge     time.Duration   // since the store showed our head
	MaxHeadAge  time.Duration
	Store       string        // how the store takes no writes, in a word; empty if it does
	Refuses     string        // the same as a sentence
	Blocks      bool          // it took none since
	Lost        string        // how the store went back; empty if it did not
	Outage      string        // why the store did not answer a call lately, in a word; empty if it answered all
	Unanswered  string        // the same as a sentence, with the server's words
	WatchdogAge time.Duration // since the self-check last came through
	Strict      bool          // the store counts for liveness
	Log         string        // why the log is lost; empty if it is not
}

func (h health) answer(reason string) probeAnswer {
	return probeAnswer{OK: reason == "", Phase: h.Phase.String(), Reason: reason}
}

// startup: all ports serve, and one way back to the keys was tried.
func (h health) startup() probeAnswer {
	switch {
	case !h.Serving:
		return h.answer("the listeners do not serve yet")
	case !h.Tried:
		return h.answer("it has not asked its peers for the keys yet")
	}
	return h.answer("")
}

// readiness: a manifest is in force, the state in memory is the head of the history,
// and the store said so within MaxHeadAge. It promises that members are served: they get what
// is signed for them, and are certified again. That something can be changed it does not
// promise: where nothing can, taking this coordinator away would take that from members too,
// and mend nothing. The body says so.
func (h health) readiness() probeAnswer {
	if h.Phase != authority.Ready {
		a := h.answer(h.Reason)
		a.OK, a.Log = false, h.Log
		return a
	}
	a := h.answer("")
	// It serves without a log.
	a.Store, a.Log = "ok", h.Log
	if h.Outage != "" {
		a.Store, a.Failure, a.Reason = "failing", h.Outage, h.Unanswered
	}
	if h.Store != "" {
		// Work without writes goes on, and restarting it mends nothing.
		a.Store, a.Reason = h.Store, h.Refuses
		if h.Blocks {
			a.Changes = "refused"
		}
	}
	if h.Lost != "" {
		// Work without writes goes on, and restarting it brings nothing back.
		a.Store, a.Reason, a.Changes = "went back", h.Lost, "refused"
	}
	if h.HeadAge > authority.DegradedAfter {
		a.Store, a.Changes = "degraded", "refused"
		a.Reason = "the head of the history was last confirmed " + h.HeadAge.Round(time.Second).String() + " ago"
		if h.Unanswered != "" {
			a.Reason += "; " + h.Unanswered
		}
		a.OK = h.HeadAge <= h.MaxHeadAge
	}
	return a
}

// liveness: the process is not stuck. The store does not count: an outage of it
// would make an orchestrator kill every replica, and with them every copy of the
// seed. The strict form is for those whose keeper brings it back.
func (h health) liveness() probeAnswer {
	switch {
	case h.WatchdogAge > stuckAfter:
		return h.answer("it is stuck: a lock that every call takes was not free for " +
			h.WatchdogAge.Round(time.Second).String())
	case h.Strict && h.Phase == authority.Ready && h.HeadAge > authority.DegradedAfter:
		return h.answer("the store was last read " + h.HeadAge.Round(time.Second).String() +
			" ago, and --liveness-store is set")
	}
	return h.answer("")
}

func (c *Coordinator) health() health {
	s, now := c.parts.Head.State(), c.now()
	word, refuses := c.parts.StoreGuard.Refusing()
	outage := c.parts.StoreGuard.Outage()
	reason := s.Reason
	if s.Phase == authority.Recovery {
		reason = c.parts.Secrets.OwnerRecovery.Text(s)
	}
	return health{
		Serving: c.serving.Load(), Tried: c.parts.Moves.Succession.Tried(), Phase: s.Phase, Reason: reason,
		HeadAge: c.parts.Head.ConfirmedAge(now), MaxHeadAge: c.cfg.Timing.MaxHeadAge,
		Store: word, Refuses: refuses, Blocks: c.parts.StoreGuard.Writes().Blocks(), Lost: c.parts.StoreGuard.LostReason(),
		Outage: storeguard.OutageWord(outage.Outage), Unanswered: outage.Text(now),
		WatchdogAge: c.selfChecked.Age(now), Strict: c.cfg.Monitoring.LivenessStore,
		Log: c.cfg.Monitoring.Output.Detail(),
	}
}

// ServiceHealth is what systemd is told.
func (c *Coordinator) ServiceHealth() sdnotify.Health { return c.health().service() }

// service: it serves when all ports do, with and without a manifest, until it is not alive any more. A restart takes the
// secrets that it holds, and brings back neither a store nor the shares of owners.
func (h health) service() sdnotify.Health {
	if live := h.liveness(); !live.OK {
		return sdnotify.Health{Status: live.Reason}
	}
	ready := h.readiness()
	status := ready.Phase
	if ready.Reason != "" {
		status += ": " + ready.Reason
	}
	return sdnotify.Health{Serves: h.Serving, Status: status}
}

// metricsHandler serves metrics and probes (docs/how-to/monitor.md). It carries no
// control authority and serves no profiles: a heap profile holds the seed (I8).
func (c *Coordinator) metricsHandler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	for path, of := range map[string]func(health) probeAnswer{
		"startup": health.startup, "readiness": health.readiness, "liveness": health.liveness,
	} {
		mux.HandleFunc("GET /probe/"+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, of(c.health())) })
	}
	return mux
}

func answer(w http.ResponseWriter, a probeAnswer) {
	w.Header().Set("Content-Type", "application/json")
	if !a.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(a) // the prober went away: nobody is left to tell
}

// watchdog runs the self-check that liveness stands on, again and again.
func (c *Coordinator) watchdog(ctx context.Context) error {
	for {
		c.checkSelf()
		if err := watch.Sleep(ctx, watchdogPause); err != nil {
			return err
		}
	}
}

// checkSelf takes each lock that calls of all kinds take, as a call would. No I/O is
// done under them, so that a store or a disk that hangs does not hold it up, and a
// deadlock does.
func (c *Coordinator) checkSelf() {
	for _, alive := range c.alive {
		alive()
	}
	c.selfChecked.Set(c.now())
}
