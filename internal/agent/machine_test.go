package agent_test

import (
	"context"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/logs"
)

// node is a machine: its disk, and how it joins.
type node struct {
	*nodetest.Machine
	said logs.Text // by the log of its agents
}

func newNode(f *nodetest.Fleet) *node { return &node{Machine: nodetest.NewMachine(f)} }

// clone returns another machine with a copy of n's files.
func (n *node) clone() *node { return &node{Machine: n.Machine.Clone()} }

func (n *node) open() (*agent.Agent, error) { return n.openOn(n.Disk.FS()) }

func (n *node) openOn(files durable.FS) (*agent.Agent, error) {
	a, err := agent.Open(context.Background(), agent.Config{DataDir: n.Dir, FS: files, Now: n.Fleet.Clock, Log: nodetest.Quiet(),
		Dial: n.Fleet.Dial, Release: "v0.1.0"})
	if a != nil {
		a.Serve("", "") // tests that want one say so
	}
	return a, err
}

func (n *node) mustOpen() *agent.Agent {
	n.Fleet.TB.Helper()
	a, err := n.open()
	n.Fleet.Must(err)
	return a
}

// run runs a in the background and returns what ends it and waits; it is called at
// the end of the test at the latest.
func (n *node) run(a *agent.Agent) (stop func() error) {
	n.Fleet.TB.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	n.Fleet.TB.Cleanup(func() { _ = stop() })
	return stop
}

// version of the trust bundle in use at a; 0 for none.
func trustVersion(a *agent.Agent) uint64 {
	if h := a.Node().TrustState().Active[snapshot.ScopeTrustBundle]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

func bootVersion(a *agent.Agent) uint64 {
	if h := a.Node().TrustState().Active[snapshot.ScopeNodeBootstrap]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

// take has a take one snapshot from a coordinator.
func take(ctx context.Context, a *agent.Agent, scope string, raw []byte) error {
	return a.Contact().Take(ctx, state.ByCoordinator, state.Offer{Scope: scope, Raw: raw})
}

// freshFor is how long a record of the fleet is fresh.
const freshFor = 15 * time.Minute
