package process

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// How a shard reports what it has and does. The bounds are those of the message: see
// fealty.v1.ShardReport.
const (
	reportEvery   = 5 * time.Second
	reportTimeout = 10 * time.Second

	maxProfiles = 128
	maxDemand   = 256
	maxHeld     = 64
	maxUnlisted = 32
	maxWords    = 256 // bytes, of short_of, held_of and the problem of a provider
	maxNamed    = 3   // of what it is short of, and whose demand it holds
)

// pauses says who had this shard pause.
type pauses struct {
	flag bool        // --actuation-paused
	told atomic.Bool // an instruction
}

// reporter tells coordinators what a shard has and does. They keep it in memory, and it decides
// nothing: nothing waits for it.
type reporter struct {
	name   string
	conn   grpc.ClientConnInterface
	now    func() time.Time
	log    *slog.Logger
	pauses *pauses
	shard  interface {
		Summary(now time.Time) shard.Summary
	}

	number  uint64 // of the last report
	problem string // what was logged last of a report that nobody heard
}

// run reports until ctx ends.
func (r *reporter) run(ctx context.Context) {
	every := time.NewTicker(reportEvery)
	defer every.Stop()
	for {
		r.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// step reports once. A coordinator that does not know such reports, as it is of an earlier release, is
// no other failure: it is asked again.
func (r *reporter) step(ctx context.Context) {
	now := r.now()
	r.number++
	asking, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	_, err := fealtyv1.NewShardReportServiceClient(r.conn).ReportShard(asking, &fealtyv1.ReportShardRequest{Name: r.name,
		Report: reportOf(r.shard.Summary(now), r.pauses, r.number, now)})
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem == r.problem || ctx.Err() != nil {
		return
	}
	if r.problem = problem; err != nil {
		r.log.Warn("no coordinator heard what this shard has and does: fealty shard show does not tell it", "err", err)
	} else {
		r.log.Info("a coordinator hears again what this shard has and does")
	}
}

// reportOf words what a shard has and does at now.
func reportOf(s shard.Summary, p *pauses, number uint64, now time.Time) *fealtyv1.ShardReport {
	out := &fealtyv1.ShardReport{Number: number, MadeAt: timestamppb.New(now), Every: durationpb.New(reportEvery)}
	if s.PausedFor > 0 {
		out.PausedByFlag, out.PausedByInstruction = p.flag, p.told.Load()
		out.PausedFor = durationpb.New(s.PausedFor)
	}
	if !s.Last.At.IsZero() {
		out.Cycle = cycleOf(&s.Last, now)
	}
	addMachines(out, s.Last.Profiles)
	addDemand(out, s.Demand)
	addHeld(out, s.Held)
	return out
}

func cycleOf(last *shard.Report, now time.Time) *fealtyv1.ShardCycle {
	out := &fealtyv1.ShardCycle{Ago: durationpb.New(max(0, now.Sub(last.At))), Took: durationpb.New(last.Took)}
	if last.Problem != nil {
		out.Problem = ratelimit.Clip(last.Problem.Error(), maxProblem)
	}
	became, held := make(map[string]uint32), make(map[string]uint32)
	for i := range last.Results {
		became[string(last.Results[i].Outcome)]++
	}
	for i := range last.Rulings {
		if r := &last.Rulings[i]; r.Verdict != scheduler.Execute {
			held[string(r.Verdict)+" by "+string(r.Reason)]++
		}
	}
	out.Outcomes, out.HeldBack = tallies(became), tallies(held)
	for _, name := range sortedKeys(last.Providers) {
		if len(out.Unlisted) == maxUnlisted {
			break
		}
		out.Unlisted = append(out.Unlisted, &fealtyv1.UnlistedProvider{Provider: name,
			Problem: ratelimit.Clip(last.Providers[name].Error(), maxWords)})
	}
	return out
}

func sortedKeys[V any](of map[string]V) []string {
	out := make([]string, 0, len(of))
	for k := range of {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func tallies(of map[string]uint32) (out []*fealtyv1.ShardTally) {
	for _, what := range sortedKeys(of) {
		out = append(out, &fealtyv1.ShardTally{What: what, Count: of[what]})
	}
	return out
}

func addMachines(out *fealtyv1.ShardReport, profiles map[string]map[scheduler.State]int) {
	for _, name := range sortedKeys(profiles) {
		of := profiles[name]
		for _, n := range of {
			out.Machines += uint32(n)
		}
		out.Working += uint32(of[scheduler.Configuring] + of[scheduler.Configured])
		if len(out.Profiles) == maxProfiles {
			out.MoreProfiles++
			continue
		}
		out.Profiles = append(out.Profiles, &fealtyv1.ShardMachines{Profile: name,
			Speculative: uint32(of[scheduler.Speculative]), Creating: uint32(of[scheduler.Creating]),
			Idle: uint32(of[scheduler.Idle]), Configuring: uint32(of[scheduler.Configuring]),
			Configured: uint32(of[scheduler.Configured]), Draining: uint32(of[scheduler.Draining]),
			Deleting: uint32(of[scheduler.Deleting]), Failed: uint32(of[scheduler.Failed])})
	}
}

// addDemand adds what tenants want and have. Of more than there is room for those are left out that
// lack the least.
func addDemand(out *fealtyv1.ShardReport, needs []shard.Need) {
	var longest time.Duration
	var lacks []shard.Need
	tenants := make(map[string]bool)
	for i := range needs {
		n := &needs[i]
		if n.Known {
			tenants[n.Tenant] = true
		}
		out.Wanted += uint64(n.Wanted)
		if n.ShortFor > 0 {
			out.Short += uint64(n.Short())
			longest = max(longest, n.ShortFor)
			lacks = append(lacks, *n)
		}
	}
	out.Tenants = uint32(len(tenants))
	if longest > 0 {
		out.ShortFor = durationpb.New(longest)
	}
	slices.SortStableFunc(lacks, func(a, b shard.Need) int { return cmp.Compare(b.ShortFor, a.ShortFor) })
	var words []string
	for i := range lacks {
		words = append(words, humanize.Plural(lacks[i].Short(), "machine", "machines")+" of profile "+lacks[i].Profile+
			" for "+lacks[i].Tenant)
	}
	out.ShortOf = named(words)

	shown := slices.Clone(needs)
	if len(shown) > maxDemand {
		slices.SortStableFunc(shown, func(a, b shard.Need) int { return cmp.Compare(b.Short(), a.Short()) })
		out.MoreDemand = uint32(len(shown) - maxDemand)
		shown = shown[:maxDemand]
		slices.SortFunc(shown, func(a, b shard.Need) int {
			return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Profile, b.Profile))
		})
	}
	for i := range shown {
		n := &shown[i]
		row := &fealtyv1.ShardDemand{Tenant: n.Tenant, Profile: n.Profile, Wanted: uint32(n.Wanted), Unknown: !n.Known,
			Configuring: uint32(n.Has.Configuring), Configured: uint32(n.Has.Configured), Draining: uint32(n.Has.Draining),
			Failed: uint32(n.Has.Failed)}
		if n.Bounded {
			row.Quota = new(uint32(n.Quota))
		}
		if n.ShortFor > 0 {
			row.Short, row.ShortFor = uint32(n.Short()), durationpb.New(n.ShortFor)
		}
		out.Demand = append(out.Demand, row)
	}
}

func addHeld(out *fealtyv1.ShardReport, held map[string]time.Duration) {
	out.Held = uint32(len(held))
	if len(held) == 0 {
		return
	}
	names := sortedKeys(held)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(held[b], held[a]) })
	out.HeldFor, out.HeldOf = durationpb.New(held[names[0]]), named(names)
	out.MoreHeld = uint32(max(0, len(names)-maxHeld))
	names = names[:min(len(names), maxHeld)]
	slices.Sort(names)
	for _, name := range names {
		out.HeldRollUps = append(out.HeldRollUps, &fealtyv1.HeldRollUp{Tenant: name, HeldFor: durationpb.New(held[name])})
	}
}

// named lists the first few of words.
func named(words []string) string {
	text := strings.Join(words[:min(len(words), maxNamed)], ", ")
	more := ""
	if n := len(words) - maxNamed; n > 0 {
		more = ", and " + humanize.Plural(n, "more", "more")
	}
	return ratelimit.Clip(text, maxWords-len(more)) + more
}
