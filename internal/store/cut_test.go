package store_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
)

// A list of anything is cut into transactions that are within the bounds and as few as its order
// allows: only an item that is out of bounds by itself goes beyond them, alone.
func TestCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct{ n, ops, bytes int }
		var list []item
		for i := range rapid.IntRange(0, 300).Draw(t, "items") {
			list = append(list, item{i, rapid.IntRange(1, 4).Draw(t, "ops"),
				rapid.SampledFrom([]int{0, 100, 5000, store.CutBytes / 3, store.CutBytes, store.CutBytes + 1}).Draw(t, "bytes")})
		}
		every := store.Tx{If: []store.Condition{{Key: "head"}, {Key: "leader"}}, Put: []store.Write{{Key: "k", Value: []byte("v")}}}
		within := func(run []item) bool {
			ops, bytes := 3, every.Size()
			for _, x := range run {
				ops, bytes = ops+x.ops, bytes+x.bytes
			}
			return ops <= store.CutOps && bytes <= store.CutBytes
		}
		var all, before []item
		for run := range store.Cut(list, every, func(x item) (int, int) { return x.ops, x.bytes }) {
			if len(run) == 0 || len(run) > 1 && !within(run) {
				t.Fatalf("a run of %v", run)
			}
			if before != nil && within(append(slices.Clone(before), run[0])) {
				t.Fatalf("%v had gone with %v", run[0], before)
			}
			all, before = append(all, run...), run
		}
		if !slices.Equal(all, list) {
			t.Fatalf("%v became %v", list, all)
		}
	})
}

// A caller that has enough may stop, and a run that is added to leaves the next one alone.
func TestCutStops(t *testing.T) {
	list := make([]int, 3*store.CutOps)
	for run := range store.Cut(list, store.Tx{}, func(int) (int, int) { return 1, 1 }) {
		if len(run) != store.CutOps {
			t.Fatalf("a run of %d", len(run))
		}
		_ = append(run, 7)
		break
	}
	if slices.Contains(list, 7) {
		t.Error("the next run was written over")
	}
}
