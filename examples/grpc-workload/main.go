// Command grpc-workload is a gRPC server and its client with identities of the SPIFFE agent that
// SPIFFE_ENDPOINT_SOCKET names: "grpc-workload ADDRESS" serves, "grpc-workload ADDRESS ID" asks ID there each second.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/credential/workloadapi"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/mesh"
)

type greeter struct {
	healthpb.UnimplementedHealthServer
}

func (greeter) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if peer := identity.FromContext(ctx); peer.ID.Kind() != identity.Workload {
		return nil, status.Errorf(codes.PermissionDenied, "this is for workloads, not for %v", peer.ID)
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func main() {
	source, err := workloadapi.Config{}.Open(context.Background())
	if err != nil || len(os.Args) < 2 {
		log.Fatal("usage: grpc-workload ADDRESS [ID]: ", err)
	}
	if len(os.Args) == 2 {
		l, err1 := net.Listen("tcp", os.Args[1])
		guard, err2 := mesh.NewGuard(mesh.GuardConfig{Source: source})
		if err1 != nil || err2 != nil {
			log.Fatal(err1, err2)
		}
		server := grpc.NewServer(guard.ServerOptions()...)
		healthpb.RegisterHealthServer(server, greeter{})
		fmt.Println("serving on", l.Addr())
		log.Fatal(server.Serve(l))
	}
	id, err1 := identity.Parse(os.Args[2])
	conn, err2 := mesh.Dial(os.Args[1], source, credential.ExactID(id), mesh.Options{})
	if err1 != nil || err2 != nil {
		log.Fatal(err1, err2)
	}
	for range time.Tick(time.Second) {
		answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), new(healthpb.HealthCheckRequest))
		fmt.Println(id, answer.GetStatus(), err)
	}
}
