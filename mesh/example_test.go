package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
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
	if p := identity.FromContext(ctx); p.Standing() != identity.Identified {
		return nil, errors.New("who are you?")
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// exampleTB lets an example, which has no testing.TB, use identitytest.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()                   {}
func (exampleTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
