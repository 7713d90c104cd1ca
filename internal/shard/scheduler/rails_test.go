package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

func actions(kind scheduler.Kind, tenant string, n int) (out []scheduler.Action) {
	for i := range n {
		out = append(out, scheduler.Action{Kind: kind, Tenant: tenant, Machine: scheduler.MachineKey{Provider: tenant, ID: fmt.Sprint(kind, i)}})
	}
	return out
}

// verdicts counts rulings by verdict and reason.
func verdicts(rulings []scheduler.Ruling) map[string]int {
	out := make(map[string]int)
	for _, r := range rulings {
		name := string(r.Verdict)
		if r.Reason != "" {
			name += " " + string(r.Reason)
		}
		out[name]++
	}
	return out
}

func TestRule(t *testing.T) {
	red := scheduler.Facts{Configured: map[string]int{"red": 1000, "blue": 10}, Idle: 100, Reported: map[string]bool{"red": true, "blue": true}}
	silent, unlisted := red, red
	silent.Reported, silent.Unreported = map[string]bool{"red": true}, true
	unlisted.Unlisted = true
	paused := scheduler.Default()
	paused.Paused = true
	for _, tt := range []struct {
		name    string
		rails   scheduler.Rails
		facts   scheduler.Facts
		actions []scheduler.Action
		want    map[string]int
	}{
		{"5% of a thousand", scheduler.Default(), red, actions(scheduler.Reclaim, "red", 1000), map[string]int{"execute": 50, "capped blast-radius": 950}},
		{"of ten, one", scheduler.Default(), red, actions(scheduler.Reclaim, "blue", 10), map[string]int{"execute": 1, "capped blast-radius": 9}},
		{"each tenant for itself", scheduler.Default(), red, slices.Concat(actions(scheduler.Reclaim, "red", 60), actions(scheduler.Reclaim, "blue", 2)),
			map[string]int{"execute": 51, "capped blast-radius": 11}},
		{"who has nothing configured", scheduler.Default(), scheduler.Facts{Reported: map[string]bool{"red": true}}, actions(scheduler.Reclaim, "red", 2),
			map[string]int{"execute": 1, "capped blast-radius": 1}},
		{"releases by what is idle", scheduler.Default(), red, actions(scheduler.Release, "", 100), map[string]int{"execute": 5, "capped blast-radius": 95}},
		{"preemption is not bounded", scheduler.Default(), red, actions(scheduler.Preempt, "red", 1000), map[string]int{"execute": 1000}},
		{"nor is what is given", scheduler.Default(), red, slices.Concat(actions(scheduler.Assign, "red", 500), actions(scheduler.Create, "red", 500)), map[string]int{"execute": 1000}},
		{"who did not report loses nothing", scheduler.Default(), silent, actions(scheduler.Reclaim, "blue", 10), map[string]int{"suppressed first-report": 10}},
		{"nor by priority", scheduler.Default(), silent, actions(scheduler.Preempt, "blue", 10), map[string]int{"suppressed first-report": 10}},
		{"others do", scheduler.Default(), silent, actions(scheduler.Reclaim, "red", 10), map[string]int{"execute": 10}},
		{"nothing is released meanwhile", scheduler.Default(), silent, actions(scheduler.Release, "", 10), map[string]int{"suppressed first-report": 10}},
		{"nothing is given before all was seen", scheduler.Default(), unlisted,
			slices.Concat(actions(scheduler.Assign, "red", 1), actions(scheduler.Create, "red", 1), actions(scheduler.Preempt, "red", 1)),
			map[string]int{"suppressed first-listing": 3}},
		{"and excess goes", scheduler.Default(), unlisted, actions(scheduler.Reclaim, "red", 1), map[string]int{"execute": 1}},
		{"paused", paused, red, slices.Concat(actions(scheduler.Assign, "red", 5), actions(scheduler.Reclaim, "red", 60)), map[string]int{"suppressed paused": 65}},
		{"off", scheduler.Rails{}, silent, slices.Concat(actions(scheduler.Reclaim, "blue", 100), actions(scheduler.Release, "", 50)), map[string]int{"execute": 150}},
		{"paused alone", scheduler.Rails{Paused: true}, silent, actions(scheduler.Reclaim, "blue", 100), map[string]int{"suppressed paused": 100}},
	} {
		got := tt.rails.Rule(tt.actions, tt.facts)
		if fmt.Sprint(verdicts(got)) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, verdicts(got), tt.want)
		}
		if tt.rails.Paused {
			running := tt.rails
			running.Paused = false
			for i, r := range running.Rule(tt.actions, tt.facts) {
				if got[i].Would != r.Verdict {
					t.Fatalf("%s: %+v would be %s, and is %s when it is not paused", tt.name, got[i].Action, got[i].Would, r.Verdict)
				}
			}
		}
	}
}

func TestRadius(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 20: 1, 39: 1, 40: 2, 59: 2, 100: 5, 119: 5, 120: 6, 999: 49, 1000: 50, 1 << 40: 1 << 40 / 20} {
		if got := scheduler.Radius(n); got != want {
			t.Errorf("Radius(%d) = %d, want %d", n, got, want)
		}
	}
}

// For any decision: every action has one ruling, in its place; no tenant loses more to
// reclaims than its part; those that are executed are the first of their tenant; and when
// paused nothing is.
func TestWhateverIsRuled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := scheduler.Default()
		r.Paused = rapid.Bool().Draw(t, "paused")
		facts := scheduler.Facts{Configured: make(map[string]int), Reported: make(map[string]bool), Idle: rapid.IntRange(0, 200).Draw(t, "idle")}
		tenants := []string{"blue", "red"}
		for _, name := range tenants {
			facts.Configured[name] = rapid.IntRange(0, 200).Draw(t, "configured")
			facts.Reported[name] = rapid.Bool().Draw(t, "reported")
		}
		var all []scheduler.Action
		for range rapid.IntRange(0, 60).Draw(t, "actions") {
			all = append(all, scheduler.Action{Kind: rapid.SampledFrom(scheduler.Kinds()).Draw(t, "kind"), Tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"),
				Machine: scheduler.MachineKey{Provider: "p", ID: fmt.Sprint(len(all))}})
		}
		got := r.Rule(all, facts)
		if len(got) != len(all) {
			t.Fatalf("%d rulings of %d actions", len(got), len(all))
		}
		lost, held := make(map[string]int), make(map[string]bool)
		for i, ruling := range got {
			a := all[i]
			if ruling.Action != a || (ruling.Verdict == scheduler.Execute) != (ruling.Reason == "") || r.Paused && ruling.Verdict == scheduler.Execute {
				t.Fatalf("%+v of %+v", ruling, a)
			}
			if a.Kind != scheduler.Reclaim {
				continue
			}
			if ruling.Verdict != scheduler.Execute {
				held[a.Tenant] = true
				continue
			}
			if lost[a.Tenant]++; lost[a.Tenant] > max(1, facts.Configured[a.Tenant]*5/100) || held[a.Tenant] || !facts.Reported[a.Tenant] {
				t.Fatalf("%s loses %d of %d", a.Tenant, lost[a.Tenant], facts.Configured[a.Tenant])
			}
		}
	})
}
