package bench

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// distance serves addr at a distance: whatever passes, either way, comes later by half of
// trip.
func distance(b *testing.B, addr string, trip time.Duration) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	b.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				near.Close()
				continue
			}
			all.Go(func() { late(far, near, trip/2) })
			all.Go(func() { late(near, far, trip/2) })
		}
	})
	return l.Addr().String()
}

// late passes on what comes from one connection to the other, each piece so much later.
func late(to, from net.Conn, by time.Duration) {
	type piece struct {
		data []byte
		at   time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 16<<10)
			n, err := from.Read(data)
			if n > 0 {
				pieces <- piece{data[:n], time.Now().Add(by)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	for range pieces { // until the other goroutine has ended
	}
}

// BenchmarkJoinTogether admits 32 machines at once by one token, and 32 by a token each,
// in turns, with the store on a PostgreSQL that is a round trip of 2.4 ms away.
func BenchmarkJoinTogether(b *testing.B) {
	const machines = 32
	server := pgtest.New(b)
	c := clusterOn(b, server.URLVia(distance(b, server.Addr(), 2400*time.Microsecond), server.Database(b)))
	first, err := c.Candidate(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var conns []*mesh.Conn
	for range 8 { // a connection of a stranger has few calls at once
		conn, err := first.Dial()
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	join := func(tokens int) time.Duration {
		b.Helper()
		b.StopTimer()
		defer b.StartTimer()
		var toks []proof.JoinToken
		for range tokens {
			tok, err := c.Token(b.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool", Uses: uint32(machines / tokens)})
			if err != nil {
				b.Fatal(err)
			}
			toks = append(toks, tok)
		}
		var candidates []*devcluster.Candidate
		for range machines {
			n, err := first.Again()
			if err != nil {
				b.Fatal(err)
			}
			candidates = append(candidates, n)
		}
		var all sync.WaitGroup
		began := time.Now()
		for i, n := range candidates {
			all.Go(func() {
				if _, err := n.JoinOver(b.Context(), conns[i%len(conns)], identity.Data, proof.NewTokenProver(toks[i%tokens])); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		return time.Since(began)
	}
	var one, each []time.Duration
	b.ResetTimer()
	for b.Loop() {
		one, each = append(one, join(1)), append(each, join(machines))
	}
	b.ReportMetric(0, "ns/op") // of both, and of what is made ready before each
	b.ReportMetric(machines/median(one).Seconds(), "one-token-joins/s")
	b.ReportMetric(machines/median(each).Seconds(), "32-tokens-joins/s")
	b.ReportMetric(float64(median(one))/float64(median(each)), "one-token/32-tokens")
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}

// BenchmarkChange measures one change of the config until a light agent has it: first on a
// cluster that was quiet, and then right after that change, in the pause that gathers what
// comes soon after a publication. The ratio is what the pause would cost every change.
func BenchmarkChange(b *testing.B) {
	j := newJoins(b, "")
	admin, err := mesh.DialLocal(j.cluster.AdminSocket())
	if err != nil {
		b.Fatal(err)
	}
	defer admin.Close()
	put := func(records ...string) {
		req := &fealtyv1.PutConfigRequest{}
		for _, r := range records {
			req.Records = append(req.Records, []byte(r))
		}
		if _, err := fealtyv1.NewConfigServiceClient(admin).PutConfig(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
	n, err := j.first.Again()
	if err != nil {
		b.Fatal(err)
	}
	grant, err := n.JoinOver(b.Context(), j.conn, identity.Data, proof.NewTokenProver(j.token))
	if err != nil {
		b.Fatal(err)
	}
	conn, id, err := n.DialAs(grant.GetChain())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	heard := listen(b, conn, id)
	changes := 0
	change := func() time.Duration {
		changes++
		began := time.Now()
		put(fmt.Sprintf("kind: route\nname: changes\norganization: acme\nmatch: host=shop.acme.example\nto: [shop]\npriority: %d\n", changes))
		select {
		case at := <-heard:
			return at.Sub(began)
		case <-time.After(time.Minute):
			b.Fatal("the agent has not heard")
		}
		return 0
	}
	put("kind: organization\nname: acme\n", "kind: peer\nname: shop\norganization: acme\nmember: "+string(id.Kind())+"/"+id.Name()+"\naddresses: [\"127.0.0.1:7001\"]\nclass: active\n")
	quiet := func() {
		for {
			select {
			case <-heard:
			case <-time.After(300 * time.Millisecond):
				return
			}
		}
	}
	change() // of everything that comes with the first
	var idle, after []time.Duration
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		quiet()
		b.StartTimer()
		idle = append(idle, change())
		after = append(after, change())
	}
	b.ReportMetric(float64(median(idle).Microseconds())/1000, "quiet-ms")
	b.ReportMetric(float64(median(after).Microseconds())/1000, "in-pause-ms")
	b.ReportMetric(float64(median(after))/float64(median(idle)), "in-pause/quiet")
}

// listen has a member hold a stream, and returns when its routes came.
func listen(b *testing.B, conn grpc.ClientConnInterface, id identity.ID) <-chan time.Time {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
	if err == nil {
		err = stream.Send(&fealtyv1.ConnectRequest{Name: id.Name()})
	}
	if err != nil {
		cancel()
		b.Fatal(err)
	}
	heard := make(chan time.Time, 64)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if snapshot.Scope(m.GetSnapshot().GetScope()) == snapshot.ScopeRoutePolicy {
				heard <- time.Now()
			}
		}
	})
	b.Cleanup(func() { cancel(); all.Wait() })
	return heard
}
