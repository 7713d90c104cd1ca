package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// machine makes one of profile small: its id is its name, its price is price.
func machine(id string, state scheduler.State, price float64) *scheduler.Machine {
	return &scheduler.Machine{MachineKey: scheduler.MachineKey{Provider: "p", ID: id}, Profile: "small", State: state, Price: price}
}

// of makes a machine that a tenant has.
func of(id, tenant string, priority int32, state scheduler.State, price float64) *scheduler.Machine {
	m := machine(id, state, price)
	m.Tenant, m.Priority = tenant, priority
	return m
}

func small(priority int32, count int) scheduler.DemandRow {
	return scheduler.DemandRow{Profile: "small", Priority: priority, Count: count}
}

type rows = map[string][]scheduler.DemandRow

// said writes what was decided in short: "assign a red 5".
func said(actions []scheduler.Action) (out []string) {
	for _, a := range actions {
		text := fmt.Sprintf("%s %s", a.Kind, a.Machine.ID)
		if a.Tenant != "" {
			text += fmt.Sprintf(" %s %d", a.Tenant, a.Priority)
		}
		if a.For != "" {
			text += " for " + a.For
		}
		out = append(out, text)
	}
	return out
}

func TestDecide(t *testing.T) {
	const (
		speculative, creating, idle = scheduler.Speculative, scheduler.Creating, scheduler.Idle
		configuring, configured     = scheduler.Configuring, scheduler.Configured
		draining, failed            = scheduler.Draining, scheduler.Failed
	)
	type machines = []*scheduler.Machine
	other := machine("o", idle, 1)
	other.Profile = "other"
	for _, tt := range []struct {
		name string
		in   scheduler.Input
		want []string
	}{
		{"nothing", scheduler.Input{}, nil},
		{"the cheapest first",
			scheduler.Input{Machines: machines{machine("a", idle, 3), machine("b", idle, 1), machine("c", idle, 2)},
				Demand: rows{"red": {small(5, 2)}}},
			[]string{"assign b red 5", "assign c red 5"}},
		{"of one price the one that stays, then by name",
			scheduler.Input{Machines: machines{
				{MachineKey: scheduler.MachineKey{Provider: "p", ID: "a"}, Profile: "small", State: idle, Interruption: .5},
				{MachineKey: scheduler.MachineKey{Provider: "q", ID: "b"}, Profile: "small", State: idle},
				{MachineKey: scheduler.MachineKey{Provider: "p", ID: "b"}, Profile: "small", State: idle}},
				Demand: rows{"red": {small(5, 2)}}},
			[]string{"assign b red 5", "assign b red 5"}},
		{"by priority",
			scheduler.Input{Machines: machines{machine("a", idle, 1), machine("b", idle, 2)},
				Demand: rows{"blue": {small(1, 2)}, "red": {small(5, 1)}}},
			[]string{"assign a red 5", "assign b blue 1"}},
		{"of one priority in turns, who has fewer first",
			scheduler.Input{Machines: machines{of("x", "blue", 5, configured, 1), machine("a", idle, 1), machine("b", idle, 2), machine("c", idle, 3)},
				Demand: rows{"blue": {small(5, 9)}, "red": {small(5, 9)}}},
			[]string{"assign a red 5", "assign b blue 5", "assign c red 5"}},
		{"a machine of another profile fits nobody",
			scheduler.Input{Machines: machines{other}, Demand: rows{"red": {small(5, 1)}}}, nil},
		{"what there is before what is made",
			scheduler.Input{Machines: machines{machine("a", speculative, 1), machine("b", idle, 9)}, Demand: rows{"red": {small(5, 2)}}},
			[]string{"assign b red 5", "create a red 5"}},
		{"the cheapest is made",
			scheduler.Input{Machines: machines{machine("a", speculative, 2), machine("b", speculative, 1)}, Demand: rows{"red": {small(5, 1)}}},
			[]string{"create b red 5"}},
		{"what is about to be idle is waited for",
			scheduler.Input{Machines: machines{machine("a", speculative, 1), machine("b", creating, 1), of("c", "blue", 1, draining, 1)},
				Demand: rows{"red": {small(5, 2)}}}, nil},
		{"what is about to be configured counts",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, configuring, 1)}, Demand: rows{"red": {small(5, 1)}}}, nil},
		{"one that failed counts for nothing, and is left alone",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, failed, 1)}, Demand: rows{"red": {small(5, 1)}}},
			[]string{"assign a red 5"}},
		{"demand that is met",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 1), machine("b", idle, 1)}, Demand: rows{"red": {small(5, 1)}}}, nil},
		{"excess is reclaimed, the lowest priority first, then the most expensive",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 9), of("b", "red", 1, configured, 1), of("c", "red", 1, configured, 2), of("d", "red", 5, configured, 1)},
				Demand: rows{"red": {small(5, 1)}}},
			[]string{"reclaim c red 1", "reclaim b red 1", "reclaim a red 5"}},
		{"one that is about to be configured is not reclaimed, nor is another for it",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 9), of("b", "red", 5, configuring, 1)}, Demand: rows{"red": {small(5, 1)}}}, nil},
		{"of a tenant that wants nothing",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 1)}, Demand: rows{"red": nil}}, []string{"reclaim a red 5"}},
		{"of a tenant that did not report: for the rails to keep back",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 1)}}, []string{"reclaim a red 5"}},
		{"a higher priority takes from the lowest, the most expensive first",
			scheduler.Input{Machines: machines{of("a", "blue", 2, configured, 9), of("b", "green", 1, configured, 1), of("c", "green", 1, configured, 2)},
				Demand: rows{"blue": {small(2, 1)}, "green": {small(1, 2)}, "red": {small(5, 2)}}},
			[]string{"preempt c green 1 for red", "preempt b green 1 for red"}},
		{"and never from its own",
			scheduler.Input{Machines: machines{of("a", "blue", 5, configured, 1)}, Demand: rows{"blue": {small(5, 1)}, "red": {small(5, 1)}}}, nil},
		{"what counts is the priority that is wanted now",
			scheduler.Input{Machines: machines{of("a", "blue", 9, configured, 1)}, Demand: rows{"blue": {small(1, 1)}, "red": {small(5, 1)}}},
			[]string{"preempt a blue 1 for red"}},
		{"nothing is taken while excess is let go",
			scheduler.Input{Machines: machines{of("a", "blue", 1, configured, 1), of("b", "green", 1, configured, 1)},
				Demand: rows{"blue": {small(1, 1)}, "green": nil, "red": {small(5, 1)}}},
			[]string{"reclaim b green 1"}},
		{"nobody waits for the machines of who did not report, nor takes them",
			scheduler.Input{Machines: machines{of("a", "blue", 1, configured, 1), of("b", "silent", 0, configured, 1)},
				Demand: rows{"blue": {small(1, 1)}, "red": {small(5, 1)}}},
			[]string{"preempt a blue 1 for red", "reclaim b silent 0"}},
		{"a quota bounds what a tenant gets, its highest priority first",
			scheduler.Input{Machines: machines{machine("a", idle, 1), machine("b", idle, 2), machine("c", idle, 3)},
				Demand: rows{"red": {small(9, 1), small(5, 5)}, "blue": {small(1, 1)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 2}},
			[]string{"assign a red 9", "assign b red 5", "assign c blue 1"}},
		{"what drains counts for a quota",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, draining, 1)},
				Demand: rows{"red": {small(5, 1)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 1}}, nil},
		{"for all of its priorities together",
			scheduler.Input{Machines: machines{machine("a", idle, 1), machine("b", idle, 2), of("c", "red", 5, draining, 1)},
				Demand: rows{"red": {small(9, 1), small(5, 5)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 2}},
			[]string{"assign a red 9"}},
		{"a quota that was lowered reclaims",
			scheduler.Input{Machines: machines{of("a", "red", 5, configured, 1), of("b", "red", 5, configured, 2)},
				Demand: rows{"red": {small(5, 2)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 1}},
			[]string{"reclaim b red 5"}},
		{"a quota of nothing",
			scheduler.Input{Machines: machines{machine("a", idle, 1)},
				Demand: rows{"red": {small(5, 2)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 0}}, nil},
		{"a quota of another profile",
			scheduler.Input{Machines: machines{machine("a", idle, 1)},
				Demand: rows{"red": {small(5, 1)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "other"}: 0}},
			[]string{"assign a red 5"}},
		{"one that is held gets no action, and serves what it serves",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, configured, 1), of("c", "blue", 1, configured, 1), machine("d", speculative, 1)},
				Demand: rows{"red": {small(5, 2)}, "blue": nil},
				Held:   map[scheduler.MachineKey]struct{}{{Provider: "p", ID: "a"}: {}, {Provider: "p", ID: "c"}: {}, {Provider: "p", ID: "d"}: {}}}, nil},
		{"nor do those of a provider that is silent",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, configured, 1), of("c", "blue", 1, configured, 1)},
				Demand: rows{"red": {small(5, 2)}, "blue": {small(1, 1)}}, Silent: map[string]struct{}{"p": {}}}, nil},
		{"idle machines stay",
			scheduler.Input{Machines: machines{machine("a", idle, 1)}}, nil},
		{"unless the policy gives them back, the most expensive first",
			scheduler.Input{Machines: machines{machine("a", idle, 2), machine("b", idle, 1), machine("c", idle, 3)}, Policy: scheduler.Policy{Release: true, Spare: 1}},
			[]string{"release c", "release a"}},
		{"but not one that somebody waits to be allowed",
			scheduler.Input{Machines: machines{machine("a", idle, 1), of("b", "red", 5, draining, 1)}, Policy: scheduler.Policy{Release: true},
				Demand: rows{"red": {small(5, 1)}}, Quotas: map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: 1}}, nil},
	} {
		got := scheduler.Decide(tt.in)
		if !slices.Equal(said(got), tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, said(got), tt.want)
		}
		// In any order.
		for seed := range uint64(5) {
			shuffled := tt.in
			shuffled.Machines = slices.Clone(tt.in.Machines)
			rand.New(rand.NewPCG(seed, 0)).Shuffle(len(shuffled.Machines), func(i, j int) {
				m := shuffled.Machines
				m[i], m[j] = m[j], m[i]
			})
			if again := scheduler.Decide(shuffled); !reflect.DeepEqual(again, got) {
				t.Errorf("%s: in another order: %q, want %q", tt.name, said(again), said(got))
			}
		}
	}
}

// An operation has one name until the provider accepted one, and another one after it.
func TestOperation(t *testing.T) {
	in := scheduler.Input{Machines: []*scheduler.Machine{machine("a", scheduler.Idle, 1)}, Demand: rows{"red": {small(5, 1)}}}
	first := scheduler.Decide(in)[0].Operation
	if again := scheduler.Decide(in)[0].Operation; again != first || len(first) != 32 {
		t.Errorf("%q, then %q", first, again)
	}
	seen := map[string]string{first: "the first"}
	for name, change := range map[string]func(*scheduler.Machine, rows){
		"after another operation": func(m *scheduler.Machine, _ rows) { m.Operation = first },
		"another machine":         func(m *scheduler.Machine, _ rows) { m.ID = "b" },
		"another provider":        func(m *scheduler.Machine, _ rows) { m.Provider = "q" },
		"another tenant":          func(_ *scheduler.Machine, d rows) { d["blue"] = d["red"]; delete(d, "red") },
		"another priority":        func(_ *scheduler.Machine, d rows) { d["red"] = []scheduler.DemandRow{small(6, 1)} },
		"another target":          func(m *scheduler.Machine, _ rows) { m.State = scheduler.Speculative },
		"names that run together": func(m *scheduler.Machine, d rows) { m.ID = "ar"; d["ed"] = d["red"]; delete(d, "red") },
	} {
		m, d := *in.Machines[0], rows{"red": {small(5, 1)}}
		change(&m, d)
		got := scheduler.Decide(scheduler.Input{Machines: []*scheduler.Machine{&m}, Demand: d})[0].Operation
		if was := seen[got]; was != "" {
			t.Errorf("%s has the operation of %s", name, was)
		}
		seen[got] = name
	}
}
