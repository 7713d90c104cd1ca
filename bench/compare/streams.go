package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// server is a process that is measured.
type server interface {
	CPU() (time.Duration, error)
	Memory() (float64, error)
	Tell(part.Order) (part.Answer, error)
	Stop() error
}

// system is one that tells many streams of changes: a server and the agents' end, in a process each.
type system struct {
	name   string
	server server
	agents *part.Process
	change func(ctx context.Context, n int) error // changes so many records
}

// streams compares servers that hold streams of agents, each on a connection with TLS and a certificate of its own: what it
// costs to open one, what an idle one holds, and what it costs to tell it of a change. The agents are light: they
// receive, and neither verify nor keep. What counts is the CPU time and the memory of the server.
func streams(ctx context.Context, o options) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := part.WritePKI(dir); err != nil {
		return nil, err
	}
	var all []*system
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.Stop())
		}
	}()
	for _, named := range systems() {
		s, err := startSystem(ctx, named[0], named[1], dir, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", named[0], err)
		}
		all = append(all, s)
	}
	// Opening goes in as many turns as there are rounds.
	batch := max(1, o.streams/o.rounds)
	var opening, telling, one []side
	before, after := make([]float64, len(all)), make([]float64, len(all))
	for i, s := range all {
		if _, err := s.server.Tell(part.Order{Do: "collect"}); err != nil {
			return nil, err
		}
		if before[i], err = s.server.Memory(); err != nil {
			return nil, err
		}
		opening = append(opening, s.costs(batch, func() error {
			_, err := s.agents.Tell(part.Order{Do: "open", N: batch})
			return err
		}))
		few := o.scaled(3)
		tell := func(n int) side {
			return s.costs(few*batch*o.rounds, func() error {
				for range few {
					if _, err := s.agents.Tell(part.Order{Do: "expect"}); err != nil {
						return err
					}
					if err := s.change(ctx, n); err != nil {
						return err
					}
					if _, err := s.agents.Tell(part.Order{Do: "wait"}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		telling, one = append(telling, tell(part.Records)), append(one, tell(1))
	}
	opened := make([][]float64, len(all))
	if err := inTurns(ctx, o.rounds, opening, func(i int, c float64) { opened[i] = append(opened[i], c) }); err != nil {
		return nil, err
	}
	rows = against("open a stream", "µs CPU of the server", opening, opened)
	held := make([][]float64, len(all))
	for i, s := range all {
		if _, err := s.server.Tell(part.Order{Do: "collect"}); err != nil {
			return nil, err
		}
		if after[i], err = s.server.Memory(); err != nil {
			return nil, err
		}
		held[i] = []float64{(after[i] - before[i]) / 1024 / float64(batch*o.rounds)}
	}
	rows = append(rows, against("hold an idle stream", "KiB of the server", opening, held)...)
	for _, told := range []struct {
		what  string
		sides []side
	}{{fmt.Sprintf("tell a stream of %d changed records", part.Records), telling}, {"tell a stream of one changed record", one}} {
		cost, err := turns(ctx, o.rounds, told.sides...)
		if err != nil {
			return nil, err
		}
		rows = append(rows, against(told.what, "µs CPU of the server", told.sides, cost)...)
	}
	return rows, nil
}

// costs is a side whose cost is the CPU time of the server, in microseconds for each of n.
func (s *system) costs(n int, do func() error) side {
	return side{s.name, func(context.Context) (float64, error) {
		before, err := s.server.CPU()
		if err != nil {
			return 0, err
		}
		if err := do(); err != nil {
			return 0, err
		}
		after, err := s.server.CPU()
		return micros(after-before) / float64(n), err
	}}
}

// systems are those that are compared: the names that the table has, and those of their parts.
func systems() [][2]string {
	return [][2]string{{"Fealty", "fealty"}, {"grpc-go", "bare"}, {"xDS (delta)", "xds"}, {"etcd watch", "etcd"}}
}

// startSystem starts a server with its records, and agents that are ready to open n streams.
func startSystem(ctx context.Context, name, kind, dir string, o options) (_ *system, err error) {
	s := &system{name: name}
	// The messages of xDS are in a program of their own: Fealty has some of them too, and a program may know them once.
	programs := map[string]string{"xds": o.xds}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	var target string
	if kind == "etcd" {
		etcd, at, err := startEtcd(ctx, o.etcd, dir)
		if err != nil {
			return nil, err
		}
		s.server, target = etcd, at
		s.change = func(ctx context.Context, n int) error { return etcd.change(ctx, n) }
	} else {
		p, err := part.Start(ctx, programs[kind], nil, "serve-"+kind)
		if err != nil {
			return nil, err
		}
		s.server = p
		s.change = func(_ context.Context, n int) error {
			_, err := p.Tell(part.Order{Do: "change", N: n})
			return err
		}
		at, err := p.Tell(part.Order{Do: "start", Dir: dir})
		if err != nil {
			return nil, err
		}
		target = at.Target
	}
	if s.agents, err = part.Start(ctx, programs[kind], nil, "agents-"+kind); err != nil {
		return nil, err
	}
	_, err = s.agents.Tell(part.Order{Do: "prepare", Dir: dir, Target: target, N: o.streams})
	return s, err
}

// stop ends the processes, the agents first.
func (s *system) Stop() error {
	var errs []error
	if s.agents != nil {
		errs = append(errs, s.agents.Stop())
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop())
	}
	return errors.Join(errs...)
}
