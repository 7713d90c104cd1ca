package coordinator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/tlsfiles"
)

// metrics are what a coordinator counts. Names begin with fealty_.
type metrics struct {
	joins        *prometheus.CounterVec
	joinSeconds  prometheus.Histogram
	renewals     *prometheus.CounterVec
	renewSeconds prometheus.Histogram
	clones       prometheus.Counter
	forged       prometheus.Counter
	auditBreaks  prometheus.Counter
	handshakes   *prometheus.CounterVec
	cuts         *prometheus.CounterVec
	refused      prometheus.Counter
	shares       *prometheus.CounterVec
	peers        *prometheus.CounterVec
	peerCalls    *prometheus.CounterVec
	uncompiled   prometheus.Gauge
	sent         *prometheus.CounterVec
	removed      *prometheus.CounterVec
	outlet       *prometheus.CounterVec
	transitions  prometheus.Counter
}

// Metrics returns a collector that describes all that a coordinator counts, for the
// documentation. Nothing can be collected from it.
func Metrics() (prometheus.Collector, error) {
	c := assemble(Config{Registry: prometheus.NewRegistry(), Now: time.Now})
	c.self.certificate = new(enrolment.Certificate)
	c.metrics = newMetrics(c.registry, c, tlsfiles.NewFailures())
	_, err := c.authorizer()
	return c.registry, err
}

func newMetrics(reg prometheus.Registerer, c *Coordinator, reloads prometheus.Collector) *metrics {
	m := &metrics{
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_joins_total",
			Help: "Joins by outcome: admitted, already_member, or the code of the refusal.",
		}, []string{"outcome"}),
		joinSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fealty_join_seconds",
			Help:    "Time from a join's challenge to its grant or refusal, the candidate's part included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_renewals_total",
			Help: "Renewals by outcome: renewed, recertified for a recorded key while the store was out of reach or full, or the code of the refusal.",
		}, []string{"outcome"}),
		renewSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fealty_renewal_seconds",
			Help:    "Time to renew an SVID.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
		clones: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_clone_alarms_total",
			Help: "Uses of an earlier key of a member: two machines hold one identity.",
		}),
		auditBreaks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_audit_breaks_total",
			Help: "Places at which the audit log is not what was written.",
		}),
		forged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_store_forged_records_total",
			Help: "Records whose MAC failed: the store was altered from outside.",
		}),
	}
	m.handshakes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_mesh_handshake_failures_total",
		Help: "Handshakes that failed, by reason. Plain network failures are none.",
	}, []string{"reason"})
	m.cuts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_connections_cut_total",
		Help: "Connections that were ended because the peer's certificate expired or was banned.",
	}, []string{"reason"})
	m.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fealty_connections_refused_total",
		Help: "Connections that were refused because a limit was reached or, on the local socket, for their user.",
	})
	m.shares = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_recovery_shares_total",
		Help: "Shares of the seed that owners brought, by outcome: taken, recovered, or the code of the refusal.",
	}, []string{"outcome"})
	m.peers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_peer_recoveries_total",
		Help: "Exchanges in which this coordinator asked a peer for the secrets of the head, by outcome: received, or the step that failed: load, proof, answer, manifest, history, mesh.",
	}, []string{"outcome"})
	m.peerCalls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_peer_requests_total",
		Help: "Exchanges that other coordinators began with this one, by purpose (recover, prepare) and outcome: given, taken, or the code of the refusal.",
	}, []string{"purpose", "outcome"})
	m.uncompiled = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fealty_snapshot_uncompiled",
		Help: "Members and groups for whom a snapshot could not be compiled: they keep their last one.",
	})
	m.removed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_compile_removed_total",
		Help: "What records of the config ask for and is not given, each once until it is mended, by scope and reason.",
	}, []string{"scope", "reason"})
	m.outlet = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_publish_dir_writes_total",
		Help: "Generations for the publish directory by outcome: written, not_needed, or failed.",
	}, []string{"outcome"})
	m.sent = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_snapshot_sent_total",
		Help: "Snapshots that were sent to members, by scope and form: whole, patch, record for a newer record alone, or detached for a content that is pulled.",
	}, []string{"scope", "form"})
	m.transitions = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fealty_leader_transitions_total",
		Help: "Changes of the leader that this coordinator has seen.",
	})
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	if c.self.certificate != nil {
		reg.MustRegister(reloads, gauge("fealty_operator_certificate_not_after_seconds", "When the certificate of the operator's PKI in use ends, in seconds since 1970.", func() float64 {
			return tlsfiles.NotAfter(c.self.certificate.Files())
		}))
	}
	reg.MustRegister(m.joins, m.joinSeconds, m.renewals, m.renewSeconds, m.clones, m.forged, m.auditBreaks, m.handshakes, m.cuts, m.refused, m.shares, m.peers, m.peerCalls, m.uncompiled, m.removed, m.outlet, m.sent, m.transitions,
		gauge("fealty_coordinator_ready", "1 while a manifest is in force and this coordinator holds its keys.", func() float64 {
			return truth(c.head.state.Load().Phase == authority.Ready)
		}),
		gauge("fealty_store_full", "1 while the store refuses writes, because it has no space left or was made read-only.", func() float64 {
			r := c.storeguard.Writes().Reason
			return truth(r == store.NoSpace || r == store.ReadOnly)
		}),
		gauge("fealty_store_refuses_writes", "1 while the store is read and refuses writes, for whatever reason; fealty status says which.", func() float64 {
			return truth(c.storeguard.Writes().Reason != 0)
		}),
		gauge("fealty_store_went_back", "1 while the store is known to have gone back: nothing is changed before the signers restore it.", func() float64 {
			return truth(c.storeguard.Lost() != nil)
		}),
		gauge("fealty_coordinator_recovery_mode", "1 while the state in memory is not the head of the persisted history.", func() float64 {
			return truth(c.head.state.Load().Phase == authority.Recovery)
		}),
		gauge("fealty_coordinators_unheard", "Other coordinators that this one misses: they did not stop in order, and have not answered for ten seconds.", func() float64 {
			return float64(len(c.membership.presence.Missed(c.elapsed())))
		}),
		gauge("fealty_leader", "1 while this coordinator leads.", func() float64 {
			_, _, ok := c.election.leading()
			return truth(ok)
		}),
		gauge("fealty_leader_term", "Term of who leads, as far as this coordinator can tell; 0 if nobody does.", func() float64 {
			_, term, _ := c.election.leader()
			return float64(term)
		}),
		gauge("fealty_authority_epoch", "Authority epoch of the manifest in force; 0 without one.", func() float64 {
			return float64(c.head.state.Load().Head.AuthorityEpoch)
		}),
		gauge("fealty_history_index", "Index of the transition in force; 0 without one.", func() float64 {
			return float64(c.head.state.Load().Head.Index)
		}),
		gauge("fealty_agents_connected", "Members that hold a stream to this coordinator.", func() float64 {
			return float64(c.membership.live.connected())
		}),
		gauge("fealty_data_members_connected", "Data members that hold a stream to this coordinator, or asked it lately. The sum over coordinators is what the baseline counts, but for those that drain.", func() float64 {
			return float64(c.membership.live.dataConnected())
		}),
		gauge("fealty_baseline_data", "Data members that have to be connected by the manifest in force; 0 without one.", func() float64 {
			if s := c.head.state.Load().Ready(); s != nil {
				return float64(s.Manifest.Baseline.Data)
			}
			return 0
		}),
		gauge("fealty_publication_generation", "Generation of the publication record that is served; 0 without one.", func() float64 {
			if p := c.publication.publication.Load(); p.serves() {
				return float64(p.state.Value.Generation)
			}
			return 0
		}),
		gauge("fealty_publication_fresh_until_seconds", "Until when the publication record that is served is fresh, in seconds since 1970; 0 without one.", func() float64 {
			if p := c.publication.publication.Load(); p.serves() {
				return float64(p.state.Value.FreshUntil.Unix())
			}
			return 0
		}),
		gauge("fealty_publish_dir_generation", "Generation that this coordinator wrote to its publish directory last; 0 if it wrote none.", func() float64 {
			return float64(c.publication.outlet.generation())
		}),
		gauge("fealty_trust_bundle_version", "Config version of the trust bundle that is served.", func() float64 {
			if t := c.bundle.trust.Load(); t != nil {
				return float64(t.Version)
			}
			return 0
		}),
	)
	return m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
