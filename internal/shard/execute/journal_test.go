package execute_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/shard/execute"
)

const (
	dir = "journal"
	who = "0123456789abcdef"
	// kept are the segments of the journals of these tests.
	kept = 8
)

var start = time.Date(2026, 5, 4, 8, 0, 0, 0, time.UTC)

// clock is set by hand.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func options(files durable.FS, c *clock) execute.JournalOptions {
	return execute.JournalOptions{Files: files, Dir: dir, Actor: "shard/s1", Writer: who, Now: c.now, Segments: kept}
}

func open(t testing.TB, files durable.FS, c *clock) *execute.Journal {
	t.Helper()
	j, err := execute.OpenJournal(options(files, c))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func entry(n int) execute.Entry {
	return execute.Entry{Kind: "assign", Machine: fmt.Sprint("p/m", n), Tenant: "red", Profile: "small", Priority: -3, Operation: "op", Outcome: execute.Begun}
}

func entries(from, to int) (out []execute.Entry) {
	for n := from; n < to; n++ {
		out = append(out, entry(n))
	}
	return out
}

// replay returns what the journal says, and what is wrong with it.
func replay(files durable.FS) (out []execute.Entry, err error) {
	for said, err := range execute.Replay(execute.Export(files, dir)) {
		if err != nil {
			return out, err
		}
		out = append(out, said.Entry)
	}
	return out, nil
}

func TestReplay(t *testing.T) {
	disk := durabletest.NewDisk()
	c := &clock{start}
	j := open(t, disk.FS(), c)
	want := []execute.Entry{
		entry(1),
		{Kind: "preempt", Machine: "p/m2", Tenant: "blue", For: "red", Profile: "big", Domain: "d", Priority: 7, Operation: "x", Outcome: "fenced", Error: "it is <over>"},
		{Kind: "reclaim", Tenant: "blue", Outcome: execute.Capped, Reason: "blast-radius", Count: 12},
	}
	for _, e := range want {
		c.at = c.at.Add(time.Second)
		if _, err := j.Append([]execute.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := replay(disk.FS()); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
	}
	n := 0
	for said, err := range execute.Replay(execute.Export(disk.FS(), dir)) {
		if n++; err != nil || said.Actor != "shard/s1" || !said.At.Equal(start.Add(time.Duration(n)*time.Second)) {
			t.Errorf("%+v, %v", said, err)
		}
	}
}

// Texts are bounded, and what is no text is made one: what is read is what was hashed.
func TestTexts(t *testing.T) {
	disk := durabletest.NewDisk()
	j := open(t, disk.FS(), &clock{start})
	e := entry(1)
	e.Error = "\xff" + strings.Repeat("é", execute.MaxTextBytes)
	if _, err := j.Append([]execute.Entry{e}); err != nil {
		t.Fatal(err)
	}
	got, err := replay(disk.FS())
	if err != nil || len(got) != 1 || len(got[0].Error) > execute.MaxTextBytes || !strings.HasPrefix(got[0].Error, "?éé") {
		t.Errorf("%v, %+v", err, got)
	}
}

// A process goes on after the one before it, and after an hour with another chain; all of
// it is one line, which the verifier of the audit log can read too.
func TestChains(t *testing.T) {
	disk := durabletest.NewDisk()
	c := &clock{start}
	for range 3 {
		j := open(t, disk.FS(), c)
		for range 3 {
			if _, err := j.Append(entries(0, 2)); err != nil {
				t.Fatal(err)
			}
			c.at = c.at.Add(40 * time.Minute)
		}
		if _, err := execute.OpenJournal(options(disk.FS(), c)); !errors.Is(err, durable.ErrLocked) {
			t.Errorf("twice open: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	chains := make(map[string]bool)
	v := auditlog.NewVerifier("test.example", nil)
	n := uint64(0)
	for r, err := range execute.Export(disk.FS(), dir) {
		if err != nil {
			t.Fatal(err)
		}
		chain, _, _ := auditlog.ParseKey(r.Key)
		chains[chain] = true
		v.Add(r.Key, []byte(r.Value))
		n++
	}
	report := v.Close()
	if len(chains) != 6 || n != 3*6+6 || report.Uncovered != n || report.Wrong != 1 || report.Problems[0].Rule != auditlog.RuleNoCheckpoint {
		t.Errorf("%d entries in %d chains: %+v", n, len(chains), report)
	}
}

// Any change of the files shows.
func TestAltered(t *testing.T) {
	for name, alter := range map[string]func(lines []string) []string{
		"an entry is altered":       func(l []string) []string { l[2] = strings.Replace(l[2], "p/m1", "p/m9", 1); return l },
		"the last of a chain is":    func(l []string) []string { l[4] = strings.Replace(l[4], "p/m3", "p/m9", 1); return l },
		"one is taken out":          func(l []string) []string { return slices.Delete(l, 2, 3) },
		"one is there twice":        func(l []string) []string { return slices.Insert(l, 2, l[2]) },
		"two change places":         func(l []string) []string { l[2], l[3] = l[3], l[2]; return l },
		"a line is cut":             func(l []string) []string { l[2] = l[2][:20]; return l },
		"a line says more":          func(l []string) []string { l[2] = strings.Replace(l[2], "{", `{"x":1,`, 1); return l },
		"a key is none":             func(l []string) []string { l[2] = `{"key":"audit/x","value":"{}"}`; return l },
		"the end of a chain is cut": func(l []string) []string { return slices.Delete(l, 3, 5) },
		"a chain is taken out":      func(l []string) []string { return slices.Delete(l, 5, 9) },
	} {
		disk := durabletest.NewDisk()
		c := &clock{start}
		// Three chains: 5, 4 and 4 lines.
		for i, n := range []int{4, 3, 3} {
			j := open(t, disk.FS(), c)
			if _, err := j.Append(entries(0, n)); err != nil {
				t.Fatal(i, err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var lines []string
		for i := range 3 {
			data, err := disk.FS().ReadFile(fmt.Sprintf("%s/%010d.jsonl", dir, i+1), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")...)
			lines[len(lines)-1] += "\n"
		}
		if got, err := replay(disk.FS()); err != nil || len(got) != 10 || len(lines) != 13 {
			t.Fatalf("before: %d entries in %d lines, %v", len(got), len(lines), err)
		}
		one := strings.Join(alter(lines), "\n")
		if err := disk.FS().WriteFile(dir+"/0000000001.jsonl", []byte(strings.ReplaceAll(one, "\n\n", "\n"))); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if err := disk.FS().Remove(fmt.Sprintf("%s/%010d.jsonl", dir, i+2)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := replay(disk.FS()); !errors.Is(err, execute.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A journal has a bound: the oldest segments go, and what is left is whole.
func TestBounded(t *testing.T) {
	disk := durabletest.NewDisk()
	c := &clock{start}
	j := open(t, disk.FS(), c)
	long := entries(0, 250)
	for i := range long {
		long[i].Error = strings.Repeat("x", execute.MaxTextBytes)
	}
	for range kept + 3 {
		if _, err := j.Append(long); err != nil { // more than a segment
			t.Fatal(err)
		}
	}
	names, err := disk.FS().ReadDir(dir)
	if err != nil || len(names) != kept+1 || names[0] != "0000000004.jsonl" { // and the lock
		t.Fatalf("%d files from %s: %v", len(names), names[0], err)
	}
	got, err := replay(disk.FS())
	if err != nil || len(got) != 250*kept {
		t.Errorf("%d entries: %v", len(got), err)
	}
	if err := disk.FS().Remove(dir + "/0000000006.jsonl"); err != nil {
		t.Fatal(err)
	}
	if _, err := replay(disk.FS()); !errors.Is(err, execute.ErrBroken) {
		t.Errorf("without one in the middle: %v", err)
	}
}

// Wherever the power is cut: what was acknowledged is there, the rest is there whole or
// not at all, and the next process goes on.
func TestPowerCut(t *testing.T) {
	for _, after := range durabletest.Afters() {
		for n := 1; ; n++ {
			disk := durabletest.NewDisk()
			c := &clock{start}
			disk.FailAt(n, durabletest.ErrPowerCut)
			acknowledged := 0
			j, err := execute.OpenJournal(options(disk.FS(), c))
			for batch := 0; err == nil && batch < 4; batch++ {
				if _, err = j.Append(entries(5*batch, 5*batch+5)); err == nil {
					acknowledged += 5
				}
			}
			if !disk.Failed() {
				break
			}
			disk.Restart(after)
			again := open(t, disk.FS(), c)
			if again.Problem() != "" {
				t.Fatalf("%v, call %d: %s", after, n, again.Problem())
			}
			if _, err := again.Append(entries(100, 101)); err != nil {
				t.Fatal(err)
			}
			got, err := replay(disk.FS())
			if there := len(got) - 1; err != nil || there < acknowledged || there%5 != 0 || !slices.Equal(got[:there], entries(0, there)) {
				t.Fatalf("%v, call %d: %d entries of %d: %v", after, n, there, acknowledged, err)
			}
		}
	}
}

// A disk that fails at any call: what Append refused is not there, what it took is, and it
// goes on when the disk does.
func TestDiskErrors(t *testing.T) {
	for n := 1; ; n++ {
		disk := durabletest.NewDisk()
		c := &clock{start}
		j := open(t, disk.FS(), c)
		disk.FailAt(n, syscall.EIO)
		var want []execute.Entry
		for batch := range 4 {
			if _, err := j.Append(entries(5*batch, 5*batch+5)); err == nil {
				want = append(want, entries(5*batch, 5*batch+5)...)
			} else if !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
		}
		failed := disk.Failed()
		disk.FailAt(0, nil)
		if _, err := j.Append(entries(100, 101)); err != nil {
			t.Fatal(err)
		}
		got, err := replay(disk.FS())
		if want = append(want, entry(100)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("call %d: %d entries, want %d: %v", n, len(got), len(want), err)
		}
		if !failed {
			break
		}
	}
}

// A journal that cannot be read keeps nobody from work, and is left as it is.
func TestDamaged(t *testing.T) {
	disk := durabletest.NewDisk()
	c := &clock{start}
	j := open(t, disk.FS(), c)
	if _, err := j.Append(entries(0, 1)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Close(), disk.FS().WriteFile(dir+"/0000000001.jsonl", []byte("{"))); err != nil {
		t.Fatal(err)
	}
	again := open(t, disk.FS(), c)
	if again.Problem() == "" {
		t.Error("nobody is told")
	}
	if _, err := again.Append(entries(0, 1)); err != nil {
		t.Fatal(err)
	}
	if data, err := disk.FS().ReadFile(dir+"/0000000001.jsonl", 10); err != nil || string(data) != "{" {
		t.Errorf("it is %q: %v", data, err)
	}
	if _, err := replay(disk.FS()); !errors.Is(err, execute.ErrBroken) {
		t.Errorf("%v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	c := &clock{start}
	for _, wrong := range []func(*execute.JournalOptions){
		func(o *execute.JournalOptions) { o.Writer = "" }, func(o *execute.JournalOptions) { o.Writer = "0123456789ABCDEF" },
		func(o *execute.JournalOptions) { o.Writer = "0123" }, func(o *execute.JournalOptions) { o.Writer = "0123456789abcdeg" },
		func(o *execute.JournalOptions) { o.Segments = 1 }, func(o *execute.JournalOptions) { o.Segments = -1 },
	} {
		o := options(durabletest.NewDisk().FS(), c)
		wrong(&o)
		if _, err := execute.OpenJournal(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if _, err := replay(durabletest.NewDisk().FS()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// A batch that is too much for one write is written as far as the disk goes, and counted.
func TestAppendCounts(t *testing.T) {
	for n := 1; ; n++ {
		disk := durabletest.NewDisk()
		j := open(t, disk.FS(), &clock{start})
		disk.FailAt(n, syscall.EIO)
		all := entries(0, 600)
		written, err := j.Append(all)
		if !disk.Failed() {
			if got, wrong := replay(disk.FS()); err != nil || wrong != nil || written != len(all) || !slices.Equal(got, all) {
				t.Errorf("%d are counted, and %d there: %v, %v", written, len(got), err, wrong)
			}
			return
		}
		disk.FailAt(0, nil)
		if _, err := j.Append(entries(6000, 6001)); err != nil {
			t.Fatal(err)
		}
		got, err := replay(disk.FS())
		if err != nil || len(got) != written+1 || !slices.Equal(got[:written], all[:written]) {
			t.Fatalf("call %d: %d are there, and %d are counted: %v", n, len(got)-1, written, err)
		}
	}
}

// An entry that could not be written is said again by the next cycle.
func TestCycleAfterAnError(t *testing.T) {
	disk := durabletest.NewDisk()
	j := open(t, disk.FS(), &clock{start})
	e := entry(1)
	e.Outcome, e.Reason = execute.Suppressed, "paused"
	disk.Refuse(syscall.ENOSPC)
	if _, err := j.Append(j.Cycle([]execute.Entry{e})); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	disk.Refuse(nil)
	if _, err := j.Append(j.Cycle([]execute.Entry{e})); err != nil {
		t.Fatal(err)
	}
	if got, err := replay(disk.FS()); err != nil || !slices.Equal(got, []execute.Entry{e}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// An action that is held back is said when it begins and when it changes, and not in each cycle.
func TestCycle(t *testing.T) {
	j := open(t, durabletest.NewDisk().FS(), &clock{start})
	held := func(n int, outcome, reason string) (out []execute.Entry) {
		for _, e := range entries(0, n) {
			e.Outcome, e.Reason = outcome, reason
			out = append(out, e)
		}
		return out
	}
	for i, step := range []struct {
		entries []execute.Entry
		want    int
	}{
		{held(3, execute.Capped, "blast-radius"), 3},
		{held(3, execute.Capped, "blast-radius"), 0},
		{held(4, execute.Capped, "blast-radius"), 1},
		{held(4, execute.Suppressed, "paused"), 4},
		{append(held(4, execute.Suppressed, "paused"), entries(0, 2)...), 2},
		{entries(0, 2), 2}, // what is executed is said each time
		{held(4, execute.Suppressed, "paused"), 4},
		{held(1000, execute.Suppressed, "paused"), execute.MaxNamed - 4 + 1},
		{held(1000, execute.Suppressed, "paused"), 0},
		{held(900, execute.Suppressed, "paused"), 1},
	} {
		got := j.Cycle(step.entries)
		if len(got) != step.want {
			t.Errorf("step %d: %d entries, want %d", i, len(got), step.want)
		}
		if n := len(step.entries); n > execute.MaxNamed && len(got) > 0 && got[len(got)-1].Count != n-execute.MaxNamed {
			t.Errorf("step %d: the last one counts %d more of %d", i, got[len(got)-1].Count, n)
		}
	}
}
