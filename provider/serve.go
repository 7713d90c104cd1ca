package provider

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of a server.
const (
	maxRequest = 16 << 10         // bytes of a request
	maxHeader  = 16 << 10         // bytes of its metadata; a token, a lineage and a grant have less than 5 KiB
	maxStreams = 128              // calls at once on a connection
	maxCalls   = 1024             // calls at once
	maxHolder  = 256              // calls at once of one caller
	maxWork    = 30 * time.Second // for one call of Machines
	stopAfter  = 5 * time.Second  // for calls that run when the server ends
)

// Config is what [Serve] needs.
type Config struct {
	// Machines is the provider's own part. Required.
	Machines Machines

	// Marks is what is remembered of those who were obeyed. It has to outlive the process:
	// a provider that forgot obeys a zombie. Required.
	Marks fence.Marks

	// Authority is whose assignments and grants count. Without a Key there are none: marks
	// that require them refuse everybody.
	Authority fence.Authority

	// Source is the provider's certificate and key, and its trust in others: such as
	// [credential.NewFiles] makes of three files. Required, but with Insecure.
	Source credential.Source

	// Insecure serves without TLS, on a loopback address alone, and takes all callers for
	// one shard, of the name "insecure". It is for trying things out.
	Insecure bool

	// Refused is called with each refusal of the fence, a [*fence.RefusedError] or a
	// [*fence.PromiseError], before the sender gets it: one that matches [fence.ErrFenced] is a
	// zombie, and an incident. It is called from several goroutines and must not block. Nil:
	// refusals are not reported.
	Refused func(err error)

	// TurnedAway is called for each caller that is not served for another reason than the fence: with a
	// [*mesh.HandshakeError] if its handshake failed, a [*mesh.DeniedError] if it has no certificate, a
	// [*mesh.FullError] if there are too many connections, or a gRPC status, which is PermissionDenied
	// if its certificate is not that of a shard, and ResourceExhausted for too many calls at once. It is
	// called from several goroutines and must not block. Nil: they are not reported.
	TurnedAway func(err error)

	// Log gets the errors of [Machines], and the callers that were turned away. Nil: slog.Default().
	Log *slog.Logger
}

// Serve serves a provider on l until ctx ends, and closes l. It returns nil then, once the
// calls that were under way are over or had five seconds.
//
// An error before anything is served: of the config, as that without TLS it is served on a loopback address
// alone, what Machines.List failed with, or an [*InvalidError].
func Serve(ctx context.Context, l net.Listener, cfg Config) error {
	defer l.Close()
	switch {
	case cfg.Machines == nil || cfg.Marks == nil:
		return errors.New("provider: Config needs Machines and Marks: there is nothing to serve, or nothing that fences it")
	case cfg.Insecure == (cfg.Source != nil):
		return errors.New("provider: Config needs either a Source, or Insecure")
	case cfg.Insecure && !loopback(l.Addr()):
		return fmt.Errorf("provider: serve on %s: %w: give it a certificate, or listen on 127.0.0.1", l.Addr(),
			provider.ErrNotLoopback)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	var life [8]byte
	_, _ = rand.Read(life[:]) // never fails (crypto/rand)
	s := &service{cfg: cfg, gate: fence.NewGate(cfg.Marks, 0), view: newView(hex.EncodeToString(life[:])),
		reading: make(chan struct{}, 1), calls: make(map[string]int)}
	if err := s.refresh(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	return s.serve(ctx, l)
}

func (s *service) serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(internalmesh.HandshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true})}
	if s.cfg.Source != nil {
		guard, err := mesh.NewGuard(mesh.GuardConfig{Source: s.cfg.Source, OnFailure: s.handshakeFailed,
			OnRefused: s.connectionRefused})
		if err != nil {
			return err
		}
		options = append(options, guard.ServerOptions()...)
		// A client's cost is bounded before it proved who it is.
		members, wait, err := guard.ListenMembers(ctx, l, mesh.GateConfig{})
		if err != nil {
			return err
		}
		defer func() { cancel(); _ = wait() }() // what it failed with ends the server too
		l = members
	}
	server := grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(s.admit, s.fence))...)
	fealtyv1.RegisterProviderServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		if ctx.Err() == nil {
			server.Stop()
			return fmt.Errorf("provider: serve on %s: %w", l.Addr(), err)
		}
		served <- nil // the gate heard first that ctx ended, and closed the listener
	case <-ctx.Done():
	}
	late := time.AfterFunc(stopAfter, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	<-served
	return nil
}

// handshakeFailed tells of a handshake that failed, in few lines however many do.
func (s *service) handshakeFailed(err *mesh.HandshakeError) {
	s.noise.Log(context.Background(), s.cfg.Log, string(err.Reason), slog.LevelWarn, "a handshake failed", slog.Any("err", err))
	s.turnedAway(err)
}

// connectionRefused tells of a connection that was refused, likewise: of one without a certificate, or of too many.
func (s *service) connectionRefused(err error) {
	s.noise.Log(context.Background(), s.cfg.Log, "refused", slog.LevelWarn, "a connection was refused", slog.Any("err", err))
	s.turnedAway(err)
}

// loopback reports whether nobody but this machine reaches addr.
func loopback(addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}
