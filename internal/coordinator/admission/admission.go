// Package admission decides who joins the cluster and issues certificates for that (I1): it handles
// joins, renewals, join tokens, certificates of workloads, and renewals while the store is out of
// reach.
//
// A join is decided by the manifest in force and by what the store holds, in the transaction that
// records it: nobody is a member by what memory says. The check of the proof comes first, so that a
// candidate without one learns nothing of what exists. See docs/explanation/threat-model.md.
// What is decided stands in admit.go, without I/O: also whether a token is spent.
//
// A candidate sends a certification request (PKCS #10, RFC 2986), of which its key alone counts,
// and proves what it is over the TLS connection that it came by (exporter, RFC 8446 §7.5). It gets
// an X509-SVID (SPIFFE X509-SVID §2, profile of RFC 5280 §4), whose names come from the manifest.
//
// A member also gets certificates for the processes on it ([Workloads]): for a workload that its
// published assignment registers, and for no other. Nothing is recorded. The certificate names the
// member and the key that it asked with, ends no later than the certificate over that key, and is
// refused by everybody once one of the two is banned. So what ends a member ends what it vouched
// for. See docs/explanation/workloads.md.
package admission

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/admission/batch"
	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
)

// Config is what an Admission is made of.
type Config struct {
	Head       *authority.Head
	Peers      *status.Peers
	Bundle     *current.Current
	Election   *election.Election
	Store      store.Store
	Membership *member.Membership
	StoreGuard *storeguard.Guard
	Auditing   *buffer.Queue
	Faults     *failpoint.Points
	Limiter    *ratelimit.Sources
	PerMember  *ratelimit.PerKey // renewals and rejoins, by identity
	Readers    *ratelimit.Readers
	Refusals   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// MaxHeadAge is how old the head may be under which it renews without the store.
	MaxHeadAge time.Duration
	// Pending bounds the joins that wait for their candidate's answer, and PendingPerSource
	// those of them from one address. Zero means 4096 and 512.
	Pending, PendingPerSource int
}

// Admission turns a proof into a certificate (I1).
type Admission struct {
	cfg     Config
	metrics *metrics

	recalls      member.ReconnectList // of streams whose members hold certificates that stand in no record
	joinsWaiting *ratelimit.Limiter   // of joins from challenge to answer
	joinSlots    chan struct{}        // held by each join that is decided
	joins        *batch.Desk[joinLine, *joiner]
	known        *known
	verifiers    atomic.Pointer[verifiers] // of the state that was served last
}

// New returns an [Admission] that admitted nobody yet.
func New(cfg Config) *Admission {
	a := &Admission{
		cfg: cfg, known: newKnown(), joinSlots: make(chan struct{}, JoinsAtOnce),
		joinsWaiting: newJoinsWaiting(cfg.Pending, cfg.PendingPerSource),
	}
	a.joins = batch.New(JoinsAtOnce, cfg.Readers.Go, a.admitTogether)
	return a
}

// admissionServer serves AdmissionService.
type admissionServer struct {
	fealtyv1.UnimplementedAdmissionServiceServer
	c *Admission
}

// RegisterServices registers the services by which one joins, renews and makes tokens.
func (a *Admission) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterAdmissionServiceServer(to, admissionServer{c: a})
	fealtyv1.RegisterTokenServiceServer(to, tokenServer{c: a})
}

// metrics are what Admission counts.
type metrics struct {
	joins        *prometheus.CounterVec
	joinSeconds  prometheus.Histogram
	renewals     *prometheus.CounterVec
	renewSeconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
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
			Help: "Renewals by outcome: renewed, recertified for a recorded key while the store was out " +
				"of reach or full, or the code of the refusal.",
		}, []string{"outcome"}),
		renewSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fealty_renewal_seconds",
			Help:    "Time to renew an SVID.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
	}
	reg.MustRegister(m.joins, m.joinSeconds, m.renewals, m.renewSeconds)
	return m
}

// RegisterMetrics registers what it counts.
func (a *Admission) RegisterMetrics(reg prometheus.Registerer) {
	a.metrics = newMetrics(reg)
}
