package record_test

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// It is the sort of the standard library: each value is there as often as before, in order.
func TestSort(t *testing.T) {
	type large struct {
		number int
		rest   [8]int
	}
	compare := func(a, b *large) int { return cmp.Compare(a.number, b.number) }
	rapid.Check(t, func(t *rapid.T) {
		var all []large
		for _, n := range rapid.SliceOf(rapid.IntRange(0, 50)).Draw(t, "numbers") {
			all = append(all, large{n, [8]int{n}})
		}
		want := slices.Clone(all)
		slices.SortFunc(want, func(a, b large) int { return compare(&a, &b) })
		if record.Sort(all, compare); !slices.Equal(all, want) {
			t.Fatalf("%v, want %v", all, want)
		}
	})
}
