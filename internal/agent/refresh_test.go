package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/snapshot"
)

// generation of the record over the node_runtime in use at a; 0 without one.
func generation(a *agent.Agent) uint64 {
	if h := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime]; h != nil {
		r, _ := h.Verified.Record()
		return r.Generation
	}
	return 0
}

// A stream that stands and brings nothing is found out before what the node holds is
// stale: it asks, takes what it is told, and leaves the stream.
func TestHalfOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t, "a.example:1", "b.example:2")
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		m := f.Member(a.Node().Me().ID)
		f.Send(nodetest.News(f.Runtime(&m)))
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		first := generation(a)
		if first == 0 {
			t.Fatal("no node_runtime")
		}
		f.Do(func() {
			f.Extra = nil
			f.Poll = func(*fealtyv1.PollRequest) []*fealtyv1.SignedSnapshot {
				return []*fealtyv1.SignedSnapshot{f.Runtime(&m)}
			}
		})
		time.Sleep(13 * time.Minute)
		if f.Count(&f.Seen.Polls) != 0 {
			t.Error("it asked while what it holds was fresh")
		}
		time.Sleep(2 * time.Minute)
		if f.Count(&f.Seen.Polls) != 1 || generation(a) <= first {
			t.Errorf("%d polls, generation %d after %d", f.Count(&f.Seen.Polls), generation(a), first)
		}
		time.Sleep(10 * time.Second)
		if f.Count(&f.Seen.Hellos) != 2 || !a.Node().Status().View().Connected {
			t.Errorf("%d streams, connected %v", f.Count(&f.Seen.Hellos), a.Node().Status().View().Connected)
		}
		for range 20 {
			time.Sleep(time.Minute)
			if got := a.Node().TrustState().Facts().Overall(a.Node().Now()); got != snapshot.Fresh {
				t.Fatalf("it is %s", got)
			}
		}
		_ = stop()
	})
}

// A coordinator that has nothing to say, or lies, is not asked all the time, and the next one is.
func TestAsksOthersRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t, "a.example:1", "b.example:2", "c.example:3")
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		m := f.Member(a.Node().Me().ID)
		f.Send(nodetest.News(f.Runtime(&m)))
		f.Do(func() {
			f.Poll = func(*fealtyv1.PollRequest) []*fealtyv1.SignedSnapshot {
				return []*fealtyv1.SignedSnapshot{{Scope: "node_runtime", Envelope: []byte("garbage")}}
			}
		})
		stop := n.run(a)
		time.Sleep(2*time.Hour + 15*time.Minute)
		// 15 minutes of quiet, then pauses that double up to five minutes, three sources each.
		if got := f.Count(&f.Seen.Polls); got < 3*20 || got > 3*45 {
			t.Errorf("%d polls in two hours", got)
		}
		if got := testutil.ToFloat64(a.Counters().Asked().WithLabelValues("coordinator",
			"none")); got != float64(f.Count(&f.Seen.Polls)) {
			t.Errorf("%v counted", got)
		}
		if a.Node().TrustState().Facts().Overall(a.Node().Now()) == snapshot.Fresh || generation(a) == 0 {
			t.Error("it believed a lie, or dropped what it had")
		}
		_ = stop()
	})
}

// Without a coordinator nothing of the round outlives it.
func TestRoundsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		defer a.Close()
		f.Do(func() { f.Faults.Down["all"] = true })
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		a.Fetcher().Inquire(ctx)
		if took := time.Since(began); took > fetch.NewsTime {
			t.Errorf("a round took %v", took)
		}
		cancel()
	})
}
