package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent/sharing"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/mesh"
)

// stopGrace is how long local calls under way may take to end.
const stopGrace = 2 * time.Second

// maxLocalMessage bounds a request on the local socket: an emergency statement is the
// largest.
const maxLocalMessage = snapshot.MaxSignedEmergency + 4<<10

// Services are the services of an agent's own socket, by their full names.
func Services() []string {
	return []string{fealtyv1.NodeService_ServiceDesc.ServiceName, host.LocalService}
}

// serve starts the local socket and the metrics listener in g.
func (a *Agent) serve(ctx context.Context, g *errgroup.Group) error {
	if a.listeners.metrics != nil { // first, so that it is closed whatever follows
		h := a.metricsServer()
		h.ErrorLog = slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)
		g.Go(func() error {
			if err := h.Serve(a.listeners.metrics); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve metrics on %s: %w", a.listeners.metrics.Addr(), err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			return h.Close()
		})
	}
	if a.socket == "" {
		return nil
	}
	server, err := a.grpcServer()
	if err != nil {
		return fmt.Errorf("refusing to serve: %w", err)
	}
	l := a.listeners.local
	if l == nil {
		if l, err = a.listenUnix(a.socket, "--data", 0o600); err != nil {
			return err
		}
	}
	g.Go(func() error {
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve on %s: %w", a.socket, err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		stop(server)
		return nil
	})
	return nil
}

// servePeers shares with other members in g.
func (a *Agent) servePeers(ctx context.Context, g *errgroup.Group) {
	if a.listeners.peers == nil {
		return
	}
	g.Go(func() error {
		err := sharing.Serve(ctx, a.listeners.peers, sharing.Config{
			Node: a.node, Log: a.log, Registerer: a.metrics.registry,
			Handshake: func(reason string) { a.metrics.handshakes.WithLabelValues(reason).Inc() },
			Answered:  func(outcome string) { a.metrics.shared.WithLabelValues(outcome).Inc() },
		})
		if ctx.Err() != nil {
			return nil
		}
		return err
	})
}

// stop lets calls end, and then ends what is left.
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

// authorizer reads who may call what from the services' descriptors.
func (a *Agent) authorizer() (*authz.Table, *authz.Authorizer, error) {
	services, err := authz.Services(Services()...)
	if err != nil {
		return nil, nil, err
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, nil, err
	}
	gate, err := authz.New(table, authz.Options{Logger: a.log, Registerer: a.metrics.registry,
		ClusterID: func() string { return a.node.Me().Cluster }})
	return table, gate, err
}

// grpcServer serves the local API to our own user and root, by the same table that
// the rest of the fleet is authorized by.
func (a *Agent) grpcServer() (*grpc.Server, error) {
	table, gate, err := a.authorizer()
	if err != nil {
		return nil, err
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: a.node.Source(), Local: localsocket.OwnUser, Now: a.node.Now})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(
		grpc.Creds(guard.Credentials()),
		grpc.ChainUnaryInterceptor(a.wordUnary, guard.Unary, gate.Unary()),
		grpc.ChainStreamInterceptor(guard.Stream, gate.Stream()),
		grpc.UnknownServiceHandler(gate.UnknownService),
		grpc.MaxRecvMsgSize(maxLocalMessage),
		grpc.MaxConcurrentStreams(16),
	)
	fealtyv1.RegisterNodeServiceServer(server, nodeServer{a: a})
	a.workloads.RegisterLocal(server)
	return server, table.CheckServer(server)
}

// wordUnary turns what a handler returns into an error with a code, and keeps one
// that panics from ending the agent.
func (a *Agent) wordUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.log.LogAttrs(ctx, slog.LevelError, "a handler panicked", slog.String("method", info.FullMethod),
				slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = errcode.New(errcode.Internal, "what", info.FullMethod)
		}
		var worded interface{ GRPCStatus() *status.Status }
		if err != nil && !errors.As(err, &worded) && ctx.Err() == nil {
			a.log.LogAttrs(ctx, slog.LevelError, "a call failed", slog.String("method", info.FullMethod),
				slog.Any("err", err))
			err = errcode.Wrap(err, errcode.Internal, "what", info.FullMethod)
		}
	}()
	return handler(ctx, req)
}

// listenUnix listens on a socket of the path that flag sets.
func (a *Agent) listenUnix(path, flag string, mode fs.FileMode) (net.Listener, error) {
	if err := localsocket.CheckPath(path); err != nil {
		return nil, errcode.Wrap(err, errcode.BadValue, "name", "the path of the local socket", "value", path,
			"problem", err.Error(), "want", "a shorter data directory")
	}
	l, err := localsocket.Listen(path, mode, a.locks, a.log)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.AddressUnusable, "address", path, "flag", flag, "problem", err.Error())
	}
	a.sockets.add(path, l.Lost)
	return l, nil
}

// sockets are the local sockets that an agent serves, as far as they are its own.
type sockets struct {
	mu  sync.Mutex
	all []servedSocket // guarded by mu
}

type servedSocket struct {
	path string
	lost func() error // why it does not lead to this process
}

func (s *sockets) add(path string, lost func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, servedSocket{path, lost})
}

// lost names the sockets by which nobody reaches this process, each with the reason.
func (s *sockets) lost() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if err := one.lost(); err != nil {
			out = append(out, fmt.Sprintf("%s does not lead to this agent: %v", one.path, err))
		}
	}
	return out
}

// nodeServer serves NodeService.
type nodeServer struct {
	fealtyv1.UnimplementedNodeServiceServer
	a *Agent
}

// GetNode tells what the node is and holds. It asks no coordinator.
func (n nodeServer) GetNode(ctx context.Context, _ *fealtyv1.GetNodeRequest) (*fealtyv1.GetNodeResponse, error) {
	a := n.a
	s, v := a.node.SVID(), a.node.Status().View()
	resp := &fealtyv1.GetNodeResponse{
		SpiffeId:      a.node.Me().ID.String(),
		Joined:        fealtyv1.JoinOutcome(fealtyv1.JoinOutcome_value[a.node.Self().Outcome]),
		SvidNotBefore: timestamppb.New(s.Leaf().NotBefore), SvidNotAfter: timestamppb.New(s.Leaf().NotAfter),
		KeyId:     s.Key.ID.String(),
		Connected: v.Connected, Coordinator: v.Coordinator, LastError: v.LastError(),
		Held: a.held(), Refusals: refusalMessages(a.node.Status().Refusals()), Release: a.release,
		MemberState: v.Standing, OperatorCertificate: enterprise.Tell(ctx, a.operator),
		LostSockets: a.sockets.lost(),
	}
	until, limit := a.node.Autonomy.DegradedUntil()
	resp.AutonomousUntil, resp.AutonomyLimit = timestamppb.New(until), limit
	if !v.Connected && !v.Lost.IsZero() {
		resp.ContactLostAt = timestamppb.New(v.Lost)
	}
	if resp.MemberState == "" {
		resp.MemberState = a.node.TrustState().Standing(a.node.Me().ID)
	}
	a.node.Autonomy.StandsDegraded(resp)
	if d := a.node.Clock.Behind(); d > 0 {
		resp.ClockBehind = durationpb.New(d)
	}
	if log := a.output.Status(); log.Problem != "" {
		resp.LogProblem, resp.LogProblemSince = log.Problem, timestamppb.New(log.Since)
		resp.LogDropped = log.Left
	}
	if !v.NextRenewal.IsZero() {
		resp.NextRenewal = timestamppb.New(v.NextRenewal)
	}
	if i := slices.IndexFunc(resp.Held,
		func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == string(state.Scopes[0]) }); i >= 0 {
		resp.AuthorityEpoch = resp.Held[i].GetAuthorityEpoch()
	}
	return resp, nil
}

// RenewIdentity renews now, and answers with the outcome.
func (n nodeServer) RenewIdentity(ctx context.Context,
	_ *fealtyv1.RenewIdentityRequest) (*fealtyv1.RenewIdentityResponse, error) {
	a := n.a
	reply := make(chan error, 1)
	select {
	case a.renewal.renewAsk <- reply:
	case <-a.stopped:
		return nil, errStopping()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case err := <-reply:
		if err != nil {
			return nil, err
		}
	case <-a.stopped:
		return nil, errStopping()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s := a.node.SVID()
	return &fealtyv1.RenewIdentityResponse{SvidNotAfter: timestamppb.New(s.Leaf().NotAfter),
		KeyId: s.Key.ID.String()}, nil
}

func errStopping() error { return status.Error(codes.Unavailable, "the agent is stopping") }

// LeaveCluster ends the membership; the agent ends with it.
func (n nodeServer) LeaveCluster(ctx context.Context, _ *fealtyv1.LeaveClusterRequest) (*fealtyv1.LeaveClusterResponse,
	error) {
	a := n.a
	reply := make(chan error, 1)
	select {
	case a.leaveAsk <- reply:
	case <-a.stopped:
		return nil, errStopping()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Once it began it is waited for: its outcome is what the caller needs.
	if err := <-reply; err != nil {
		return nil, err
	}
	return &fealtyv1.LeaveClusterResponse{}, nil
}
