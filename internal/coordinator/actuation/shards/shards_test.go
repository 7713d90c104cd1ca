package shards_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/shards"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

const entries = "  - {name: shards, kind: shard, match: [\"token:shards\"]}\n"

// aDesk is a coordinator with the shard eu-1.
func aDesk(t *testing.T) (*coordinatortest.Desk, *coordinatortest.Machine) {
	t.Helper()
	d := coordinatortest.ReadyDesk(t, entries)
	return d, aShard(t, d)
}

func aShard(t *testing.T, d *coordinatortest.Desk) *coordinatortest.Machine {
	t.Helper()
	m := d.Machine()
	if err := m.Join(identity.Shard, proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards",
		Name: "eu-1"}))); err != nil {
		t.Fatal(err)
	}
	return m
}

func serverOf(d *coordinatortest.Desk) fealtyv1.ShardReportServiceServer {
	return coordinatortest.Served[fealtyv1.ShardReportServiceServer](d.C.Parts().Fencing.Shards.RegisterServices)
}

// aReport is one of a shard that has a machine and lacks one.
func aReport(number uint64) *fealtyv1.ShardReport {
	return &fealtyv1.ShardReport{Number: number, MadeAt: timestamppb.Now(), Every: durationpb.New(5 * time.Second),
		Cycle:    &fealtyv1.ShardCycle{Ago: durationpb.New(time.Second), Took: durationpb.New(time.Millisecond)},
		Machines: 1, Working: 1, Tenants: 1, Wanted: 2, Short: 1, ShortFor: durationpb.New(time.Second),
		ShortOf:  "1 machine of profile web for acme",
		Profiles: []*fealtyv1.ShardMachines{{Profile: "web", Configured: 1}},
		Demand:   []*fealtyv1.ShardDemand{{Tenant: "acme", Profile: "web", Wanted: 2, Configured: 1, Short: 1}},
	}
}

func report(d *coordinatortest.Desk, ctx context.Context, r *fealtyv1.ShardReport) error {
	_, err := serverOf(d).ReportShard(ctx, &fealtyv1.ReportShardRequest{Name: "eu-1", Report: r})
	return err
}

func get(t *testing.T, d *coordinatortest.Desk) *fealtyv1.Shard {
	t.Helper()
	got, err := serverOf(d).GetShard(t.Context(), &fealtyv1.GetShardRequest{Name: "eu-1"})
	if err != nil {
		t.Fatal(err)
	}
	return got.GetShard()
}

func numberOf(s *fealtyv1.Shard) uint64 {
	return s.GetMember().GetLive().GetProcess().GetReport().GetNumber()
}

// What a shard reports is shown with its age, in a list without the rows, and is kept in memory alone.
func TestShown(t *testing.T) {
	t.Parallel()
	d, m := aDesk(t)
	life := d.Process(m)
	if s := get(t, d); s.GetStanding() != shards.Unknown {
		t.Errorf("a shard that said nothing yet is %q", s.GetStanding())
	}
	if err := report(d, coordinatortest.Calls(m, life), aReport(1)); err != nil {
		t.Fatal(err)
	}
	before := len(d.Store.Keys(""))
	if err := report(d, coordinatortest.Calls(m, life), aReport(2)); err != nil {
		t.Fatal(err)
	}
	if after := len(d.Store.Keys("")); after != before {
		t.Errorf("a report made %d records", after-before)
	}
	d.Pass(10 * time.Second)
	s := get(t, d)
	p := s.GetMember().GetLive().GetProcess()
	if s.GetStanding() != shards.Acts || p.GetReportAge().AsDuration() != 10*time.Second || numberOf(s) != 2 ||
		len(p.GetReport().GetDemand()) != 1 || len(p.GetReport().GetProfiles()) != 1 ||
		p.GetIncarnation() != life.Incarnation.String() || p.GetEpoch() != uint64(life.Epoch) {
		t.Errorf("shown is %v", s)
	}
	all, err := serverOf(d).ListShards(t.Context(), &fealtyv1.ListShardsRequest{})
	if err != nil || len(all.GetShards()) != 1 || all.GetNextPageToken() != "" {
		t.Fatal(all, err)
	}
	brief := all.GetShards()[0].GetMember().GetLive().GetProcess().GetReport()
	if brief.GetDemand() != nil || brief.GetProfiles() != nil || brief.GetShort() != 1 || brief.GetShortOf() == "" ||
		brief.GetCycle() == nil {
		t.Errorf("listed is %v", brief)
	}
	if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_shards_short_machines"); n != 1 {
		t.Errorf("counted as short are %v", n)
	}
	d.Pass(6 * time.Second)
	if s := get(t, d); s.GetStanding() != shards.Unknown {
		t.Errorf("after 16 seconds, while nobody knows yet which coordinators there are, it is %q", s.GetStanding())
	}
	d.Pass(peer.Settle)
	if s := get(t, d); s.GetStanding() != shards.Late || numberOf(s) != 2 {
		t.Errorf("after a minute it is %q", s.GetStanding())
	}
	d.Pass(peer.SilentAfter)
	if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_shards_reporting"); n != 0 {
		t.Errorf("%v shards are counted that said nothing for long", n)
	}
	paused := aReport(3)
	paused.PausedFor, paused.PausedByFlag = durationpb.New(time.Minute), true
	if err := report(d, coordinatortest.Calls(m, life), paused); err != nil {
		t.Fatal(err)
	}
	if s := get(t, d); s.GetStanding() != shards.Paused {
		t.Errorf("one that is paused is %q", s.GetStanding())
	}
	if _, err := d.Members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "shard", Name: "eu-1",
		Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	if s := get(t, d); s.GetStanding() != shards.Banned {
		t.Errorf("one that is banned is %q", s.GetStanding())
	}
}

// A report is that of the newest process: one that was overtaken is refused and changes nothing, nor does a report that
// comes late, and a process that says nothing of itself is refused.
func TestNewestProcess(t *testing.T) {
	t.Parallel()
	d, m := aDesk(t)
	first := d.Process(m)
	if err := report(d, coordinatortest.Calls(m, fence.Life{}), aReport(9)); !errors.Is(err, errcode.RequestField) {
		t.Errorf("a process that says nothing of itself: %v", err)
	}
	if err := report(d, coordinatortest.Calls(m, first), aReport(7)); err != nil || numberOf(get(t, d)) != 7 {
		t.Fatal(err, get(t, d))
	}
	for _, late := range []uint64{6, 7} { // heard, and no news
		r := aReport(late)
		r.Machines = 99
		if err := report(d, coordinatortest.Calls(m, first), r); err != nil {
			t.Fatal(err)
		}
		if got := get(t, d).GetMember().GetLive().GetProcess().GetReport(); got.GetNumber() != 7 || got.GetMachines() != 1 {
			t.Errorf("after report %d, which comes late, shown is %v", late, got)
		}
	}
	second := d.Process(m)
	if err := report(d, coordinatortest.Calls(m, second), aReport(1)); err != nil {
		t.Fatal(err)
	}
	if s := get(t, d); numberOf(s) != 1 {
		t.Errorf("of the newer process shown is %v", s)
	}
	if err := report(d, coordinatortest.Calls(m, first), aReport(100)); !errors.Is(err, errcode.ProcessOvertaken) ||
		!errors.Is(err, fence.ErrEnded) {
		t.Errorf("a process that was overtaken: %v", err)
	}
	if s := get(t, d); numberOf(s) != 1 || s.GetMember().GetLive().GetProcess().GetEpoch() != uint64(second.Epoch) {
		t.Errorf("after a zombie's report shown is %v", s)
	}

	// One whose call was on its way while the newer one was served is noted after it, and is not believed.
	live := d.C.Parts().Membership.Live()
	live.Called(m.ID, first.Epoch, first.Incarnation.String(), d.Clock())
	if live.ShardReported(m.ID, first.Epoch, first.Incarnation.String(), aReport(101)) || numberOf(get(t, d)) != 1 {
		t.Error("a process whose call was late took the place of its successor")
	}
	// A process that started while nobody answered is the newest too, and what the one before said is gone.
	next := coordinatortest.NextLife(second)
	live.Called(m.ID, next.Epoch, next.Incarnation.String(), d.Clock())
	if r := get(t, d).GetMember().GetLive().GetProcess().GetReport(); r != nil {
		t.Errorf("of a process that did not report shown is %v", r)
	}
	live.Forget(m.ID)
	if r := live.Message(m.ID); r != nil {
		t.Errorf("of a member that is none any more %v is kept", r)
	}
}

// What is too much, or cannot be, is refused with the field's name, and nothing of it is kept.
func TestRefused(t *testing.T) {
	t.Parallel()
	d, m := aDesk(t)
	ctx := coordinatortest.Calls(m, d.Process(m))
	if err := report(d, ctx, aReport(1)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 513)
	negative := durationpb.New(-time.Second)
	times := func(n int, add func(int)) {
		for i := range n {
			add(i)
		}
	}
	for field, edit := range map[string]func(*fealtyv1.ShardReport){
		"report.number":  func(r *fealtyv1.ShardReport) { r.Number = 0 },
		"report.every":   func(r *fealtyv1.ShardReport) { r.Every = nil },
		"report.every ":  func(r *fealtyv1.ShardReport) { r.Every = durationpb.New(time.Hour) },
		"report.made_at": func(r *fealtyv1.ShardReport) { r.MadeAt = &timestamppb.Timestamp{Nanos: -1} },
		"report.profiles": func(r *fealtyv1.ShardReport) {
			times(shards.MaxProfiles, func(i int) {
				r.Profiles = append(r.Profiles, &fealtyv1.ShardMachines{Profile: fmt.Sprint("p", i)})
			})
		},
		"report.demand": func(r *fealtyv1.ShardReport) {
			times(shards.MaxDemand, func(i int) {
				r.Demand = append(r.Demand, &fealtyv1.ShardDemand{Tenant: fmt.Sprint("t", i), Profile: "web"})
			})
		},
		"report.held_roll_ups": func(r *fealtyv1.ShardReport) {
			times(shards.MaxHeld+1, func(i int) {
				r.HeldRollUps = append(r.HeldRollUps, &fealtyv1.HeldRollUp{Tenant: fmt.Sprint("t", i)})
			})
		},
		"report.cycle.unlisted": func(r *fealtyv1.ShardReport) {
			times(shards.MaxUnlisted+1, func(i int) {
				r.Cycle.Unlisted = append(r.Cycle.Unlisted, &fealtyv1.UnlistedProvider{Provider: fmt.Sprint("p", i)})
			})
		},
		"report.cycle.outcomes": func(r *fealtyv1.ShardReport) {
			times(65, func(int) { r.Cycle.Outcomes = append(r.Cycle.Outcomes, &fealtyv1.ShardTally{What: "executed"}) })
		},
		"report.cycle.held_back": func(r *fealtyv1.ShardReport) {
			times(65, func(int) { r.Cycle.HeldBack = append(r.Cycle.HeldBack, &fealtyv1.ShardTally{What: "capped"}) })
		},
		"report": func(r *fealtyv1.ShardReport) {
			r.ProtoReflect().SetUnknown([]byte("\xfa\x3f" + "\x80\x80\x08" + strings.Repeat("x", 128<<10)))
		},
		"report.short_of":                func(r *fealtyv1.ShardReport) { r.ShortOf = long },
		"report.held_of":                 func(r *fealtyv1.ShardReport) { r.HeldOf = long },
		"report.paused_for":              func(r *fealtyv1.ShardReport) { r.PausedFor = negative },
		"report.short_for":               func(r *fealtyv1.ShardReport) { r.ShortFor = negative },
		"report.held_for":                func(r *fealtyv1.ShardReport) { r.HeldFor = negative },
		"report.cycle.ago":               func(r *fealtyv1.ShardReport) { r.Cycle.Ago = negative },
		"report.cycle.took":              func(r *fealtyv1.ShardReport) { r.Cycle.Took = &durationpb.Duration{Seconds: 1 << 40} },
		"report.cycle.problem":           func(r *fealtyv1.ShardReport) { r.Cycle.Problem = long },
		"report.cycle.outcomes.what":     func(r *fealtyv1.ShardReport) { r.Cycle.Outcomes = []*fealtyv1.ShardTally{{What: long}} },
		"report.cycle.held_back.what":    func(r *fealtyv1.ShardReport) { r.Cycle.HeldBack = []*fealtyv1.ShardTally{{What: long}} },
		"report.cycle.unlisted.provider": func(r *fealtyv1.ShardReport) { r.Cycle.Unlisted = []*fealtyv1.UnlistedProvider{{}} },
		"report.cycle.unlisted.problem": func(r *fealtyv1.ShardReport) {
			r.Cycle.Unlisted = []*fealtyv1.UnlistedProvider{{Provider: "p", Problem: long}}
		},
		"report.profiles.profile":     func(r *fealtyv1.ShardReport) { r.Profiles[0].Profile = "two words" },
		"report.demand.tenant":        func(r *fealtyv1.ShardReport) { r.Demand[0].Tenant = long },
		"report.demand.profile":       func(r *fealtyv1.ShardReport) { r.Demand[0].Profile = "\x1b[2J" },
		"report.demand.short_for":     func(r *fealtyv1.ShardReport) { r.Demand[0].ShortFor = negative },
		"report.held_roll_ups.tenant": func(r *fealtyv1.ShardReport) { r.HeldRollUps = []*fealtyv1.HeldRollUp{{}} },
		"report.held_roll_ups.held_for": func(r *fealtyv1.ShardReport) {
			r.HeldRollUps = []*fealtyv1.HeldRollUp{{Tenant: "t", HeldFor: negative}}
		},
	} {
		r := aReport(2)
		edit(r)
		err := report(d, ctx, r)
		if e := errcode.Of(err); !errors.Is(err, errcode.RequestField) || e.Fields["field"] != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
		if n := numberOf(get(t, d)); n != 1 {
			t.Fatalf("%s: report %d is kept", field, n)
		}
	}
	if err := report(d, ctx, nil); !errors.Is(err, errcode.RequestField) {
		t.Errorf("no report: %v", err)
	}
	if _, err := serverOf(d).ListShards(t.Context(), &fealtyv1.ListShardsRequest{PageSize: 1001}); !errors.Is(err, errcode.RequestField) {
		t.Errorf("a page that is too large: %v", err)
	}
	if _, err := serverOf(d).GetShard(t.Context(), &fealtyv1.GetShardRequest{Name: "us-1"}); !errors.Is(err, errcode.NotFound) {
		t.Errorf("a shard that is none: %v", err)
	}
}

// However much a shard reports, a list has little of it: many are told of in one message.
func TestListIsBrief(t *testing.T) {
	t.Parallel()
	d, m := aDesk(t)
	r := aReport(1)
	name := func(i int) string { return fmt.Sprintf("%0128d", i) }
	r.ShortOf, r.HeldOf, r.Cycle.Problem = strings.Repeat("s", 256), strings.Repeat("h", 256), strings.Repeat("p", 512)
	for i := range shards.MaxUnlisted {
		r.Cycle.Unlisted = append(r.Cycle.Unlisted, &fealtyv1.UnlistedProvider{Provider: name(i), Problem: strings.Repeat("u", 256)})
		r.Cycle.Outcomes = append(r.Cycle.Outcomes, &fealtyv1.ShardTally{What: strings.Repeat("o", 64), Count: 1 << 31})
		r.Cycle.HeldBack = append(r.Cycle.HeldBack, &fealtyv1.ShardTally{What: strings.Repeat("b", 64), Count: 1 << 31})
		r.Profiles = append(r.Profiles, &fealtyv1.ShardMachines{Profile: name(i)})
	}
	if err := report(d, coordinatortest.Calls(m, d.Process(m)), r); err != nil {
		t.Fatal(err)
	}
	all, err := serverOf(d).ListShards(t.Context(), &fealtyv1.ListShardsRequest{})
	if err != nil || len(all.GetShards()) != 1 {
		t.Fatal(all, err)
	}
	brief := all.GetShards()[0].GetMember().GetLive().GetProcess().GetReport()
	if size := proto.Size(brief); size > 2<<10 || brief.GetCycle().GetProblem() == "" || len(brief.GetCycle().GetUnlisted()) == 0 {
		t.Errorf("in a list it has %d bytes: %v", size, brief)
	}
	if whole := get(t, d).GetMember().GetLive().GetProcess().GetReport(); !proto.Equal(whole, r) {
		t.Errorf("alone it is %v", whole)
	}
}

// A member that reports too often is refused, and is not another one.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.UnopenedDesk(t)
	d.Alter = func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.001, 2 }
	d.Open()
	coordinatortest.WantOnlyNil(t, d.Set(entries))
	m := aShard(t, d)
	ctx := coordinatortest.Calls(m, d.Process(m))
	var err error
	number := uint64(0)
	for err == nil && number < 1000 {
		number++
		err = report(d, ctx, aReport(number))
	}
	if !errors.Is(err, errcode.RateLimited) {
		t.Fatalf("after %d reports: %v", number, err)
	}
	d.Advance(time.Minute)
	if err := report(d, ctx, aReport(number)); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// A process of a shard that told that it was fenced is shown beside the one in charge.
func TestFencedIsShown(t *testing.T) {
	t.Parallel()
	d, m := aDesk(t)
	zombie := d.Process(m)
	if _, err := coordinatortest.Served[fealtyv1.IncidentServiceServer](d.C.Parts().Fencing.Incidents.RegisterServices).ReportFenced(
		coordinatortest.Calls(m, zombie), &fealtyv1.ReportFencedRequest{Name: "eu-1", Incarnation: zombie.Incarnation.String(),
			Epoch: uint64(zombie.Epoch)}); err != nil {
		t.Fatal(err)
	}
	all, err := serverOf(d).ListShards(t.Context(), &fealtyv1.ListShardsRequest{})
	if err != nil || len(all.GetShards()) != 1 || len(all.GetShards()[0].GetFenced()) != 1 {
		t.Errorf("listed are %v, %v", all, err)
	}
	if s := get(t, d); len(s.GetFenced()) != 1 || s.GetFenced()[0].GetIncarnation() != zombie.Incarnation.String() {
		t.Errorf("shown is %v", s)
	}
}

// What was not heard, or not lately, is never well, and is unknown where somebody may have heard more.
func TestStandings(t *testing.T) {
	t.Parallel()
	reported := func(age time.Duration, paused bool) *fealtyv1.Process {
		r := &fealtyv1.ShardReport{Number: 1, Every: durationpb.New(5 * time.Second)}
		if paused {
			r.PausedFor = durationpb.New(time.Second)
		}
		return &fealtyv1.Process{Report: r, ReportAge: durationpb.New(age)}
	}
	for _, tt := range []struct {
		name               string
		process            *fealtyv1.Process
		banned             bool
		answered, listened bool
		want               string
	}{
		{"just now", reported(0, false), false, true, true, shards.Acts},
		{"just now, and others did not answer", reported(0, false), false, false, false, shards.Acts},
		{"paused", reported(0, true), false, true, true, shards.Paused},
		{"late", reported(16*time.Second, false), false, true, false, shards.Late},
		{"paused, and late", reported(16*time.Second, true), false, true, true, shards.Late},
		{"late, and others may have heard more", reported(16*time.Second, false), false, false, true, shards.Unknown},
		{"it called, and did not report", &fealtyv1.Process{}, false, true, true, shards.Silent},
		{"nothing", nil, false, true, true, shards.Silent},
		{"nothing yet", nil, false, true, false, shards.Unknown},
		{"nothing, and others may have heard it", nil, false, false, true, shards.Unknown},
		{"banned", reported(0, false), true, true, true, shards.Banned},
	} {
		m := &fealtyv1.Member{Banned: tt.banned, Live: &fealtyv1.Live{Process: tt.process}}
		if got := shards.StandingOf(m, tt.answered, tt.listened); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
