package scheduler_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

func action(kind scheduler.Kind, id, tenant string) scheduler.Action {
	return scheduler.Action{Kind: kind, Machine: scheduler.MachineKey{Provider: "p", ID: id}, Profile: "small", Tenant: tenant}
}

func TestDue(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	a, b := action(scheduler.Reclaim, "a", "red"), action(scheduler.Preempt, "b", "blue")
	assign := action(scheduler.Assign, "c", "red")
	type step struct {
		after   time.Duration
		actions []scheduler.Action
		due     string // x: it is done; .: it waits
		out     int    // notices
		release string // tenant/machine, after that
		was     bool   // told of
	}
	for name, steps := range map[string][]step{
		"it waits for its time":       {{0, []scheduler.Action{a, b}, "..", 2, "", false}, {9, []scheduler.Action{a, b}, "..", 2, "", false}, {10, []scheduler.Action{a, b}, "xx", 2, "", false}, {11, nil, "", 0, "", false}},
		"what gives does not":         {{0, []scheduler.Action{assign, a}, "x.", 1, "", false}},
		"each has its own time":       {{0, []scheduler.Action{a}, ".", 1, "", false}, {5, []scheduler.Action{a, b}, "..", 2, "", false}, {10, []scheduler.Action{a, b}, "x.", 2, "", false}},
		"one that was withdrawn":      {{0, []scheduler.Action{a}, ".", 1, "", false}, {5, nil, "", 0, "", false}, {10, []scheduler.Action{a}, ".", 1, "", false}},
		"of another tenant":           {{0, []scheduler.Action{a}, ".", 1, "", false}, {10, []scheduler.Action{action(scheduler.Reclaim, "a", "blue")}, ".", 1, "", false}},
		"for another reason":          {{0, []scheduler.Action{a}, ".", 1, "", false}, {10, []scheduler.Action{action(scheduler.Preempt, "a", "red")}, "x", 1, "", false}},
		"as soon as the tenant lets":  {{0, []scheduler.Action{a, b}, "..", 2, "red", true}, {1, []scheduler.Action{a, b}, "x.", 2, "", false}},
		"which no other tenant can":   {{0, []scheduler.Action{a}, ".", 1, "blue", false}, {1, []scheduler.Action{a}, ".", 1, "", false}},
		"nor one that was not told":   {{0, []scheduler.Action{b}, ".", 1, "red", false}, {1, []scheduler.Action{a}, ".", 1, "", false}},
		"what it let go before is no": {{0, []scheduler.Action{a}, ".", 1, "red", true}, {1, nil, "", 0, "", false}, {2, []scheduler.Action{a}, ".", 1, "", false}},
	} {
		board := scheduler.NewBoard(10 * time.Second)
		for i, s := range steps {
			got := ""
			for _, due := range board.Due(s.actions, start.Add(s.after*time.Second)) {
				got += map[bool]string{true: "x", false: "."}[due]
			}
			if out := len(board.Of("red")) + len(board.Of("blue")); got != s.due || out != s.out {
				t.Errorf("%s: step %d: %q, want %q; %d notices are out", name, i, got, s.due, out)
			}
			if s.release != "" && board.Release(s.release, a.Machine) != s.was {
				t.Errorf("%s: step %d: %s lets it go: %v", name, i, s.release, !s.was)
			}
		}
	}
}

func TestOf(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	board := scheduler.NewBoard(10 * time.Second)
	b, a, c := action(scheduler.Reclaim, "b", "red"), action(scheduler.Preempt, "a", "red"), action(scheduler.Reclaim, "c", "blue")
	board.Due([]scheduler.Action{b}, start)
	board.Due([]scheduler.Action{a, b, c}, start.Add(time.Second))
	got := board.Of("red")
	want := []scheduler.Notice{{b.Machine, "small", "red", scheduler.Reclaim, start.Add(10 * time.Second)}, {a.Machine, "small", "red", scheduler.Preempt, start.Add(11 * time.Second)}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v", got)
	}
	if none := scheduler.NewBoard(0); !none.Due([]scheduler.Action{a}, start)[0] || len(none.Of("red")) != 0 {
		t.Error("there is a notice without a grace period")
	}
}
