// Package host gives the processes of a node their identities: it follows which workloads are
// assigned to the node, keeps them certified, and serves their certificates on a local socket.
//
// An [Issuer] gets the certificates. One is in use as soon as a coordinator has signed it, and on
// disk soon after, so that a node that restarts has it at once, with or without coordinators. A new
// key is made each time. Nothing out of date is given to anybody; a certificate that cannot be
// renewed is given until its end.
package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"crypto/x509"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/attest"
	"github.com/fealty-io/fealty/internal/workload/sds"
	"github.com/fealty-io/fealty/internal/workload/tokens"
	"github.com/fealty-io/fealty/internal/workload/workloadapi"
	"github.com/fealty-io/fealty/snapshot"
)

// SocketName is the file of the socket, unless it is put elsewhere. It is no longer than those of
// the other sockets, so that a folder that has room for them has room for it.
const SocketName = "spiffe.sock"

// stopGrace is how long calls under way may go on when the agent ends.
const stopGrace = 2 * time.Second

// Node is what a node knows, and whom it may ask. All fields are required.
type Node struct {
	// Services are what is assigned to the node and may be used now. The error says why nothing
	// may be.
	Services func() ([]snapshot.Service, error)
	// Trust is the trust bundle in use; nil: there is none. ConfigKeys are the config signing
	// keys that it lists, with those revoked that an emergency statement revokes.
	Trust      func() *identity.Bundle
	ConfigKeys func() []snapshot.ConfigKey
	// Changed returns a channel that is closed when one of these may answer otherwise.
	Changed func() <-chan struct{}
	// Ask calls f with connections to coordinators, until one answers.
	Ask func(ctx context.Context, f func(ctx context.Context, conn grpc.ClientConnInterface) error) error
}

// Config is what a Host is made of.
type Config struct {
	Node Node
	// Me is the node.
	Me identity.ID
	// FS and Dir are the folder of the node, which this process has locked.
	FS  durable.FS
	Dir string
	// Socket is where the Workload API is served. Blank: nowhere.
	Socket string
	// Listener serves it in place of a socket there; nil: that is made. Run closes it.
	Listener net.Listener
	// Locks are those of the process. Nil: nobody looks after that of the socket.
	Locks    *durable.Locks
	Registry prometheus.Registerer
	Now      func() time.Time
	Log      *slog.Logger
}

// Host gives processes their identities. Make it with [New], and run it with [Host.Run].
type Host struct {
	cfg     Config
	issuer  *Issuer
	callers *attest.Callers
	tokens  *tokens.Tokens
	changed watch.Signal

	set    atomic.Pointer[attest.Set]   // nil: nothing may be used
	roots  atomic.Pointer[attest.Roots] // nil: there is no bundle
	faults atomic.Pointer[[]workload.Fault]
	socket atomic.Pointer[localsocket.Listener]
	print  [32]byte // of the bundle that roots are of; owned by look
}

// Refusals is the metric of a host, which counts nothing yet.
func Refusals() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fealty_workload_refused_total", Help: "Calls of local processes that got no identity, by reason.",
	}, []string{"reason"})
}

// New returns a Host that serves nobody yet.
func New(cfg Config) (*Host, error) {
	h := &Host{cfg: cfg}
	refused := Refusals()
	cfg.Registry.MustRegister(refused)
	h.issuer = NewIssuer(IssuerConfig{
		FS: cfg.FS, Dir: filepath.Join(cfg.Dir, dir.WorkloadsName), Certify: h.certify, Now: cfg.Now, Log: cfg.Log,
		Verify: func(chain []*x509.Certificate) (identity.Verified, error) {
			return cfg.Node.Trust().Verify(chain, cfg.Now())
		},
	})
	h.callers = attest.NewCallers(attest.Config{Source: h, Log: cfg.Log,
		Refused: func(reason string) { refused.WithLabelValues(reason).Inc() }})
	var err error
	h.tokens, err = tokens.New(tokens.Config{
		Sign: h.sign, Statements: h.statements, Trusted: cfg.Node.ConfigKeys, Changed: cfg.Node.Changed,
		Banned:  func(id identity.ID, key identity.KeyID) bool { return cfg.Node.Trust().Banned(id, key) },
		Cluster: cfg.Me.Cluster(), FS: cfg.FS, Dir: filepath.Join(cfg.Dir, dir.WorkloadsName), Now: cfg.Now,
		Log: cfg.Log,
	})
	return h, err
}

// Set implements [attest.Source].
func (h *Host) Set() *attest.Set { return h.set.Load() }

// SVID implements [attest.Source].
func (h *Host) SVID(id identity.ID) (*dir.SVID, error) { return h.issuer.SVID(id) }

// Issued implements [attest.Source].
func (h *Host) Issued() <-chan struct{} { return h.issuer.Changed() }

// Roots implements [attest.Source].
func (h *Host) Roots() *attest.Roots { return h.roots.Load() }

// Changed implements [attest.Source].
func (h *Host) Changed() <-chan struct{} { return h.changed.Wait() }

// Run follows, certifies and serves until ctx ends, and returns its error then.
func (h *Host) Run(ctx context.Context) error {
	if h.cfg.Socket == "" && h.cfg.Listener == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	h.look() // what is on disk is served from the first call on
	l, err := h.listen()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	api := workloadapi.New(h.callers, h.tokens, ctx.Done())
	server := grpc.NewServer(
		grpc.Creds(h.callers),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (resp any, err error) {
			defer h.survive(ctx, info.FullMethod, &err)
			end, err := h.begin(ctx, api, info.FullMethod)
			if err != nil {
				return nil, err
			}
			defer end()
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) (err error) {
			defer h.survive(stream.Context(), info.FullMethod, &err)
			end, err := h.begin(stream.Context(), api, info.FullMethod)
			if err != nil {
				return err
			}
			defer end()
			return handler(srv, stream)
		}),
		grpc.MaxRecvMsgSize(attest.MaxMessage), grpc.MaxConcurrentStreams(attest.MaxStreams),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(mesh.HandshakeTimeout),
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(4096), // callers are many, and say little
	)
	api.Register(server)
	sds.New(h.callers, ctx.Done(), h.cfg.Log).Register(server)
	g.Go(func() error {
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve the Workload API on %s: %w", h.cfg.Socket, err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		h.stop(server)
		return ctx.Err()
	})
	g.Go(func() error { return h.issuer.Run(ctx) })
	g.Go(func() error { return h.tokens.Run(ctx) })
	g.Go(func() error { return h.relay(ctx) })
	g.Go(func() error { return h.follow(ctx) })
	h.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the Workload API is served", slog.String("socket", h.cfg.Socket))
	return g.Wait()
}

// begin lets a call in, and counts it until its end. The Workload API wants its header on each of
// its calls; Envoy has none.
func (h *Host) begin(ctx context.Context, api *workloadapi.Server, method string) (end func(), err error) {
	if !sds.Serves(method) {
		if err := api.Demand(ctx); err != nil {
			return nil, err
		}
	}
	return h.callers.Begin(ctx)
}

// survive keeps a handler that panics from ending the agent.
func (h *Host) survive(ctx context.Context, method string, err *error) {
	if p := recover(); p != nil {
		h.cfg.Log.LogAttrs(ctx, slog.LevelError, "a handler panicked", slog.String("method", method),
			slog.Any("panic", p),
			slog.String("stack", string(debug.Stack())))
		*err = status.Error(codes.Internal, "a defect of the agent: its log has the details")
	}
}

func (h *Host) stop(server *grpc.Server) {
	done := make(chan struct{})
	go func() { server.GracefulStop(); close(done) }()
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		h.callers.Close() // the server would wait for those that say nothing
		server.Stop()
		<-done
	}
}

// listen opens the socket to every user: the kernel says who calls, and the folder who may.
func (h *Host) listen() (net.Listener, error) {
	if h.cfg.Listener != nil {
		return h.cfg.Listener, nil
	}
	if err := localsocket.CheckPath(h.cfg.Socket); err != nil {
		return nil, err
	}
	l, err := localsocket.Listen(h.cfg.Socket, 0o666, h.cfg.Locks, h.cfg.Log)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.AddressUnusable, "address", h.cfg.Socket, "flag", "--workload-socket",
			"problem", err.Error())
	}
	h.socket.Store(l)
	return l, nil
}

// LostSocket says why the socket of the Workload API does not lead to this process; nil: it does, or there is none.
func (h *Host) LostSocket() error {
	if l := h.socket.Load(); l != nil {
		return l.Lost()
	}
	return nil
}

// relay tells callers of new certificates.
func (h *Host) relay(ctx context.Context) error {
	for {
		changed := h.issuer.Changed() // before callers look
		h.changed.Notify()            // at once: of what was certified before
		if err := watch.Event(ctx, changed); err != nil {
			return err
		}
	}
}

// follow keeps up with what is assigned and trusted.
func (h *Host) follow(ctx context.Context) error {
	for {
		changed := h.cfg.Node.Changed()
		h.look()
		if err := watch.Event(ctx, changed); err != nil {
			return err
		}
	}
}

func (h *Host) look() {
	if bundle := h.cfg.Node.Trust(); bundle == nil {
		h.roots.Store(nil)
	} else if print := bundle.Fingerprint(); h.roots.Load() == nil || print != h.print {
		h.print = print
		// Retired roots still vouch for members, and so for what these vouch for.
		h.roots.Store(&attest.Roots{Cluster: bundle.Cluster(), Certificates: append(bundle.Roots(),
			bundle.RetiredRoots()...)})
		h.issuer.Recheck()
	}
	services, err := h.cfg.Node.Services()
	if err != nil {
		// Nothing is given to anybody; what is certified stays, for when it may be used again.
		h.set.Store(nil)
		h.changed.Notify()
		return
	}
	registrations, faults := workload.Registrations(h.cfg.Me.Cluster(), services)
	if old := h.faults.Load(); len(faults) > 0 && (old == nil || len(*old) == 0) {
		h.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"the workload of a service cannot be read, and registers nobody",
			slog.String("service", faults[0].Service), slog.String("reason", faults[0].Problem),
			slog.Int("services", len(faults)))
	}
	h.faults.Store(&faults)
	h.issuer.Register(registrations)
	h.set.Store(attest.NewSet(registrations))
	h.changed.Notify()
}

// certify asks a coordinator.
func (h *Host) certify(ctx context.Context, asks []Ask) ([]Answer, error) {
	req := &fealtyv1.CertifyWorkloadsRequest{Name: h.cfg.Me.Name()}
	for _, a := range asks {
		req.Workloads = append(req.Workloads, &fealtyv1.WorkloadRequest{Workload: a.Registration.ID.Name(), Csr: a.CSR})
	}
	var resp *fealtyv1.CertifyWorkloadsResponse
	err := h.cfg.Node.Ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		resp, err = fealtyv1.NewWorkloadServiceClient(conn).CertifyWorkloads(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Answer
	for _, c := range resp.GetCertificates() {
		out = append(out, Answer{Chain: c.GetChain(), Refusal: c.GetRefusal()})
	}
	return out, nil
}

// sign asks a coordinator for tokens.
func (h *Host) sign(ctx context.Context, asks []tokens.Ask) ([]tokens.Answer, error) {
	req := &fealtyv1.SignTokensRequest{Name: h.cfg.Me.Name()}
	for _, a := range asks {
		req.Tokens = append(req.Tokens, &fealtyv1.TokenRequest{Workload: a.ID.Name(), Audience: a.Audience})
	}
	var resp *fealtyv1.SignTokensResponse
	err := h.cfg.Node.Ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		resp, err = fealtyv1.NewWorkloadServiceClient(conn).SignTokens(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []tokens.Answer
	for _, t := range resp.GetTokens() {
		out = append(out, tokens.Answer{Token: t.GetToken(), Expires: t.GetExpiresAt().AsTime(),
			Refusal: t.GetRefusal()})
	}
	return out, nil
}

// statements asks a coordinator for the keys that verify tokens.
func (h *Host) statements(ctx context.Context) ([]jwtsvid.Statement, error) {
	var resp *fealtyv1.TokenKeysResponse
	err := h.cfg.Node.Ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		resp, err = fealtyv1.NewWorkloadServiceClient(conn).TokenKeys(ctx,
			&fealtyv1.TokenKeysRequest{Name: h.cfg.Me.Name()})
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []jwtsvid.Statement
	for _, k := range resp.GetKeys() {
		out = append(out, jwtsvid.Statement{Key: k.GetKey(), Signer: k.GetSigner(), Signature: k.GetSignature()})
	}
	return out, nil
}
