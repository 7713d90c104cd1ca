package shard

import "github.com/fealty-io/fealty/internal/shard/scheduler"

// Ruled counts the rulings of a verdict.
func (r Report) Ruled(v scheduler.Verdict) (n int) {
	for i := range r.Rulings {
		if r.Rulings[i].Verdict == v {
			n++
		}
	}
	return n
}
