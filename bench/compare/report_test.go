package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A ratio is that of each round, and what is in the middle of them: a round in which the machine was slow for both counts as
// any other.
func TestRatiosAreOfRounds(t *testing.T) {
	r := row{ours: []float64{1, 20, 3, 4, 5}, theirs: []float64{2, 40, 3, 2, 1}}
	lower, middle, upper := r.ratios()
	if lower != 0.5 || middle != 1 || upper != 2 {
		t.Errorf("got %v, %v, %v, want 0.5, 1, 2", lower, middle, upper)
	}
	if r.verdict() != "level" {
		t.Errorf("a ratio about 1 is %s", r.verdict())
	}
	for ours, want := range map[float64]string{1: "better", 3: "worse"} {
		if got := (row{ours: []float64{ours, ours, ours, ours, 2}, theirs: []float64{2, 2, 2, 2, 2}}).verdict(); got != want {
			t.Errorf("%v against 2 in four rounds of five is %s, want %s", ours, got, want)
		}
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0.0312: "0.0312", 0.5: "0.500", 1: "1.00", 1.047: "1.05", 17.34: "17.3", 171.4: "171", 1714.2: "1,714", 0.9996: "1.000"} {
		if got := figure(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

// What people wrote around the marks stays, and a file without marks is refused and left alone.
func TestReplaceInKeepsTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	page := func(inner string) string { return "before\n" + beginMark + "\n" + inner + endMark + "\nafter\n" }
	for _, text := range []string{"", "old\n", "longer\nthan\nbefore\n"} {
		if err := os.WriteFile(path, []byte(page(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := replaceIn(path, "new\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != page("new\n") {
			t.Errorf("got %q, %v", got, err)
		}
	}
	for _, bad := range []string{"nothing", beginMark + "\n", endMark + "\n" + beginMark} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := replaceIn(path, "new\n"); err == nil {
			t.Errorf("%q was replaced", bad)
		}
		if got, _ := os.ReadFile(path); string(got) != bad {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

// Each row that the README shows has to be there.
func TestSummaryNeedsItsRows(t *testing.T) {
	r := report{rows: []row{{what: "a", peer: "p", ours: []float64{1}, theirs: []float64{2}}}}
	if got, err := r.summary([]string{"a"}, []string{"p"}); err != nil || got != "- a: **0.500** × p\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := r.summary([]string{"a"}, []string{"q"}); err == nil || !strings.Contains(err.Error(), `"q"`) {
		t.Errorf("a row that is missing: %v", err)
	}
}
