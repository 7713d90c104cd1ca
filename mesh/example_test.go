package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identitytest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

// A client says whom it expects, and learns why it could not reach it.
func ExampleDial() {
	tb := exampleTB{}
	authority := identitytest.NewAuthority(tb, "prod.example")
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
		conn, err := mesh.Dial("passthrough:///"+listener.Addr().String(), self, credential.AnyOfKind(kind), mesh.Options{})
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

// A server stands behind a guard.
func ExampleGuard() {
	var source credential.Source // such as credential.NewIssued

	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health{})
	// server.Serve(listener) follows.
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
func exampleServer(authority *identitytest.Authority, name string) (addr string, stop func()) {
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

func exampleSource(authority *identitytest.Authority, kind identity.Kind, name string) credential.Source {
	tb := exampleTB{}
	chain, key := authority.Issue(tb, authority.ID(tb, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
	if err != nil {
		panic(err)
	}
	return credential.Static(m)
}

// quietLog drops what a program would keep.
var quietLog = slog.New(slog.DiscardHandler)

// Calls go to the endpoint that proves itself; why the other one is not used is in the log, and,
// were there no other, in the error.
func ExamplePool() {
	authority, foreign := identitytest.NewAuthority(exampleTB{}, "prod.example"), identitytest.NewAuthority(exampleTB{}, "prod.example")
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
	authority := identitytest.NewAuthority(exampleTB{}, "prod.example")
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
	authority := identitytest.NewAuthority(exampleTB{}, "prod.example")
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
	authority := identitytest.NewAuthority(exampleTB{}, "prod.example")
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
	other, stop := exampleServer(identitytest.NewAuthority(exampleTB{}, "prod.example"), "c0")
	defer stop()

	transport, err := mesh.NewHTTPTransport(exampleSource(authority, identity.Data, "node-a"),
		credential.AnyOfKind(identity.Coordinator), mesh.Options{Log: quietLog,
			Lookup: func(context.Context, string) ([]string, error) { return []string{other, listener.Addr().String()}, nil }})
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
