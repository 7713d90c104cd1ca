package node_test

import (
	"context"
	"fmt"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
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
	var n *node.Node // of Open
	run := func(ctx context.Context) error {
		if err := n.Permit(ctx, "start_services"); err != nil {
			return err
		}
		routes, err := n.Snapshot(ctx, snapshot.ScopeRoutePolicy)
		if err != nil {
			return err
		}
		fmt.Printf("version %d: %s\n", routes.ConfigVersion, routes.JSON)
		return nil
	}
	_ = run
}

// A client expects a member by its name, wherever it runs.
func ExampleNode_Dial() {
	var n *node.Node // of Open
	call := func(address, name string) error {
		id, err := identity.New(n.ID().Cluster(), identity.Data, name)
		if err != nil {
			return err
		}
		conn, err := n.Dial(address, credential.ExactID(id))
		if err != nil {
			return err
		}
		return conn.Close() // after calls of generated clients
	}
	_ = call
}
