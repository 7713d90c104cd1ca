package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/bench/compare/internal/part"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// unlimited are rates for a load that comes from one machine.
func unlimited() coordinator.Rates {
	return coordinator.Rates{PerSource: 1e9, SourceBurst: 1e9, Overall: 1e9, OverallBurst: 1e9, PerMember: 1e9, MemberBurst: 1e9}
}

// startCluster starts coordinators on SQLite, without members.
func startCluster(ctx context.Context, coordinators int) (*devcluster.Cluster, error) {
	return devcluster.Start(ctx, devcluster.Options{Coordinators: coordinators, Members: []string{}, Release: "compare",
		Log: slog.New(slog.DiscardHandler), Rates: unlimited()})
}

// fealtyServer is a coordinator on SQLite.
type fealtyServer struct {
	cluster *devcluster.Cluster
	version int
}

func (s *fealtyServer) Do(ctx context.Context, o part.Order) (part.Answer, error) {
	switch o.Do {
	case "start":
		var err error
		if s.cluster, err = startCluster(ctx, 1); err != nil {
			return part.Answer{}, err
		}
		if err := s.change(ctx, part.Records); err != nil {
			return part.Answer{}, err
		}
		tok, err := s.cluster.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: devcluster.PoolEntry, Uses: 100_000})
		return part.Answer{Target: tok.Line()}, err
	case "change":
		return part.Answer{}, s.change(ctx, o.N)
	}
	return part.Answer{}, fmt.Errorf("a coordinator cannot %q", o.Do)
}

// change changes n of the routes, which are for all members.
func (s *fealtyServer) change(ctx context.Context, n int) error {
	s.version++
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "---\nkind: route\nname: r-%04d\nmatch: %s\ndeny: true\npriority: %d\n", i, part.MatchOf(i), s.version)
	}
	return s.cluster.PutConfig(ctx, text.String())
}

func (s *fealtyServer) Close() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Close()
}

// fealtyAgents are members.
type fealtyAgents struct {
	members []fealtyMember
	renewed int // of them
}

type fealtyMember struct {
	*devcluster.Candidate
	grant *fealtyv1.JoinGrant
	conn  *mesh.Conn // once its stream is open
	id    identity.ID
}

// renewing are listeners that also renew.
type renewing struct {
	*part.Listeners
	agents *fealtyAgents
}

func newRenewing() renewing {
	a := new(fealtyAgents)
	return renewing{part.NewListeners(a), a}
}

// Do carries out one order more: renew has N members renew whose streams are open, each once over its connection.
func (r renewing) Do(ctx context.Context, o part.Order) (part.Answer, error) {
	if o.Do != "renew" {
		return r.Listeners.Do(ctx, o)
	}
	for range o.N {
		m := &r.agents.members[r.agents.renewed]
		r.agents.renewed++
		if _, err := m.Renew(ctx, m.conn, m.id); err != nil {
			return part.Answer{}, err
		}
	}
	return part.Answer{}, nil
}

// Prepare joins more members, over a few connections of strangers.
func (a *fealtyAgents) Prepare(ctx context.Context, o part.Order) error {
	tok, err := proof.ParseJoinToken(o.Target)
	if err != nil {
		return err
	}
	first, err := devcluster.NewCandidate(tok)
	if err != nil {
		return err
	}
	var next atomic.Int64
	next.Store(int64(len(a.members)))
	a.members = append(a.members, make([]fealtyMember, o.N)...)
	until := len(a.members)
	var joining sync.WaitGroup
	failed := make(chan error, 4)
	for range cap(failed) {
		joining.Go(func() {
			conn, err := first.Dial()
			if err != nil {
				failed <- err
				return
			}
			defer conn.Close()
			for i := int(next.Add(1)) - 1; i < until; i = int(next.Add(1)) - 1 {
				n, err := first.Again()
				if err == nil {
					a.members[i].Candidate = n
					a.members[i].grant, err = n.JoinOver(ctx, conn, identity.Data, proof.NewTokenProver(tok))
				}
				if err != nil {
					failed <- fmt.Errorf("member %d: %w", i, err)
					return
				}
			}
		})
	}
	joining.Wait()
	close(failed)
	return <-failed
}

func (a *fealtyAgents) Open(ctx context.Context, i int) (func() error, func(), error) {
	m := &a.members[i]
	conn, id, err := m.DialAs(m.grant.GetChain())
	if err != nil {
		return nil, nil, err
	}
	m.conn, m.id = conn, id
	end := func() { conn.Close() }
	fail := func(err error) (func() error, func(), error) { end(); return nil, nil, err }
	stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return fail(err)
	}
	// It has the bootstrap of its grant.
	signed, err := snapshot.Unmarshal(m.grant.GetNodeBootstrap().GetEnvelope())
	if err != nil {
		return fail(err)
	}
	claims, err := signed.Claims()
	if err != nil {
		return fail(err)
	}
	held := []*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: claims.Header.AuthorityEpoch,
		ConfigVersion: claims.Header.ConfigVersion, ContentHash: claims.Header.ContentHash[:]}}
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: id.Name(), Held: held}); err != nil {
		return fail(err)
	}
	next := func() error {
		for {
			news, err := stream.Recv()
			if err != nil {
				return err
			}
			if news.GetSnapshot().GetScope() == string(snapshot.ScopeRoutePolicy) {
				return nil
			}
		}
	}
	if err := next(); err != nil {
		return fail(errors.Join(errors.New("no routes came"), err))
	}
	return next, end, nil
}
