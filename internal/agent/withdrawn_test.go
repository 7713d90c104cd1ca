package agent_test

import (
	"crypto/ed25519"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// A trial ends with what it is of: of a scope that the node lost meanwhile nothing is
// judged, whatever happens afterwards.
func TestTrialOfWhatIsGone(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *trialWorld)
	}{
		{"dropped by a node_runtime", func(w *trialWorld) {
			w.f.Do(func() {
				w.f.Must(w.n.take(w.a, w.f.Gives(&w.m, []snapshot.Scope{snapshot.ScopeDegradedModePolicy})))
			})
		}},
		{"its signer revoked", func(w *trialWorld) {
			other := newConfigKey()
			w.f.Must(w.n.take(w.a, w.f.Revoking(w.f.ConfigKey, other)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTrialWorld(t, true)
			c.do(w)
			if w.version() != 0 {
				t.Fatalf("version %d is in use", w.version())
			}
			w.a.Node().Status().Closed(errors.New("gone"))
			w.end()
			if w.onTrial() {
				t.Error("it is still on trial")
			}
			if _, ok := w.a.Node().TrustState().Quarantined(snapshot.ScopeQoSPolicy); ok {
				t.Error("what is not in use was judged")
			}
		})
	}
}

// A header that is renewed while it is on trial is on trial as before.
func TestTrialOutlivesARenewal(t *testing.T) {
	for _, c := range []struct {
		name  string
		renew func(w *trialWorld)
	}{
		{"of the header", func(w *trialWorld) {
			was := w.a.Node().TrustState().Active[snapshot.ScopeQoSPolicy].Verified.Header()
			w.send(2, func(h *snapshot.Header, _ *snapshot.Record) {
				h.ConfigVersion, h.IssuedAt = was.ConfigVersion, was.IssuedAt.Add(time.Second)
			})
		}},
		{"by a version with the same content", func(w *trialWorld) { w.send(2) }},
		{"by a record", func(w *trialWorld) {
			was := w.a.Node().TrustState().Active[snapshot.ScopeQoSPolicy].Verified.Header()
			w.send(2, func(h *snapshot.Header, _ *snapshot.Record) { *h = was })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTrialWorld(t, true)
			before := w.a.Node().TrustState().Active[snapshot.ScopeQoSPolicy]
			c.renew(w)
			if w.a.Node().TrustState().Active[snapshot.ScopeQoSPolicy] == before {
				t.Fatalf("it is not renewed: %v", w.a.Node().Status().Refusals())
			}
			w.restart()
			if !w.onTrial() {
				t.Fatal("it is not on trial any more after a restart")
			}
			w.reject()
			if q, ok := w.a.Node().TrustState().Quarantined(snapshot.ScopeQoSPolicy); !ok || w.onTrial() {
				t.Errorf("quarantined: %v, %+v; on trial: %v", ok, q, w.onTrial())
			}
			w.fellBack("after a renewal")
		})
	}
}

// A config key that is revoked stays revoked when the disk damages the bundle that says
// so: the bundle before vouches for nothing that this one took back.
func TestRevocationOutlivesDamage(t *testing.T) {
	f := nodetest.New(t)
	n, _ := companionNode(f)
	a := n.mustOpen()
	f.Must(n.take(a, f.Revoking(f.ConfigKey, newConfigKey())))
	if got := inUse(a); len(got) != 1 || got[snapshot.ScopeTrustBundle] == 0 {
		t.Errorf("after the revocation %v are in use", got)
	}
	a.Close()
	for _, damaged := range [][]byte{nil, []byte("x")} {
		c := n.clone()
		c.Disk.Put(c.Path(dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active)), damaged)
		a := c.mustOpen()
		if got := inUse(a); len(got) != 0 {
			t.Errorf("with a damaged bundle %v are in use", got)
		}
		if m, err := a.Node().Source().Current(t.Context()); err != nil || m.ID() != a.Node().Me().ID {
			t.Errorf("it cannot reach a coordinator: %v", err)
		}
		a.Close()
	}
}

// The scopes beside a node_runtime that is not to be believed any more go with it,
// from what others read too.
func TestRevokedRuntimeTakesItsCompanions(t *testing.T) {
	f := nodetest.New(t)
	n, m := companionNode(f)
	a := n.mustOpen()
	defer func() { a.Close() }()
	// A second key, which signs one companion from now on; then the first is revoked.
	first, second := f.ConfigKey, newConfigKey()
	f.TrustChanged(func() {
		content := f.Content()
		k := content.ConfigKeys[0]
		k.Key = second.Public().(ed25519.PublicKey)
		content.ConfigKeys = append(content.ConfigKeys, k)
		slices.SortFunc(content.ConfigKeys, func(x, y snapshot.ConfigKey) int { return slices.Compare(x.Key, y.Key) })
		h := f.TrustHeader()
		h.ConfigVersion++
		f.Must(n.take(a, f.SignTrust(h, content)))
		f.ConfigKey = second
		f.Must(n.take(a, f.OfGroup(&m, signedtest.QoS(7))))
		f.ConfigKey = first
	})
	if got := a.Node().TrustState().Active[snapshot.ScopeQoSPolicy].Verified.SignerKeyIDs(); !slices.Equal(got,
		[]string{internalsnapshot.KeyIDOf(second.Public().(ed25519.PublicKey))}) {
		t.Fatalf("signed by %v", got)
	}
	f.Must(n.take(a, f.Revoking(first, second)))
	look := func(when string) {
		t.Helper()
		if got := inUse(a); len(got) != 1 || got[snapshot.ScopeTrustBundle] == 0 {
			t.Errorf("%s: in use are %v", when, got)
		}
		for _, scope := range state.Scopes[1:] {
			if n.Has(dir.CurrentName(scope)) {
				t.Errorf("%s: there is %s", when, dir.CurrentName(scope))
			}
		}
	}
	look("at once")
	a.Close()
	n.Disk.Restart(durabletest.Synced)
	a = n.mustOpen()
	look("after a restart")
}
