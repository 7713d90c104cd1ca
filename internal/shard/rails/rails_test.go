package rails_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/decision"
	"github.com/fealty-io/fealty/internal/shard/inventory"
	"github.com/fealty-io/fealty/internal/shard/rails"
)

func actions(kind decision.Kind, tenant string, n int) (out []decision.Action) {
	for i := range n {
		out = append(out, decision.Action{Kind: kind, Tenant: tenant, Machine: inventory.Key{Provider: tenant, ID: fmt.Sprint(kind, i)}})
	}
	return out
}

// verdicts counts rulings by verdict and reason.
func verdicts(rulings []rails.Ruling) map[string]int {
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
	red := rails.Facts{Configured: map[string]int{"red": 1000, "blue": 10}, Idle: 100, Reported: map[string]bool{"red": true, "blue": true}}
	silent, unlisted := red, red
	silent.Reported, silent.Unreported = map[string]bool{"red": true}, true
	unlisted.Unlisted = true
	paused := rails.Default()
	paused.Paused = true
	for _, tt := range []struct {
		name    string
		rails   rails.Rails
		facts   rails.Facts
		actions []decision.Action
		want    map[string]int
	}{
		{"5% of a thousand", rails.Default(), red, actions(decision.Reclaim, "red", 1000), map[string]int{"execute": 50, "capped blast-radius": 950}},
		{"of ten, one", rails.Default(), red, actions(decision.Reclaim, "blue", 10), map[string]int{"execute": 1, "capped blast-radius": 9}},
		{"each tenant for itself", rails.Default(), red, slices.Concat(actions(decision.Reclaim, "red", 60), actions(decision.Reclaim, "blue", 2)),
			map[string]int{"execute": 51, "capped blast-radius": 11}},
		{"who has nothing configured", rails.Default(), rails.Facts{Reported: map[string]bool{"red": true}}, actions(decision.Reclaim, "red", 2),
			map[string]int{"execute": 1, "capped blast-radius": 1}},
		{"releases by what is idle", rails.Default(), red, actions(decision.Release, "", 100), map[string]int{"execute": 5, "capped blast-radius": 95}},
		{"preemption is not bounded", rails.Default(), red, actions(decision.Preempt, "red", 1000), map[string]int{"execute": 1000}},
		{"nor is what is given", rails.Default(), red, slices.Concat(actions(decision.Assign, "red", 500), actions(decision.Create, "red", 500)), map[string]int{"execute": 1000}},
		{"who did not report loses nothing", rails.Default(), silent, actions(decision.Reclaim, "blue", 10), map[string]int{"suppressed first-report": 10}},
		{"nor by priority", rails.Default(), silent, actions(decision.Preempt, "blue", 10), map[string]int{"suppressed first-report": 10}},
		{"others do", rails.Default(), silent, actions(decision.Reclaim, "red", 10), map[string]int{"execute": 10}},
		{"nothing is released meanwhile", rails.Default(), silent, actions(decision.Release, "", 10), map[string]int{"suppressed first-report": 10}},
		{"nothing is given before all was seen", rails.Default(), unlisted,
			slices.Concat(actions(decision.Assign, "red", 1), actions(decision.Create, "red", 1), actions(decision.Preempt, "red", 1)),
			map[string]int{"suppressed first-listing": 3}},
		{"and excess goes", rails.Default(), unlisted, actions(decision.Reclaim, "red", 1), map[string]int{"execute": 1}},
		{"paused", paused, red, slices.Concat(actions(decision.Assign, "red", 5), actions(decision.Reclaim, "red", 60)), map[string]int{"suppressed paused": 65}},
		{"off", rails.Rails{}, silent, slices.Concat(actions(decision.Reclaim, "blue", 100), actions(decision.Release, "", 50)), map[string]int{"execute": 150}},
		{"paused alone", rails.Rails{Paused: true}, silent, actions(decision.Reclaim, "blue", 100), map[string]int{"suppressed paused": 100}},
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
		if got := rails.Radius(n); got != want {
			t.Errorf("Radius(%d) = %d, want %d", n, got, want)
		}
	}
}

// For any decision: every action has one ruling, in its place; no tenant loses more to
// reclaims than its part; those that are executed are the first of their tenant; and when
// paused nothing is.
func TestWhateverIsRuled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rails.Default()
		r.Paused = rapid.Bool().Draw(t, "paused")
		facts := rails.Facts{Configured: make(map[string]int), Reported: make(map[string]bool), Idle: rapid.IntRange(0, 200).Draw(t, "idle")}
		tenants := []string{"blue", "red"}
		for _, name := range tenants {
			facts.Configured[name] = rapid.IntRange(0, 200).Draw(t, "configured")
			facts.Reported[name] = rapid.Bool().Draw(t, "reported")
		}
		var all []decision.Action
		for range rapid.IntRange(0, 60).Draw(t, "actions") {
			all = append(all, decision.Action{Kind: rapid.SampledFrom(decision.Kinds()).Draw(t, "kind"), Tenant: rapid.SampledFrom(tenants).Draw(t, "tenant"),
				Machine: inventory.Key{Provider: "p", ID: fmt.Sprint(len(all))}})
		}
		got := r.Rule(all, facts)
		if len(got) != len(all) {
			t.Fatalf("%d rulings of %d actions", len(got), len(all))
		}
		lost, held := make(map[string]int), make(map[string]bool)
		for i, ruling := range got {
			a := all[i]
			if ruling.Action != a || (ruling.Verdict == rails.Execute) != (ruling.Reason == "") || r.Paused && ruling.Verdict == rails.Execute {
				t.Fatalf("%+v of %+v", ruling, a)
			}
			if a.Kind != decision.Reclaim {
				continue
			}
			if ruling.Verdict != rails.Execute {
				held[a.Tenant] = true
				continue
			}
			if lost[a.Tenant]++; lost[a.Tenant] > max(1, facts.Configured[a.Tenant]*5/100) || held[a.Tenant] || !facts.Reported[a.Tenant] {
				t.Fatalf("%s loses %d of %d", a.Tenant, lost[a.Tenant], facts.Configured[a.Tenant])
			}
		}
	})
}
