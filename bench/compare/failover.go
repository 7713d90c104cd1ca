package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/bench/compare/internal/part"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
)

// tooLong ends a round in which nobody took over.
const tooLong = time.Minute

// failovers compare what a user sees of the end of a leader that is killed: how long it takes until a change that is made
// at a survivor is in effect at the other one. Both have three replicas, with the timeouts that they come with. Fealty's
// share a store on disk, and the change reaches a member at the other survivor, compiled and signed; hashicorp/raft keeps
// its log in memory, and the change reaches the other's state machine.
func failovers(ctx context.Context, o options) (rows []row, err error) {
	c, err := startCluster(ctx, 3)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ours, err := newSurvived(ctx, c)
	if err != nil {
		return nil, err
	}
	theirs, err := newRaftGroup()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	sides := []side{{"Fealty", ours.round}, {"hashicorp/raft", theirs.round}}
	rounds := o.rounds
	if o.few {
		rounds = 1
	}
	cost, err := turns(ctx, rounds, sides...)
	return against("a killed leader, until a change is in effect again", "ms", sides, cost), err
}

func millis(d time.Duration) float64 { return micros(d) / 1000 }

// survived is a cluster of coordinators whose leaders are killed.
type survived struct {
	cluster *devcluster.Cluster
	agents  map[string]*fealtyAgents // of each coordinator
	version int
}

func newSurvived(ctx context.Context, c *devcluster.Cluster) (*survived, error) {
	s := &survived{cluster: c, agents: make(map[string]*fealtyAgents)}
	if err := s.change(ctx, c.CoordinatorNames()[0]); err != nil {
		return nil, err
	}
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: devcluster.PoolEntry, Uses: 10})
	if err != nil {
		return nil, err
	}
	for _, name := range c.CoordinatorNames() {
		addr, err := c.AddressOf(name)
		if err != nil {
			return nil, err
		}
		there := tok
		there.Addresses = []string{addr}
		s.agents[name] = new(fealtyAgents)
		if err := s.agents[name].Prepare(ctx, part.Order{Target: there.Line(), N: 1}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// change changes a route at a coordinator.
func (s *survived) change(ctx context.Context, at string) error {
	s.version++
	return s.cluster.WithAdminOf(at, func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewConfigServiceClient(conn).PutConfig(ctx, &fealtyv1.PutConfigRequest{Records: [][]byte{
			fmt.Appendf(nil, "kind: route\nname: r-0\nmatch: host=shop.example\ndeny: true\npriority: %d\n", s.version)}})
		return err
	})
}

func (s *survived) round(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	if err := s.cluster.AwaitReady(ctx, s.cluster.CoordinatorNames()...); err != nil {
		return 0, err
	}
	leader, _, err := s.cluster.Leader(ctx)
	if err != nil {
		return 0, err
	}
	survivors := slices.DeleteFunc(slices.Clone(s.cluster.CoordinatorNames()), func(name string) bool { return name == leader })
	told, end, err := s.agents[survivors[1]].Open(ctx, 0)
	if err != nil {
		return 0, err
	}
	defer end()
	killed := make(chan error, 1)
	began := time.Now()
	go func() { killed <- s.cluster.KillCoordinator(leader) }()
	for err = s.change(ctx, survivors[0]); err != nil; err = s.change(ctx, survivors[0]) {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no change was accepted: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := told(); err != nil {
		return 0, err
	}
	took := millis(time.Since(began))
	return took, errors.Join(<-killed, s.cluster.StartCoordinator(ctx, leader))
}

// raftGroup is three nodes of hashicorp/raft on loopback.
type raftGroup struct {
	nodes []*raftNode
}

type raftNode struct {
	store     *raft.InmemStore // log and votes, which outlive the node
	snapshots *raft.InmemSnapshotStore
	addr      raft.ServerAddress
	transport *raft.NetworkTransport
	raft      *raft.Raft
}

// nothing is a state machine that keeps nothing.
type nothing struct{}

func (nothing) Apply(*raft.Log) any { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) {
	return nil, errors.New("there is nothing to keep")
}
func (nothing) Restore(io.ReadCloser) error { return nil }

func newRaftGroup() (_ *raftGroup, err error) {
	g := new(raftGroup)
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	var all raft.Configuration
	for range 3 {
		addr, err := freeAddress()
		if err != nil {
			return nil, err
		}
		n := &raftNode{store: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore(), addr: raft.ServerAddress(addr)}
		g.nodes = append(g.nodes, n)
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(addr), Address: n.addr})
	}
	for _, n := range g.nodes {
		if err := n.start(); err != nil {
			return nil, err
		}
	}
	return g, g.nodes[0].raft.BootstrapCluster(all).Error()
}

func (n *raftNode) start() (err error) {
	if n.transport, err = raft.NewTCPTransport(string(n.addr), nil, 3, 10*time.Second, io.Discard); err != nil {
		return err
	}
	config := raft.DefaultConfig()
	config.LocalID, config.LogOutput = raft.ServerID(n.addr), io.Discard
	n.raft, err = raft.NewRaft(config, nothing{}, n.store, n.store, n.snapshots, n.transport)
	return err
}

// kill ends the node: from here on nobody hears of it.
func (n *raftNode) kill() error {
	err := n.transport.Close()
	n.transport.CloseStreams()
	return errors.Join(err, n.raft.Shutdown().Error())
}

func (g *raftGroup) close() error {
	var errs []error
	for _, n := range g.nodes {
		if n.raft != nil {
			errs = append(errs, n.kill())
		}
	}
	return errors.Join(errs...)
}

// leader waits until one of some nodes leads.
func leader(ctx context.Context, of []*raftNode) (int, error) {
	for {
		if at := slices.IndexFunc(of, func(n *raftNode) bool { return n.raft.State() == raft.Leader }); at >= 0 {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("no node leads")
		case <-time.After(time.Millisecond):
		}
	}
}

// apply makes a change at a node that leads, and waits until another node has it.
func (n *raftNode) apply(ctx context.Context, others ...*raftNode) error {
	change := n.raft.Apply([]byte("change"), tooLong)
	if err := change.Error(); err != nil {
		return err
	}
	for _, other := range others {
		for other.raft.AppliedIndex() < change.Index() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("the change did not reach %s: %w", other.addr, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

func (g *raftGroup) round(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	at, err := leader(ctx, g.nodes)
	if err != nil {
		return 0, err
	}
	if err := g.nodes[at].apply(ctx, g.nodes...); err != nil {
		return 0, err
	}
	killed := make(chan error, 1)
	began := time.Now()
	go func() { killed <- g.nodes[at].kill() }()
	others := slices.Delete(slices.Clone(g.nodes), at, at+1)
	for {
		next, err := leader(ctx, others)
		if err != nil {
			return 0, err
		}
		switch err := others[next].apply(ctx, others[1-next]); {
		case err == nil:
			took := millis(time.Since(began))
			return took, errors.Join(<-killed, g.nodes[at].start())
		case ctx.Err() != nil:
			return 0, err
		} // it lost the lead
	}
}
