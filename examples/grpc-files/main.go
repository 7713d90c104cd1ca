// Command grpc-files is a gRPC server and its client with certificates in files, which it follows:
// "grpc-files CERT KEY CA ADDRESS" serves, "grpc-files CERT KEY CA ADDRESS ID" asks ID there each second.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/mesh"
)

type greeter struct {
	healthpb.UnimplementedHealthServer
}

func (greeter) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	fmt.Println("called by", identity.FromContext(ctx).ID) // none, if it showed no certificate
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: grpc-files CERT KEY CA ADDRESS [ID]")
	}
	source, err := credential.NewFiles(credential.FilesConfig{
		Paths: credential.FilePaths{Cert: os.Args[1], Key: os.Args[2], CA: os.Args[3]}})
	if err != nil {
		log.Fatal(err)
	}
	go source.Run(context.Background())
	if len(os.Args) == 5 {
		l, err1 := net.Listen("tcp", os.Args[4])
		guard, err2 := mesh.NewGuard(mesh.GuardConfig{Source: source})
		if err1 != nil || err2 != nil {
			log.Fatal(err1, err2)
		}
		server := grpc.NewServer(guard.ServerOptions()...)
		healthpb.RegisterHealthServer(server, greeter{})
		fmt.Println("serving on", l.Addr())
		log.Fatal(server.Serve(l))
	}
	id, err1 := identity.Parse(os.Args[5])
	conn, err2 := mesh.Dial(os.Args[4], source, credential.ExactID(id), mesh.Options{})
	if err1 != nil || err2 != nil {
		log.Fatal(err1, err2)
	}
	for range time.Tick(time.Second) {
		answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), new(healthpb.HealthCheckRequest))
		fmt.Println(id, answer.GetStatus(), err)
	}
}
