package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// stopGrace is how long calls under way may take to end when the coordinator stops.
const stopGrace = 2 * time.Second

// serve starts the listeners in g: TLS for the fleet, a unix socket for this
// machine's operator, and plain HTTP for metrics and probes.
func (c *Coordinator) serve(ctx context.Context, g *errgroup.Group) error {
	gate, err := c.authorizer()
	if err != nil {
		return fmt.Errorf("refusing to serve: %w", err)
	}
	local := c.cfg.Local
	if local == nil {
		if local, err = listenUnix(c.AdminSocket(), c.cfg.Machine.Locks, c.log); err != nil {
			return err
		}
	}
	members, strangers, err := c.grpcServers(gate)
	if err != nil {
		local.Close()
		return fmt.Errorf("refusing to serve: %w", err)
	}
	entrance, err := c.guard.NewGate(c.cfg.Listener, c.cfg.Gate)
	if err != nil {
		local.Close()
		return err
	}
	for _, s := range []struct {
		server *grpc.Server
		l      net.Listener
	}{{members, entrance.Members()}, {members, local}, {strangers, entrance.Strangers()}} {
		g.Go(func() error {
			if err := s.server.Serve(s.l); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve on %s: %w", s.l.Addr(), err)
			}
			return nil
		})
	}
	g.Go(func() error {
		if err := entrance.Run(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("accept on %s: %w", c.cfg.Listener.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		close(c.stopping) // agents' streams end: the agents have others to go to
		var both sync.WaitGroup
		both.Go(func() { stop(strangers) })
		stop(members)
		both.Wait()
		return nil
	})
	if c.cfg.Monitoring.Listener != nil {
		h := &http.Server{
			Handler:           c.metricsHandler(c.registry),
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
		}
		g.Go(func() error {
			if err := h.Serve(c.cfg.Monitoring.Listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve metrics on %s: %w", c.cfg.Monitoring.Listener.Addr(), err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			return h.Close()
		})
	}
	if c.cfg.Publishing.Web != nil {
		g.Go(func() error { return c.parts.Shown.Web.Serve(ctx) })
	}
	c.serving.Store(true)
	g.Go(func() error {
		<-ctx.Done()
		c.serving.Store(false)
		return nil
	})
	c.log.LogAttrs(ctx, slog.LevelInfo, "coordinator serves", slog.String("addr", c.Addr()),
		slog.String("socket", c.AdminSocket()),
		slog.String("phase", c.parts.Head.State().Phase.String()), slog.String("enrolment_key",
			c.parts.Self.EnrolmentKey()))
	return nil
}

// listenUnix listens for this machine's operator.
func listenUnix(path string, locks *durable.Locks, log *slog.Logger) (net.Listener, error) {
	l, err := localsocket.Listen(path, 0o600, locks, log)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.AddressUnusable, "address", path, "flag", "--admin-socket", "problem", err.Error())
	}
	return l, nil
}

// authorizer reads who may call what from the services' descriptors. A service
// with an RPC that does not say so is an error (I3).
func (c *Coordinator) authorizer() (*authz.Authorizer, error) {
	services, err := authz.Services(Services()...)
	if err != nil {
		return nil, err
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, err
	}
	return authz.New(table, authz.Options{Logger: c.log, Registerer: c.registry, ClusterID: func() string {
		if s := c.parts.Head.State(); s.Phase == authority.Ready {
			return s.Manifest.Cluster
		}
		return ""
	}})
}

// Services are the services of a coordinator, by their full names: what the
// authorization table is made of.
func Services() []string {
	return []string{
		fealtyv1.AdmissionService_ServiceDesc.ServiceName,
		fealtyv1.AgentService_ServiceDesc.ServiceName,
		fealtyv1.AuditService_ServiceDesc.ServiceName,
		fealtyv1.BackupService_ServiceDesc.ServiceName,
		fealtyv1.ConfigService_ServiceDesc.ServiceName,
		fealtyv1.CoordinatorService_ServiceDesc.ServiceName,
		fealtyv1.DomainService_ServiceDesc.ServiceName,
		fealtyv1.InstructionService_ServiceDesc.ServiceName,
		fealtyv1.JournalService_ServiceDesc.ServiceName,
		fealtyv1.GrantService_ServiceDesc.ServiceName,
		fealtyv1.IncidentService_ServiceDesc.ServiceName,
		fealtyv1.ShardReportService_ServiceDesc.ServiceName,
		fealtyv1.LeaderService_ServiceDesc.ServiceName,
		fealtyv1.LiveService_ServiceDesc.ServiceName,
		fealtyv1.ManifestService_ServiceDesc.ServiceName,
		fealtyv1.MemberService_ServiceDesc.ServiceName,
		fealtyv1.PeerService_ServiceDesc.ServiceName,
		fealtyv1.RecoveryService_ServiceDesc.ServiceName,
		fealtyv1.RegistryService_ServiceDesc.ServiceName,
		fealtyv1.ReseedService_ServiceDesc.ServiceName,
		fealtyv1.RestoreService_ServiceDesc.ServiceName,
		fealtyv1.SnapshotService_ServiceDesc.ServiceName,
		fealtyv1.StatusService_ServiceDesc.ServiceName,
		fealtyv1.TokenService_ServiceDesc.ServiceName,
		fealtyv1.TrustService_ServiceDesc.ServiceName,
		fealtyv1.VerifyService_ServiceDesc.ServiceName,
		fealtyv1.WorkloadService_ServiceDesc.ServiceName,
	}
}

// grpcServers returns the server of connections with an accepted certificate and of the
// local socket, and that of strangers. Both have all services, and refuse alike: what
// differs is how much a call may cost. It fails if one has a method that the table of
// gate has not (I3).
func (c *Coordinator) grpcServers(gate *authz.Authorizer) (members, strangers *grpc.Server, err error) {
	if members, err = c.grpcServer(gate, grpc.MaxRecvMsgSize(ratelimit.MaxMessageBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(memberWindow), grpc.StaticConnWindowSize(memberWindow)); err != nil {
		return nil, nil, err
	}
	strangers, err = c.grpcServer(gate, grpc.MaxRecvMsgSize(maxStrangerBytes),
		grpc.MaxConcurrentStreams(maxStrangerStreams),
		grpc.StaticStreamWindowSize(strangerWindow), grpc.StaticConnWindowSize(strangerWindow))
	return members, strangers, err
}

func (c *Coordinator) grpcServer(gate *authz.Authorizer, opts ...grpc.ServerOption) (*grpc.Server, error) {
	server := grpc.NewServer(append(opts,
		grpc.Creds(c.guard.Credentials()),
		// Unary methods are in no chain: admitFirst applies the same three.
		grpc.StreamInterceptor(c.streamInterceptor(gate)),
		grpc.UnknownServiceHandler(gate.UnknownService),
		grpc.MaxHeaderListSize(ratelimit.MaxHeaderBytes),
		grpc.WaitForHandlers(true),
		grpc.ForceServerCodecV2(delivery.NewCodec()),
		// Most connections are agents' that say little: none has a buffer of its own. gRPC takes a buffer from a
		// pool while something is written, so that what many are told is one TLS record and one system call for each.
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: askAfter, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true}),
		grpc.ConnectionTimeout(mesh.HandshakeTimeout),
	)...)
	services := admitFirst{ServiceRegistrar: server, c: c, gate: gate}
	c.registerServices(services)
	return server, gate.Table().CheckServer(server)
}

// registerServices registers all services, as a server has them behind its gate: by themselves they
// let everybody in.
func (c *Coordinator) registerServices(to grpc.ServiceRegistrar) {
	c.parts.Moves.Manifests.RegisterServices(to)
	c.parts.Election.RegisterServices(to)
	c.parts.Audit.RegisterServices(to)
	c.parts.Secrets.PeerRecovery.RegisterServices(to)
	c.parts.Secrets.OwnerRecovery.RegisterServices(to)
	c.parts.Peers.RegisterServices(to)
	c.parts.Membership.RegisterServices(to)
	c.parts.Trust.RegisterServices(to)
	c.parts.Desired.RegisterServices(to)
	c.parts.Admission.RegisterServices(to)
	c.parts.Delivery.RegisterServices(to)
	c.parts.Shown.Backups.RegisterServices(to)
	c.parts.Shown.Verification.RegisterServices(to)
	c.parts.Fencing.Grants.RegisterServices(to)
	c.parts.Workloads.RegisterServices(to)
	c.parts.Fencing.Domains.RegisterServices(to)
	c.parts.Fencing.Registry.RegisterServices(to)
	c.parts.Fencing.Instructions.RegisterServices(to)
	c.parts.Fencing.Journals.RegisterServices(to)
	c.parts.Fencing.Incidents.RegisterServices(to)
	c.parts.Fencing.Shards.RegisterServices(to)
	fealtyv1.RegisterStatusServiceServer(to, c.parts.Shown.Status)
}

// streamInterceptor words, guards and authorizes the calls of streaming methods.
func (c *Coordinator) streamInterceptor(gate *authz.Authorizer) grpc.StreamServerInterceptor {
	authorize := gate.Stream()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !info.IsClientStream && !info.IsServerStream {
			return handler(srv, stream) // of admitFirst
		}
		return c.wordStream(srv, stream, info, func(srv any, stream grpc.ServerStream) error {
			return c.guard.Stream(srv, stream, info, func(srv any, stream grpc.ServerStream) error {
				if info.IsClientStream {
					return c.unlessNotReady(stream.Context(), forCaller(stream.Context(), authorize(srv, stream, info, handler)))
				}
				ctx, leave, err := c.beforeRequest(stream.Context(), info.FullMethod)
				if err != nil {
					return err
				}
				stream = slotStream{oneRequest{stream, c}, ctx}
				return leave(c.unlessNotReady(ctx, forCaller(ctx, authorize(srv, stream, info, handler))))
			})
		})
	}
}

// oneRequest is a stream of answers to one request, which its caller is to send, and
// to end, in time.
type oneRequest struct {
	grpc.ServerStream
	c *Coordinator
}

func (r oneRequest) RecvMsg(m any) error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	return r.c.readers.Do(ctx, func() error { return r.ServerStream.RecvMsg(m) })
}

// admitFirst registers unary methods so that their caller is decided on before
// the request is read. gRPC itself reads a unary request before any interceptor
// runs, for as long as its caller likes, so strangers could park memory here.
// (A tap handle decides early too, but gRPC then keeps the timer of the refused
// call for as long as the caller's deadline says.)
type admitFirst struct {
	grpc.ServiceRegistrar
	c    *Coordinator
	gate *authz.Authorizer
}

func (a admitFirst) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods, d.Streams = nil, slices.Clone(desc.Streams)
	for _, m := range desc.Methods {
		info := &grpc.UnaryServerInfo{Server: impl, FullMethod: "/" + desc.ServiceName + "/" + m.MethodName}
		d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: m.MethodName,
			Handler: func(srv any, stream grpc.ServerStream) error {
				resp, err := a.call(stream, info, func(ctx context.Context, read func(any) error) (any, error) {
					return m.Handler(srv, ctx, read, a.gate.Unary())
				})
				if err != nil {
					return err
				}
				return stream.SendMsg(resp)
			}})
	}
	a.ServiceRegistrar.RegisterService(&d, impl)
}

// call runs one unary call: it is worded, guarded and authorized before handler
// reads the request.
func (a admitFirst) call(stream grpc.ServerStream, info *grpc.UnaryServerInfo,
	handler func(ctx context.Context, read func(any) error) (any, error)) (any, error) {
	return a.c.wordUnary(stream.Context(), nil, info, func(ctx context.Context, _ any) (any, error) {
		return a.c.guard.Unary(ctx, nil, info, func(ctx context.Context, _ any) (any, error) {
			if err := a.gate.Admits(ctx, info.FullMethod); err != nil {
				return nil, a.c.unlessNotReady(ctx, err)
			}
			resp, err := handler(authority.Granted(ctx), func(req any) error {
				reading, cancel := context.WithTimeout(ctx, requestTimeout)
				defer cancel()
				_, err := ratelimit.Receive(reading, a.c.readers,
					func() (any, error) { return nil, stream.RecvMsg(req) })
				return err
			})
			return resp, forCaller(ctx, err)
		})
	})
}

// forCaller returns err, what a call came to, as the caller may know it. A stranger learns why the store
// does not answer, and not its own words, which name users and addresses.
func forCaller(ctx context.Context, err error) error {
	if peer := identity.FromContext(ctx); errors.Is(err, errcode.StoreUnreachable) && !peer.Identified() && peer.Local == nil {
		return storeguard.ForStrangers(err)
	}
	return err
}

// unlessNotReady returns err, what a call by an identity came to, unless it was refused
// because this coordinator serves no cluster now: then nothing was found out about the
// caller, who may be served elsewhere, or here soon.
func (c *Coordinator) unlessNotReady(ctx context.Context, err error) error {
	if _, not := c.parts.Head.Ready(); not != nil && errors.Is(err,
		errcode.Denied) && identity.FromContext(ctx).Identified() {
		return not
	}
	return err
}

// stop lets unary calls end, and then ends what is left.
func stop(server *grpc.Server) {
	done := make(chan struct{})
	go func() { server.GracefulStop(); close(done) }()
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		server.Stop()
		<-done
	}
}

// wordUnary turns what a handler returns into what a caller may know, and keeps
// a handler that panics from taking every copy of the seed with it.
func (c *Coordinator) wordUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ratelimit.Panicked(ctx, c.log, info.FullMethod, p)
		}
		err = c.word(ctx, info.FullMethod, err)
	}()
	return handler(ctx, req)
}

func (c *Coordinator) wordStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = ratelimit.Panicked(stream.Context(), c.log, info.FullMethod, p)
		}
		err = c.word(stream.Context(), info.FullMethod, err)
	}()
	return handler(srv, stream)
}

// word passes on errors that are worded already, and hides the others: their
// text is for the log.
func (c *Coordinator) word(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	var worded interface{ GRPCStatus() *status.Status }
	if errors.As(err, &worded) {
		return err
	}
	// A peer that went away, was too slow, or hung up in the middle is no failure
	// of ours.
	switch ended := ctx.Err(); {
	case ended != nil:
		return status.FromContextError(ended).Err()
	case errors.Is(err, timeout.ErrOver):
		return storeguard.ForStrangers(c.parts.Head.StoreError("the call", err)) // the caller is not known here
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, io.EOF):
		return status.Error(codes.Canceled, "the caller ended the exchange before it was over")
	}
	c.failures.Log(ctx, c.log, slog.LevelError, "a call failed", slog.String("method", method), slog.Any("err", err))
	return errcode.New(errcode.Internal, "what", method)
}
