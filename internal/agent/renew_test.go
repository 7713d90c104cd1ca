package agent_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

func TestRenew(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	incarnation, before := a.Node().Me().Incarnation, a.Node().SVID().Key.ID
	f.Must(a.Renewal().Renew(t.Context()))
	after := a.Node().SVID().Key.ID
	if after == before || f.Member(a.Node().Me().ID).Key != after || n.Has(dir.NextName) {
		t.Fatalf("renewed from %v to %v, a key is left: %v", before, after, n.Has(dir.NextName))
	}
	m, err := a.Node().Source().Current(t.Context())
	if err != nil || m.Pin() != after {
		t.Fatalf("the source presents %v, %v", m, err)
	}
	a.Close()
	a = n.mustOpen()
	defer a.Close()
	if a.Node().SVID().Key.ID != after || a.Node().Me().Incarnation != incarnation || bootVersion(a) == 0 {
		t.Fatal("after a restart it is not the renewed node")
	}
}

// Answers are lost, processes are killed and restarted, certificates run out, in
// any order: the cluster sees one member that uses each key in its turn, and in the
// end both hold the same one.
func TestRenewalsProperty(t *testing.T) {
	testlane.Checks(t, 15, 200)
	f := nodetest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(f)
		r := n.MustJoin()
		a := n.mustOpen()
		defer func() { a.Close() }()
		clones := f.Count(&f.Seen.Clones)
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"renew", "lose", "restart", "rejoin", "lose rejoin", "cut"}),
			1, 6).Draw(rt, "steps")
		for _, step := range steps {
			switch step {
			case "renew":
				if err := a.Renewal().Renew(rt.Context()); err != nil {
					rt.Fatalf("renewal: %v", err)
				}
			case "lose":
				f.Do(func() { f.Faults.LoseRenews = 1 })
				if err := a.Renewal().Renew(rt.Context()); err == nil {
					rt.Fatal("renewed without an answer")
				}
			case "rejoin":
				if err := a.Renewal().Rejoin(rt.Context()); err != nil {
					rt.Fatalf("rejoin: %v", err)
				}
			case "lose rejoin":
				f.Do(func() { f.Faults.LoseJoins = 1 })
				if err := a.Renewal().Rejoin(rt.Context()); err == nil {
					rt.Fatal("rejoined without an answer")
				}
			case "cut":
				n.Disk.FailAt(rapid.IntRange(1, 20).Draw(rt, "at"), durabletest.ErrPowerCut)
				_ = a.Renewal().Renew(rt.Context())
				n.Disk.Restart(rapid.SampledFrom(durabletest.Afters()).Draw(rt, "after"))
				a = n.mustOpen()
			case "restart":
				a.Close()
				a = n.mustOpen()
			}
		}
		if err := a.Renewal().Renew(rt.Context()); err != nil {
			rt.Fatalf("in the end: %v", err)
		}
		if m := f.Member(r.ID); m.Key != a.Node().SVID().Key.ID {
			rt.Fatalf("the member's key is %v, the node's %v", m.Key, a.Node().SVID().Key.ID)
		}
		if f.Count(&f.Seen.Clones) != clones {
			rt.Fatal("a clone alarm for one node")
		}
	})
}

// A key that a killed process left is in the directory, and a power cut could still
// take it away. It is not certified before it is there to stay: else the node would
// be without the key that the cluster has last heard of, and taken for a copy.
func TestKeyOfAKilledProcess(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	r := n.MustJoin()
	renew := func(at int, after durabletest.After) {
		t.Helper()
		a := n.mustOpen()
		n.Disk.FailAt(at, durabletest.ErrPowerCut)
		if err := a.Renewal().Renew(t.Context()); err == nil {
			t.Fatalf("cut at call %d: the disk did not fail", at)
		}
		n.Disk.Restart(after)
	}
	for at := range 6 { // of writing the key
		renew(at+1, durabletest.Killed)
		for later := range 6 { // of writing its certificate
			renew(later+1, durabletest.Synced)
			a := n.mustOpen()
			if err := a.Renewal().Renew(t.Context()); err != nil {
				t.Fatalf("killed at call %d, then cut at call %d: %v", at+1, later+1, err)
			}
			if m := f.Member(r.ID); m.Key != a.Node().SVID().Key.ID {
				t.Fatalf("the member's key is %v, the node's %v", m.Key, a.Node().SVID().Key.ID)
			}
			a.Close()
			if later < 5 {
				renew(at+1, durabletest.Killed)
			}
		}
	}
}

// A certificate that an enemy returns, or one that is not ours to use, never
// replaces the working one.
func TestRenewalVerifies(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	other := nodetest.New(t)
	for _, c := range []struct {
		name string
		edit func(*fealtyv1.RenewResponse)
	}{
		{"nothing", func(r *fealtyv1.RenewResponse) { r.Chain = nil }},
		{"no root", func(r *fealtyv1.RenewResponse) { r.Chain = r.Chain[:2] }},
		{"garbage", func(r *fealtyv1.RenewResponse) { r.Chain[0] = []byte("garbage") }},
		{"another key", func(r *fealtyv1.RenewResponse) {
			r.Chain[0] = f.LeafFor(identity.Data, a.Node().Me().ID.Name(), nil).Raw
		}},
		{"another name", func(r *fealtyv1.RenewResponse) {
			r.Chain[0] = f.LeafFor(identity.Data, "somebody", r.Chain[0]).Raw
		}},
		{"another kind", func(r *fealtyv1.RenewResponse) {
			r.Chain[0] = f.LeafFor(identity.Shard, a.Node().Me().ID.Name(), r.Chain[0]).Raw
		}},
		{"another root", func(r *fealtyv1.RenewResponse) { r.Chain[2] = other.Root.Raw }},
		{"another cluster's chain", func(r *fealtyv1.RenewResponse) {
			leaf, err := x509.ParseCertificate(r.Chain[0])
			f.Must(err)
			r.Chain = dir.RawChain(other.Issue(leaf.PublicKey, a.Node().Me().ID, time.Hour))
		}},
		{"an unknown mesh CA", func(r *fealtyv1.RenewResponse) {
			before, keys := f.Mesh, f.MeshKeys
			f.NewMeshCA()
			r.Chain = [][]byte{f.LeafFor(identity.Data, a.Node().Me().ID.Name(), r.Chain[0]).Raw,
				f.Mesh.Certificate().Raw, f.Root.Raw}
			f.Mesh, f.MeshKeys = before, keys
		}},
		{"the old certificate", func(r *fealtyv1.RenewResponse) { r.Chain = dir.RawChain(a.Node().SVID().Chain) }},
	} {
		before, file := a.Node().SVID(), string(n.Read(dir.SVIDName))
		f.Do(func() { f.Faults.EditRenewal = c.edit })
		if err := a.Renewal().Renew(t.Context()); err == nil {
			t.Errorf("%s: adopted", c.name)
		}
		m, err := a.Node().Source().Current(t.Context())
		if err != nil || m.Pin() != before.Key.ID || a.Node().SVID() != before || string(n.Read(dir.SVIDName)) != file {
			t.Errorf("%s: the working identity is gone", c.name)
		}
		if !n.Has(dir.NextName) {
			t.Errorf("%s: the key under way is gone", c.name)
		}
	}
	f.Do(func() { f.Faults.EditRenewal = nil })
	f.Must(a.Renewal().Renew(t.Context()))
}

// While two roots are believed, a renewal stays under the one that the node pinned.
func TestRenewalStaysUnderItsRoot(t *testing.T) {
	f, other := nodetest.New(t), nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	both, err := identity.NewBundle(identity.BundleConfig{
		Cluster: signedtest.Cluster, Roots: []*x509.Certificate{f.Root, other.Root},
		MeshKeys: append(slices.Clone(f.MeshKeys), other.MeshKeys...),
	})
	f.Must(err)
	f.Must(a.Node().Source().Trust(both))
	f.Do(func() {
		f.Faults.EditRenewal = func(r *fealtyv1.RenewResponse) {
			leaf, err := x509.ParseCertificate(r.Chain[0])
			f.Must(err)
			r.Chain = dir.RawChain(other.Issue(leaf.PublicKey, a.Node().Me().ID, time.Hour))
		}
	})
	before := a.Node().SVID()
	if err := a.Renewal().Renew(t.Context()); err == nil || a.Node().SVID() != before {
		t.Errorf("renewed under another root: %v", err)
	}
}

// A node whose certificate ran out comes back by its key, and one whose last
// renewal was lost by the key of that, without an alarm.
func TestRejoinAfterExpiry(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			f := nodetest.New(t)
			n := newNode(f)
			n.MustJoin()
			a := n.mustOpen()
			if lost {
				f.Do(func() { f.Faults.LoseRenews = 1 })
				if err := a.Renewal().Renew(t.Context()); err == nil {
					t.Fatal("renewed without an answer")
				}
			}
			a.Close()
			f.Shift.Store(int64(30 * time.Hour))
			a = n.mustOpen()
			if m, _ := a.Node().Source().Current(t.Context()); !m.ID().IsZero() {
				t.Fatal("an expired identity is presented")
			}
			n.run(a)
			wait.Until(t, "the node is back", func() bool { return a.Unready() == "" })
			// A renewal may be under way already: the cluster is then one key ahead.
			wait.Until(t, "node and cluster agree on the key", func() bool {
				return f.Member(a.Node().Me().ID).Key == a.Node().SVID().Key.ID
			})
			if f.Count(&f.Seen.Clones) != 0 {
				t.Error("an alarm")
			}
		})
	}
}

// The answer of the first coordinator that is asked is lost, after it certified the key: the
// node is back by the next one, which it shows that key, and not the one before. The key may
// be new, or under way since before.
func TestRejoinAfterALostAnswer(t *testing.T) {
	for _, under := range []bool{false, true} {
		t.Run(fmt.Sprintf("under way=%v", under), func(t *testing.T) {
			f := nodetest.New(t, "c1.example:9443", "c2.example:9443")
			n := newNode(f)
			n.MustJoin()
			a := n.mustOpen()
			defer a.Close()
			if under {
				if _, err := a.Renewal().NextKey(); err != nil {
					t.Fatal(err)
				}
			}
			f.Do(func() { f.Faults.LoseJoins = 1 })
			f.Must(a.Renewal().Rejoin(t.Context()))
			if f.Count(&f.Seen.Clones) != 0 {
				t.Error("an alarm")
			}
			if got := a.Node().SVID().Key.ID; got != f.Member(a.Node().Me().ID).Key {
				t.Errorf("the node holds %v, and %v is certified", got, f.Member(a.Node().Me().ID).Key)
			}
		})
	}
}

// A key under way that was never certified is no obstacle.
func TestRejoinWithAnUnknownKey(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	if _, err := a.Renewal().NextKey(); err != nil {
		t.Fatal(err)
	}
	f.Must(a.Renewal().Rejoin(t.Context()))
	if f.Count(&f.Seen.Clones) != 0 || a.Renewal().Next() != nil {
		t.Errorf("%d alarms, a key under way: %v", f.Count(&f.Seen.Clones), a.Renewal().Next() != nil)
	}
}

// Grants for a rejoin are verified like those for a join, and must be for this node.
func TestRejoinVerifies(t *testing.T) {
	for _, c := range append(slices.Clip(nodetest.EnemyGrants),
		nodetest.EnemyGrant{Name: "another member", Part: "chain",
			Edit: func(f *nodetest.Fleet, g *fealtyv1.JoinGrant) {
				g.Chain[0] = f.LeafFor(identity.Data, "somebody", g.Chain[0]).Raw
			}}) {
		if c.Part == "root statement" {
			continue // a member has one already, and believes no other
		}
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		before, file := a.Node().SVID(), string(n.Read(dir.SVIDName))
		f.Do(func() { f.Faults.EditGrant = func(g *fealtyv1.JoinGrant) { c.Edit(f, g) } })
		err := a.Renewal().Rejoin(t.Context())
		if refused, ok := errors.AsType[*state.GrantError](err); !ok || refused.Part != c.Part {
			t.Errorf("%s: %v, want a refusal of the %s", c.Name, err, c.Part)
		}
		if a.Node().SVID() != before || string(n.Read(dir.SVIDName)) != file {
			t.Errorf("%s: the working identity is gone", c.Name)
		}
		a.Close()
	}
}

// A renewal that was finished but for the removal of its key is finished at start.
func TestFinishedRenewal(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	f.Must(a.Node().Store().WriteNext(state.PendingKey{Key: a.Node().SVID().Key, Purpose: dir.PurposeRenew}))
	a.Close()
	a = n.mustOpen()
	defer a.Close()
	if a.Renewal().Next() != nil || n.Has(dir.NextName) {
		t.Error("the key of a finished renewal is still under way")
	}
}

// For half a day a node renews at its interval, give or take a tenth, with a new
// key each time, and reports.
func TestRenewalInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		last, key := a.Node().SVID().Leaf().NotBefore, a.Node().SVID().Key.ID
		renewals := 0
		for range 12 * 60 {
			time.Sleep(time.Minute)
			s := a.Node().SVID()
			if s.Key.ID == key {
				continue
			}
			renewals++
			if d := s.Leaf().NotBefore.Sub(last); d < 26*time.Minute || d > 34*time.Minute {
				t.Errorf("renewed after %v", d)
			}
			last, key = s.Leaf().NotBefore, s.Key.ID
		}
		if renewals < 21 || renewals > 27 {
			t.Errorf("%d renewals in half a day", renewals)
		}
		if f.Count(&f.Seen.Clones) != 0 || f.Count(&f.Seen.Joins) != 1 {
			t.Errorf("%d alarms, %d joins", f.Count(&f.Seen.Clones), f.Count(&f.Seen.Joins))
		}
		f.Do(func() {
			if got := len(f.Seen.Reports); got < 12*60*60/45 || got > 12*60*60/20 {
				t.Errorf("%d reports in half a day", got)
			}
		})
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Without a store coordinators record no new key. The node has its recorded one
// certified again, keeps the new one for later, and renews to that when they can.
func TestRenewWithoutStore(t *testing.T) {
	for _, code := range []errcode.Code{errcode.StoreUnreachable, errcode.StoreOutcomeUnknown, errcode.StoreFull,
		errcode.StoreRefuses} {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		held := a.Node().SVID()
		f.Do(func() { f.Faults.NoStore, f.SVIDTTL = code, f.SVIDTTL+time.Hour })
		err := a.Renewal().Renew(t.Context())
		outage, ok := errors.AsType[*agent.AgainError](err)
		if !ok || !errors.Is(err, code) {
			t.Fatalf("%s: %v", code, err)
		}
		now := a.Node().SVID()
		if now.Key.ID != held.Key.ID || !now.Leaf().NotAfter.After(held.Leaf().NotAfter) ||
			!outage.Until().Equal(now.Leaf().NotAfter) {
			t.Errorf("%s: certified until %v, before until %v, it says %v", code, now.Leaf().NotAfter,
				held.Leaf().NotAfter, outage.Until())
		}
		if m, err := a.Node().Source().Current(t.Context()); err != nil || !m.NotAfter().Equal(now.Leaf().NotAfter) {
			t.Errorf("%s: it presents %v, %v", code, m, err)
		}
		next := a.Renewal().Next().Key.ID
		// A certificate that ends sooner is not taken.
		f.Do(func() { f.SVIDTTL -= 2 * time.Hour })
		if err := a.Renewal().Renew(t.Context()); !errors.Is(err, code) ||
			!a.Node().SVID().Leaf().NotAfter.Equal(now.Leaf().NotAfter) {
			t.Errorf("%s: a shorter one: until %v, %v", code, a.Node().SVID().Leaf().NotAfter, err)
		}
		// Both keys are there after a restart.
		a.Close()
		a = n.mustOpen()
		if a.Node().SVID().Key.ID != held.Key.ID || !a.Node().SVID().Leaf().NotAfter.Equal(now.Leaf().NotAfter) ||
			a.Renewal().Next() == nil || a.Renewal().Next().Key.ID != next {
			t.Fatalf("%s: after a restart: %v", code, a.Renewal().Next())
		}
		f.Do(func() { f.Faults.NoStore = "" })
		f.Must(a.Renewal().Renew(t.Context()))
		if got := a.Node().SVID().Key.ID; got != next || f.Member(a.Node().Me().ID).Key != next || n.Has(dir.NextName) {
			t.Errorf("%s: renewed to %v, want %v", code, got, next)
		}
		if n := f.Count(&f.Seen.Clones); n != 0 {
			t.Errorf("%s: %d alarms", code, n)
		}
		a.Close()
	}
}

// A certificate that a coordinator hands out over the recorded key is verified like
// anything else, and its refusals count.
func TestRenewWithoutStoreVerifies(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	held := a.Node().SVID()
	other := nodetest.New(t)
	f.Do(func() {
		f.Faults.NoStore, f.SVIDTTL = errcode.StoreUnreachable, f.SVIDTTL+time.Hour
		f.Faults.EditRenewal = func(r *fealtyv1.RenewResponse) { r.Chain[2] = other.Root.Raw }
	})
	if err := a.Renewal().Renew(t.Context()); err == nil || a.Node().SVID() != held {
		t.Errorf("another root: %v", err)
	}
	f.Do(func() {
		f.Faults.EditRenewal = nil
		f.Faults.RefuseRenew = errcode.New(errcode.JoinBanned, "identity", a.Node().Me().ID)
	})
	if err := a.Renewal().Renew(t.Context()); !errors.Is(err, errcode.JoinBanned) || a.Node().SVID() != held {
		t.Errorf("banned: %v", err)
	}
}

// In a long outage a node stays certified, asks seldom, and renews when it is over.
func TestLongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.Do(func() { f.SVIDTTL = time.Hour })
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		f.Do(func() { f.Faults.NoStore, f.Seen.Renewals = errcode.StoreUnreachable, 0 })
		for range 2 * 60 {
			time.Sleep(time.Minute)
			if !time.Now().Before(a.Node().SVID().Leaf().NotAfter) {
				t.Fatal("its certificate ended")
			}
		}
		if asked := f.Count(&f.Seen.Renewals); asked > 2*2*60/3 || f.Count(&f.Seen.Joins) != 1 {
			t.Errorf("asked %d times in two hours, and %d joins", asked, f.Count(&f.Seen.Joins))
		}
		if v := a.Node().Status().View(); !errors.Is(v.Renewal, errcode.StoreUnreachable) || !v.Connected {
			t.Errorf("shows %v, connected: %v", v.Renewal, v.Connected)
		}
		key := a.Node().SVID().Key.ID
		f.Do(func() { f.Faults.NoStore = "" })
		time.Sleep(2 * agent.OutagePause)
		if v := a.Node().Status().View(); v.Renewal != nil || a.Node().SVID().Key.ID == key {
			t.Errorf("after the outage it shows %v", v.Renewal)
		}
		if n := f.Count(&f.Seen.Clones); n != 0 {
			t.Errorf("%d alarms", n)
		}
		_ = stop()
	})
}

// A node with a short certificate loses it to no outage that ends before it does:
// whether coordinators have no store, are wrong for a while, or cannot be reached.
func TestShortCertificatesOutlastOutages(t *testing.T) {
	t.Parallel()
	gone := errcode.New(errcode.RenewEntryGone, "identity", "the node")
	for name, of := range map[string]struct {
		lasts      time.Duration
		begin, end func(*nodetest.Fleet)
	}{
		"no store": {23 * time.Second,
			func(f *nodetest.Fleet) { f.Faults.NoStore = errcode.StoreUnreachable },
			func(f *nodetest.Fleet) { f.Faults.NoStore = "" }},
		"no store for long": {3 * time.Minute, func(f *nodetest.Fleet) { f.Faults.NoStore = errcode.StoreUnreachable },
			func(f *nodetest.Fleet) { f.Faults.NoStore = "" }},
		"one wrong answer": {12 * time.Second, func(f *nodetest.Fleet) { f.Faults.RefuseRenew = gone },
			func(f *nodetest.Fleet) { f.Faults.RefuseRenew = nil }},
		"unreachable": {20 * time.Second, func(f *nodetest.Fleet) { f.Faults.Down["all"] = true },
			func(f *nodetest.Fleet) { delete(f.Faults.Down, "all") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := nodetest.New(t)
				f.Do(func() { f.SVIDTTL, f.RenewEvery = time.Minute, 30*time.Second })
				n := newNode(f)
				n.MustJoin()
				a := n.mustOpen()
				stop := n.run(a)
				time.Sleep(45 * time.Second)
				f.Do(func() { of.begin(f) })
				f.Cut()
				f.Do(func() { f.Seen.Renewals = 0 })
				var asked int
				for at := time.Duration(0); at < of.lasts+75*time.Second; at += time.Second {
					if at == of.lasts {
						asked = f.Count(&f.Seen.Renewals)
						f.Do(func() { of.end(f) })
					}
					if !a.Node().Now().Before(a.Node().SVID().Leaf().NotAfter) {
						t.Fatalf("%v after the outage began its certificate ended", at)
					}
					time.Sleep(time.Second)
				}
				if most := int(of.lasts/(5*time.Second)) + 8; asked > most {
					t.Errorf("asked %d times in %v, want at most %d", asked, of.lasts, most)
				}
				if v := a.Node().Status().View(); v.Renewal != nil || f.Count(&f.Seen.Joins) != 1 ||
					f.Count(&f.Seen.Clones) != 0 {
					t.Errorf("in the end: %v, %d joins, %d alarms", v.Renewal, f.Count(&f.Seen.Joins),
						f.Count(&f.Seen.Clones))
				}
				_ = stop()
			})
		})
	}
}

// A node that ran out meanwhile is back soon after there is a coordinator, whatever pause
// its last failure set.
func TestBackSoonAfterExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		f.Do(func() { f.SVIDTTL = 2 * time.Hour })
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		f.Do(func() { f.Faults.RefuseRenew = errcode.New(errcode.RenewEntryGone, "identity", a.Node().Me().ID) })
		time.Sleep(time.Hour)
		for a.Node().Status().View().NextRenewal.Sub(a.Node().Now()) < 3*time.Minute {
			time.Sleep(time.Second)
		}
		f.Shift.Add(int64(2 * time.Hour)) // the machine slept
		f.Do(func() { f.Faults.RefuseRenew = nil })
		time.Sleep(agent.ClockLook + 10*time.Second)
		if reason := a.Unready(); reason != "" || !a.Contact().Presentable(t.Context()) || f.Count(&f.Seen.Clones) != 0 {
			t.Errorf("after a minute: %q, presentable: %v, %d alarms", reason, a.Contact().Presentable(t.Context()),
				f.Count(&f.Seen.Clones))
		}
		_ = stop()
	})
}

// A node whose disk takes nothing stays certified by the key that it has, says so, and
// changes its key as soon as the disk takes one.
func TestRenewOnAFullDisk(t *testing.T) {
	t.Parallel()
	all := []error{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT, syscall.EIO}
	for i := 0; i < len(all); i += nodetest.EveryNth(len(all)) {
		full := all[i]
		synctest.Test(t, func(t *testing.T) {
			f := nodetest.New(t)
			f.Do(func() { f.SVIDTTL = time.Hour })
			n := newNode(f)
			n.MustJoin()
			a := n.mustOpen()
			stop := n.run(a)
			time.Sleep(time.Minute)
			key := a.Node().SVID().Key.ID
			n.Disk.Refuse(full)
			for range 5 * 60 {
				time.Sleep(time.Minute)
				if !a.Node().Now().Before(a.Node().SVID().Leaf().NotAfter) {
					t.Fatalf("%v: its certificate ended", full)
				}
			}
			if v := a.Node().Status().View(); a.Node().SVID().Key.ID != key || f.Member(a.Node().Me().ID).Key != key ||
				!errors.Is(v.Renewal, errcode.NodeDiskRefuses) {
				t.Errorf("%v: another key, or it shows %v", full, v.Renewal)
			}
			if asked := f.Count(&f.Seen.Renewals); asked > 5*60/20 {
				t.Errorf("%v: asked %d times in five hours", full, asked)
			}
			n.Disk.Refuse(nil)
			time.Sleep(2 * agent.ClockLook)
			if v := a.Node().Status().View(); v.Renewal != nil || a.Node().SVID().Key.ID == key || n.Has(dir.NextName) {
				t.Errorf("%v: two minutes after there was space it shows %v", full, v.Renewal)
			}
			if c, j := f.Count(&f.Seen.Clones), f.Count(&f.Seen.Joins); c != 0 || j != 1 {
				t.Errorf("%v: %d alarms, %d joins", full, c, j)
			}
			_ = stop()
			a = n.mustOpen()
			defer a.Close()
			if a.Node().SVID().Key.ID != f.Member(a.Node().Me().ID).Key {
				t.Errorf("%v: after a restart it holds another key", full)
			}
		})
	}
}

// A disk that fills up between a key and its certificate costs neither: the certificate is
// used, and the next start has the key.
func TestDiskFillsUpAmidARenewal(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"kill", "free", "renew, kill", "outage, kill"} {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		old := a.Node().SVID().Key.ID
		fill := func() { f.Faults.EditRenewal = func(*fealtyv1.RenewResponse) { n.Disk.Refuse(syscall.ENOSPC) } }
		f.Do(fill)
		again := func(what string, err error, want errcode.Code) {
			if _, ok := errors.AsType[*agent.AgainError](err); !ok || !errors.Is(err, want) {
				t.Fatalf("%s: %s: %v", way, what, err)
			}
		}
		again("the renewal", a.Renewal().Renew(t.Context()), errcode.NodeDiskRefuses)
		key := a.Node().SVID().Key.ID
		if m, err := a.Node().Source().Current(t.Context()); key == old || err != nil || m.Pin() != key ||
			f.Member(a.Node().Me().ID).Key != key {
			t.Fatalf("%s: the new certificate is not in use: %v", way, err)
		}
		switch way {
		case "free":
			n.Disk.Refuse(nil)
			f.Do(func() { f.Faults.EditRenewal = nil })
			f.Must(a.Renewal().Renew(t.Context()))
			if n.Has(dir.NextName) {
				t.Errorf("%s: a key is left", way)
			}
		case "renew, kill":
			f.Do(func() { f.SVIDTTL += time.Hour })
			again("one more", a.Renewal().Renew(t.Context()), errcode.NodeDiskRefuses)
		case "outage, kill":
			// A key is under way, and the certificate over the present one is in memory alone.
			n.Disk.Refuse(nil)
			f.Do(func() { f.Faults.NoStore, f.SVIDTTL = errcode.StoreUnreachable, f.SVIDTTL+time.Hour; fill() })
			again("in an outage", a.Renewal().Renew(t.Context()), errcode.StoreUnreachable)
			if !a.Renewal().Unsaved() || a.Renewal().Next() == nil || a.Renewal().Next().Key.ID == key ||
				a.Node().SVID().Key.ID != key {
				t.Fatal("the outage left something else")
			}
			f.Do(func() { f.Faults.NoStore = "" })
		}
		n.Disk.Restart(durabletest.Synced)
		f.Do(func() { f.Faults.EditRenewal = nil })
		a = n.mustOpen()
		f.Must(a.Renewal().Renew(t.Context()))
		if got := f.Member(a.Node().Me().ID).Key; got != a.Node().SVID().Key.ID || f.Count(&f.Seen.Clones) != 0 ||
			n.Has(dir.NextName) {
			t.Errorf("%s: node and cluster differ in the key, or %d alarms", way, f.Count(&f.Seen.Clones))
		}
		a.Close()
	}
}

// So it comes back from its grace, too.
func TestRejoinOnAFullDisk(t *testing.T) {
	t.Parallel()
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	key := a.Node().SVID().Key.ID
	f.Shift.Store(int64(30 * time.Hour))
	n.Disk.Refuse(syscall.ENOSPC)
	f.TrustChanged(func() {})
	err := a.Renewal().Rejoin(t.Context())
	if _, ok := errors.AsType[*agent.AgainError](err); !ok || !errors.Is(err, errcode.NodeDiskRefuses) ||
		!a.Contact().Presentable(t.Context()) || a.Node().SVID().Key.ID != key {
		t.Fatalf("%v, presentable: %v", err, a.Contact().Presentable(t.Context()))
	}
	n.Disk.Refuse(nil)
	f.Must(a.Renewal().Renew(t.Context()))
	if f.Count(&f.Seen.Clones) != 0 || f.Member(a.Node().Me().ID).Key != a.Node().SVID().Key.ID {
		t.Errorf("%d alarms", f.Count(&f.Seen.Clones))
	}
}

// A refusal that only a person can end is asked about seldom, is shown, and ends
// nothing. When it is over the node goes on.
func TestLastingRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		f.Do(func() { f.Faults.RefuseRenew = errcode.New(errcode.RenewEntryGone, "identity", a.Node().Me().ID) })
		time.Sleep(2 * time.Hour)
		if f.Count(&f.Seen.Renewals) < 10 || f.Count(&f.Seen.Renewals) > 30 {
			t.Errorf("asked %d times in an hour and a half", f.Count(&f.Seen.Renewals))
		}
		if v := a.Node().Status().View(); !errors.Is(v.Renewal, errcode.RenewEntryGone) || !v.Connected {
			t.Errorf("shows %v, connected: %v", v.Renewal, v.Connected)
		}
		f.Do(func() { f.Faults.RefuseRenew = nil })
		time.Sleep(10 * time.Minute)
		if v := a.Node().Status().View(); v.Renewal != nil {
			t.Errorf("still shows %v", v.Renewal)
		}
		_ = stop()
	})
}

// A banned node keeps running, says so, and comes back when the ban is lifted.
func TestBannedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(10 * time.Second)
		f.TrustChanged(func() { f.Banned = append(f.Banned, a.Node().SVID().Key.ID) })
		time.Sleep(time.Minute)
		if v := a.Node().Status().View(); !errors.Is(v.Renewal, errcode.JoinBanned) {
			t.Errorf("after a minute it shows %v", v.Renewal)
		}
		time.Sleep(3 * time.Hour)
		v := a.Node().Status().View()
		if v.Connected || !errors.Is(v.Renewal, errcode.JoinBanned) {
			t.Errorf("connected: %v, shows %v", v.Connected, v.Renewal)
		}
		f.Do(func() {
			// About one in a minute: its pauses are random, and sum up to 150 to 220 dials. One that does not wait
			// dials thousands of times.
			if dials := f.Seen.Dialed[signedtest.Coordinator]; dials > 2*3*60 {
				t.Errorf("dialed %d times in three hours", dials)
			}
		})
		f.TrustChanged(func() { f.Banned = nil })
		time.Sleep(20 * time.Minute)
		if v := a.Node().Status().View(); !v.Connected || v.Renewal != nil || a.Unready() != "" {
			t.Errorf("after the ban: connected %v, %v, %s", v.Connected, v.Renewal, a.Unready())
		}
		_ = stop()
	})
}

// So does one that starts with a bundle in which it is banned itself.
func TestBannedAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		f.TrustChanged(func() { f.Banned = append(f.Banned, a.Node().SVID().Key.ID) })
		f.Must(n.take(a, f.TrustBundle()))
		a.Close()
		a = n.mustOpen()
		stop := n.run(a)
		time.Sleep(30 * time.Second)
		if v := a.Node().Status().View(); !errors.Is(v.Renewal, errcode.JoinBanned) {
			t.Errorf("it shows %v", v.Renewal)
		}
		f.TrustChanged(func() { f.Banned = nil })
		time.Sleep(10 * time.Minute)
		if v := a.Node().Status().View(); !v.Connected || a.Unready() != "" {
			t.Errorf("after the ban: connected %v, %s, %v", v.Connected, a.Unready(), v.Renewal)
		}
		_ = stop()
	})
}

// Lost answers and unreachable coordinators are tried again with growing, random
// pauses, and the working credential stays.
func TestRenewalOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		key := a.Node().SVID().Key.ID
		f.Do(func() { f.Faults.LoseRenews = 1 << 30 })
		time.Sleep(time.Hour)
		if a.Node().SVID().Key.ID != key || a.Unready() != "" || len(f.Member(a.Node().Me().ID).Older) != 1 {
			t.Errorf("in the outage: another key in use, or %q, or %d keys recorded", a.Unready(),
				len(f.Member(a.Node().Me().ID).Older))
		}
		if f.Count(&f.Seen.Renewals) > 60*60/5 {
			t.Errorf("asked %d times in an hour", f.Count(&f.Seen.Renewals))
		}
		f.Do(func() { f.Faults.LoseRenews = 0 })
		time.Sleep(2 * time.Minute)
		if m := f.Member(a.Node().Me().ID); m.Key != a.Node().SVID().Key.ID || f.Count(&f.Seen.Clones) != 0 ||
			len(m.Older) != 1 {
			t.Error("not renewed after the outage, or not by the same key")
		}
		_ = stop()
	})
}

// A coordinator may ask for a renewal, as often as it likes: soon, not at once, and
// once.
func TestRenewNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		for range 20 {
			f.Send(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_RenewNow{RenewNow: &fealtyv1.RenewNow{Reason: "the mesh CA changes"}}})
		}
		time.Sleep(agent.DemandSpread + time.Second)
		// One that comes amid a renewal asks for one more. A renewal moves the stream,
		// and each stream is told anew.
		if got, streams := f.Count(&f.Seen.Renewals), f.Count(&f.Seen.Hellos); got < 1 || got > 2*streams {
			t.Errorf("renewed %d times on %d streams", got, streams)
		}
		_ = stop()
	})
}

// The mesh CA changes with the authority epoch: the renewal under the new one
// waits for the trust bundle that knows it, and then happens.
func TestRenewalUnderANewMeshCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		stop := n.run(a)
		time.Sleep(time.Minute)
		var old = f.Mesh.KeyID()
		f.TrustChanged(func() { f.Epoch++; f.NewMeshCA() })
		time.Sleep(40 * time.Minute)
		if got := identity.KeyOf(a.Node().SVID().Chain[1]); got == old || a.Unready() != "" {
			t.Errorf("still under the old mesh CA; %s", a.Unready())
		}
		if header := a.Node().TrustState().Active[state.Scopes[0]].Verified.Header(); header.AuthorityEpoch != 2 {
			t.Errorf("epoch %d", header.AuthorityEpoch)
		}
		_ = stop()
	})
}

// The bundle that a renewal is verified by is the newest: adopting a certificate
// takes back no ban.
func TestRenewalKeepsBans(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	f.TrustChanged(func() { f.Banned = append(f.Banned, identity.KeyID{7}) })
	f.Must(n.take(a, f.TrustBundle()))
	f.Must(a.Renewal().Renew(t.Context()))
	m, err := a.Node().Source().Current(t.Context())
	f.Must(err)
	if !m.Bundle().Banned(identity.ID{}, identity.KeyID{7}) {
		t.Error("the ban is gone")
	}
}
