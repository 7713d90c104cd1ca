package agent_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// runtimeOf returns the header and the record of the node_runtime in use at a.
func runtimeOf(a *agent.Agent) (snapshot.Header, snapshot.Record) {
	h := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime]
	if h == nil {
		return snapshot.Header{}, snapshot.Record{}
	}
	record, _ := h.Verified.Record()
	return h.Verified.Header(), record
}

// runtimeNode returns a node that holds two versions of its node_runtime, and who
// it is.
func runtimeNode(f *nodetest.Fleet) (*node, signedtest.Member) {
	f.TB.Helper()
	n := newNode(f)
	id := n.MustJoin().ID
	m := f.Member(id)
	a := n.mustOpen()
	defer a.Close()
	for range 2 {
		var s *fealtyv1.SignedSnapshot
		f.Do(func() { s = f.Runtime(&m) })
		f.Must(n.take(a, s))
	}
	if refused := a.Node().Status().Refusals(); len(refused) != 0 {
		f.TB.Fatalf("refused: %v", refused)
	}
	return n, m
}

// renewedRuntime is a newer record over the header of version, which was issued
// at.
func renewedRuntime(f *nodetest.Fleet, m *signedtest.Member, h snapshot.Header) *fealtyv1.SignedSnapshot {
	return f.Runtime(m, func(next *snapshot.Header, _ *snapshot.NodeRuntime, _ *snapshot.Record) {
		*next = h
	})
}

// A power cut at any point while a node_runtime is activated, be it a new version
// or a newer record over the same one, leaves the old or the new, whole.
func TestRuntimeActivationCrash(t *testing.T) {
	f := nodetest.New(t)
	joined, m := runtimeNode(f)
	a := joined.mustOpen()
	was, wasRecord := runtimeOf(a)
	a.Close()
	for _, c := range []struct {
		name string
		next func() *fealtyv1.SignedSnapshot
	}{
		{"a new version", func() *fealtyv1.SignedSnapshot { return f.Runtime(&m) }},
		{"a newer record", func() *fealtyv1.SignedSnapshot { return renewedRuntime(f, &m, was) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var next *fealtyv1.SignedSnapshot
			f.Do(func() { next = c.next() })
			var n *node
			nodetest.Crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
				n = joined.clone()
				a := n.mustOpen()
				return n.Disk, func() error { return n.take(a, next) }
			}, func(t *testing.T, done bool) {
				a, err := n.open()
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Close()
				h, record := runtimeOf(a)
				old := h.SnapshotID == was.SnapshotID && record.Generation == wasRecord.Generation
				if h.ConfigVersion == 0 {
					t.Errorf("none is in use: %v", a.Node().Status().Refusals())
					return
				}
				isNew := bytes.Equal(a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Raw, next.GetEnvelope())
				if !isNew && (!old || done) {
					t.Errorf("version %d under generation %d is in use", h.ConfigVersion, record.Generation)
				}
				if reason := a.Unready(); reason != "" || len(a.Node().Status().Refusals()) != 0 {
					t.Errorf("unready: %q, refusals %v", reason, a.Node().Status().Refusals())
				}
				if err := n.take(a, next); err != nil || len(a.Node().Status().Refusals()) != 0 {
					t.Errorf("sent again: %v, %v", err, a.Node().Status().Refusals())
				}
				if !bytes.Equal(a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Raw, next.GetEnvelope()) {
					t.Error("sent again, it is not in use")
				}
			})
		})
	}
}

// A node_runtime that is damaged on disk falls back to the one before, also after
// the newer one was renewed by another record; it is told, and mended.
func TestDamagedRuntime(t *testing.T) {
	f := nodetest.New(t)
	joined, m := runtimeNode(f)
	a := joined.mustOpen()
	newest, _ := runtimeOf(a)
	var current *fealtyv1.SignedSnapshot
	f.Do(func() { current = renewedRuntime(f, &m, newest) })
	f.Must(joined.take(a, current))
	a.Close()
	name := dir.SnapshotName(snapshot.ScopeNodeRuntime, dir.Active)
	n := joined.clone()
	damages(joined.Read(name), func(what string, damaged []byte) {
		n.Disk.Put(n.Path(name), damaged)
		a, err := n.open()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer a.Close()
		if h, _ := runtimeOf(a); h.ConfigVersion == 0 || h.ConfigVersion >= newest.ConfigVersion || a.Unready() != "" {
			t.Fatalf("%s: version %d, %s", what, h.ConfigVersion, a.Unready())
		}
		if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Scope != string(snapshot.ScopeNodeRuntime) {
			t.Fatalf("%s: reported as %v", what, got)
		}
		if err := n.take(a, current); err != nil || len(a.Node().Status().Refusals()) != 0 {
			t.Fatalf("%s, sent again: %v, %v", what, err, a.Node().Status().Refusals())
		}
		if h, _ := runtimeOf(a); h.ConfigVersion != newest.ConfigVersion {
			t.Fatalf("%s, sent again: version %d", what, h.ConfigVersion)
		}
	})
}

// A disk error at any point keeps the node_runtime that was in use.
func TestRuntimeDiskErrors(t *testing.T) {
	f := nodetest.New(t)
	joined, m := runtimeNode(f)
	var next *fealtyv1.SignedSnapshot
	f.Do(func() { next = f.Runtime(&m) })
	for call := 1; ; call++ {
		n := joined.clone()
		a := n.mustOpen()
		was, _ := runtimeOf(a)
		n.Disk.FailAt(call, syscall.EIO)
		err := n.take(a, next)
		if !n.Disk.Failed() {
			a.Close()
			break
		}
		if err != nil && !errors.Is(err, state.ErrStorage) {
			t.Fatalf("at call %d: %v", call, err)
		}
		if h, _ := runtimeOf(a); (h.ConfigVersion > was.ConfigVersion) != (err == nil) {
			t.Fatalf("at call %d: version %d after %v", call, h.ConfigVersion, err)
		}
		n.Disk.Restart(durabletest.Synced)
		a = n.mustOpen()
		if h, _ := runtimeOf(a); h.ConfigVersion < was.ConfigVersion || a.Unready() != "" {
			t.Fatalf("at call %d: opened with version %d, %s", call, h.ConfigVersion, a.Unready())
		}
		a.Close()
	}
}

// From the first node_runtime on, it says what the node is: its groups, where its
// coordinators are, how often it renews.
func TestRuntimeTakesTheBootstrapsPlace(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	id := n.MustJoin().ID
	m := f.Member(id)
	a := n.mustOpen()
	defer a.Close()
	var runtime *fealtyv1.SignedSnapshot
	f.Do(func() {
		runtime = f.Runtime(&m, func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
			c.Roles, c.Coordinators, c.RenewEvery = []string{"storage"}, []string{"elsewhere:1"}, 7*time.Second
			c.State, c.Degraded = snapshot.MemberDraining, nil
		})
	})
	f.Must(n.take(a, runtime))
	b := a.Node().TrustState()
	if trust := a.Node().Me().Trust(b); !slices.Equal(trust.Roles, []string{"storage"}) {
		t.Fatalf("roles %v", trust.Roles)
	}
	if got := enroll.RenewEvery(b); got != 7*time.Second {
		t.Errorf("renewals every %v", got)
	}
	if got := state.MergeAddresses(b, a.Node().Me().Addresses); got[0] != "elsewhere:1" || len(got) < 2 {
		t.Errorf("coordinators %v", got)
	}
	if got := b.Degraded(); got.Max != 0 || len(got.Allow) != 0 {
		t.Errorf("without a degraded policy it may do %v", got)
	}
	if until, limit := a.Node().Autonomy.DegradedUntil(); limit != guard.LimitAllowed ||
		until.After(a.Node().Now().Add(freshFor+guard.StaleFor)) {
		t.Errorf("it works alone until %v, by %s", until, limit)
	}
	if got := b.Standing(a.Node().Me().ID); got != string(snapshot.MemberDraining) {
		t.Errorf("it is %s", got)
	}
	held := a.Held()
	for _, want := range []struct {
		scope     snapshot.Scope
		freshness snapshot.Freshness
		recorded  bool
	}{{snapshot.ScopeNodeBootstrap, "", true}, {snapshot.ScopeNodeRuntime, snapshot.Fresh,
		true}, {snapshot.ScopeTrustBundle, snapshot.Fresh, false}} {
		i := slices.IndexFunc(held, func(h *fealtyv1.HeldSnapshot) bool { return h.GetScope() == string(want.scope) })
		if i < 0 || held[i].GetFreshness() != string(want.freshness) || (held[i].GetGeneration() > 0) != want.recorded {
			t.Errorf("%s is reported in %v", want.scope, held)
		}
	}
}

// A node_runtime that is lost or expired does not bring back what the bootstrap let
// the node do before: it finds its coordinators, and waits for the next one.
func TestRuntimeLost(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(f *nodetest.Fleet, n *node)
	}{
		{"damaged", func(_ *nodetest.Fleet, n *node) {
			for _, place := range []string{dir.Active, dir.Previous} {
				n.Disk.Put(n.Path(dir.SnapshotName(snapshot.ScopeNodeRuntime, place)), []byte("x"))
			}
		}},
		{"expired", func(f *nodetest.Fleet, n *node) { f.Shift.Store(int64(31 * 24 * time.Hour)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := nodetest.New(t)
			n, m := runtimeNode(f)
			f.Do(func() { f.BundleLife = 40 * 24 * time.Hour })
			f.TrustChanged(func() {})
			a := n.mustOpen()
			f.Must(n.take(a, f.TrustBundle()))
			a.Close()
			c.lose(f, n)
			a = n.mustOpen()
			defer a.Close()
			b := a.Node().TrustState()
			if b.Active[snapshot.ScopeNodeRuntime] != nil || b.Active[snapshot.ScopeNodeBootstrap] == nil {
				t.Fatal("the test shows nothing")
			}
			if got := b.Degraded(); got.Max != 0 || len(got.Allow) != 0 {
				t.Errorf("it may do %v again", got)
			}
			if trust := a.Node().Me().Trust(b); len(trust.Roles)+len(trust.Organizations) != 0 {
				t.Errorf("it is in the groups %v, %v again", trust.Roles, trust.Organizations)
			}
			if got := b.Facts().Overall(a.Node().Now()); got != snapshot.Expired {
				t.Errorf("it is %s", got)
			}
			if len(b.Coordinators()) == 0 {
				t.Error("it knows no coordinators")
			}
			var next *fealtyv1.SignedSnapshot
			f.Do(func() { next = f.Runtime(&m) })
			f.Must(n.take(a, next))
			if got := a.Node().TrustState().Freshness(snapshot.ScopeNodeRuntime, a.Node().Now()); got != snapshot.Fresh {
				t.Errorf("the next one is %q: %v", got, a.Node().Status().Refusals())
			}
		})
	}
}

// Without news a node becomes stale, degraded and expired, and says so; a newer
// record makes it fresh again.
func TestFreshnessOfANode(t *testing.T) {
	f := nodetest.New(t)
	n, m := runtimeNode(f)
	a := n.mustOpen()
	defer a.Close()
	f.Do(func() { f.BundleLife = 40 * 24 * time.Hour })
	f.TrustChanged(func() {})
	f.Must(n.take(a, f.TrustBundle()))
	at := func(d time.Duration) snapshot.Freshness {
		f.Shift.Store(int64(d))
		resp, err := a.NodeServer().GetNode(t.Context(), nil)
		f.Must(err)
		return snapshot.Freshness(resp.GetFreshness())
	}
	for _, c := range []struct {
		after time.Duration
		want  snapshot.Freshness
		gauge float64
	}{
		{0, snapshot.Fresh, 0},
		{16 * time.Minute, snapshot.Stale, 1},
		{16*time.Minute + guard.StaleFor, snapshot.Degraded, 2},
		{31 * 24 * time.Hour, snapshot.Expired, 3},
		{time.Minute, snapshot.Fresh, 0}, // a clock that was ahead decides nothing for good
	} {
		if got := at(c.after); got != c.want {
			t.Errorf("after %v: %s, want %s", c.after, got, c.want)
		}
		count, err := testutil.GatherAndCount(a.Counters().Registry(), "fealty_snapshot_freshness")
		if err != nil || count != 2 {
			t.Errorf("%d series (%v)", count, err)
		}
		if got := float64(guard.Rank(a.Node().TrustState().Freshness(snapshot.ScopeNodeRuntime,
			a.Node().Now()))); got != c.gauge {
			t.Errorf("after %v: gauge %v, want %v", c.after, got, c.gauge)
		}
	}
	f.Shift.Store(int64(20 * time.Minute))
	h, _ := runtimeOf(a)
	var next *fealtyv1.SignedSnapshot
	f.Do(func() { next = renewedRuntime(f, &m, h) })
	f.Must(n.take(a, next))
	if got := at(20 * time.Minute); got != snapshot.Fresh {
		t.Errorf("with a newer record: %s, refusals %v", got, a.Node().Status().Refusals())
	}
	// Without what says what it is, it relies on nothing.
	if got := (&state.TrustState{}).Facts().Overall(a.Node().Now()); got != snapshot.Expired {
		t.Errorf("with nothing: %s", got)
	}
}
