package mesh_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

// A client says whom it expects, and learns why it could not reach it.
func ExampleDial() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	issued := func(kind identity.Kind, name string) credential.Source { // as an agent has it
		chain, key := authority.Issue(tb, authority.ID(tb, kind, name))
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
		if err != nil {
			panic(err)
		}
		return credential.Static(m)
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: issued(identity.Coordinator, "c0")})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()

	self := issued(identity.Data, "node-a")
	for _, kind := range []identity.Kind{identity.Coordinator, identity.Shard} {
		conn, err := mesh.Dial(listener.Addr().String(), self, credential.AnyOfKind(kind), mesh.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if failed, ok := errors.AsType[*mesh.HandshakeError](err); ok {
			fmt.Println(kind, "refused:", failed.Reason)
		} else {
			fmt.Println(kind, status.Code(err))
		}
		conn.Close()
	}
	server.Stop()
	fmt.Println(<-done)
	// Output:
	// coordinator OK
	// shard refused: IdentityMismatch
	// <nil>
}

// A server stands behind a guard: it knows who calls, and what a peer has open ends when the
// trust in it does.
func ExampleGuard() {
	tb := exampleTB{}
	authority := pkitest.NewAuthority(tb, "prod.example")
	source := credential.NewIssued(exampleMaterial(authority, identity.Coordinator, "c0"))
	cut := make(chan *mesh.CutError, 1)
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source,
		OnCut: func(_ identity.Peer, why *mesh.CutError) { cut <- why }})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()
	ask, done := exampleClient(listener.Addr().String(), exampleSource(authority, identity.Data, "node-a"))
	defer done()
	fmt.Println(status.Code(ask()))

	trusted := authority.BundleConfig()
	trusted.BannedIDs = []identity.ID{authority.ID(tb, identity.Data, "node-a")}
	bundle, err := identity.NewBundle(trusted)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(source.Trust(bundle)) // as an agent is told of a ban
	why := <-cut
	fmt.Println(why.ID.Name(), why.Reason, why.Reason == mesh.PeerBanned)
	fmt.Println(ask() == nil)
	// Output:
	// OK
	// <nil>
	// node-a PeerBanned true
	// false
}

// A server that says whom it serves refuses others before its handlers, and hears of each of them.
func ExampleDeniedError() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	denied := make(chan error, 1)
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Coordinator, "c0"),
		Clients: credential.AnyNamed(identity.Data, "web-*"), OnRefused: func(err error) { denied <- err }})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()
	for _, name := range []string{"web-1", "db-1"} {
		ask, done := exampleClient(listener.Addr().String(), exampleSource(authority, identity.Data, name))
		fmt.Println(name, status.Code(ask()))
		done()
	}
	if who, ok := errors.AsType[*mesh.DeniedError](<-denied); ok {
		fmt.Println("refused:", who.Peer.ID.Name())
	}
	// Output:
	// web-1 OK
	// db-1 PermissionDenied
	// refused: db-1
}

// Who has no certificate and no trust bundle yet knows a server by a key that it was told on a trusted way.
func ExampleDialPinned() {
	ephemeral, err := credential.NewEphemeral(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(ephemeral)})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	go server.Serve(listener)
	defer server.Stop()
	for _, pin := range []mesh.Pin{mesh.LeafPin(ephemeral.Pin()), mesh.RootPin("prod.example", ephemeral.Pin())} {
		conn, err := mesh.DialPinned(listener.Addr().String(), pin, mesh.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		other, refused := errors.AsType[*mesh.PinError](err)
		fmt.Println(status.Code(err), refused && other.Pin.Cluster() == "prod.example")
		conn.Close()
	}
	// Output:
	// Unknown false
	// Unavailable true
}

// Members and strangers have servers of their own behind a gate: the strangers' one offers what somebody may ask who
// has no certificate yet, and can be given smaller limits.
func ExampleGate() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Coordinator, "c0")})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	gate, err := guard.NewGate(listener, mesh.GateConfig{MaxStrangers: 64})
	if err != nil {
		fmt.Println(err)
		return
	}
	members := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(members, health{})
	strangers := grpc.NewServer(append(guard.ServerOptions(), grpc.MaxRecvMsgSize(16<<10))...) // and no service of members
	go members.Serve(gate.Members())
	go strangers.Serve(gate.Strangers())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- gate.Run(ctx) }()

	ask, done := exampleClient(listener.Addr().String(), exampleSource(authority, identity.Data, "node-a"))
	fmt.Println("a member:", status.Code(ask()))
	done()
	stop()
	fmt.Println(<-ended)
	members.Stop()
	strangers.Stop()
	// Output:
	// a member: OK
	// context canceled
}

type health struct {
	healthpb.UnimplementedHealthServer
}

// Check serves members of the cluster only.
func (health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if p := identity.FromContext(ctx); !p.Identified() {
		return nil, errors.New("who are you?")
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// exampleServer is a server of coordinator/NAME that answers health checks.
func exampleServer(authority *pkitest.Authority, name string) (addr string, stop func()) {
	tb := exampleTB{}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Coordinator, name)})
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	go server.Serve(listener)
	return listener.Addr().String(), server.Stop
}

func exampleSource(authority *pkitest.Authority, kind identity.Kind, name string) credential.Source {
	return credential.Static(exampleMaterial(authority, kind, name))
}

func exampleMaterial(authority *pkitest.Authority, kind identity.Kind, name string) *credential.Material {
	tb := exampleTB{}
	chain, key := authority.Issue(tb, authority.ID(tb, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		panic(err)
	}
	return m
}

// exampleClient asks the coordinator at an address for its health.
func exampleClient(addr string, self credential.Source) (ask func() error, done func() error) {
	conn, err := mesh.Dial(addr, self, credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if err != nil {
		panic(err)
	}
	return func() error {
		_, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		return err
	}, conn.Close
}

// quietLog drops what a program would keep.
var quietLog = slog.New(slog.DiscardHandler)

// Calls go to the endpoint that proves itself; why the other one is not used is in the log, and,
// were there no other, in the error.
func ExamplePool() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	foreign := pkitest.NewAuthority(exampleTB{}, "prod.example")
	good, stopGood := exampleServer(authority, "c0")
	bad, stopBad := exampleServer(foreign, "c0")
	defer stopBad()

	pool := mesh.Pool{Options: mesh.Options{Log: quietLog}}
	defer pool.Close()
	self := exampleSource(authority, identity.Data, "node-a")
	call := func(target string) {
		conn, err := pool.Dial(target, self, credential.AnyOfKind(identity.Coordinator))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer conn.Close() // leaves it to whoever else asked for the same
		_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if none, ok := errors.AsType[*mesh.NoEndpointsError](err); ok {
			failed, _ := errors.AsType[*mesh.HandshakeError](none)
			fmt.Println(len(none.Failures), "failed:", failed.Reason)
			return
		}
		fmt.Println(status.Code(err))
	}
	call("static:///" + bad + "," + good)
	call("static:///" + bad)
	stopGood()
	// Output:
	// OK
	// 1 failed: PeerUntrusted
}

// A client of grpc.NewClient calls by identity too.
func ExampleClientOptions() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	addr, stop := exampleServer(authority, "c0")
	defer stop()

	options, err := mesh.ClientOptions(exampleSource(authority, identity.Data, "node-a"),
		credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	conn, err := grpc.NewClient("dns:///"+addr, options...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	// Output: OK
}

// A resolver of your own passes on what its registry says of TLS; what has none is not dialed.
func ExampleMarkSecure() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	addr, stop := exampleServer(authority, "c0")
	defer stop()
	at := func(addr string) resolver.Endpoint {
		return resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}}
	}
	registry := manual.NewBuilderWithScheme("registry")
	registry.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
		mesh.MarkSecure(at("127.0.0.1:80"), false), mesh.MarkSecure(at(addr), true)}})

	pool := mesh.Pool{Options: mesh.Options{Log: quietLog, GRPC: []grpc.DialOption{grpc.WithResolvers(registry)}}}
	defer pool.Close()
	conn, err := pool.Dial("registry:///coordinators", exampleSource(authority, identity.Data, "node-a"),
		credential.AnyOfKind(identity.Coordinator))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	// Output: OK
}

// The host of a URL may lead to several endpoints, of which one that proves itself answers. The
// server has the guard as a middleware.
func ExampleNewHTTPTransport() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	source := exampleSource(authority, identity.Coordinator, "c0")
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := &http.Server{
		TLSConfig: credential.ServerTLS(source, credential.ServerOptions{NextProtos: []string{"http/1.1"}}),
		Handler: guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "hello ", identity.FromContext(r.Context()).ID)
		})),
	}
	defer server.Close()
	go server.ServeTLS(listener, "", "")
	other, stop := exampleServer(pkitest.NewAuthority(exampleTB{}, "prod.example"), "c0")
	defer stop()

	transport, err := mesh.NewHTTPTransport(exampleSource(authority, identity.Data, "node-a"),
		credential.AnyOfKind(identity.Coordinator), mesh.Options{Log: quietLog,
			Lookup: func(context.Context, string) ([]string, error) {
				return []string{other, listener.Addr().String()}, nil
			}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("https://greeter/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	fmt.Printf("%s\n", body)
	// Output: hello spiffe://prod.example/data/node-a
}

// An http.Server serves as a member too, and its handlers find who is calling.
func ExampleServeHTTP() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	listener, err1 := net.Listen("tcp", "127.0.0.1:0")
	guard, err2 := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Data, "node-a")})
	if err1 != nil || err2 != nil {
		fmt.Println(err1, err2)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- mesh.ServeHTTP(ctx, guard, listener, &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				peer := identity.FromContext(r.Context())
				if !peer.Identified() { // it showed no certificate, or one of nobody
					http.Error(w, "this is for members", http.StatusUnauthorized)
					return
				}
				fmt.Fprint(w, "hello ", peer.ID.Name())
			})})
	}()
	member, err := mesh.NewHTTPTransport(exampleSource(authority, identity.Data, "node-b"),
		credential.ExactID(authority.ID(exampleTB{}, identity.Data, "node-a")), mesh.Options{Log: quietLog})
	if err != nil {
		fmt.Println(err)
		return
	}
	stranger := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	for _, transport := range []http.RoundTripper{member, stranger} {
		answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		fmt.Printf("%d %s\n", answer.StatusCode, bytes.TrimSpace(body))
	}
	member.CloseIdleConnections()
	stranger.CloseIdleConnections()
	stop()
	fmt.Println(<-served)
	// Output:
	// 200 hello node-b
	// 401 this is for members
	// <nil>
}

// A process on the same machine is told by the kernel, without TLS: the guard says whom it lets
// in, and the client that the server is of its own user.
func ExampleDialLocal() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Data, "node-a"),
		Local: func(p identity.Local) bool { return int(p.UID) == os.Getuid() }})
	if err != nil {
		fmt.Println(err)
		return
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, localHealth{})
	go server.Serve(listener)
	defer server.Stop()

	conn, err := mesh.DialLocal(socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(answer.GetStatus(), err)
	// Output:
	// SERVING <nil>
}

type localHealth struct {
	healthpb.UnimplementedHealthServer
}

// Check serves processes of this machine alone.
func (localHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	info, ok := mesh.FromContext(ctx)
	if !ok || info.Peer.Local == nil {
		return nil, status.Error(codes.PermissionDenied, "this is for processes of this machine")
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// A long call tells when it has to have moved to a fresh connection, and when it may.
func ExampleFromContext() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	addr, stop := exampleServer(authority, "c0")
	defer stop()
	self := credential.NewIssued(exampleMaterial(authority, identity.Data, "node-a"))
	conn, err := mesh.Dial(addr, self, credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	stream, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	info, _ := mesh.FromContext(stream.Context())
	fmt.Println("to", info.Peer.ID.Name(), "for", time.Until(info.Expires()).Round(time.Hour))

	if err := self.Adopt(exampleMaterial(authority, identity.Data, "node-a")); err != nil { // a renewal
		fmt.Println(err)
	}
	<-info.Superseded()
	fmt.Println("open it again when it suits")
	// Output:
	// to c0 for 25h0m0s
	// open it again when it suits
}

// A call that found no endpoint says of each why: somebody else is there, or nobody is.
func ExampleHandshakeError() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	right, stop := exampleServer(authority, "c0")
	defer stop()
	foreign, stopForeign := exampleServer(pkitest.NewAuthority(exampleTB{}, "prod.example"), "c0")
	defer stopForeign()
	explain := func(err error) string {
		if refused, ok := errors.AsType[*mesh.HandshakeError](err); ok {
			switch refused.Reason {
			case mesh.IdentityMismatch:
				return "another member is at this address"
			case mesh.PeerUntrusted:
				return "a server of another authority"
			case mesh.PeerBanned, mesh.CertificateExpired:
				return "a member that is out"
			case mesh.ClientRejected:
				return "it does not believe us"
			}
			return string(refused.Reason)
		}
		if _, ok := errors.AsType[*mesh.EndpointError](err); ok {
			return "nobody is there"
		}
		return fmt.Sprint("closed here: ", errors.Is(err, mesh.ErrClosed))
	}
	self := exampleSource(authority, identity.Data, "node-a")
	for _, addr := range []string{right, foreign, "127.0.0.1:1"} {
		conn, err := mesh.Dial(addr, self, credential.AnyOfKind(identity.Shard), mesh.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		client := healthpb.NewHealthClient(conn)
		_, err = client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(explain(err))
		if conn.Close(); addr == foreign {
			_, err = client.Check(context.Background(), &healthpb.HealthCheckRequest{})
			fmt.Println(explain(err))
		}
	}
	// Output:
	// another member is at this address
	// a server of another authority
	// closed here: true
	// nobody is there
}

// A guard has so many places for each identity, and tells of whom it turned away.
func ExampleFullError() {
	authority := pkitest.NewAuthority(exampleTB{}, "prod.example")
	refused := make(chan error, 1)
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: exampleSource(authority, identity.Coordinator, "c0"),
		MaxPerIdentity: 1, OnRefused: func(err error) {
			select {
			case refused <- err:
			default: // it must not block
			}
		}})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	go server.Serve(listener)
	defer server.Stop()
	self := exampleSource(authority, identity.Data, "node-a")
	first, doneFirst := exampleClient(listener.Addr().String(), self)
	defer doneFirst()
	second, doneSecond := exampleClient(listener.Addr().String(), self)
	defer doneSecond()
	fmt.Println(first(), second() == nil)
	full, _ := errors.AsType[*mesh.FullError](<-refused)
	fmt.Println(full.Limit, "of", full.Of)
	// Output:
	// <nil> false
	// 1 of spiffe://prod.example/data/node-a
}
