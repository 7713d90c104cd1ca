package shard

import (
	"context"
	"fmt"
	"sync"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/dev/process"
	"github.com/fealty-io/fealty/mesh"
)

// Session is one of the tenant's operator at a shard.
type Session struct {
	fleet   *Fleet
	conn    *mesh.Conn
	stream  fealtyv1.ShardService_SessionClient
	answers chan *fealtyv1.RollUpAnswer
	over    context.CancelFunc
	reading sync.WaitGroup
	number  uint64
}

// Session opens one with a shard, in the place of one before. It ends with the fleet.
func (f *Fleet) Session(ctx context.Context, p *process.Program) (*Session, error) {
	f.operator.Look()
	conn, err := mesh.Dial("passthrough:///"+p.At, f.operator.Source(), credential.AnyOfKind(identity.Shard),
		mesh.Options{})
	if err != nil {
		return nil, err
	}
	f.runs++
	s := &Session{fleet: f, conn: conn, answers: make(chan *fealtyv1.RollUpAnswer, 1)}
	err = f.cfg.Await(ctx, "a session at "+p.Name, func(context.Context) (bool, error) {
		err := s.hello(context.WithoutCancel(ctx), f.runs)
		return err == nil, err
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.reading.Go(s.read)
	f.sessions = append(f.sessions, s)
	return s, nil
}

// hello begins the stream.
func (s *Session) hello(ctx context.Context, run uint64) (err error) {
	ctx, s.over = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			s.over()
		}
	}()
	if s.stream, err = fealtyv1.NewShardServiceClient(s.conn).Session(ctx); err != nil {
		return err
	}
	if err = s.stream.Send(&fealtyv1.SessionRequest{Tenant: tenant, Message: &fealtyv1.SessionRequest_Hello{
		Hello: &fealtyv1.SessionHello{Run: run}}}); err != nil {
		return err
	}
	_, err = s.stream.Recv()
	return err
}

// read takes what the shard says, until the stream ends.
func (s *Session) read() {
	defer close(s.answers)
	for {
		got, err := s.stream.Recv()
		if err != nil {
			return
		}
		if a := got.GetRollUp(); a != nil {
			select {
			case s.answers <- a:
			case <-s.stream.Context().Done():
				return
			}
		}
	}
}

// close ends the session.
func (s *Session) close() {
	s.over()
	s.reading.Wait()
	s.conn.Close()
}

// Report says what the tenant wants, again while the shard does not know yet what that has, and
// returns what the shard makes of it.
func (s *Session) Report(ctx context.Context, rows ...*fealtyv1.DemandRow) (fealtyv1.RollUpOutcome, error) {
	var outcome fealtyv1.RollUpOutcome
	err := s.fleet.cfg.Await(ctx, "the shard to answer a roll-up", func(ctx context.Context) (bool, error) {
		s.number++
		err := s.stream.Send(&fealtyv1.SessionRequest{Tenant: tenant, Message: &fealtyv1.SessionRequest_RollUp{
			RollUp: &fealtyv1.DemandRollUp{Number: s.number, Rows: rows}}})
		if err != nil {
			return false, err
		}
		select {
		case a, ok := <-s.answers:
			if !ok {
				return false, fmt.Errorf("the session ended")
			}
			outcome = a.GetOutcome()
			return outcome != fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_UNREADY, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	})
	return outcome, err
}

// Wants has the tenant want so many machines.
func (s *Session) Wants(ctx context.Context, machines int) error {
	outcome, err := s.Report(ctx, Rows(1, machines)...)
	if err == nil && outcome != fealtyv1.RollUpOutcome_ROLL_UP_OUTCOME_TAKEN {
		err = fmt.Errorf("a roll-up of %d machines was answered with %v", machines, outcome)
	}
	return err
}

// Rows are priorities with so many machines each.
func Rows(priorities, each int) (out []*fealtyv1.DemandRow) {
	for p := range priorities {
		out = append(out, &fealtyv1.DemandRow{Profile: profile, Priority: int32(p + 1), Count: uint32(each)})
	}
	return out
}
