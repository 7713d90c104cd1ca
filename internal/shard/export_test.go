package shard

import (
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// Executed counts the results of an outcome.
func (r Report) Executed(o execute.Outcome) (n int) {
	for i := range r.Results {
		if r.Results[i].Outcome == o {
			n++
		}
	}
	return n
}

// Ruled counts the rulings of a verdict.
func (r Report) Ruled(v scheduler.Verdict) (n int) {
	for i := range r.Rulings {
		if r.Rulings[i].Verdict == v {
			n++
		}
	}
	return n
}
