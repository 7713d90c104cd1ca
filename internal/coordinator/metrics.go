package coordinator

import (
	"crypto/ed25519"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
)

// metrics are what a coordinator counts that is none of its parts'. Names begin with fealty_.
type metrics struct {
	handshakes *prometheus.CounterVec
	cuts       *prometheus.CounterVec
	refused    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_mesh_handshake_failures_total",
			Help: "Handshakes that failed, by reason. Plain network failures are none.",
		}, []string{"reason"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_connections_cut_total",
			Help: "Connections that were ended because the peer's certificate expired or was banned.",
		}, []string{"reason"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_connections_refused_total",
			Help: "Connections that were refused because a limit was reached or, on the local socket, " +
				"for their user.",
		}),
	}
	reg.MustRegister(m.handshakes, m.cuts, m.refused)
	return m
}

// Metrics returns a collector that describes all that a coordinator counts, for the
// documentation. Nothing can be collected from it.
func Metrics() (prometheus.Collector, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	ephemeral, err := credential.NewEphemeral(time.Now)
	if err != nil {
		return nil, err
	}
	c, err := assemble(Config{}.withDefaults(), own{
		key: key, certificate: new(enterprise.Certificate), source: credential.NewIssued(ephemeral),
	})
	if err != nil {
		return nil, err
	}
	c.registerMetrics(c.registry, enterprise.NewFailures())
	_, err = c.authorizer()
	return c.registry, err
}

// registerMetrics registers what it and its parts count. Reloads counts what failed of the
// files of the operator's certificate.
func (c *Coordinator) registerMetrics(reg prometheus.Registerer, reloads prometheus.Collector) {
	c.metrics = newMetrics(reg)
	if c.parts.Self.Certificate() != nil || c.cfg.Publishing.Web != nil {
		reg.MustRegister(reloads)
	}
	if c.parts.Self.Certificate() != nil {
		reg.MustRegister(platformmetrics.GaugeOf("fealty_operator_certificate_not_after_seconds",
			"When the certificate of the operator's PKI in use ends, in seconds since 1970.",
			func() float64 { return enterprise.NotAfter(c.parts.Self.Certificate().Files()) }))
	}
	reg.MustRegister(platformmetrics.GaugeOf("fealty_operator_roots_not_after_seconds",
		"When the root of the operator's PKI that lasts longest ends, of those in the manifest in force, in seconds since "+
			"1970; 0 if it names none.",
		func() float64 {
			if last := lastOperatorRoot(c.parts.Head.State()); last != nil {
				return float64(last.NotAfter.Unix())
			}
			return 0
		}))
	reg.MustRegister(c.cfg.Monitoring.Output.Collectors()...)
	c.parts.StoreGuard.RegisterMetrics(reg)
	c.parts.Head.RegisterMetrics(reg)
	c.parts.Bundle.RegisterMetrics(reg)
	c.parts.Election.RegisterMetrics(reg)
	c.parts.Audit.RegisterMetrics(reg)
	c.parts.Shown.Backups.RegisterMetrics(reg)
	c.parts.Secrets.PeerRecovery.RegisterMetrics(reg)
	c.parts.Secrets.OwnerRecovery.RegisterMetrics(reg)
	c.parts.Peers.RegisterMetrics(reg)
	c.parts.Membership.RegisterMetrics(reg)
	c.parts.Admission.RegisterMetrics(reg)
	c.parts.Publication.RegisterMetrics(reg)
	c.parts.Delivery.RegisterMetrics(reg)
	c.parts.Workloads.RegisterMetrics(reg)
	c.parts.Shown.Web.RegisterMetrics(reg)
	c.parts.Fencing.Journals.RegisterMetrics(reg)
	c.parts.Fencing.Grants.RegisterMetrics(reg)
	c.parts.Fencing.Domains.RegisterMetrics(reg)
	c.parts.Fencing.Incidents.RegisterMetrics(reg)
	c.parts.Fencing.Shards.RegisterMetrics(reg)
}
