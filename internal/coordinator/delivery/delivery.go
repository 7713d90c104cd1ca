// Package delivery streams to each member what is signed for it, and nothing else: the trust
// bundle first, then what is published for the member, in the smallest form that it can verify.
// It pulls what is large, or was lost. A slow member holds up nobody.
//
// All that it sends is signed over canonical JSON (RFC 8785) already, and its place among all that is
// published is proven by a Merkle tree (RFC 6962 §2.1): no path of it has to be trusted.
package delivery

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Config is what a Delivery is made of.
type Config struct {
	Head        *authority.Head
	Bundle      *current.Current
	Membership  *member.Membership
	Trust       *trust.Trust
	Admission   *admission.Admission
	Publication *publication.Publication
	Readers     *ratelimit.Readers
	Failures    *ratelimit.LogSampler
	Log         *slog.Logger
	Now         func() time.Time

	Stopping <-chan struct{} // closed when the coordinator stops
}

// Delivery streams to each member what is signed for it.
type Delivery struct {
	cfg     Config
	metrics *metrics

	pulls   *pullLimiter
	patches *patchCache
	trust   atomic.Pointer[trustNews] // of the bundle that was sent last
}

// New returns a [Delivery] that nobody is connected to.
func New(cfg Config) *Delivery {
	return &Delivery{cfg: cfg, pulls: newPullLimiter(), patches: newPatchCache()}
}

// Pulling returns how many members have pulls of contents under way.
func (c *Delivery) Pulling() int { return c.pulls.count() }

// Alive returns once nobody holds its locks: a watchdog sees that they are not held for good.
func (c *Delivery) Alive() {
	c.pulls.count()
	c.patches.alive()
}

// RegisterServices registers the services by which members are sent what is signed for them.
func (c *Delivery) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterAgentServiceServer(to, agentServer{c: c})
	fealtyv1.RegisterSnapshotServiceServer(to, snapshotServer{c: c})
}

// metrics are what Delivery counts.
type metrics struct {
	sent *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_snapshot_sent_total",
			Help: "Snapshots that were sent to members, by scope and form: whole, patch, record for a " +
				"newer record alone, or detached for a content that is pulled.",
		}, []string{"scope", "form"}),
	}
	reg.MustRegister(m.sent)
	return m
}

// RegisterMetrics registers what it counts.
func (c *Delivery) RegisterMetrics(reg prometheus.Registerer) {
	c.metrics = newMetrics(reg)
}
