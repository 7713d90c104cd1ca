package agent_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// With every coordinator gone the node goes on: nothing ends, what it has stays in
// use, tries grow apart, and it is back soon after a coordinator is (I16).
func TestGoesOnAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t, "a.example:1", "b.example:2", "c.example:3")
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		if !a.Node().Status().View().Connected {
			t.Fatal("not connected")
		}
		f.Do(func() { f.Faults.Down["all"] = true; clear(f.Seen.Dialed) })
		f.Cut()
		time.Sleep(2 * time.Hour)
		v := a.Node().Status().View()
		if v.Connected || !errors.Is(v.Stream, errcode.NodeNoCoordinator) || v.LastError() == "" {
			t.Errorf("alone: connected %v, %v", v.Connected, v.Stream)
		}
		if a.Unready() != "" || trustVersion(a) != 10 {
			t.Errorf("alone it is unready: %s", a.Unready())
		}
		f.Do(func() {
			total := 0
			for _, n := range f.Seen.Dialed {
				total += n
			}
			if len(f.Seen.Dialed) != 3 || total < 3*2*60*60/60 || total > 2*3*2*60*60/10 {
				t.Errorf("dialed %v in two hours", f.Seen.Dialed)
			}
		})
		f.TrustChanged(func() { f.Faults.Down["all"] = false })
		time.Sleep(time.Minute)
		if v := a.Node().Status().View(); !v.Connected || trustVersion(a) != 11 || v.LastError() != "" {
			t.Errorf("a minute after they are back: connected %v, version %d, %q", v.Connected, trustVersion(a),
				v.LastError())
		}
		_ = stop()
	})
}

// A node whose certificate ended while it was alone comes back by itself.
func TestComesBackAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.SVIDTTL = time.Hour
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		f.Do(func() { f.Faults.Down["all"] = true })
		f.Cut()
		time.Sleep(3 * time.Hour)
		if a.Unready() == "" {
			t.Error("ready with an expired identity")
		}
		f.Do(func() { f.Faults.Down["all"] = false })
		time.Sleep(2 * time.Minute)
		if v := a.Node().Status().View(); !v.Connected || a.Unready() != "" || f.Count(&f.Seen.Clones) != 0 {
			t.Errorf("connected %v, %q, %d alarms, %v", v.Connected, a.Unready(), f.Count(&f.Seen.Clones), v.Renewal)
		}
		_ = stop()
	})
}

// A snapshot that the fleet sends is in use soon, and reported.
func TestDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		for range 5 {
			f.TrustChanged(func() { f.Banned = append(f.Banned, identity.KeyID{byte(f.Version)}) })
			time.Sleep(time.Second)
		}
		f.Send(nodetest.News(&fealtyv1.SignedSnapshot{Scope: "trust_bundle", Envelope: []byte("garbage")}))
		time.Sleep(time.Second)
		if trustVersion(a) != 15 {
			t.Errorf("version %d is in use, want 15", trustVersion(a))
		}
		f.Do(func() {
			last := f.Seen.Reports[len(f.Seen.Reports)-1]
			i := slices.IndexFunc(last.GetHeld(),
				func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == "trust_bundle" })
			if i < 0 || last.GetHeld()[i].GetConfigVersion() != 15 || last.GetRelease() != "v0.1.0" ||
				last.GetName() != a.Node().Me().ID.Name() {
				t.Errorf("reported %v", last)
			}
			if len(last.GetRefusals()) != 1 || last.GetRefusals()[0].GetReason() != "malformed" {
				t.Errorf("refusals reported: %v", last.GetRefusals())
			}
		})
		// A refusal is told once on a stream, and again on the next one while it stands.
		f.Do(func() { f.Seen.Reports, f.Extra, f.Seen.Hellos = nil, nil, 0 })
		time.Sleep(2 * time.Minute)
		f.Cut()
		time.Sleep(time.Minute)
		f.Do(func() {
			told := 0
			for _, r := range f.Seen.Reports {
				told += len(r.GetRefusals())
			}
			if told != f.Seen.Hellos || told == 0 {
				t.Errorf("told %d times on %d new streams", told, f.Seen.Hellos)
			}
		})
		_ = stop()
	})
}

// A stream moves to a fresh connection when its own certificate was renewed, with
// a pause that spreads a fleet, and misses nothing.
func TestStreamMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		before := f.Count(&f.Seen.Hellos)
		reply := make(chan error, 1)
		a.Renewal().Asks() <- reply
		if err := <-reply; err != nil {
			t.Fatal(err)
		}
		time.Sleep(agent.MoveSpread + 5*time.Second)
		if got := f.Count(&f.Seen.Hellos); got != before+1 {
			t.Errorf("%d streams after a renewal, want one more than %d", got, before)
		}
		f.TrustChanged(func() {})
		time.Sleep(agent.BundleSpread + 5*time.Second)
		if trustVersion(a) != 11 || !a.Node().Status().View().Connected {
			t.Errorf("version %d, connected %v", trustVersion(a), a.Node().Status().View().Connected)
		}
		_ = stop()
	})
}

// A short-lived identity is left before it ends: the server cuts no stream.
func TestStreamMovesBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.SVIDTTL, f.RenewEvery = 10*time.Minute, 3*time.Minute
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(2 * time.Hour)
		if cuts := f.Seen.Cuts.Load(); cuts != 0 {
			t.Errorf("%d connections were cut at their end", cuts)
		}
		if !a.Node().Status().View().Connected || a.Unready() != "" {
			t.Error("not connected")
		}
		_ = stop()
	})
}

// A stream leaves a coordinator's old certificate before that ends, for the new one.
func TestStreamMovesWithTheCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.Do(func() { f.Must(f.Source.Adopt(f.Server(20 * time.Minute))) })
		f.RenewEvery = 10 * time.Hour
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Minute)
		f.Do(func() { f.Must(f.Source.Adopt(f.Server(20 * time.Hour))) })
		time.Sleep(9*time.Minute + 50*time.Second)
		if v := a.Node().Status().View(); !v.Connected || f.Count(&f.Seen.Hellos) != 2 {
			t.Errorf("just before its end: connected %v, %d streams", v.Connected, f.Count(&f.Seen.Hellos))
		}
		time.Sleep(10 * time.Minute)
		if v := a.Node().Status().View(); !v.Connected || f.Count(&f.Seen.Hellos) != 2 {
			t.Errorf("afterwards: connected %v, %d streams", v.Connected, f.Count(&f.Seen.Hellos))
		}
		_ = stop()
	})
}

// A coordinator that takes every stream and ends it at once is not hammered, nor is
// a disk that is full.
func TestShortStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		f.Do(func() { f.Faults.Brief = true })
		stop := n.run(a)
		time.Sleep(10 * time.Minute)
		if got := f.Count(&f.Seen.Hellos); got < 20 || got > 120 {
			t.Errorf("%d streams in ten minutes", got)
		}
		_ = stop()
	})
}

func TestHangingCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		a.Contact().Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		stop := n.run(a)
		time.Sleep(5 * time.Minute)
		if v := a.Node().Status().View(); v.Connected || !errors.Is(v.Stream, errcode.NodeNoCoordinator) &&
			!errors.Is(v.Stream, errcode.Unreachable) {
			t.Errorf("connected %v, %v", v.Connected, v.Stream)
		}
		_ = stop()
	})
}

func TestMoveLead(t *testing.T) {
	for _, left := range []time.Duration{-time.Hour, 0, time.Second, time.Minute, time.Hour, 1000 * time.Hour} {
		for range 100 {
			got := agent.MoveLead(left)
			if got < 0 || got > max(left, 0) || left > 0 && (left-got) > 2*agent.MaxMoveLead || left > time.Second &&
				got >= left {
				t.Errorf("of %v it leaves after %v", left, got)
			}
		}
	}
}

// The coordinators of the bootstrap are used, and those of the join stay known.
func TestAddresses(t *testing.T) {
	f := nodetest.New(t, "a.example:1", "b.example:2")
	n := newNode(f)
	token := f.Token("b.example:2")
	if _, err := n.Join(enroll.ByToken(token)); err != nil {
		t.Fatal(err)
	}
	a := n.mustOpen()
	defer a.Close()
	seen := make(map[string]int)
	for range 200 {
		got := a.Contact().Addresses()
		if len(got) != 2 {
			t.Fatalf("addresses %v", got)
		}
		seen[got[0]]++
	}
	if len(seen) != 2 || slices.Min(slices.Collect(maps.Values(seen))) < 40 {
		t.Errorf("not in random order: %v", seen)
	}
	if got := state.MergeAddresses(&state.TrustState{}, a.Node().Me().Addresses); !slices.Equal(got,
		[]string{"b.example:2"}) {
		t.Errorf("without a bootstrap: %v", got)
	}
}

// A coordinator that sends the same refused snapshot on each stream does not hold
// back good ones, and a lost bootstrap is fetched.
func TestFetchesWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		if err := n.Disk.FS().Remove(n.Path(dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active))); err != nil {
			t.Fatal(err)
		}
		a := n.mustOpen()
		if bootVersion(a) != 0 {
			t.Fatal("a bootstrap from nowhere")
		}
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		if bootVersion(a) == 0 {
			t.Error("not fetched")
		}
		_ = stop()
	})
}
