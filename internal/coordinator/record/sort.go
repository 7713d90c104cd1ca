package record

import "slices"

// Sort sorts large values. It sorts pointers to them: a sort of values is machine code of its own
// for each type, some 20 KB, and swaps all of them.
func Sort[T any](all []T, compare func(a, b *T) int) {
	order := make([]*T, len(all))
	for i := range all {
		order[i] = &all[i]
	}
	slices.SortFunc(order, compare)
	sorted := make([]T, 0, len(all))
	for _, v := range order {
		sorted = append(sorted, *v)
	}
	copy(all, sorted)
}
