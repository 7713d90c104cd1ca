package agent

import (
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/snapshot"
)

func TestAutonomy(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	both := func(bundle, bootstrap time.Duration) map[snapshot.Scope]time.Time {
		return map[snapshot.Scope]time.Time{snapshot.ScopeTrustBundle: in(bundle), snapshot.ScopeNodeBootstrap: in(bootstrap)}
	}
	const year = 365 * 24 * time.Hour
	for _, tc := range []struct {
		name  string
		a     autonomy
		until time.Time
		limit string
	}{
		{"policy ends first", autonomy{connected: true, svidEnd: in(25 * time.Hour), snapshots: both(50*time.Hour, year), max: 24 * time.Hour}, in(24 * time.Hour), limitDegraded},
		{"certificate ends first", autonomy{connected: true, svidEnd: in(2 * time.Hour), snapshots: both(50*time.Hour, year), max: 24 * time.Hour}, in(2 * time.Hour), limitSVID},
		{"trust bundle ends first", autonomy{connected: true, svidEnd: in(25 * time.Hour), snapshots: both(time.Hour, year), max: 24 * time.Hour}, in(time.Hour), "trust_bundle"},
		{"bootstrap ends first", autonomy{connected: true, svidEnd: in(25 * time.Hour), snapshots: both(2*time.Hour, time.Hour), max: 24 * time.Hour}, in(time.Hour), "node_bootstrap"},
		{"out of reach: from the last contact", autonomy{lastContact: in(-20 * time.Hour), svidEnd: in(25 * time.Hour), snapshots: both(50*time.Hour, year), max: 24 * time.Hour}, in(4 * time.Hour), limitDegraded},
		{"in reach: the last contact is now", autonomy{connected: true, lastContact: in(-20 * time.Hour), svidEnd: in(25 * time.Hour), snapshots: both(50*time.Hour, year), max: 24 * time.Hour}, in(24 * time.Hour), limitDegraded},
		{"over", autonomy{lastContact: in(-30 * time.Hour), svidEnd: in(time.Hour), max: 24 * time.Hour}, in(-6 * time.Hour), limitDegraded},
		{"expired certificate", autonomy{connected: true, svidEnd: in(-time.Hour), max: 24 * time.Hour}, in(-time.Hour), limitSVID},
		{"no degraded mode", autonomy{connected: true, svidEnd: in(time.Hour), snapshots: both(time.Hour, time.Hour)}, now, limitDegraded},
	} {
		if until, limit := tc.a.until(now); !until.Equal(tc.until) || limit != tc.limit {
			t.Errorf("%s: until %v by %s, want %v by %s", tc.name, until, limit, tc.until, tc.limit)
		}
	}
}

// The node says how long it works alone, and counts from the contact that it lost.
func TestAutonomyRunsOutAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		n := newNode(f)
		n.mustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		look := func() (time.Duration, string, bool) {
			resp, err := nodeServer{a: a}.GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetAutonomousUntil().AsTime().Sub(a.now()), resp.GetAutonomyLimit(), resp.GetConnected()
		}
		content, _ := a.beliefs.Load().bootstrap()
		left, limit, connected := look()
		if !connected || left <= 0 || left > content.Degraded.Max {
			t.Fatalf("connected %v, %v left by %s, policy %v", connected, left, limit, content.Degraded.Max)
		}
		f.do(func() { f.down["all"] = true })
		f.cut()
		time.Sleep(content.Degraded.Max / 2)
		half, _, connected := look()
		if connected || half > left-content.Degraded.Max/2+time.Minute {
			t.Fatalf("connected %v; %v were left at first, and %v after half of %v", connected, left, half, content.Degraded.Max)
		}
		_ = stop()
	})
}
