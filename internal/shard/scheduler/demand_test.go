package scheduler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

func row(profile string, priority int32, count int) scheduler.DemandRow {
	return scheduler.DemandRow{Profile: profile, Priority: priority, Count: count}
}

func rollUp(run, number uint64, rows ...scheduler.DemandRow) scheduler.RollUp {
	return scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: run, Number: number}, Rows: rows}
}

// Each way in which a roll-up cannot be. None of them changes what stands.
func TestRollUpsThatCannotBe(t *testing.T) {
	many := make([]scheduler.DemandRow, scheduler.MaxRows+1)
	for i := range many {
		many[i] = row("small", int32(i), 1)
	}
	named := func(tenant string) scheduler.RollUp { r := rollUp(2, 1); r.Tenant = tenant; return r }
	for _, tt := range []struct {
		name   string
		rollUp scheduler.RollUp
		field  string
	}{
		{"no tenant", named(""), "tenant"},
		{"a long tenant", named(strings.Repeat("x", 129)), "tenant"},
		{"a blank", named("a b"), "tenant"},
		{"no run", rollUp(0, 1), "key"},
		{"no number", rollUp(1, 0), "key"},
		{"too many rows", rollUp(2, 1, many...), "demand"},
		{"no profile", rollUp(2, 1, row("", 1, 1)), "profile"},
		{"a long profile", rollUp(2, 1, row(strings.Repeat("x", 129), 1, 1)), "profile"},
		{"a control character", rollUp(2, 1, row("a\t", 1, 1)), "profile"},
		{"no count", rollUp(2, 1, row("small", 1, 0)), "count"},
		{"a negative count", rollUp(2, 1, row("small", 1, -1)), "count"},
		{"too many", rollUp(2, 1, row("small", 1, scheduler.MaxCount+1)), "count"},
		{"too many in sum", rollUp(2, 1, row("small", 1, scheduler.MaxCount), row("big", 1, 1)), "count"},
		{"a row twice", rollUp(2, 1, row("small", 1, 1), row("big", 1, 1), row("small", 1, 2)), "demand"},
		{"another one under its key", rollUp(1, 1, row("small", 1, 6)), "key"},
	} {
		b := scheduler.NewDemandBook(scheduler.DemandOptions{})
		if got, err := b.Report(rollUp(1, 1, row("small", 1, 5)), nil); got != scheduler.Taken || err != nil {
			t.Fatal(got, err)
		}
		_, err := b.Report(tt.rollUp, nil)
		var invalid *scheduler.DemandInvalidError
		if !errors.As(err, &invalid) || !errors.Is(err, scheduler.ErrDemandInvalid) || invalid.Field != tt.field {
			t.Errorf("%s: %v, want one about the %s", tt.name, err, tt.field)
		}
		if got := b.Rows(); len(got) != 1 || !slices.Equal(got["red"], []scheduler.DemandRow{row("small", 1, 5)}) {
			t.Errorf("%s: %v stands", tt.name, got)
		}
	}
}

func TestTooManyTenants(t *testing.T) {
	b := scheduler.NewDemandBook(scheduler.DemandOptions{})
	for i := range scheduler.MaxTenants {
		r := rollUp(1, 1)
		r.Tenant = fmt.Sprint("t", i)
		if _, err := b.Report(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Report(rollUp(1, 1), nil); !errors.Is(err, scheduler.ErrFull) {
		t.Errorf("one more: %v", err)
	}
}

// In whatever order roll-ups arrive, and how often, the newest counts.
func TestLateOnesChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := scheduler.NewDemandBook(scheduler.DemandOptions{})
		newest := scheduler.DemandKey{}
		count := func(k scheduler.DemandKey) int { return int(k.Run*10 + k.Number) }
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {},
			"report": func(t *rapid.T) {
				k := scheduler.DemandKey{Run: rapid.Uint64Range(1, 4).Draw(t, "run"), Number: rapid.Uint64Range(1, 4).Draw(t, "number")}
				got, err := b.Report(scheduler.RollUp{Tenant: "red", Key: k, Rows: []scheduler.DemandRow{row("small", 1, count(k))}}, nil)
				want := scheduler.Overtaken
				switch k.Compare(newest) {
				case 0:
					want = scheduler.Repeated
				case 1:
					want, newest = scheduler.Taken, k
				}
				if err != nil || got != want {
					t.Fatalf("%v: %v, %v, want %v", k, got, err, want)
				}
				if rows := b.Rows()["red"]; len(rows) != 1 || rows[0].Count != count(newest) {
					t.Fatalf("after %v: %v", newest, rows)
				}
			},
		})
	})
}

// Silence is no demand for nothing.
func TestReported(t *testing.T) {
	b := scheduler.NewDemandBook(scheduler.DemandOptions{})
	if rows, there := b.Rows()["red"]; there {
		t.Errorf("before it reported: %v", rows)
	}
	if _, err := b.Report(rollUp(1, 1), nil); err != nil {
		t.Fatal(err)
	}
	if rows, there := b.Rows()["red"]; !there || len(rows) != 0 {
		t.Errorf("after it reported nothing: %v, %v", rows, there)
	}
}

// demandRows returns n demandRows of one machine each.
func demandRows(n int) (out []scheduler.DemandRow) {
	for i := range n {
		out = append(out, row(fmt.Sprint("p", i), 1, 1))
	}
	return out
}

func TestQuarantine(t *testing.T) {
	thousand := []scheduler.DemandRow{row("small", 1, 1000)}
	for _, tt := range []struct {
		name    string
		off     bool
		running []scheduler.DemandRow
		reports [][]scheduler.DemandRow
		want    string // t: taken; h: held
	}{
		{"three in a row", false, nil, [][]scheduler.DemandRow{demandRows(20), nil, nil, nil}, "thht"},
		{"one that keeps enough begins anew", false, nil, [][]scheduler.DemandRow{demandRows(20), nil, nil, demandRows(19), nil, nil, nil}, "thhthht"},
		{"a tenth of the rows is enough", false, nil, [][]scheduler.DemandRow{demandRows(20), demandRows(2)}, "tt"},
		{"below a tenth is not", false, nil, [][]scheduler.DemandRow{demandRows(20), demandRows(1)}, "th"},
		{"other rows are not kept", false, nil, [][]scheduler.DemandRow{demandRows(20), {row("other", 1, 20)}}, "th"},
		{"nine are too few to tell", false, nil, [][]scheduler.DemandRow{demandRows(9), nil}, "tt"},
		{"one row of a thousand machines", false, nil, [][]scheduler.DemandRow{thousand, nil, nil, nil}, "thht"},
		{"one machine of a thousand", false, nil, [][]scheduler.DemandRow{thousand, {row("small", 1, 1)}}, "th"},
		{"another priority", false, nil, [][]scheduler.DemandRow{thousand, {row("small", 2, 1000)}}, "tt"},
		{"another priority for few of them", false, nil, [][]scheduler.DemandRow{{row("small", 1, 500), row("small", 2, 500)}, {row("small", 3, 99)}}, "th"},
		{"another profile", false, nil, [][]scheduler.DemandRow{thousand, {row("big", 1, 1000)}}, "th"},
		{"a hundred of a thousand", false, nil, [][]scheduler.DemandRow{thousand, {row("small", 1, 100)}}, "tt"},
		{"one row of twenty with almost all machines", false, nil, [][]scheduler.DemandRow{append(demandRows(20), row("big", 1, 500)), {row("big", 1, 500)}}, "th"},
		{"the first one is held against what runs", false, thousand, [][]scheduler.DemandRow{nil, nil, nil}, "hht"},
		{"the first one of who has nothing", false, nil, [][]scheduler.DemandRow{nil}, "t"},
		{"off", true, nil, [][]scheduler.DemandRow{thousand, nil}, "tt"},
	} {
		b := scheduler.NewDemandBook(scheduler.DemandOptions{Quarantine: !tt.off})
		got := ""
		var standing []scheduler.DemandRow
		for i, reported := range tt.reports {
			outcome, err := b.Report(rollUp(1, uint64(i+1), reported...), tt.running)
			if err != nil {
				t.Fatal(err)
			}
			b.Cycle()
			got += string(outcome[:1])
			if outcome == scheduler.Taken {
				standing = reported
			}
			if stands := b.Rows()["red"]; len(stands) != len(standing) {
				t.Errorf("%s: after %d: %d rows stand, want %d", tt.name, i+1, len(stands), len(standing))
			}
			if _, known := b.Rows()["red"]; known != strings.Contains(got, "t") {
				t.Errorf("%s: after %d: known: %v", tt.name, i+1, known)
			}
			if held := slices.Equal(b.Held(), []string{"red"}); held != strings.HasSuffix(got, "h") {
				t.Errorf("%s: after %d: %v are held", tt.name, i+1, b.Held())
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A roll-up that is sent twice confirms nothing.
func TestRepeatsConfirmNothing(t *testing.T) {
	b := scheduler.NewDemandBook(scheduler.DemandOptions{Quarantine: true})
	for _, r := range []scheduler.RollUp{rollUp(1, 1, demandRows(20)...), rollUp(1, 2), rollUp(1, 2), rollUp(1, 2), rollUp(1, 1, demandRows(20)...), rollUp(1, 3)} {
		if _, err := b.Report(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(b.Rows()["red"]); got != 20 {
		t.Errorf("%d rows stand", got)
	}
}

// An operator that starts again and again within a cycle confirms nothing: a drop counts once
// in each. One that drops nothing is taken at once.
func TestDropCountsOnceInACycle(t *testing.T) {
	t.Parallel()
	b := scheduler.NewDemandBook(scheduler.DemandOptions{Quarantine: true})
	report := func(run uint64, rows ...scheduler.DemandRow) scheduler.Outcome {
		t.Helper()
		got, err := b.Report(rollUp(run, 1, rows...), nil)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := report(1, row("big", 1, 1000)); got != scheduler.Taken {
		t.Fatal(got)
	}
	for run := uint64(2); run < 10; run++ {
		if got := report(run); got != scheduler.Held {
			t.Fatalf("run %d within one cycle: %s", run, got)
		}
	}
	if got := report(10, row("big", 1, 900)); got != scheduler.Taken {
		t.Errorf("one that drops little: %s", got)
	}
	for run := uint64(11); run < 14; run++ {
		b.Cycle()
		if got, want := report(run), map[bool]scheduler.Outcome{true: scheduler.Taken, false: scheduler.Held}[run == 13]; got != want {
			t.Errorf("run %d in a cycle of its own: %s, want %s", run, got, want)
		}
	}
}
