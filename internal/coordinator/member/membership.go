// Package member answers who is a member and who is connected, and ends memberships by ban, removal
// or replacement.
//
// A member is what the store records: package admission makes it, and this package ends it.
// [Roster] keeps the recorded members in memory, however late and often the notices of changes
// come. What members report is kept in memory too, and can only make
// the coordinator more careful.
//
// [CopyWatch] notices two machines that run as one member: their processes take each other's place
// again and again, or one presents a key that the other has replaced. Package mesh ends the
// connections of a member that was banned; [ClosedLog] records which those were, so that the ban
// command can report them. [ReconnectList] asks members whose certificates end soonest to reconnect
// first, and no more at once than the coordinators that they come back to can bear.
package member

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	platformmetrics "github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// Config is what a Membership is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Bundle     *current.Current
	Election   *election.Election
	StoreGuard *storeguard.Guard
	Peers      *status.Peers
	Store      store.Store
	Guard      *mesh.Guard
	Auditing   *buffer.Queue
	Failures   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time
	Elapsed    func() time.Duration

	// Found is what else this coordinator finds that the others are told.
	Found func(s *authority.State) []*fealtyv1.Finding
}

// Membership knows who is a member, who is connected, and how one stops being one.
type Membership struct {
	cfg     Config
	metrics *metrics
	beside  []Beside // what else is kept of members; see SetBeside

	listens  atomic.Int64 // Unix nanoseconds: when it became ready, after it was not
	copies   CopyWatch    // which processes opened streams of members
	openings openings     // streams that the other coordinators are to be told of
	members  *Roster
	live     *live.Members
	idBans   atomic.Pointer[bundle.IDBans] // as they were read last; nil: never
	cuts     atomic.Int64                  // connections that the guard cut
	ended    ClosedLog                     // those of them that a ban ended
}

// New returns one that knows of no member and heard nobody.
func New(cfg Config) *Membership {
	return &Membership{cfg: cfg, members: NewRoster(), live: live.New(cfg.Elapsed)}
}

// Roster is which members the store records.
func (m *Membership) Roster() *Roster { return m.members }

// Live is who has a stream here.
func (m *Membership) Live() *live.Members { return m.live }

// Listen begins to hear members and coordinators anew: from a start on, or from the end of
// recovery mode, silence says nothing until everybody had the time to be heard.
func (m *Membership) Listen() {
	m.Listens(m.cfg.Now())
	m.cfg.Peers.Listen()
}

// Listens says since when this coordinator hears its members: who was not heard before may
// have been there.
func (m *Membership) Listens(since time.Time) { m.listens.Store(since.UnixNano()) }

// ListensSince is since when members can report to this coordinator.
func (m *Membership) ListensSince() time.Time { return time.Unix(0, m.listens.Load()) }

// ProcessOf is the process of a member that a coordinator heard last, as far as this one knows: the
// others are asked when people look. Nil: none was heard.
func (m *Membership) ProcessOf(id identity.ID) *fealtyv1.Process {
	return live.Newer(m.live.Message(id), m.cfg.Peers.Live(string(id.Kind())+"/"+id.Name())).GetProcess()
}

// Hear asks the other coordinators what they hear of members, unless they were asked just now.
func (m *Membership) Hear(ctx context.Context, s *authority.State) { m.cfg.Peers.Hear(ctx, s) }

// AllAnswered reports whether every coordinator said what it hears of members.
func (m *Membership) AllAnswered() bool { return m.cfg.Peers.AllAnswered() }

// Cut notes that the guard cut a connection of a member, because of a ban or for another
// reason.
func (m *Membership) Cut(id identity.ID, banned bool) {
	m.cuts.Add(1)
	if banned {
		m.ended.Add(string(id.Kind())+"/"+id.Name(), m.cfg.Now())
	}
}

// ConnectionsCut returns how many connections of members the guard cut since the start.
func (m *Membership) ConnectionsCut() int64 { return m.cuts.Load() }

// Beside is a part of the coordinator that keeps something else of members than their records.
type Beside interface {
	// AboutMember adds to out what it keeps of a member. An error says that the store did not tell.
	AboutMember(ctx context.Context, s *authority.State, id identity.ID, out *fealtyv1.GetMemberResponse) error
	// Unknown is what is not known of a member then, as a clause.
	Unknown() string
}

// SetBeside has who asks for one member told what these parts keep of it too. It is called before anybody asks.
func (m *Membership) SetBeside(beside ...Beside) { m.beside = beside }

// RegisterServices registers the services over members, and what other coordinators are told
// of them.
func (m *Membership) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterMemberServiceServer(to, memberServer{c: m})
	fealtyv1.RegisterLiveServiceServer(to, liveServer{c: m})
}

// metrics are what Membership counts.
type metrics struct {
	clones prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		clones: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_clone_alarms_total",
			Help: "Signs that two machines hold one identity: uses of an earlier key of a member, and processes that " +
				"take the place of each other; fealty status names them.",
		}),
	}
	reg.MustRegister(m.clones)
	return m
}

// RegisterMetrics registers what it counts, and who is connected.
func (m *Membership) RegisterMetrics(reg prometheus.Registerer) {
	m.metrics = newMetrics(reg)
	reg.MustRegister(
		platformmetrics.GaugeOf("fealty_agents_connected",
			"Members that hold a stream to this coordinator.",
			func() float64 { return float64(m.live.Connected()) }),
		platformmetrics.GaugeOf("fealty_data_members_connected",
			"Data members that hold a stream to this coordinator, or asked it lately. The sum over "+
				"coordinators is what the baseline counts, but for those that drain.",
			func() float64 { return float64(m.live.DataConnected()) }),
		platformmetrics.GaugeOf("fealty_agents_log_failing",
			"Members that are heard here and say that their standard error does not take their log.",
			func() float64 { return float64(m.live.LogsLost()) }),
		platformmetrics.GaugeOf("fealty_shards_paused",
			"Shards that said to this coordinator within two minutes that they are paused: they decide, and do nothing.",
			func() float64 { return float64(m.live.Paused(m.cfg.Now().Add(-peer.SilentAfter))) }),
	)
}
