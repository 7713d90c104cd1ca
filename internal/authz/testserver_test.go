package authz

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// harness is a gRPC server with every service of the API behind an Authorizer.
// Its handlers take whatever comes and count it; who calls is what peer says.
type harness struct {
	t     *testing.T
	authz *Authorizer
	conn  *grpc.ClientConn
	reg   *prometheus.Registry

	mu       sync.Mutex
	peer     identity.Peer
	cluster  string
	now      time.Time
	log      strings.Builder
	handled  int                                              // handlers that ran; guarded by mu
	received int                                              // messages that reached one; guarded by mu
	stream   func(srv grpc.ServerStream, in func() any) error // instead of the counting handler; guarded by mu
}

func (h *harness) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(p)
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	services, err := Services(APIServices()...)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, reg: prometheus.NewRegistry(), cluster: cluster, now: time.Unix(1800000000, 0)}
	locked := func(f func()) { h.mu.Lock(); defer h.mu.Unlock(); f() }
	h.authz, err = New(table, Options{
		ClusterID:  func() (id string) { locked(func() { id = h.cluster }); return id },
		Logger:     slog.New(slog.NewJSONHandler(h, nil)),
		Registerer: h.reg,
		Now: func() (now time.Time) {
			// Each look at the clock finds it a second later: no line is held back.
			locked(func() { h.now = h.now.Add(time.Second); now = h.now })
			return now
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.authz.uid = ownUID
	withPeer := func(ctx context.Context) context.Context {
		h.mu.Lock()
		defer h.mu.Unlock()
		return identity.NewContext(ctx, h.peer)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(withPeer(ctx), req)
		}, h.authz.Unary()),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, peerStream{s, withPeer(s.Context())})
		}, h.authz.Stream()),
		grpc.UnknownServiceHandler(h.authz.UnknownService),
	)
	for _, s := range services {
		h.register(server, s)
	}
	if err := table.CheckServer(server); err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	h.conn, err = grpc.NewClient("passthrough:bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.conn.Close()
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
	})
	return h
}

// peerStream is a stream whose context carries a peer, as the mesh makes it.
type peerStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s peerStream) Context() context.Context { return s.ctx }

// message returns a new message of the generated type.
func message(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

// register serves every method of s with a handler that counts.
func (h *harness) register(server *grpc.Server, s protoreflect.ServiceDescriptor) {
	desc := &grpc.ServiceDesc{ServiceName: string(s.FullName())}
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		full := "/" + desc.ServiceName + "/" + string(m.Name())
		if m.IsStreamingClient() || m.IsStreamingServer() {
			desc.Streams = append(desc.Streams, grpc.StreamDesc{
				StreamName: string(m.Name()), ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer(),
				Handler: func(_ any, stream grpc.ServerStream) error { return h.handleStream(m, stream) },
			})
			continue
		}
		desc.Methods = append(desc.Methods, grpc.MethodDesc{
			MethodName: string(m.Name()),
			Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
				in := message(h.t, m.Input())
				if err := decode(in); err != nil {
					return nil, err
				}
				return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(context.Context, any) (any, error) {
					h.mu.Lock()
					defer h.mu.Unlock()
					h.handled++
					h.received++
					return message(h.t, m.Output()), nil
				})
			},
		})
	}
	server.RegisterService(desc, nil)
}

// handleStream answers each message with one, until the caller has no more.
func (h *harness) handleStream(m protoreflect.MethodDescriptor, stream grpc.ServerStream) error {
	h.mu.Lock()
	h.handled++
	instead := h.stream
	h.mu.Unlock()
	if instead != nil {
		return instead(stream, func() any { return message(h.t, m.Input()) })
	}
	for {
		if err := stream.RecvMsg(message(h.t, m.Input())); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		h.mu.Lock()
		h.received++
		h.mu.Unlock()
		if err := stream.SendMsg(message(h.t, m.Output())); err != nil {
			return err
		}
	}
}

// outcome is what a call did.
type outcome struct {
	err      error
	received int // messages that reached the handler
	logged   string
}

// call calls method m as peer with one message.
func (h *harness) call(m protoreflect.MethodDescriptor, peer identity.Peer, request proto.Message) outcome {
	h.t.Helper()
	h.mu.Lock()
	h.peer, h.received = peer, 0
	h.log.Reset()
	h.mu.Unlock()
	full := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	var err error
	if m.IsStreamingClient() || m.IsStreamingServer() {
		var s grpc.ClientStream
		s, err = h.open(h.t.Context(), m)
		if err == nil {
			err = s.SendMsg(request)
		}
		if err == nil {
			s.CloseSend()
		}
		if err == nil || err == io.EOF {
			for err = nil; err == nil; {
				err = s.RecvMsg(message(h.t, m.Output()))
			}
		}
		if err == io.EOF {
			err = nil
		}
	} else {
		err = h.conn.Invoke(h.t.Context(), full, request, message(h.t, m.Output()))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return outcome{err, h.received, h.log.String()}
}

func (h *harness) open(ctx context.Context, m protoreflect.MethodDescriptor) (grpc.ClientStream, error) {
	return h.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()},
		"/"+string(m.Parent().FullName())+"/"+string(m.Name()))
}

// denied is the value of the counter for a method and a reason.
func (h *harness) denied(method string, reason Reason) float64 {
	h.t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "fealty_authz_denied_total" {
			continue
		}
		for _, metric := range f.GetMetric() {
			labels := make(map[string]string)
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["method"] == method && labels["reason"] == string(reason) {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}
