package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// variant is a build of this program, or a setting of its process, that has a coordinator as another one has.
type variant struct {
	name string
	env  []string
	path string // "": this program
}

// parseVariant reads NAME=[ENV=VALUE,…]PATH.
func parseVariant(text string) (variant, error) {
	name, rest, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return variant{}, fmt.Errorf("%q is no variant: want NAME=PATH, or NAME=VARIABLE=VALUE,PATH", text)
	}
	parts := strings.Split(rest, ",")
	return variant{name, parts[:len(parts)-1], parts[len(parts)-1]}, nil
}

// builds compares a coordinator of this program with variants: what a join costs it, a stream, and a change that
// all streams are told of, and what memory it holds in the end.
func builds(ctx context.Context, o options, variants []variant) (rows []row, err error) {
	variants = append([]variant{{name: "this"}}, variants...)
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var all []*system
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.Stop())
		}
	}()
	batch := max(1, o.streams/o.rounds)
	var joining, opening, telling []side
	for _, v := range variants {
		p, err := part.Start(ctx, v.path, v.env, "serve-fealty")
		if err != nil {
			return nil, err
		}
		s := &system{name: v.name, server: p}
		all = append(all, s)
		at, err := p.Tell(part.Order{Do: "start"})
		if err != nil {
			return nil, err
		}
		if s.agents, err = part.Start(ctx, "", nil, "agents-fealty"); err != nil {
			return nil, err
		}
		joining = append(joining, s.costs(batch, func() error {
			_, err := s.agents.Tell(part.Order{Do: "prepare", Target: at.Target, N: batch})
			return err
		}))
		opening = append(opening, s.costs(batch, func() error {
			_, err := s.agents.Tell(part.Order{Do: "open", N: batch})
			return err
		}))
		few := o.scaled(3)
		telling = append(telling, s.costs(few*batch*o.rounds, func() error {
			for range few {
				if _, err := s.agents.Tell(part.Order{Do: "expect"}); err != nil {
					return err
				}
				if _, err := p.Tell(part.Order{Do: "change", N: part.Records}); err != nil {
					return err
				}
				if _, err := s.agents.Tell(part.Order{Do: "wait"}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	if o.profile != "" {
		if _, err := all[0].server.Tell(part.Order{Do: "profile", Target: o.profile}); err != nil {
			return nil, err
		}
	}
	for _, load := range []struct {
		what  string
		sides []side
	}{{"a join", joining}, {"open a stream", opening}, {"tell a stream of 36 changed records", telling}} {
		cost := make([][]float64, len(all))
		if err := inTurns(ctx, o.rounds, load.sides, func(i int, c float64) { cost[i] = append(cost[i], c) }); err != nil {
			return nil, fmt.Errorf("%s: %w", load.what, err)
		}
		rows = append(rows, against(load.what, "µs CPU of the coordinator", load.sides, cost)...)
	}
	if o.profile != "" {
		if _, err := all[0].server.Tell(part.Order{Do: "profiled"}); err != nil {
			return nil, err
		}
	}
	held := make([][]float64, len(all))
	for i, s := range all {
		bytes, err := s.server.Memory()
		if err != nil {
			return nil, err
		}
		held[i] = []float64{bytes / (1 << 20)}
	}
	return append(rows, against("memory in the end", "MiB", opening, held)...), nil
}
