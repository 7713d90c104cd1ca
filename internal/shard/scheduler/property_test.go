package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

var (
	tenants  = []string{"blue", "green", "red", "silent"} // the last one reports nothing
	profiles = []string{"big", "small"}
)

func drawMachines(t *rapid.T) (out []*scheduler.Machine) {
	for i := range rapid.IntRange(0, 30).Draw(t, "machines") {
		m := machine(fmt.Sprint("m", i), rapid.SampledFrom(scheduler.States()).Draw(t, "state"), float64(rapid.IntRange(0, 3).Draw(t, "price")))
		m.Profile = rapid.SampledFrom(profiles).Draw(t, "profile")
		m.Provider = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "provider")
		switch m.State {
		case scheduler.Configuring, scheduler.Configured, scheduler.Draining:
			m.Tenant = rapid.SampledFrom(tenants).Draw(t, "tenant")
			m.Priority = int32(rapid.IntRange(0, 3).Draw(t, "priority"))
		}
		out = append(out, m)
	}
	return out
}

func drawDemand(t *rapid.T) map[string][]scheduler.DemandRow {
	book := scheduler.NewDemandBook(scheduler.DemandOptions{})
	for _, tenant := range tenants[:3] {
		r := scheduler.RollUp{Tenant: tenant, Key: scheduler.DemandKey{Run: 1, Number: 1}}
		for _, profile := range profiles {
			for priority := range int32(4) {
				if n := rapid.IntRange(-3, 6).Draw(t, "count"); n > 0 {
					r.Rows = append(r.Rows, scheduler.DemandRow{Profile: profile, Priority: priority, Count: n})
				}
			}
		}
		if _, err := book.Report(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	return book.Rows()
}

func drawInput(t *rapid.T) scheduler.Input {
	in := scheduler.Input{Machines: drawMachines(t), Demand: drawDemand(t), Quotas: make(map[scheduler.Quota]int),
		Held: make(map[scheduler.MachineKey]struct{}), Silent: make(map[string]struct{}),
		Policy: scheduler.Policy{Release: rapid.Bool().Draw(t, "release"), Spare: rapid.IntRange(0, 2).Draw(t, "spare")}}
	for _, tenant := range tenants {
		for _, profile := range profiles {
			if n := rapid.IntRange(-5, 8).Draw(t, "quota"); n >= 0 {
				in.Quotas[scheduler.Quota{Tenant: tenant, Profile: profile}] = n
			}
		}
	}
	for _, m := range in.Machines {
		if rapid.IntRange(0, 9).Draw(t, "held") == 0 {
			in.Held[m.MachineKey] = struct{}{}
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "silent") == 0 {
		in.Silent["q"] = struct{}{}
	}
	return in
}

// For any machines and any demand: a machine gets one action at most, one that
// fits its state, and none that is held; no quota is passed, nothing is given to who does
// not want it, and order makes no difference.
func TestWhateverIsDecided(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		actions := scheduler.Decide(in)
		machines := make(map[scheduler.MachineKey]*scheduler.Machine)
		for _, m := range in.Machines {
			machines[m.MachineKey] = m
		}
		has := make(map[scheduler.Quota]int) // configured or about to be, or draining
		keeps := make(map[scheduler.Quota]int)
		for _, m := range in.Machines {
			if m.Tenant != "" {
				has[scheduler.Quota{Tenant: m.Tenant, Profile: m.Profile}]++
			}
			if m.State == scheduler.Configured || m.State == scheduler.Configuring {
				keeps[scheduler.Quota{Tenant: m.Tenant, Profile: m.Profile}]++
			}
		}
		wants := make(map[scheduler.Quota]int)
		for tenant, rows := range in.Demand {
			for _, row := range rows {
				wants[scheduler.Quota{Tenant: tenant, Profile: row.Profile}] += row.Count
			}
		}
		acted := make(map[scheduler.MachineKey]bool)
		for _, a := range actions {
			m := machines[a.Machine]
			if m == nil || acted[a.Machine] || m.State != a.Kind.From() || a.Profile != m.Profile || a.Domain != m.Domain {
				t.Fatalf("%+v of %+v", a, m)
			}
			acted[a.Machine] = true
			if _, held := in.Held[a.Machine]; held {
				t.Fatalf("%+v of one that is held", a)
			}
			if _, silent := in.Silent[a.Machine.Provider]; silent {
				t.Fatalf("%+v of a provider that is silent", a)
			}
			q := scheduler.Quota{Tenant: a.Tenant, Profile: a.Profile}
			switch a.Kind {
			case scheduler.Assign:
				has[q]++
				keeps[q]++
				if limit, limited := in.Quotas[q]; limited && has[q] > limit {
					t.Fatalf("%+v: %v has %d above its quota of %d", a, q, has[q], limit)
				}
				if keeps[q] > wants[q] {
					t.Fatalf("%+v: %v has %d and wants %d", a, q, keeps[q], wants[q])
				}
			case scheduler.Preempt:
				if m.Tenant != a.Tenant || a.For == "" || a.For == a.Tenant || a.Tenant == "silent" {
					t.Fatalf("%+v of %+v", a, m)
				}
			case scheduler.Reclaim:
				limit, limited := in.Quotas[q]
				if keeps[q]--; keeps[q] < wants[q] && (!limited || keeps[q] < limit) {
					t.Fatalf("%+v: %v keeps %d and wants %d", a, q, keeps[q], wants[q])
				}
			}
		}
		order := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		order.Shuffle(len(in.Machines), func(i, j int) { in.Machines[i], in.Machines[j] = in.Machines[j], in.Machines[i] })
		if again := scheduler.Decide(in); !reflect.DeepEqual(actions, again) {
			t.Fatalf("in another order: %v, and %v", said(again), said(actions))
		}
	})
}

// settle applies actions until nothing is decided any more, with what is under way over
// after each cycle, and returns what is left. It fails if that takes too long.
func settle(t *rapid.T, in scheduler.Input) []*scheduler.Machine {
	for range 4*len(in.Machines) + 10 {
		actions := scheduler.Decide(in)
		next := make(map[scheduler.MachineKey]scheduler.Machine)
		var gone []scheduler.MachineKey
		moving := false
		for _, m := range in.Machines {
			n := *m
			switch m.State {
			case scheduler.Creating:
				n.State = scheduler.Idle
			case scheduler.Configuring:
				n.State = scheduler.Configured
			case scheduler.Draining:
				n.State, n.Tenant, n.Priority = scheduler.Idle, "", 0
			case scheduler.Deleting:
				gone = append(gone, m.MachineKey)
			}
			moving = moving || m.State.Transitional()
			next[m.MachineKey] = n
		}
		if len(actions) == 0 && !moving {
			return in.Machines
		}
		for _, a := range actions {
			n := a.After(next[a.Machine])
			n.Operation = a.Operation
			next[a.Machine] = n
		}
		in.Machines = in.Machines[:0:0]
		for k, m := range next {
			if !slices.Contains(gone, k) {
				in.Machines = append(in.Machines, &m)
			}
		}
	}
	t.Fatalf("it does not settle: still %v", said(scheduler.Decide(in)))
	return nil
}

// Decisions that are carried out come to an end, and at that end demand is met as far as
// machines and quotas go, by priority; and no machine was lost or found on the way.
func TestSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		in.Held, in.Silent = nil, nil
		released := in.Policy.Release
		before := len(in.Machines)
		for _, m := range in.Machines {
			if m.State == scheduler.Deleting {
				before--
			}
		}
		machines := settle(t, in)
		if len(machines) > before || !released && len(machines) != before {
			t.Fatalf("%d machines became %d", before, len(machines))
		}
		for _, profile := range profiles {
			spare := 0 // idle or not made yet
			has := make(map[string]int)
			for _, m := range machines {
				if m.Profile == profile {
					switch m.State {
					case scheduler.Configured:
						has[m.Tenant]++
					case scheduler.Idle, scheduler.Speculative:
						spare++
					}
				}
			}
			if has["silent"] > 0 {
				t.Fatalf("a tenant without demand has %d of %s", has["silent"], profile)
			}
			lowest, highest := int32(99), int32(-1) // that has a machine, and that lacks one
			for _, tenant := range tenants[:3] {
				limit, limited := in.Quotas[scheduler.Quota{Tenant: tenant, Profile: profile}]
				wants, left := 0, has[tenant]
				for _, row := range in.Demand[tenant] {
					if row.Profile != profile {
						continue
					}
					count := row.Count
					if limited {
						count = min(count, limit-wants)
					}
					wants += count
					if got := min(left, count); got > 0 {
						lowest = min(lowest, row.Priority)
						left -= got
						count -= got
					}
					if count > 0 {
						highest = max(highest, row.Priority)
					}
				}
				if left > 0 {
					t.Fatalf("%s has %d of %s that it does not want", tenant, left, profile)
				}
			}
			if highest >= 0 && spare > 0 {
				t.Fatalf("priority %d lacks a machine of %s, and %d are there", highest, profile, spare)
			}
			if highest > lowest {
				t.Fatalf("priority %d lacks a machine of %s, and priority %d has one", highest, profile, lowest)
			}
		}
	})
}

// fleet is a shard's: demand that moved a little since it was met.
func fleet(n int) scheduler.Input {
	in := scheduler.Input{Demand: make(map[string][]scheduler.DemandRow)}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		m := machine(fmt.Sprint("machine-", i), scheduler.Configured, float64(r.IntN(100)))
		m.Profile = fmt.Sprint("profile-", i%20)
		switch {
		case i%10 == 0:
			m.State = scheduler.Idle
		case i%10 == 1:
			m.State = scheduler.Speculative
		default:
			m.Tenant, m.Priority = fmt.Sprint("tenant-", r.IntN(50)), int32(r.IntN(5))
		}
		in.Machines = append(in.Machines, m)
	}
	r.Shuffle(n, func(i, j int) { in.Machines[i], in.Machines[j] = in.Machines[j], in.Machines[i] })
	for tenant := range 50 {
		var rows []scheduler.DemandRow
		for profile := range 20 {
			for priority := int32(4); priority >= 0; priority-- {
				rows = append(rows, scheduler.DemandRow{Profile: fmt.Sprint("profile-", profile), Priority: priority, Count: max(1, n/50/20/5)})
			}
		}
		in.Demand[fmt.Sprint("tenant-", tenant)] = rows
	}
	return in
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		in := fleet(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if len(scheduler.Decide(in)) == 0 {
					b.Fatal("nothing is decided")
				}
			}
			b.ReportMetric(float64(len(scheduler.Decide(in))), "actions")
		})
	}
}
