package coordinator

import (
	"crypto/ed25519"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
)

// metrics are what a coordinator counts that is none of its rooms'. Names begin with fealty_.
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

// registerMetrics registers what it and its rooms count. Reloads counts what failed of the
// files of the operator's certificate.
func (c *Coordinator) registerMetrics(reg prometheus.Registerer, reloads prometheus.Collector) {
	c.metrics = newMetrics(reg)
	if c.rooms.Self.Certificate() != nil || c.cfg.Publishing.Web != nil {
		reg.MustRegister(reloads)
	}
	if c.rooms.Self.Certificate() != nil {
		reg.MustRegister(platformmetrics.GaugeOf("fealty_operator_certificate_not_after_seconds",
			"When the certificate of the operator's PKI in use ends, in seconds since 1970.",
			func() float64 { return enterprise.NotAfter(c.rooms.Self.Certificate().Files()) }))
	}
	reg.MustRegister(platformmetrics.GaugeOf("fealty_operator_roots_not_after_seconds",
		"When the root of the operator's PKI that lasts longest ends, of those in the manifest in force, in seconds since "+
			"1970; 0 if it names none.",
		func() float64 {
			if last := lastOperatorRoot(c.rooms.Head.State()); last != nil {
				return float64(last.NotAfter.Unix())
			}
			return 0
		}))
	reg.MustRegister(c.cfg.Monitoring.Output.Collectors()...)
	c.rooms.StoreGuard.RegisterMetrics(reg)
	c.rooms.Head.RegisterMetrics(reg)
	c.rooms.Bundle.RegisterMetrics(reg)
	c.rooms.Election.RegisterMetrics(reg)
	c.rooms.Audit.RegisterMetrics(reg)
	c.rooms.Shown.Backups.RegisterMetrics(reg)
	c.rooms.Secrets.PeerRecovery.RegisterMetrics(reg)
	c.rooms.Secrets.OwnerRecovery.RegisterMetrics(reg)
	c.rooms.Peers.RegisterMetrics(reg)
	c.rooms.Membership.RegisterMetrics(reg)
	c.rooms.Admission.RegisterMetrics(reg)
	c.rooms.Publication.RegisterMetrics(reg)
	c.rooms.Delivery.RegisterMetrics(reg)
	c.rooms.Workloads.RegisterMetrics(reg)
	c.rooms.Shown.Web.RegisterMetrics(reg)
	c.rooms.Fencing.Journals.RegisterMetrics(reg)
	c.rooms.Fencing.Grants.RegisterMetrics(reg)
	c.rooms.Fencing.Domains.RegisterMetrics(reg)
	c.rooms.Fencing.Incidents.RegisterMetrics(reg)
}
