package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/node"
	"github.com/fealty-io/fealty/snapshot"
)

// A program on a member opens the folder of its agent. Without one it says what is missing.
func ExampleOpen() {
	n, err := node.Open("/nonexistent/agent", node.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	fmt.Println("this is", n.ID())
	// Output:
	// node: open /nonexistent/agent: FE-N101: there is no identity in /nonexistent/agent (this machine has not joined a cluster, or its data directory is another one): fealty explain FE-N101 says what to do
}

// A program reads its config, and asks before it begins something.
func ExampleNode_Snapshot() {
	folders, end := exampleMembers("node-a")
	defer end()

	n, err := node.Open(folders[0], node.Options{}) // such as /var/lib/fealty
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	ctx := context.Background()
	fmt.Println(n.Permit(ctx, "start_services"))
	runtime, err := n.Snapshot(ctx, snapshot.ScopeNodeRuntime)
	if err != nil {
		fmt.Println(err)
		return
	}
	var told struct {
		Kind  string `json:"kind"`
		State string `json:"state"`
	}
	fmt.Println(json.Unmarshal(runtime.JSON, &told), told.Kind, told.State, runtime.Freshness)

	_, err = n.Snapshot(ctx, snapshot.ScopeRoutePolicy)
	if refused, ok := errors.AsType[*node.RefusedError](err); ok {
		fmt.Println(refused.Code, "says that there is none:", refused.Remedy != "")
	}
	// Output:
	// <nil>
	// <nil> data active fresh
	// FE-N110 says that there is none: true
}

// A program follows its config until it closes the node.
func ExampleNode_Watch() {
	folders, end := exampleMembers("node-a")
	defer end()

	n, err := node.Open(folders[0], node.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	use := func(c node.Content) {
		fmt.Println("use", c.Scope)
		n.Close() // as a program does that ends
	}
	for content, err := range n.Watch(context.Background(), snapshot.ScopeNodeRuntime) {
		if errors.Is(err, node.ErrClosed) {
			fmt.Println("over")
		} else if _, ok := errors.AsType[*node.RefusedError](err); ok {
			fmt.Println("nothing of it may be used any more")
		} else if err != nil {
			fmt.Println("the agent is away: go on with what is in use")
		} else {
			use(content)
		}
	}
	// Output:
	// use node_runtime
	// over
}

// A client expects a member by its name, wherever it runs; a server finds who is calling.
func ExampleNode_Dial() {
	folders, end := exampleMembers("node-a", "node-b")
	defer end()

	a, err := node.Open(folders[0], node.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	l, err1 := net.Listen("tcp", "127.0.0.1:0")
	server, err2 := a.NewServer()
	if err1 != nil || err2 != nil {
		fmt.Println(err1, err2)
		return
	}
	defer server.Stop()
	healthpb.RegisterHealthServer(server, greeter{})
	go server.Serve(l)

	b, err := node.Open(folders[1], node.Options{}) // in another process, on another machine
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	call := func(name string) error {
		id, err := identity.New(b.ID().Cluster(), identity.Data, name)
		if err != nil {
			return err
		}
		conn, err := b.Dial(l.Addr().String(), credential.ExactID(id))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = healthpb.NewHealthClient(conn).Check(context.Background(), new(healthpb.HealthCheckRequest))
		return err
	}
	fmt.Println(call("node-a"))
	refused, _ := errors.AsType[*mesh.HandshakeError](call("node-c"))
	fmt.Println(refused.Reason)
	// Output:
	// called by node-b
	// <nil>
	// IdentityMismatch
}

type greeter struct {
	healthpb.UnimplementedHealthServer
}

// Check serves members of the cluster alone.
func (greeter) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	peer := identity.FromContext(ctx)
	if !peer.Identified() {
		return nil, status.Error(codes.Unauthenticated, "this is for members")
	}
	fmt.Println("called by", peer.ID.Name())
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}
