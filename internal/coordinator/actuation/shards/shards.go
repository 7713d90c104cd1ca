// Package shards shows people what shards have and do, as their processes report it.
//
// A report is kept in memory by the coordinator that heard it, and the others ask for it when people
// look. It decides nothing. It counts as the word of one process of one shard: the caller's certificate
// says which shard, and the life that the call carries which process; see package grants.
package shards

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/incidents"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/platform/metrics"
)

// Bounds of a report: see fealty.v1.ShardReport.
const (
	MaxReport   = 128 << 10 // bytes
	MaxProfiles = 128
	MaxDemand   = 256
	MaxHeld     = 64
	MaxUnlisted = 32
	maxTallies  = 64
	maxTally    = 64  // bytes of what is counted
	maxWords    = 256 // bytes of short_of, held_of and the problem of a provider
	maxProblem  = 512 // bytes of the problem of a cycle

	minEvery = time.Second
	maxEvery = 5 * time.Minute
	// longest bounds the lengths of time that a report tells.
	longest = 100 * 365 * 24 * time.Hour
)

// Config is what Shards are made of.
type Config struct {
	Head      *authority.Head
	Peers     *status.Peers
	Asking    member.Asking
	Grants    *grants.Grants
	Incidents *incidents.Incidents
	Now       func() time.Time
}

// Shards serve ShardReportService. Make them with [New].
type Shards struct{ cfg Config }

// New returns Shards of which none reported.
func New(cfg Config) *Shards { return &Shards{cfg} }

// RegisterServices registers the service that hears and shows reports.
func (s *Shards) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterShardReportServiceServer(to, server{s: s})
}

// RegisterMetrics registers what shards reported here lately.
func (s *Shards) RegisterMetrics(reg prometheus.Registerer) {
	sum := func() live.Shards { return s.cfg.Asking.Membership.Live().Shards(peer.SilentAfter) }
	reg.MustRegister(
		metrics.GaugeOf("fealty_shards_reporting",
			"Shards that told this coordinator within two minutes what they have and do.",
			func() float64 { return float64(sum().Reporting) }),
		metrics.GaugeOf("fealty_shards_short_machines",
			"Machines that tenants want, that no quota forbids and that they do not have, of the shards that told this "+
				"coordinator so within two minutes.",
			func() float64 { return float64(sum().Short) }),
		metrics.GaugeOf("fealty_shards_held_roll_ups",
			"Roll-ups of tenants that are held because they drop almost everything, of the shards that told this coordinator "+
				"so within two minutes.",
			func() float64 { return float64(sum().Held) }),
	)
}

// A problem is what is wrong with a field of a report.
type problem struct{ field, text string }

// check looks at a report before it is kept: its bounds first, and then what it says.
func check(r *fealtyv1.ShardReport) (bad problem, ok bool) {
	if size := proto.Size(r); size > MaxReport {
		return problem{"report", fmt.Sprintf("it has %d bytes, limit %d", size, MaxReport)}, false
	}
	for _, n := range []struct {
		field     string
		n, atMost int
	}{
		{"profiles", len(r.GetProfiles()), MaxProfiles}, {"demand", len(r.GetDemand()), MaxDemand},
		{"held_roll_ups", len(r.GetHeldRollUps()), MaxHeld}, {"cycle.unlisted", len(r.GetCycle().GetUnlisted()), MaxUnlisted},
		{"cycle.outcomes", len(r.GetCycle().GetOutcomes()), maxTallies},
		{"cycle.held_back", len(r.GetCycle().GetHeldBack()), maxTallies},
	} {
		if n.n > n.atMost {
			return problem{"report." + n.field, fmt.Sprintf("there are %d, limit %d", n.n, n.atMost)}, false
		}
	}
	if r.GetNumber() == 0 {
		return problem{"report.number", "it is 0: reports are counted from 1"}, false
	}
	if every := r.GetEvery(); every.CheckValid() != nil || every.AsDuration() < minEvery || every.AsDuration() > maxEvery {
		return problem{"report.every", fmt.Sprintf("it is not from %v to %v", minEvery, maxEvery)}, false
	}
	if at := r.GetMadeAt(); at != nil && at.CheckValid() != nil {
		return problem{"report.made_at", "it is no time"}, false
	}
	v := &verifier{}
	v.words("short_of", r.GetShortOf(), maxWords)
	v.words("held_of", r.GetHeldOf(), maxWords)
	v.lasts("paused_for", r.GetPausedFor())
	v.lasts("short_for", r.GetShortFor())
	v.lasts("held_for", r.GetHeldFor())
	if c := r.GetCycle(); c != nil {
		v.lasts("cycle.ago", c.GetAgo())
		v.lasts("cycle.took", c.GetTook())
		v.words("cycle.problem", c.GetProblem(), maxProblem)
		for _, t := range c.GetOutcomes() {
			v.words("cycle.outcomes.what", t.GetWhat(), maxTally)
		}
		for _, t := range c.GetHeldBack() {
			v.words("cycle.held_back.what", t.GetWhat(), maxTally)
		}
		for _, u := range c.GetUnlisted() {
			v.name("cycle.unlisted.provider", u.GetProvider())
			v.words("cycle.unlisted.problem", u.GetProblem(), maxWords)
		}
	}
	for _, p := range r.GetProfiles() {
		v.name("profiles.profile", p.GetProfile())
	}
	for _, d := range r.GetDemand() {
		v.name("demand.tenant", d.GetTenant())
		v.name("demand.profile", d.GetProfile())
		v.lasts("demand.short_for", d.GetShortFor())
	}
	for _, h := range r.GetHeldRollUps() {
		v.name("held_roll_ups.tenant", h.GetTenant())
		v.lasts("held_roll_ups.held_for", h.GetHeldFor())
	}
	return v.first, v.first == problem{}
}

// verifier keeps the first problem.
type verifier struct{ first problem }

func (v *verifier) wrong(field, text string) {
	if v.first == (problem{}) {
		v.first = problem{"report." + field, text}
	}
}

func (v *verifier) words(field, text string, limit int) {
	if len(text) > limit {
		v.wrong(field, fmt.Sprintf("it has %d bytes, limit %d", len(text), limit))
	}
}

func (v *verifier) name(field, name string) {
	if text := document.NameProblem(name); text != "" {
		v.wrong(field, "it "+text)
	}
}

func (v *verifier) lasts(field string, d *durationpb.Duration) {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > longest) {
		v.wrong(field, "it is no length of time")
	}
}
