package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

// bareServer is a server of grpc-go that sends each stream so many bytes when they change, and does nothing else: it
// signs nothing, stores nothing, and asks nobody who may see what. It has the buffers and keepalives of a coordinator.
type bareServer struct {
	server  *grpc.Server
	running sync.WaitGroup

	mu      sync.Mutex
	value   *wrapperspb.BytesValue // guarded by mu
	changed chan struct{}          // closed with the next value; guarded by mu
	version byte
}

const (
	bareService = "compare.Bare"
	bareMethod  = "/" + bareService + "/Subscribe"
	bareRecord  = 120 // bytes of a record, as a coordinator's have them
)

func (s *bareServer) Do(_ context.Context, o part.Order) (part.Answer, error) {
	switch o.Do {
	case "start":
		i, err := part.LoadIssuer(o.Dir)
		if err != nil {
			return part.Answer{}, err
		}
		config, err := i.ServerTLS(o.Dir)
		if err != nil {
			return part.Answer{}, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return part.Answer{}, err
		}
		s.change(part.Records)
		s.server = grpc.NewServer(part.AsCoordinators(config)...)
		s.server.RegisterService(&grpc.ServiceDesc{ServiceName: bareService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: "Subscribe", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error { return s.subscribe(stream) }}}}, s)
		s.running.Go(func() { _ = s.server.Serve(l) })
		return part.Answer{Target: l.Addr().String()}, nil
	case "change":
		s.change(o.N)
		return part.Answer{}, nil
	}
	return part.Answer{}, fmt.Errorf("a bare server cannot %q", o.Do)
}

func (s *bareServer) change(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.value = wrapperspb.Bytes(bytes.Repeat([]byte{s.version}, n*bareRecord))
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

func (s *bareServer) subscribe(stream grpc.ServerStream) error {
	if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		value, changed := s.value, s.changed
		s.mu.Unlock()
		if err := stream.SendMsg(value); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (s *bareServer) Close() error {
	if s.server != nil {
		s.server.Stop()
	}
	s.running.Wait()
	return nil
}

type bareAgents struct{ part.Certified }

func (a *bareAgents) Open(ctx context.Context, i int) (func() error, func(), error) {
	conn, err := a.Dial(i)
	if err != nil {
		return nil, nil, err
	}
	end := func() { conn.Close() }
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, bareMethod)
	if err == nil {
		err = stream.SendMsg(new(emptypb.Empty))
	}
	if err == nil {
		err = stream.CloseSend()
	}
	next := func() error { return stream.RecvMsg(new(wrapperspb.BytesValue)) }
	if err == nil {
		err = next()
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return next, end, nil
}
