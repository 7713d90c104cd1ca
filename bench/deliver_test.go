package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/devcluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// BenchmarkDeliver measures one change of the trust bundle, a ban, until every agent
// has it: each on a connection and a stream of its own, over TLS on loopback. The
// agents are light: they receive, and do not verify or keep. With both ends of all
// connections in this process its limit of open files may allow fewer of them than
// asked for; how many there were is reported.
func BenchmarkDeliver(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newListeners(b, min(n, mostConnections(b)))
			var last, p99 []time.Duration
			before := cpu(b)
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				l.round(began)
				if err := l.ban(b.Context(), fmt.Sprintf("nobody-%d", i)); err != nil {
					b.Fatal(err)
				}
				took := l.wait(b)
				last, p99 = append(last, took[len(took)-1]), append(p99, took[len(took)*99/100])
			}
			b.StopTimer()
			slices.Sort(last)
			slices.Sort(p99)
			b.ReportMetric(float64(len(l.conns)), "agents")
			b.ReportMetric(float64(last[len(last)/2].Microseconds())/1000, "last-ms")
			b.ReportMetric(float64(p99[len(p99)/2].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N*len(l.conns)), "cpu-µs/agent")
		})
	}
}

// mostConnections is how many connections this process can hold both ends of.
func mostConnections(b *testing.B) int {
	b.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	return int(min(limit.Cur, 1<<20)-1000) * 2 / 5 // two each, and what a handshake needs
}

// listeners are members that hold a stream each.
type listeners struct {
	cluster *devcluster.Cluster
	conns   []*mesh.Conn
	ended   sync.WaitGroup
	admin   fealtyv1.MemberServiceClient

	began atomic.Int64 // Unix nanoseconds: of the round
	left  atomic.Int64 // who has not heard in this round
	took  []atomic.Int64
	done  chan struct{}
}

func newListeners(b *testing.B, n int) *listeners {
	b.Helper()
	j := newJoins(b, "")
	l := &listeners{cluster: j.cluster, conns: make([]*mesh.Conn, n), took: make([]atomic.Int64, n), done: make(chan struct{}, 1)}
	admin, err := mesh.DialLocal(l.cluster.AdminSocket())
	if err != nil {
		b.Fatal(err)
	}
	l.admin = fealtyv1.NewMemberServiceClient(admin)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(func() {
		cancel()
		for _, conn := range l.conns {
			if conn != nil {
				conn.Close()
			}
		}
		l.ended.Wait()
		admin.Close()
	})
	var next atomic.Int64
	var opening sync.WaitGroup
	for range 32 {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := l.open(ctx, j, i); err != nil {
					b.Errorf("agent %d: %v", i, err)
					return
				}
			}
		})
	}
	opening.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return l
}

// open joins member i, and has it listen. It returns once it has what is signed for it.
func (l *listeners) open(ctx context.Context, j *joins, i int) error {
	n, err := j.first.Again()
	if err != nil {
		return err
	}
	grant, err := n.JoinOver(ctx, j.conn, identity.Data, proof.NewTokenProver(j.token))
	if err != nil {
		return err
	}
	conn, id, err := n.DialAs(grant.GetChain())
	if err != nil {
		return err
	}
	l.conns[i] = conn
	stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		return err
	}
	signed, err := snapshot.Unmarshal(grant.GetNodeBootstrap().GetEnvelope())
	if err != nil {
		return err
	}
	claims, err := snapshot.ReadClaims(signed)
	if err != nil {
		return err
	}
	err = stream.Send(&fealtyv1.ConnectRequest{Name: id.Name(), Held: []*fealtyv1.HeldSnapshot{
		{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: claims.Header.AuthorityEpoch}, // no other one
	}})
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	l.ended.Go(func() {
		waiting := true
		for {
			m, err := stream.Recv()
			if err != nil {
				if waiting {
					ready <- err
				}
				return
			}
			switch snapshot.Scope(m.GetSnapshot().GetScope()) {
			case snapshot.ScopeNodeRuntime:
				if waiting {
					waiting = false
					ready <- nil
				}
			case snapshot.ScopeTrustBundle:
				l.heard(i)
			}
		}
	})
	return <-ready
}

// round begins to count who hears.
func (l *listeners) round(began time.Time) {
	for i := range l.took {
		l.took[i].Store(0)
	}
	l.left.Store(int64(len(l.took)))
	l.began.Store(began.UnixNano())
}

func (l *listeners) heard(i int) {
	began := l.began.Load()
	if began == 0 || !l.took[i].CompareAndSwap(0, max(1, time.Now().UnixNano()-began)) {
		return
	}
	if l.left.Add(-1) == 0 {
		l.done <- struct{}{}
	}
}

// wait returns how long each took, sorted.
func (l *listeners) wait(b *testing.B) []time.Duration {
	b.Helper()
	select {
	case <-l.done:
	case <-time.After(time.Minute):
		b.Fatalf("%d agents did not hear", l.left.Load())
	}
	l.began.Store(0)
	out := make([]time.Duration, len(l.took))
	for i := range l.took {
		out[i] = time.Duration(l.took[i].Load())
	}
	slices.Sort(out)
	return out
}

func (l *listeners) ban(ctx context.Context, name string) error {
	_, err := l.admin.BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: string(identity.Data), Name: name, Reason: "benchmark"})
	return err
}
