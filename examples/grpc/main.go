// Command grpc is a gRPC server on one member, and a client on another one:
// "grpc FOLDER ADDRESS" serves, "grpc FOLDER ADDRESS ID" asks ID there each second.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/node"
)

type greeter struct {
	healthpb.UnimplementedHealthServer
}

func (greeter) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if peer := identity.FromContext(ctx); peer.ID.Kind() != identity.Data {
		return nil, status.Errorf(codes.PermissionDenied, "this is for data members, not for %v", peer.ID)
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: grpc FOLDER ADDRESS [ID]")
	}
	n, err := node.Open(os.Args[1], node.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) == 3 {
		l, err1 := net.Listen("tcp", os.Args[2])
		server, err2 := n.NewServer()
		if err1 != nil || err2 != nil {
			log.Fatal(err1, err2)
		}
		healthpb.RegisterHealthServer(server, greeter{})
		fmt.Println("serving on", l.Addr())
		log.Fatal(server.Serve(l))
	}
	id, err1 := identity.Parse(os.Args[3])
	conn, err2 := n.Dial(os.Args[2], credential.ExactID(id))
	if err1 != nil || err2 != nil {
		log.Fatal(err1, err2)
	}
	for range time.Tick(time.Second) {
		answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), new(healthpb.HealthCheckRequest))
		fmt.Println(id, answer.GetStatus(), err)
	}
}
