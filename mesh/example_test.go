package mesh_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A client says whom it expects, and learns why it could not reach it.
func ExampleDial() {
	var source credential.Source // such as what an agent was issued

	conn, err := mesh.Dial("dns:///coordinators.example:7443", source, credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if failed, ok := errors.AsType[*mesh.HandshakeError](err); ok && failed.Reason == mesh.ClientRejected {
		fmt.Println("our certificate is not accepted:", failed)
	}
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
