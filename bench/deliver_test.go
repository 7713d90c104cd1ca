package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	devcluster "github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// BenchmarkDeliver measures one change of the trust bundle, a ban, until every agent
// has it: each on a connection and a stream of its own, over TLS on loopback. The
// agents are in a process of their own, and light: they receive, and do not verify or
// keep.
func BenchmarkDeliver(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { // once, as another one is in it
			j := newJoins(b, "")
			admin, err := mesh.DialLocal(j.cluster.AdminSocket())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { admin.Close() })
			members := fealtyv1.NewMemberServiceClient(admin)
			agents := startAgents(b, j.token, n)
			var bans int
			b.Run("ban", func(b *testing.B) {
				theirs := agents.tell(b, order{}).CPU
				ours := cpu(b)
				var last, p99 []time.Duration
				b.ResetTimer()
				for range b.N {
					bans++
					agents.tell(b, order{Began: time.Now()})
					if _, err := members.BanMember(b.Context(), &fealtyv1.BanMemberRequest{Kind: string(identity.Data), Name: fmt.Sprintf("nobody-%d", bans), Reason: "benchmark"}); err != nil {
						b.Fatal(err)
					}
					r := agents.tell(b, order{Wait: true})
					last, p99 = append(last, r.Last), append(p99, r.P99)
				}
				b.StopTimer()
				ours = cpu(b) - ours
				end := agents.tell(b, order{})
				theirs = end.CPU - theirs
				slices.Sort(last)
				slices.Sort(p99)
				b.ReportMetric(float64(n), "agents")
				b.ReportMetric(float64(end.Returns), "returns")
				b.ReportMetric(float64(last[len(last)/2].Microseconds())/1000, "last-ms")
				b.ReportMetric(float64(p99[len(p99)/2].Microseconds())/1000, "p99-ms")
				b.ReportMetric(float64(ours.Microseconds())/float64(b.N*n), "coordinator-cpu-µs/agent")
				b.ReportMetric(float64(theirs.Microseconds())/float64(b.N*n), "agents-cpu-µs/agent")
			})
		})
	}
}

// order is a line to the process of the agents: the first says who they are, then
// one begins each round, and one waits for its end. Any is answered by a [report].
type order struct {
	Token string    `json:"token,omitempty"` // join this many with it
	N     int       `json:"n,omitempty"`
	Began time.Time `json:"began,omitzero"` // count from here who hears
	Wait  bool      `json:"wait,omitempty"` // until all have heard
}

type report struct {
	Last time.Duration `json:"last,omitempty"` // from the begin of the round until the last had heard
	P99  time.Duration `json:"p99,omitempty"`
	CPU  time.Duration `json:"cpu"` // that the process has used

	Returns int64 `json:"returns"` // of agents whose stream ended
}

func startAgents(b *testing.B, tok proof.JoinToken, n int) process[order, report] {
	b.Helper()
	p := startProcess[order, report](b, agentsRole)
	p.tell(b, order{Token: tok.Line(), N: n})
	return p
}

// beAgents is the process of the agents.
func beAgents(in io.Reader, out io.Writer) error {
	l := &listeners{done: make(chan struct{}, 1)}
	defer l.close()
	return obey(in, out, func(o order) (r report, err error) {
		switch {
		case o.Token != "":
			err = l.start(o.Token, o.N)
		case !o.Began.IsZero():
			l.round(o.Began)
		case o.Wait:
			var took []time.Duration
			if took, err = l.wait(); err == nil {
				r.Last, r.P99 = took[len(took)-1], took[len(took)*99/100]
			}
		}
		if err != nil {
			return r, err
		}
		r.Returns = l.returns.Load()
		r.CPU, err = cpuTime()
		return r, err
	})
}

// listeners are members that hold a stream each.
type listeners struct {
	conns  []*mesh.Conn
	cancel context.CancelFunc
	ended  sync.WaitGroup

	returns atomic.Int64 // streams that were opened because one ended

	began atomic.Int64 // Unix nanoseconds: of the round
	left  atomic.Int64 // who has not heard in this round
	took  []atomic.Int64
	done  chan struct{}
}

// start joins n members by one token, and has them listen.
func (l *listeners) start(line string, n int) error {
	tok, err := proof.ParseJoinToken(line)
	if err != nil {
		return err
	}
	first, err := devcluster.NewCandidate(tok)
	if err != nil {
		return err
	}
	stranger, err := first.Dial()
	if err != nil {
		return err
	}
	defer stranger.Close()
	l.conns, l.took = make([]*mesh.Conn, n), make([]atomic.Int64, n)
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	var next atomic.Int64
	var opening sync.WaitGroup
	failed := make(chan error, 32)
	for range cap(failed) {
		opening.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				candidate, err := first.Again()
				if err == nil {
					err = l.open(ctx, candidate, stranger, tok, i)
				}
				if err != nil {
					failed <- fmt.Errorf("agent %d: %w", i, err)
					return
				}
			}
		})
	}
	opening.Wait()
	close(failed)
	return <-failed
}

func (l *listeners) close() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	for _, conn := range l.conns {
		if conn != nil {
			conn.Close()
		}
	}
	l.ended.Wait()
}

// open joins member i, and has it listen. It returns once it has what is signed for it.
func (l *listeners) open(ctx context.Context, n *devcluster.Candidate, stranger *mesh.Conn, tok proof.JoinToken, i int) error {
	grant, err := n.JoinOver(ctx, stranger, identity.Data, proof.NewTokenProver(tok))
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
	claims, err := signed.Claims()
	if err != nil {
		return err
	}
	held := []*fealtyv1.HeldSnapshot{{Scope: string(snapshot.ScopeNodeBootstrap), AuthorityEpoch: claims.Header.AuthorityEpoch}} // no other one
	if err := stream.Send(&fealtyv1.ConnectRequest{Name: id.Name(), Held: held}); err != nil {
		return err
	}
	ready := make(chan error, 1)
	l.ended.Go(func() {
		err := l.listen(stream, i, func() { ready <- nil })
		select {
		case ready <- err:
		default: // it was ready
		}
		// On a machine with other work a connection may end for want of an answer. An
		// agent comes back, and is told what it missed.
		for ctx.Err() == nil {
			l.returns.Add(1)
			if stream, err := fealtyv1.NewAgentServiceClient(conn).Connect(ctx, grpc.WaitForReady(true)); err == nil && stream.Send(&fealtyv1.ConnectRequest{Name: id.Name(), Held: held}) == nil {
				_ = l.listen(stream, i, func() {}) // it ended again
			}
		}
	})
	return <-ready
}

// listen receives for agent i until stream ends. It calls ready when what is signed for
// the agent has come, the first time alone.
func (l *listeners) listen(stream grpc.ServerStreamingClient[fealtyv1.ConnectResponse], i int, ready func()) error {
	ready = sync.OnceFunc(ready)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch snapshot.Scope(m.GetSnapshot().GetScope()) {
		case snapshot.ScopeNodeRuntime:
			ready()
		case snapshot.ScopeTrustBundle:
			l.heard(i)
		}
	}
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
func (l *listeners) wait() ([]time.Duration, error) {
	select {
	case <-l.done:
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%d agents did not hear", l.left.Load())
	}
	l.began.Store(0)
	out := make([]time.Duration, len(l.took))
	for i := range l.took {
		out[i] = time.Duration(l.took[i].Load())
	}
	slices.Sort(out)
	return out, nil
}
