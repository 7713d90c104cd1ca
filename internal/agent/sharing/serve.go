package sharing

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/authz"
	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/mesh"
)

// Config is what is needed to share. All of it is required.
type Config struct {
	Node *accept.Node
	Log  *slog.Logger
	// Registerer takes the counter of refused callers, which other servers may have given it.
	Registerer prometheus.Registerer
	// Handshake counts one that failed, by reason.
	Handshake func(reason string)
	// Answered counts an answer by its outcome.
	Answered func(outcome string)
}

// Outcomes of calls: metric labels.
const (
	Given     = "given"     // something was, or there was no news
	TrustOnly = "trust"     // the caller did not show to be in the group: it was given the trust bundle alone
	Absent    = "absent"    // nothing with this hash is for the caller
	Limited   = "limited"   // it asked for too much, or all together did
	Withheld  = "withheld"  // the guard does not let this node judge peers by now
	Malformed = "malformed" // the request is not of its form
	Broken    = "broken"    // the caller went away, or was too slow
)

// Services are the services of the listener, by their full names.
func Services() []string { return []string{fealtyv1.SharedService_ServiceDesc.ServiceName} }

// Serve shares with members that connect to l, which it closes, until ctx ends or l fails.
// The error is ctx's or that of l.
func Serve(ctx context.Context, l net.Listener, cfg Config) error {
	defer l.Close()
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, guard, own, err := newServer(cfg)
	if err != nil {
		return fmt.Errorf("refusing to serve other members: %w", err)
	}
	members, ended, err := guard.ListenMembers(ctx, l, mesh.GateConfig{})
	if err != nil {
		return fmt.Errorf("serve other members: %w", err)
	}
	var gate sync.WaitGroup
	var failed error
	gate.Go(func() { failed = ended() }) // it ends the server too
	served := make(chan error, 1)
	go func() { served <- server.Serve(members) }()
	cfg.Log.LogAttrs(ctx, slog.LevelInfo, "what is signed for several members is given to them",
		slog.String("address", l.Addr().String()))
	select {
	case err = <-served:
		l.Close()
		if gate.Wait(); failed != nil { // the server knows no more than that its listener is closed
			err = failed
		}
		err = fmt.Errorf("serve other members on %s: %w", l.Addr(), err)
	case <-ctx.Done():
		server.Stop() // nothing is lost by a transfer that breaks off
		<-served
		err = ctx.Err()
	}
	cancel()
	server.Stop()
	gate.Wait()
	own.writers.Wait()
	if outer.Err() != nil {
		return outer.Err()
	}
	return err
}

func newServer(cfg Config) (*grpc.Server, *mesh.Guard, *server, error) {
	services, err := authz.Services(Services()...)
	if err != nil {
		return nil, nil, nil, err
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		return nil, nil, nil, err
	}
	gate, err := authz.New(table, authz.Options{Logger: cfg.Log, Registerer: cfg.Registerer, Now: cfg.Node.Now,
		ClusterID: func() string { return cfg.Node.Me().Cluster }})
	if err != nil {
		return nil, nil, nil, err
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: cfg.Node.Source(), Now: cfg.Node.Now,
		MaxConns: maxConns, MaxPerIdentity: connsOfOne,
		OnFailure: func(e *mesh.HandshakeError) { cfg.Handshake(string(e.Reason)) }})
	if err != nil {
		return nil, nil, nil, err
	}
	s := &server{cfg: cfg, bounds: newBounds(), sampler: ratelimit.NewLogSampler()}
	g := grpc.NewServer(append(guard.ServerOptions(),
		grpc.ChainStreamInterceptor(gate.Stream(), s.recovered), grpc.ChainUnaryInterceptor(gate.Unary()),
		grpc.UnknownServiceHandler(gate.UnknownService),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(ratelimit.MaxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(internalmesh.HandshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute, Time: time.Minute,
			Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}))...)
	fealtyv1.RegisterSharedServiceServer(g, s)
	return g, guard, s, table.CheckServer(g)
}
