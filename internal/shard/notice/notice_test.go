package notice_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/shard/decision"
	"github.com/fealty-io/fealty/internal/shard/inventory"
	"github.com/fealty-io/fealty/internal/shard/notice"
)

func action(kind decision.Kind, id, tenant string) decision.Action {
	return decision.Action{Kind: kind, Machine: inventory.Key{Provider: "p", ID: id}, Profile: "small", Tenant: tenant}
}

func TestDue(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	a, b := action(decision.Reclaim, "a", "red"), action(decision.Preempt, "b", "blue")
	assign := action(decision.Assign, "c", "red")
	type step struct {
		after   time.Duration
		actions []decision.Action
		due     string // x: it is done; .: it waits
		out     int    // notices
		release string // tenant/machine, after that
		was     bool   // told of
	}
	for name, steps := range map[string][]step{
		"it waits for its time":       {{0, []decision.Action{a, b}, "..", 2, "", false}, {9, []decision.Action{a, b}, "..", 2, "", false}, {10, []decision.Action{a, b}, "xx", 2, "", false}, {11, nil, "", 0, "", false}},
		"what gives does not":         {{0, []decision.Action{assign, a}, "x.", 1, "", false}},
		"each has its own time":       {{0, []decision.Action{a}, ".", 1, "", false}, {5, []decision.Action{a, b}, "..", 2, "", false}, {10, []decision.Action{a, b}, "x.", 2, "", false}},
		"one that was withdrawn":      {{0, []decision.Action{a}, ".", 1, "", false}, {5, nil, "", 0, "", false}, {10, []decision.Action{a}, ".", 1, "", false}},
		"of another tenant":           {{0, []decision.Action{a}, ".", 1, "", false}, {10, []decision.Action{action(decision.Reclaim, "a", "blue")}, ".", 1, "", false}},
		"for another reason":          {{0, []decision.Action{a}, ".", 1, "", false}, {10, []decision.Action{action(decision.Preempt, "a", "red")}, "x", 1, "", false}},
		"as soon as the tenant lets":  {{0, []decision.Action{a, b}, "..", 2, "red", true}, {1, []decision.Action{a, b}, "x.", 2, "", false}},
		"which no other tenant can":   {{0, []decision.Action{a}, ".", 1, "blue", false}, {1, []decision.Action{a}, ".", 1, "", false}},
		"nor one that was not told":   {{0, []decision.Action{b}, ".", 1, "red", false}, {1, []decision.Action{a}, ".", 1, "", false}},
		"what it let go before is no": {{0, []decision.Action{a}, ".", 1, "red", true}, {1, nil, "", 0, "", false}, {2, []decision.Action{a}, ".", 1, "", false}},
	} {
		board := notice.NewBoard(10 * time.Second)
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
	board := notice.NewBoard(10 * time.Second)
	b, a, c := action(decision.Reclaim, "b", "red"), action(decision.Preempt, "a", "red"), action(decision.Reclaim, "c", "blue")
	board.Due([]decision.Action{b}, start)
	board.Due([]decision.Action{a, b, c}, start.Add(time.Second))
	got := board.Of("red")
	want := []notice.Notice{{b.Machine, "small", "red", decision.Reclaim, start.Add(10 * time.Second)}, {a.Machine, "small", "red", decision.Preempt, start.Add(11 * time.Second)}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v", got)
	}
	if none := notice.NewBoard(0); !none.Due([]decision.Action{a}, start)[0] || len(none.Of("red")) != 0 {
		t.Error("there is a notice without a grace period")
	}
}
