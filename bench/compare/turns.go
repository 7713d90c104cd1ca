package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// side is one of several that do the same work in turns.
type side struct {
	name string

	// round does a fixed share of the work, and returns what one operation of it cost.
	round func(ctx context.Context) (float64, error)
}

// turns has the sides do their work in turns, each round in another order, so that a machine that gets
// slower meanwhile is slower for all of them. It returns what each round of each side cost.
func turns(ctx context.Context, rounds int, sides ...side) ([][]float64, error) {
	cost := make([][]float64, len(sides))
	for _, s := range sides { // once for what is made once
		if _, err := s.round(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return cost, inTurns(ctx, rounds, sides, func(i int, c float64) { cost[i] = append(cost[i], c) })
}

func inTurns(ctx context.Context, rounds int, sides []side, took func(i int, cost float64)) error {
	for turn := range rounds {
		for i := range sides {
			i = (i + turn) % len(sides)
			if err := ctx.Err(); err != nil {
				return err
			}
			c, err := sides[i].round(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", sides[i].name, err)
			}
			took(i, c)
		}
	}
	return nil
}

// inProcess is a side whose work is done in this process: its cost is CPU time, in microseconds for each of
// n operations.
func inProcess(name string, n int, do func() error) side {
	return side{name, func(context.Context) (float64, error) {
		runtime.GC() // none pays for what another one left
		before, err := part.CPUOf(os.Getpid())
		if err != nil {
			return 0, err
		}
		for range n {
			if err := do(); err != nil {
				return 0, err
			}
		}
		after, err := part.CPUOf(os.Getpid())
		return micros(after-before) / float64(n), err
	}}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// quantile returns the q-th part of sorted values: 0.5 is the median.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

func median(of []float64) float64 { return quantile(slices.Sorted(slices.Values(of)), 0.5) }
