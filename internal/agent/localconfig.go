package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// ConfigSocketName is the file of the socket for local services, unless it is put
// elsewhere.
const ConfigSocketName = "config.sock"

// maxLocalStreams bounds the calls on one connection of a local service.
const maxLocalStreams = 32

// configServices are the services of the socket for local services, by their full
// names.
func configServices() []string {
	return []string{fealtyv1.LocalConfigService_ServiceDesc.ServiceName}
}

// serveConfig starts the socket for local services in g.
func (a *Agent) serveConfig(ctx context.Context, g *errgroup.Group) error {
	if a.configSocket == "" {
		return nil
	}
	server, err := a.configServer(ctx)
	if err != nil {
		return fmt.Errorf("refusing to serve: %w", err)
	}
	l := a.listeners.localConfig
	if l == nil {
		mode := fs.FileMode(0o600)
		if len(a.consumers) > 0 {
			mode = 0o666 // the kernel's word on the process says who may connect; the file has to let it
		}
		if l, err = a.listenUnix(a.configSocket, "--config-socket", mode); err != nil {
			return err
		}
	}
	g.Go(func() error {
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve on %s: %w", a.configSocket, err)
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

// configServer serves config to the agent's own user, to root and to consumers. Its
// streams end with ctx.
func (a *Agent) configServer(ctx context.Context) (*grpc.Server, error) {
	services, err := authz.Services(configServices()...)
	if err != nil {
		return nil, err
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, err
	}
	gate, err := authz.New(table, authz.Options{
		Logger: a.log, Registerer: a.metrics.registry, ClusterID: func() string { return a.node.Me().Cluster },
		Consumer: a.consumers.has,
	})
	if err != nil {
		return nil, err
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{
		Source: a.node.Source(),
		Local:  func(p identity.Local) bool { return localsocket.OwnUser(p) || a.consumers.has(p) },
		Now:    a.node.Now,
	})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(
		grpc.Creds(guard.Credentials()),
		grpc.ChainUnaryInterceptor(a.wordUnary, guard.Unary, gate.Unary()),
		grpc.ChainStreamInterceptor(guard.Stream, gate.Stream()),
		grpc.UnknownServiceHandler(gate.UnknownService),
		grpc.MaxRecvMsgSize(64<<10),
		grpc.MaxSendMsgSize(internalsnapshot.MaxContent+64<<10),
		grpc.MaxConcurrentStreams(maxLocalStreams),
	)
	fealtyv1.RegisterLocalConfigServiceServer(server, configServer{a: a, ctx: ctx})
	return server, table.CheckServer(server)
}

// configServer serves LocalConfigService.
type configServer struct {
	fealtyv1.UnimplementedLocalConfigServiceServer
	a   *Agent
	ctx context.Context // of the agent's life
}

// may refuses a caller who may not see scope, and what is no scope.
func (s configServer) may(ctx context.Context, scope, method string) error {
	if !state.Known(snapshot.Scope(scope)) {
		return errcode.New(errcode.RequestField, "field", "scope", "problem", fmt.Sprintf("%.40q is no scope", scope))
	}
	p := identity.FromContext(ctx).Local
	if p == nil || !s.a.consumers.sees(*p, ownUser(), snapshot.Scope(scope)) {
		who := "nobody known"
		if p != nil {
			who = fmt.Sprintf("local user %d", p.UID)
		}
		return errcode.New(errcode.Denied, "method", method, "identity", who, "reason",
			"the settings of the agent do not name it as a consumer of scope "+scope)
	}
	return nil
}

// GetScope returns what is in use of a scope.
func (s configServer) GetScope(ctx context.Context, req *fealtyv1.GetScopeRequest) (*fealtyv1.GetScopeResponse, error) {
	if err := s.may(ctx, req.GetScope(), fealtyv1.LocalConfigService_GetScope_FullMethodName); err != nil {
		return nil, err
	}
	content, err := s.a.node.Autonomy.Given(snapshot.Scope(req.GetScope()))
	if err != nil {
		return nil, worded(err)
	}
	return &fealtyv1.GetScopeResponse{Content: content}, nil
}

// worded returns the error with a code in err.
func worded(err error) error {
	if e, ok := errors.AsType[*errcode.Error](err); ok {
		return e
	}
	return err
}

// WatchScope sends what is in use of a scope, each time when that changes.
func (s configServer) WatchScope(req *fealtyv1.WatchScopeRequest,
	stream grpc.ServerStreamingServer[fealtyv1.WatchScopeResponse]) error {
	ctx, a := stream.Context(), s.a
	if err := s.may(ctx, req.GetScope(), fealtyv1.LocalConfigService_WatchScope_FullMethodName); err != nil {
		return err
	}
	var last *fealtyv1.WatchScopeResponse
	for {
		changed := a.node.Autonomy.Changed.Wait()
		// The newest, whatever came between: who reads slowly misses that alone.
		if next := a.node.Autonomy.NewsOf(snapshot.Scope(req.GetScope())); !sameNews(last, next) {
			if err := stream.Send(next); err != nil {
				return err
			}
			last = next
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return errStopping()
		case <-changed:
		}
	}
}

// sameNews reports whether b tells a watcher nothing after a. A newer record over
// what is in use is no news.
func sameNews(a, b *fealtyv1.WatchScopeResponse) bool {
	x, y := a.GetContent(), b.GetContent()
	if x == nil || y == nil {
		return a != nil && proto.Equal(a, b)
	}
	return x.GetConfigVersion() == y.GetConfigVersion() && x.GetAuthorityEpoch() == y.GetAuthorityEpoch() &&
		x.GetFreshness() == y.GetFreshness() && bytes.Equal(x.GetContent(), y.GetContent())
}

// ReportVerdict takes a verdict on what is on trial. One on anything else is too late.
func (s configServer) ReportVerdict(ctx context.Context,
	req *fealtyv1.ReportVerdictRequest) (*fealtyv1.ReportVerdictResponse, error) {
	if err := s.may(ctx, req.GetScope(), fealtyv1.LocalConfigService_ReportVerdict_FullMethodName); err != nil {
		return nil, err
	}
	reason := state.Clip(strings.ReplaceAll(req.GetReason(), "\n", " "), state.MaxDetailBytes)
	switch err := s.a.node.Trials.Verdict(ctx, snapshot.Scope(req.GetScope()), req.GetConfigVersion(), req.GetWorks(),
		reason); {
	case errors.Is(err, state.ErrNoTrial):
		return nil, errcode.New(errcode.RequestField, "field", "config_version", "problem",
			"no such version of scope "+req.GetScope()+" is on trial")
	case err != nil:
		return nil, err
	}
	return &fealtyv1.ReportVerdictResponse{}, nil
}

// PermitAction asks the guard.
func (s configServer) PermitAction(_ context.Context,
	req *fealtyv1.PermitActionRequest) (*fealtyv1.PermitActionResponse, error) {
	if err := s.a.node.Autonomy.Permit(guard.Action(req.GetAction())); err != nil {
		return nil, worded(err)
	}
	return &fealtyv1.PermitActionResponse{}, nil
}

// configSocketOf is where local services are served.
func configSocketOf(cfg Config) string {
	if cfg.Sockets.Config != "" {
		return cfg.Sockets.Config
	}
	return filepath.Join(cfg.DataDir, ConfigSocketName)
}
