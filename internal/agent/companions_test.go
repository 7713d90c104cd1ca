package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

func offers(of ...*fealtyv1.SignedSnapshot) []state.Offer {
	var out []state.Offer
	for _, s := range of {
		out = append(out, state.Offer{Scope: s.GetScope(), Raw: s.GetEnvelope()})
	}
	return out
}

// companionNode returns a node that holds two versions of every companion.
func companionNode(f *nodetest.Fleet) (*node, signedtest.Member) {
	f.TB.Helper()
	n := newNode(f)
	id := n.MustJoin().ID
	m := f.Member(id)
	a := n.mustOpen()
	defer a.Close()
	f.Do(func() {
		f.Must(n.take(a, f.Gives(&m, nodetest.AllCompanions)))
		for version := range 2 {
			var all []*fealtyv1.SignedSnapshot
			for _, scope := range nodetest.AllCompanions {
				all = append(all, f.OfGroup(&m, signedtest.ContentOf(scope, version+1)))
			}
			f.Must(a.Contact().Take(f.TB.Context(), state.ByCoordinator, offers(all...)...))
		}
	})
	if got := a.Node().Status().Refusals(); len(got) != 0 {
		f.TB.Fatalf("refused: %v", got)
	}
	if got := inUse(a); len(got) != len(state.Scopes) {
		f.TB.Fatalf("in use are %v", got)
	}
	return n, m
}

// inUse returns the versions in use.
func inUse(a *agent.Agent) map[snapshot.Scope]uint64 {
	out := make(map[snapshot.Scope]uint64)
	for scope, h := range a.Node().TrustState().Active {
		out[scope] = h.Verified.Header().ConfigVersion
	}
	return out
}

// wellKept checks what the disk holds against what is in use: nothing is there of what
// is not, and what others read is what is in use.
func (n *node) wellKept(t *testing.T, a *agent.Agent) {
	t.Helper()
	b := a.Node().TrustState()
	for _, scope := range state.Scopes {
		h := b.Active[scope]
		if h == nil {
			for _, name := range append(dir.FilesOf(scope), dir.CurrentName(scope)) {
				if n.Has(name) {
					t.Errorf("%s is not in use, and there is %s", scope, name)
				}
			}
			continue
		}
		if got := n.Read(dir.SnapshotName(scope, dir.Active)); !bytes.Equal(got, h.Raw) {
			t.Errorf("%s.active is not what is in use", scope)
		}
		if _, err := a.Node().Autonomy.Use(scope); err != nil {
			if n.Has(dir.CurrentName(scope)) {
				t.Errorf("%s is there, and may not be used: %v", dir.CurrentName(scope), err)
			}
		} else if got := n.Read(dir.CurrentName(scope)); string(got) != h.Verified.ContentJSON() {
			t.Errorf("%s is not what is in use", dir.CurrentName(scope))
		}
		if n.Has(dir.SnapshotName(scope, dir.Pending)) {
			t.Errorf("%s is still pending", scope)
		}
	}
}

// A node starts in an outage with everything that it had, in all nine scopes.
func TestStartInAnOutage(t *testing.T) {
	f := nodetest.New(t)
	n, _ := companionNode(f)
	a := n.mustOpen()
	was := inUse(a)
	a.Close()
	f.Do(func() { f.Faults.Down["all"] = true })
	f.Shift.Add(int64(10 * 24 * time.Hour)) // long enough that every record is old
	f.Do(func() { f.BundleLife = 40 * 24 * time.Hour })
	f.Shift.Add(-int64(10 * 24 * time.Hour))
	n.Disk.Restart(durabletest.Synced)
	a = n.mustOpen()
	defer a.Close()
	if got := inUse(a); !maps.Equal(got, was) || len(a.Node().Status().Refusals()) != 0 {
		t.Errorf("in use are %v, were %v; refusals %v", got, was, a.Node().Status().Refusals())
	}
	n.wellKept(t, a)
}

// A companion that comes before the node_runtime which gives it is used as soon as that
// is there, whatever the order.
func TestCompanionsBeforeTheirRuntime(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	id := n.MustJoin().ID
	m := f.Member(id)
	a := n.mustOpen()
	defer a.Close()
	var qosPolicy, runtime *fealtyv1.SignedSnapshot
	f.Do(func() {
		runtime = f.Gives(&m, []snapshot.Scope{snapshot.ScopeQoSPolicy})
		qosPolicy = f.OfGroup(&m, signedtest.QoS(1))
	})
	f.Must(n.take(a, qosPolicy))
	if got := a.Node().Status().Refusals(); len(got) != 1 || inUse(a)[snapshot.ScopeQoSPolicy] != 0 {
		t.Fatalf("without a node_runtime: %v, refusals %v", inUse(a), got)
	}
	f.Must(n.take(a, runtime))
	if got := a.Node().Status().Refusals(); len(got) != 0 || inUse(a)[snapshot.ScopeQoSPolicy] == 0 {
		t.Fatalf("with it: %v, refusals %v", inUse(a), got)
	}
	// One that it does not give is refused, and so is another group's.
	f.Do(func() {
		f.Must(n.take(a, f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeRoutePolicy, 1))))
		f.Must(n.take(a, f.OfGroup(&m, &snapshot.QoSPolicy{},
			func(h *snapshot.Header, _ *snapshot.Record) { h.OrganizationIDs = []string{"other"} })))
	})
	want := map[string]snapshot.Reason{"route_policy": internalsnapshot.ReasonGrants,
		"qos_policy": internalsnapshot.ReasonSubject}
	for _, r := range a.Node().Status().Refusals() {
		if want[r.Scope] != snapshot.Reason(r.Reason) {
			t.Errorf("%s is refused for %s, want %s", r.Scope, r.Reason, want[r.Scope])
		}
		delete(want, r.Scope)
	}
	if len(want) != 0 {
		t.Errorf("not refused: %v", want)
	}
}

// Several scopes renewed under one record write the marks once.
func TestRenewalsAreOneWrite(t *testing.T) {
	f := nodetest.New(t)
	n, m := companionNode(f)
	a := n.mustOpen()
	defer a.Close()
	was := inUse(a)
	var all []*fealtyv1.SignedSnapshot
	f.Do(func() {
		for _, scope := range nodetest.AllCompanions {
			old := a.Node().TrustState().Active[scope].Verified.Header()
			all = append(all, f.OfGroup(&m, signedtest.ContentOf(scope, 2),
				func(h *snapshot.Header, _ *snapshot.Record) {
					*h = old
				}))
		}
	})
	before := a.Node().Store().Sequence
	f.Must(a.Contact().Take(t.Context(), state.ByCoordinator, offers(all...)...))
	if got := a.Node().Store().Sequence - before; got != 1 {
		t.Errorf("the marks were written %d times", got)
	}
	if got := inUse(a); !maps.Equal(got, was) || len(a.Node().Status().Refusals()) != 0 {
		t.Errorf("in use are %v, were %v; refusals %v", got, was, a.Node().Status().Refusals())
	}
	for i, scope := range nodetest.AllCompanions {
		if h := a.Node().TrustState().Active[scope]; !bytes.Equal(h.Raw, all[i].GetEnvelope()) {
			t.Errorf("%s is not under the newer record", scope)
		}
	}
	n.wellKept(t, a)
}

// A scope that a node_runtime does not give any more is out of use and off the disk at once,
// and after a restart; its marks stay, so that nothing old comes back with it.
func TestDrop(t *testing.T) {
	without := func(gone ...snapshot.Scope) []snapshot.Scope {
		return slices.DeleteFunc(slices.Clone(nodetest.AllCompanions),
			func(s snapshot.Scope) bool { return slices.Contains(gone, s) })
	}
	for _, c := range []struct {
		name  string
		lists []snapshot.Scope
		edit  func(*snapshot.NodeRuntime)
		gone  []snapshot.Scope
	}{
		{"nothing", nodetest.AllCompanions, func(*snapshot.NodeRuntime) {}, nil},
		{"one scope", without(snapshot.ScopeRoutePolicy), func(*snapshot.NodeRuntime) {},
			[]snapshot.Scope{snapshot.ScopeRoutePolicy}},
		{"the assignment", without(snapshot.ScopeServiceAssignment), func(*snapshot.NodeRuntime) {},
			[]snapshot.Scope{snapshot.ScopeServiceAssignment}},
		{"a role more", nodetest.AllCompanions, func(r *snapshot.NodeRuntime) { r.Roles = []string{"core", "egress"} },
			nodetest.AllCompanions},
		{"no role", nodetest.AllCompanions, func(r *snapshot.NodeRuntime) { r.Roles = nil }, nodetest.AllCompanions},
		{"another organization", nodetest.AllCompanions,
			func(r *snapshot.NodeRuntime) { r.Organizations = []string{"other"} }, nodetest.AllCompanions},
		{"everything", nil, func(*snapshot.NodeRuntime) {}, nodetest.AllCompanions},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := nodetest.New(t)
			n, m := companionNode(f)
			a := n.mustOpen()
			marks := len(a.Node().TrustState().Marks.All())
			old := a.Node().TrustState().Active[snapshot.ScopeQoSPolicy].Raw
			f.Do(func() { f.Must(n.take(a, f.Gives(&m, c.lists, c.edit))) })
			look := func(when string) {
				t.Helper()
				for _, scope := range state.Scopes {
					if got, want := inUse(a)[scope] != 0, !slices.Contains(c.gone, scope); got != want {
						t.Errorf("%s: %s is in use: %v", when, scope, got)
					}
				}
				if got := len(a.Node().TrustState().Marks.All()); got != marks {
					t.Errorf("%s: %d marks, were %d", when, got, marks)
				}
				if got := a.Node().Status().Refusals(); len(got) != 0 {
					t.Errorf("%s: refusals %v", when, got)
				}
				n.wellKept(t, a)
			}
			look("at once")
			a.Close()
			a = n.mustOpen()
			look("after a restart")
			defer func() { a.Close() }()
			if !slices.Contains(c.gone, snapshot.ScopeQoSPolicy) || slices.Contains(c.lists, snapshot.ScopeQoSPolicy) {
				return
			}
			// Given again, the node takes what it had, and nothing that is older.
			f.Do(func() { f.Must(n.take(a, f.Gives(&m, nodetest.AllCompanions))) })
			f.Do(func() {
				f.Must(n.take(a, f.OfGroup(&m, signedtest.QoS(9),
					func(h *snapshot.Header, _ *snapshot.Record) { h.ConfigVersion = 1 })))
			})
			if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != string(snapshot.ReasonVersion) {
				t.Errorf("an older one: %v", got)
			}
			f.Must(take(t.Context(), a, "qos_policy", old))
			if inUse(a)[snapshot.ScopeQoSPolicy] == 0 || len(a.Node().Status().Refusals()) != 0 {
				t.Errorf("what it had is not in use again: %v", a.Node().Status().Refusals())
			}
		})
	}
}

// A power cut at any call of an activation of several scopes leaves each scope with the
// old or the new, whole; and under a node_runtime nothing that it does not give.
func TestSeveralScopesCrash(t *testing.T) {
	f := nodetest.New(t)
	joined, m := companionNode(f)
	a := joined.mustOpen()
	was := inUse(a)
	a.Close()
	for _, c := range []struct {
		name string
		next func() []*fealtyv1.SignedSnapshot
		gone []snapshot.Scope
	}{
		{"new versions", func() []*fealtyv1.SignedSnapshot {
			return []*fealtyv1.SignedSnapshot{
				f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeQoSPolicy, 3)),
				f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeRoutePolicy, 3)),
				f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeServiceAssignment, 3)),
				f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeDegradedModePolicy, 3)),
			}
		}, nil},
		{"a node_runtime that takes two away, and a new version", func() []*fealtyv1.SignedSnapshot {
			lists := slices.DeleteFunc(slices.Clone(nodetest.AllCompanions), func(s snapshot.Scope) bool {
				return s == snapshot.ScopeRoutePolicy || s == snapshot.ScopeServiceAssignment
			})
			return []*fealtyv1.SignedSnapshot{f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeQoSPolicy, 3)),
				f.Gives(&m, lists)}
		}, []snapshot.Scope{snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var next []*fealtyv1.SignedSnapshot
			f.Do(func() { next = c.next() })
			after := maps.Clone(was)
			for _, s := range next {
				signed, err := snapshot.Unmarshal(s.GetEnvelope())
				f.Must(err)
				after[snapshot.Scope(s.GetScope())] = versionOf(t, signed)
			}
			for _, scope := range c.gone {
				delete(after, scope)
			}
			var n *node
			nodetest.Crash(t, durabletest.Afters(), func() (*durabletest.Disk, func() error) {
				n = joined.clone()
				a := n.mustOpen()
				return n.Disk, func() error {
					return a.Contact().Take(t.Context(), state.ByCoordinator,
						offers(next...)...)
				}
			}, func(t *testing.T, done bool) {
				a, err := n.open()
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Close()
				got := inUse(a)
				for _, scope := range state.Scopes {
					if v := got[scope]; v != was[scope] && v != after[scope] || done && v != after[scope] {
						t.Errorf("%s is at version %d, was %d, next %d", scope, v, was[scope], after[scope])
					}
				}
				newRuntime := got[snapshot.ScopeNodeRuntime] != was[snapshot.ScopeNodeRuntime]
				for _, scope := range c.gone {
					if (got[scope] == 0) != newRuntime {
						t.Errorf("%s is at version %d under node_runtime %d", scope, got[scope],
							got[snapshot.ScopeNodeRuntime])
					}
				}
				if reason := a.Unready(); reason != "" || len(a.Node().Status().Refusals()) != 0 {
					t.Errorf("unready: %q, refusals %v", reason, a.Node().Status().Refusals())
				}
				n.wellKept(t, a)
				if err := a.Contact().Take(t.Context(), state.ByCoordinator, offers(next...)...); err != nil ||
					!maps.Equal(inUse(a), after) || len(a.Node().Status().Refusals()) != 0 {
					t.Errorf("sent again: %v, %v, want %v; refusals %v", err, inUse(a), after,
						a.Node().Status().Refusals())
				}
				n.wellKept(t, a)
			})
		})
	}
}

// versionOf reads the version of what was signed, without checking it.
func versionOf(t *testing.T, s *snapshot.Signed) uint64 {
	t.Helper()
	var h struct {
		Version uint64 `json:"config_version,string"`
	}
	if err := json.Unmarshal(s.Header, &h); err != nil {
		t.Fatal(err)
	}
	return h.Version
}

// A disk error while something is dropped keeps it out of use, and is made good.
func TestDropDiskErrors(t *testing.T) {
	f := nodetest.New(t)
	joined, m := companionNode(f)
	var next *fealtyv1.SignedSnapshot
	f.Do(func() { next = f.Gives(&m, nil) })
	for call := 1; ; call++ {
		n := joined.clone()
		a := n.mustOpen()
		n.Disk.FailAt(call, errors.New("disk error"))
		err := n.take(a, next)
		if !n.Disk.Failed() {
			a.Close()
			break
		}
		if got := len(inUse(a)); (got == len(state.Foundations)) != (err == nil) {
			t.Fatalf("at call %d: %d scopes are in use after %v", call, got, err)
		}
		if err == nil {
			_, err := a.Node().Trials.EndTrials(t.Context())
			f.Must(err)
			n.wellKept(t, a)
		}
		a.Close()
	}
}

// A refusal is shown for as long as the node is to hold something in its place.
func TestRefusalEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	f := nodetest.New(t)
	n := newNode(f)
	m := f.Member(n.MustJoin().ID)
	a := n.mustOpen()
	services := []snapshot.Scope{snapshot.ScopeServiceAssignment}
	f.Do(func() {
		f.Must(n.take(a, f.Gives(&m, services)))
		bad := f.OfGroup(&m, signedtest.ContentOf(snapshot.ScopeServiceAssignment, 9),
			func(h *snapshot.Header, _ *snapshot.Record) {
				h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(time.Second), h.IssuedAt.Add(2*time.Second)
			})
		f.Shift.Add(int64(time.Hour))
		f.Must(n.take(a, bad))
	})
	if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Scope != string(snapshot.ScopeServiceAssignment) {
		t.Fatalf("refused is %+v", got)
	}
	a.Close()
	a = n.mustOpen()
	if got := a.Node().Status().Refusals(); len(got) != 1 {
		t.Fatalf("after a restart refused is %+v", got)
	}
	// A record over the same node_runtime ends nothing, and one that gives no services does.
	f.Do(func() { f.Must(n.take(a, f.Gives(&m, services))) })
	if got := a.Node().Status().Refusals(); len(got) != 1 {
		t.Errorf("with a runtime that gives services refused is %+v", got)
	}
	f.Do(func() { f.Must(n.take(a, f.Gives(&m, nil))) })
	if got := a.Node().Status().Refusals(); len(got) != 0 {
		t.Errorf("with a runtime that gives none refused is %+v", got)
	}
	a.Close()
	a = n.mustOpen()
	defer a.Close()
	if got := a.Node().Status().Refusals(); len(got) != 0 {
		t.Errorf("after a restart refused is %+v", got)
	}
}
