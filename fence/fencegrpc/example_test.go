package fencegrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
)

// A process hangs and is replaced; its call that comes late reaches no machine. In a real
// service both ends keep their state on disk, with package fence/durable, and the holder's
// name comes from the client's certificate.
func Example() {
	rules := map[string]fencegrpc.Rule{grpc_health_v1.Health_Check_FullMethodName: {
		Resource: func(r any) string { return r.(*grpc_health_v1.HealthCheckRequest).GetService() },
	}}
	fenced := &fencegrpc.Server{
		Gate:   fence.NewGate(fence.InMemory(fence.NewLedger(fence.LedgerOptions{BelieveEpochs: true})), 0),
		Holder: func(context.Context) (string, error) { return "shard-a", nil },
		Rules:  rules,
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(fenced.Unary), grpc.StreamInterceptor(fenced.Stream))
	service := new(machines)
	grpc_health_v1.RegisterHealthServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()

	call := func(s *fence.Sender, machine string) error {
		client := &fencegrpc.Client{Sender: s, Rules: rules}
		conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
			append(client.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = grpc_health_v1.NewHealthClient(conn).Check(context.Background(),
			&grpc_health_v1.HealthCheckRequest{Service: machine})
		return err
	}
	first := fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()}
	zombie, _ := fence.NewSender(first)
	successor, _ := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 2), Incarnation: fence.NewIncarnation(),
		Lineage: fence.Lineage{first.Incarnation}})

	fmt.Println(call(successor, "m-1"))
	refused, _ := errors.AsType[*fencegrpc.RefusedError](call(zombie, "m-1"))
	fmt.Println(refused.Reason, errors.Is(refused, fence.ErrFenced))
	server.Stop()
	fmt.Println(<-done, service.seen())
	// Output:
	// <nil>
	// stale true
	// <nil> [m-1]
}

// A method that nobody thought of is not called, and never goes out without a token: a rule says
// of each which resource it acts on, or that it only reads.
func ExampleClient() {
	sender, err := fence.NewSender(fence.Life{Epoch: fence.NewEpoch(0, 1), Incarnation: fence.NewIncarnation()})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &fencegrpc.Client{Sender: sender, Rules: map[string]fencegrpc.Rule{
		"/machines.v1.Machines/Delete": {Removes: true, Resource: func(r any) string {
			return r.(*grpc_health_v1.HealthCheckRequest).GetService() // in place of your own request
		}},
	}}
	conn, err := grpc.NewClient("passthrough:///127.0.0.1:9",
		append(client.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	err = conn.Invoke(context.Background(), "/machines.v1.Machines/Wipe", new(grpc_health_v1.HealthCheckRequest), nil)
	fmt.Println(errors.Is(err, fencegrpc.ErrNoRule))
	// Output:
	// true
}
