package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/process"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// A report says in sums and rows what the shard has and does, and who had it pause.
func TestReport(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := shard.Summary{
		Last: shard.Report{At: now.Add(-time.Second), Took: time.Millisecond, Problem: errors.New("the disk is full"),
			Profiles: map[string]map[scheduler.State]int{"web": {scheduler.Configured: 2, scheduler.Idle: 1},
				"gpu": {scheduler.Configuring: 1, scheduler.Failed: 1}},
			Providers: map[string]error{"local": errors.New("it does not answer")},
			Rulings: []scheduler.Ruling{{Verdict: scheduler.Execute}, {Verdict: scheduler.Capped, Reason: scheduler.BlastRadius},
				{Verdict: scheduler.Capped, Reason: scheduler.BlastRadius}, {Verdict: scheduler.Suppressed, Reason: scheduler.FirstReport}},
			Results: []execute.Result{{Outcome: execute.Executed}, {Outcome: execute.Executed}, {Outcome: execute.Unavailable}}},
		PausedFor: time.Minute,
		Demand: []shard.Need{
			{Tenant: "acme", Profile: "gpu", Known: true, Wanted: 3, Has: scheduler.Tally{Configuring: 1, Failed: 1},
				ShortFor: 2 * time.Minute},
			{Tenant: "acme", Profile: "web", Known: true, Wanted: 2, Has: scheduler.Tally{Configured: 1}, ShortFor: 7 * time.Minute},
			{Tenant: "beta", Profile: "web", Known: true, Wanted: 9, Quota: 1, Bounded: true, Has: scheduler.Tally{Configured: 1}},
			{Tenant: "gone", Profile: "web", Has: scheduler.Tally{Draining: 1}},
		},
		Held: map[string]time.Duration{"acme": time.Second, "beta": time.Minute},
	}
	r := process.ReportOf(s, true, false, 7, now)
	if r.GetNumber() != 7 || !r.GetMadeAt().AsTime().Equal(now) || r.GetEvery().AsDuration() != 5*time.Second ||
		!r.GetPausedByFlag() || r.GetPausedByInstruction() || r.GetPausedFor().AsDuration() != time.Minute {
		t.Errorf("it says of itself %v", r)
	}
	if r.GetMachines() != 5 || r.GetWorking() != 3 || r.GetTenants() != 2 || r.GetWanted() != 14 || r.GetShort() != 3 ||
		r.GetShortFor().AsDuration() != 7*time.Minute || r.GetHeld() != 2 || r.GetHeldFor().AsDuration() != time.Minute {
		t.Errorf("the sums are %v", r)
	}
	if r.GetShortOf() != "1 machine of profile web for acme, 2 machines of profile gpu for acme" || r.GetHeldOf() != "beta, acme" {
		t.Errorf("it lacks %q, and holds %q", r.GetShortOf(), r.GetHeldOf())
	}
	c := r.GetCycle()
	tallies := func(all []*fealtyv1.ShardTally) (out []string) {
		for _, one := range all {
			out = append(out, fmt.Sprint(one.GetCount(), " ", one.GetWhat()))
		}
		return out
	}
	if c.GetAgo().AsDuration() != time.Second || c.GetTook().AsDuration() != time.Millisecond || c.GetProblem() != "the disk is full" ||
		!slices.Equal(tallies(c.GetOutcomes()), []string{"2 executed", "1 unavailable"}) ||
		!slices.Equal(tallies(c.GetHeldBack()), []string{"2 capped by blast-radius", "1 suppressed by first-report"}) ||
		len(c.GetUnlisted()) != 1 || c.GetUnlisted()[0].GetProblem() != "it does not answer" {
		t.Errorf("the cycle is %v", c)
	}
	if p := r.GetProfiles(); len(p) != 2 || p[0].GetProfile() != "gpu" || p[0].GetConfiguring() != 1 || p[0].GetFailed() != 1 ||
		p[1].GetConfigured() != 2 || p[1].GetIdle() != 1 {
		t.Errorf("the machines are %v", p)
	}
	d := r.GetDemand()
	if len(d) != 4 || d[0].GetShort() != 2 || d[1].GetShort() != 1 || d[2].GetShort() != 0 || d[2].GetQuota() != 1 || d[0].Quota != nil ||
		!d[3].GetUnknown() || d[3].GetDraining() != 1 || d[1].GetShortFor().AsDuration() != 7*time.Minute || d[2].ShortFor != nil {
		t.Errorf("the demand is %v", d)
	}
	if held := r.GetHeldRollUps(); len(held) != 2 || held[0].GetTenant() != "acme" || held[1].GetHeldFor().AsDuration() != time.Minute {
		t.Errorf("held are %v", held)
	}
	if r := process.ReportOf(shard.Summary{}, true, true, 1, now); r.GetCycle() != nil || r.GetPausedFor() != nil || r.GetPausedByFlag() {
		t.Errorf("before the first cycle it says %v", r)
	}
}

// However much a shard has, its report keeps the bounds of the message: what is left out is counted, and lacks the least.
func TestReportIsBounded(t *testing.T) {
	name := func(n int) string { return fmt.Sprintf("%0*d", scheduler.MaxNameBytes, n) }
	s := shard.Summary{Held: make(map[string]time.Duration), Last: shard.Report{At: time.Now(),
		Problem: errors.New(strings.Repeat("x", 9999)), Profiles: make(map[string]map[scheduler.State]int),
		Providers: make(map[string]error)}}
	const many = 2000
	for n := range many {
		s.Held[name(n)] = time.Duration(n+1) * time.Second
		s.Last.Profiles[name(n)] = map[scheduler.State]int{scheduler.Configured: 1 << 20, scheduler.Idle: 1 << 20, scheduler.Failed: 1}
		s.Last.Providers[name(n)] = errors.New(strings.Repeat("y", 9999))
		need := shard.Need{Tenant: name(n), Profile: name(n), Known: true, Wanted: 1 << 20, Quota: 1 << 20, Bounded: true,
			Has: scheduler.Tally{Configured: 1<<20 - n%7, Configuring: 0, Draining: 1 << 20, Failed: 1 << 20}}
		if need.Short() > 0 {
			need.ShortFor = time.Duration(n+1) * time.Hour
		}
		s.Demand = append(s.Demand, need)
	}
	r := process.ReportOf(s, true, true, 1, time.Now())
	if size := proto.Size(r); size > 128<<10 {
		t.Errorf("it has %d bytes", size)
	}
	if len(r.GetProfiles()) != 128 || r.GetMoreProfiles() != many-128 || len(r.GetDemand()) != 256 || r.GetMoreDemand() != many-256 ||
		len(r.GetHeldRollUps()) != 64 || r.GetMoreHeld() != many-64 || len(r.GetCycle().GetUnlisted()) != 32 ||
		len(r.GetCycle().GetProblem()) != 512 || len(r.GetCycle().GetUnlisted()[0].GetProblem()) != 256 ||
		len(r.GetShortOf()) > 256 || len(r.GetHeldOf()) > 256 {
		t.Errorf("it has %d and %d, %d and %d, %d and %d, %d", len(r.GetProfiles()), r.GetMoreProfiles(), len(r.GetDemand()),
			r.GetMoreDemand(), len(r.GetHeldRollUps()), r.GetMoreHeld(), len(r.GetCycle().GetUnlisted()))
	}
	for _, d := range r.GetDemand() {
		if d.GetShort() != 6 {
			t.Fatalf("shown is one that lacks %d, and others lack more", d.GetShort())
		}
	}
	if r.GetHeldRollUps()[63].GetTenant() != name(many-1) || r.GetHeldFor().AsDuration() != many*time.Second {
		t.Errorf("held for longest is %v, for %v", r.GetHeldRollUps()[63], r.GetHeldFor())
	}
	if !strings.HasSuffix(r.GetHeldOf(), fmt.Sprintf(", and %d more", many-3)) {
		t.Errorf("held are %q", r.GetHeldOf())
	}
}

// hears takes reports, and fails while err is set.
type hears struct {
	grpc.ClientConnInterface

	mu   sync.Mutex
	err  error
	got  []*fealtyv1.ShardReport
	name string
}

func (h *hears) Invoke(_ context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	req := args.(*fealtyv1.ReportShardRequest)
	h.got, h.name = append(h.got, req.GetReport()), req.GetName()
	return h.err
}

// A shard reports every five seconds, each time with the next number, also while nobody hears it, which is logged once.
func TestReportsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, log := &hears{err: errors.New("nobody there")}, new(bytes.Buffer)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		s := someShard(t)
		go func() {
			defer close(done)
			process.Reports(ctx, h, "eu-1", s, slog.New(slog.NewTextHandler(log, nil)))
		}()
		time.Sleep(11 * time.Second)
		h.mu.Lock()
		h.err = nil
		h.mu.Unlock()
		time.Sleep(10 * time.Second)
		cancel()
		<-done
		if len(h.got) != 5 || h.name != "eu-1" {
			t.Fatalf("%d reports of %q in 21 seconds", len(h.got), h.name)
		}
		for i, r := range h.got {
			if r.GetNumber() != uint64(i)+1 {
				t.Errorf("report %d has the number %d", i, r.GetNumber())
			}
		}
		if lines := strings.Count(log.String(), "\n"); lines != 2 || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("it logs %s", log)
		}
	})
}
