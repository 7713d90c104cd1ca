package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/node/client"
)

// processes are those of one member: the one that was granted last, and those of before, which go on.
type processes struct {
	live   fence.Life   // zero: nobody knows which is the newest
	former []fence.Life // another one was granted, and that was acknowledged
}

// begins has another process of the member ask coordinator x for a grant. Nobody else does
// meanwhile.
func (m *model) begins(x *coord, name string) {
	m.mu.Lock()
	j := m.members[name].Node
	m.mu.Unlock()
	life := fence.Life{Incarnation: fence.NewIncarnation()}
	err := x.callAs(j, fence.Life{}, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		got, err := fealtyv1.NewGrantServiceClient(conn).Grant(ctx, &fealtyv1.GrantRequest{Name: name,
			Incarnation: life.Incarnation.String()})
		life.Epoch, life.Grant = fence.NewEpoch(got.GetNumber(), 1), got.GetGrant()
		return err
	})
	x.f.say("another process of %s asks %d for a grant: %v, %s", name, x.n, short(err), life.Epoch)
	m.mu.Lock()
	defer m.mu.Unlock()
	of := &m.members[name].processes
	switch {
	case err == nil:
	case refused(err):
		return
	default: // it may have been granted: the one of before goes on, and may be served or not
		of.live = fence.Life{}
		return
	}
	x.f.saw.add("grants")
	if !of.live.Incarnation.IsZero() {
		of.former = append(of.former, of.live)
	}
	of.live = life
}

// calls has the process in charge of the member ask coordinator x what it owns.
func (m *model) calls(x *coord, name string) {
	m.mu.Lock()
	j, life := m.members[name].Node, m.members[name].processes.live
	m.mu.Unlock()
	if life.Incarnation.IsZero() {
		return
	}
	err := x.callAs(j, life, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := fealtyv1.NewDomainServiceClient(conn).PollAssignments(ctx, &fealtyv1.PollAssignmentsRequest{Name: name})
		return err
	})
	x.f.say("process %s of %s calls %d: %v", life.Epoch, name, x.n, short(err))
	switch {
	case err == nil:
		x.f.saw.add("processes that were served")
	case errors.Is(err, fence.ErrRefused):
		x.f.violated("process %s of %s, the newest of it, is fenced by coordinator %d: %v", life.Epoch, name, x.n, short(err))
	}
}

// haunts has a process of the member whose place another one took call coordinator x, as one in charge does.
func (m *model) haunts(x *coord, name string, life fence.Life, lets bool) {
	m.mu.Lock()
	j := m.members[name].Node
	m.mu.Unlock()
	err := x.callAs(j, life, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		if lets {
			_, err := fealtyv1.NewDomainServiceClient(conn).ReleaseDomain(ctx, &fealtyv1.ReleaseDomainRequest{Name: name,
				Domain: "eu", Ownership: 1})
			return err
		}
		_, err := fealtyv1.NewDomainServiceClient(conn).PollAssignments(ctx, &fealtyv1.PollAssignmentsRequest{Name: name})
		return err
	})
	x.f.say("zombie %s of %s calls %d, letting go %v: %v", life.Epoch, name, x.n, lets, short(err))
	switch {
	case err == nil:
		x.f.violated("I7: coordinator %d serves process %s of %s, and was heard to have granted another one", x.n, life.Epoch,
			name)
	case errors.Is(err, fence.ErrRefused):
		x.f.saw.add("zombies that were fenced")
	}
}

// callAs does something as a process of a member, over a connection to coordinator x.
func (x *coord) callAs(n *coordinatortest.Node, life fence.Life,
	do func(ctx context.Context, conn grpc.ClientConnInterface) error) error {
	if x.c == nil {
		return errDown
	}
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	conn, err := n.Dial(x.Fleet)
	if err != nil {
		return &loginError{err}
	}
	defer conn.Close()
	if life.Incarnation.IsZero() {
		return do(ctx, conn)
	}
	sender, err := fence.NewSender(life)
	if err != nil {
		return &loginError{fmt.Errorf("begin a life: %w", err)}
	}
	fenced := client.NewFenced(conn)
	fenced.Begin(sender)
	return do(ctx, fenced)
}

// processOps are operations of processes of members at once.
func (s *schedule) processOps() (out []func()) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.m.members)) {
		one, x := s.m.members[name], s.any()
		if one.banned != no || s.rng.IntN(4) == 0 {
			continue
		}
		for _, life := range one.processes.former {
			for _, y := range s.coord {
				lets := s.rng.IntN(2) == 0
				out = append(out, func() { s.m.haunts(y, name, life, lets) })
			}
		}
		if one.processes.live.Incarnation.IsZero() || s.rng.IntN(2) == 0 {
			out = append(out, func() { s.m.begins(x, name) })
		} else {
			out = append(out, func() { s.m.calls(x, name) })
		}
	}
	return out
}
