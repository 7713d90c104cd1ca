package balancer

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

// DrainAfter is how long a ready connection that is not needed any more goes on to take calls.
//
// A call picks its connection first and begins on it then. With gRPC v1.85, one that finds in
// between that the client drains the connection is not sent elsewhere: it waits until the calls of
// before have ended (http2Client.NewStream waits for a quota that nobody gives).
const DrainAfter = 5 * time.Second

// draining is a client whose balancer shuts ready connections down late.
type draining struct{ balancer.ClientConn }

func (c draining) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	s := new(drained)
	listen := opts.StateListener
	opts.StateListener = func(state balancer.SubConnState) {
		s.ready.Store(state.ConnectivityState == connectivity.Ready)
		listen(state)
	}
	sc, err := c.ClientConn.NewSubConn(addrs, opts) //nolint:staticcheck // deprecated for several addresses; pick_first gives one
	if err != nil {
		return nil, err
	}
	s.SubConn = sc
	return s, nil
}

func (c draining) UpdateState(s balancer.State) {
	s.Picker = plainPicker{s.Picker}
	c.ClientConn.UpdateState(s)
}

// drained is a connection that is shut down late.
type drained struct {
	balancer.SubConn
	ready atomic.Bool
}

// Shutdown has gRPC drain the connection, at once unless calls may be about to begin on it. A
// client that is closed does not wait for that.
func (s *drained) Shutdown() {
	if s.ready.Load() {
		time.AfterFunc(DrainAfter, s.SubConn.Shutdown)
		return
	}
	s.SubConn.Shutdown()
}

// plainPicker picks connections as gRPC knows them.
type plainPicker struct{ balancer.Picker }

func (p plainPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	result, err := p.Picker.Pick(info)
	if s, ok := result.SubConn.(*drained); ok {
		result.SubConn = s.SubConn
	}
	return result, err
}
