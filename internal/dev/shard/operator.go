package shard

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/operator"
)

// Session is the tenant's operator at a shard.
type Session struct {
	fleet  *Fleet
	at     *process.Program
	states *operator.Operator
	end    context.CancelFunc
	over   chan error // holds what it ended with
}

// Session opens one with a shard, in the place of one before. It ends with the fleet.
func (f *Fleet) Session(ctx context.Context, p *process.Program) (*Session, error) {
	for _, before := range f.sessions {
		if before.at == p {
			before.close()
		}
	}
	f.operator.Look()
	f.runs++
	connected := make(chan struct{})
	once := sync.OnceFunc(func() { close(connected) })
	states, err := operator.Open(operator.Config{Target: "passthrough:///" + p.At, Source: f.operator.Source(), RunNumber: f.runs,
		Log: f.cfg.Log, Connected: func(context.Context, operator.Shard) { once() }})
	if err != nil {
		return nil, err
	}
	s := &Session{fleet: f, at: p, states: states, over: make(chan error, 1)}
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	go func() { s.over <- states.Run(run) }()
	f.sessions = append(f.sessions, s)
	return s, f.cfg.Await(ctx, "a session at "+p.Name, func(context.Context) (bool, error) {
		select {
		case <-connected:
			return true, nil
		case err := <-s.over:
			s.over <- err
			return false, err
		default:
			return false, nil
		}
	})
}

// close ends the session. It may be called again.
func (s *Session) close() {
	s.end()
	s.over <- <-s.over
	s.states.Close()
}

// State says what the tenant wants, and returns what the shard makes of it: nil, or an error of package operator.
func (s *Session) State(ctx context.Context, rows ...operator.Row) (answer error) {
	err := s.fleet.cfg.Await(ctx, "the shard to answer a roll-up", func(ctx context.Context) (bool, error) {
		answer = s.states.Set(ctx, rows)
		return ctx.Err() == nil, answer
	})
	return cmp.Or(answer, err)
}

// Rows are priorities with so many machines each.
func Rows(priorities, each int) (out []operator.Row) {
	for p := range priorities {
		out = append(out, operator.Row{Profile: profile, Priority: int32(p + 1), Count: each})
	}
	return out
}

// Wants has the tenant want so many machines.
func (s *Session) Wants(ctx context.Context, machines int) error {
	if err := s.State(ctx, Rows(1, machines)...); err != nil {
		return fmt.Errorf("state a demand of %d machines: %w", machines, err)
	}
	return nil
}
