package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

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
	fmt.Println(n.Permit(ctx, node.StartServices))
	runtime, err := n.Snapshot(ctx, snapshot.ScopeNodeRuntime)
	if err != nil {
		fmt.Println(err)
		return
	}
	var told snapshot.NodeRuntime
	fmt.Println(runtime.Decode(&told), told.Kind, told.State, runtime.Freshness)
	fmt.Println(snapshot.Decode(runtime.Scope, runtime.JSON, new(snapshot.RoutePolicy)) != nil) // of another scope

	_, err = n.Snapshot(ctx, snapshot.ScopeRoutePolicy)
	if refused, ok := errors.AsType[*node.RefusedError](err); ok {
		fmt.Println(refused.Code, "says that there is none:", refused.Remedy != "")
	}
	// Output:
	// <nil>
	// <nil> data active fresh
	// true
	// FE-N110 says that there is none: true
}

// A program asks by the names that the agent's guard knows. One that does not exist is refused always.
func ExampleNode_Permit() {
	folders, end := exampleMembers("node-a")
	defer end()

	n, err := node.Open(folders[0], node.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Close()
	for _, group := range [][]node.Action{
		{node.ContinueServices, node.PreserveRoutes, node.PreserveSessions, node.ReconnectPeers, node.ValidatePeers,
			node.UseStorageEndpoints, node.ReportLater},
		{node.StartServices, node.ResolveSecrets, node.AdmitSessions},
		{node.ApproveEnrollment, node.IssueCertificates, node.AssignRoles, node.ChangeClusterPolicy,
			node.ChangeOrganizationPolicy, node.RotateTrustRoots, node.PromotePartition, node.FetchUnrelatedSecrets,
			node.CreateServiceAuthority},
		{"start_service"},
	} {
		permitted := 0
		for _, action := range group {
			err := n.Permit(context.Background(), action)
			if refused, ok := errors.AsType[*node.RefusedError](err); ok && refused.Code == "FE-N113" {
				fmt.Println(action, "does not exist")
			} else if err == nil || ok {
				permitted++
			}
		}
		fmt.Println(permitted, "of", len(group), "were decided on")
	}
	// Output:
	// 7 of 7 were decided on
	// 3 of 3 were decided on
	// 9 of 9 were decided on
	// start_service does not exist
	// 0 of 1 were decided on
}

// A server says whom it serves, by id, kind or a pattern of names; others are refused before its handlers.
func ExampleNode_NewServerFor() {
	folders, end := exampleMembers("web-1", "db-1")
	defer end()
	var members []*node.Node
	for _, dir := range folders {
		n, err := node.Open(dir, node.Options{})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer n.Close()
		members = append(members, n)
	}
	server, err := members[0].NewServerFor(credential.AnyNamed(identity.Data, "web-*"))
	if err != nil {
		fmt.Println(err)
		return
	}
	healthpb.RegisterHealthServer(server, greeter{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener)
	defer server.Stop()
	pages, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- members[0].ServeHTTPFor(ctx, credential.ExactID(members[0].ID()), pages, new(http.Server))
	}()
	for _, n := range members {
		conn, err := n.Dial(listener.Addr().String(), credential.ExactID(members[0].ID()))
		if err != nil {
			fmt.Println(err)
			return
		}
		_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(n.ID().Name(), status.Code(err))
		conn.Close()
		transport, err := n.NewHTTPTransport(credential.ExactID(members[0].ID()))
		if err != nil {
			fmt.Println(err)
			return
		}
		client := http.Client{Transport: transport}
		answer, err := client.Get("https://" + pages.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n.ID().Name(), answer.StatusCode)
		answer.Body.Close()
		transport.CloseIdleConnections()
	}
	stop()
	fmt.Println(<-served)
	// Output:
	// called by web-1
	// web-1 OK
	// web-1 404
	// db-1 PermissionDenied
	// db-1 403
	// <nil>
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
