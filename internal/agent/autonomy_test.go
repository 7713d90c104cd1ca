package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/nodetest"
)

// The node says how long it works alone, and counts from the last word that it got.
func TestAutonomyRunsOutAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.SVIDTTL, f.RenewEvery = 8*time.Hour, 10*time.Minute // and so a third of the time alone
		n := newNode(f)
		m := f.Member(n.MustJoin().ID)
		a := n.mustOpen()
		var runtime *fealtyv1.SignedSnapshot
		f.Do(func() { runtime = f.Runtime(&m) })
		f.Must(n.take(a, runtime))
		stop := n.run(a)
		time.Sleep(time.Minute)
		look := func() (time.Duration, string, bool) {
			resp, err := a.NodeServer().GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetAutonomousUntil().AsTime().Sub(a.Node().Now()), resp.GetAutonomyLimit(), resp.GetConnected()
		}
		content, _ := a.Node().TrustState().Bootstrap()
		left, limit, connected := look()
		if !connected || left <= 0 || left > content.Degraded.Max {
			t.Fatalf("connected %v, %v left by %s, policy %v", connected, left, limit, content.Degraded.Max)
		}
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Cut()
		time.Sleep(content.Degraded.Max / 2)
		half, _, connected := look()
		if connected || half > left-content.Degraded.Max/2+time.Minute {
			t.Fatalf("connected %v; %v were left at first, and %v after half of %v", connected, left, half,
				content.Degraded.Max)
		}
		_ = stop()
	})
}
