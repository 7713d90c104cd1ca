package agent_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// memberOf returns the fleet's record of the node that a is.
func memberOf(f *nodetest.Fleet, a *agent.Agent) *signedtest.Member {
	m := f.Member(a.Node().Self().ID)
	return &m
}

// A snapshot that only a revoked key signed is not used any more, from the very moment on at
// which the node has the bundle: neither now nor after a restart; and what the next
// key signs takes its place. A key that left by a rotation takes nothing away.
func TestRevokedSigner(t *testing.T) {
	for _, tc := range []struct {
		name    string
		revoked bool
	}{{"left", false}, {"revoked", true}} {
		t.Run(tc.name, func(t *testing.T) {
			f := nodetest.New(t)
			n := newNode(f)
			n.MustJoin()
			a := n.mustOpen()
			member := memberOf(f, a)
			f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
			signer := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Verified.SignerKeyIDs()
			if got := signersReported(a, snapshot.ScopeNodeRuntime); !slices.Equal(got, signer) || len(got) != 1 {
				t.Fatalf("reported signers %v, want %v", got, signer)
			}
			old := f.NextKey()
			f.Must(take(t.Context(), a, "trust_bundle", f.BundleWith(func(b *snapshot.TrustBundle) {
				if old.Revoked = tc.revoked; tc.revoked {
					b.ConfigKeys = append(b.ConfigKeys, old)
				}
			}).GetEnvelope()))
			inUse := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] != nil
			if inUse == tc.revoked {
				t.Fatalf("the node_runtime is in use: %v", inUse)
			}
			if a.Node().TrustState().Active[snapshot.ScopeNodeBootstrap] != nil {
				t.Error("a bootstrap that nothing speaks for is in use")
			}
			refused := slices.ContainsFunc(a.Node().Status().Refusals(),
				func(r state.Refusal) bool { return r.Scope == "node_runtime" && r.Reason == "signer" })
			if refused != tc.revoked {
				t.Errorf("told: %v", a.Node().Status().Refusals())
			}
			f.Must(a.Close())
			a = n.mustOpen()
			if a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] != nil {
				t.Error("what no key of the bundle signed is used at a start")
			}
			f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
			if a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] == nil {
				t.Error("what the next key signs is not used")
			}
			f.Must(a.Close())
		})
	}
}

// A snapshot that the key signs later, or that it signed before and that is on
// disk as the one before, does not come back; one before that another key signed does.
func TestPreviousOfARevokedSigner(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer func() { f.Must(a.Close()) }()
	member := memberOf(f, a)
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	first := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Verified.HeaderDigest()
	oldKey := f.ConfigKey
	old := f.NextKey()
	both := func(revoked ...bool) *fealtyv1.SignedSnapshot {
		return f.BundleWith(func(b *snapshot.TrustBundle) {
			b.ConfigKeys = append(b.ConfigKeys, old)
			for i := range b.ConfigKeys {
				b.ConfigKeys[i].Revoked = bytes.Equal(b.ConfigKeys[i].Key, old.Key) && revoked[0] ||
					!bytes.Equal(b.ConfigKeys[i].Key, old.Key) && revoked[1]
			}
		})
	}
	f.Must(take(t.Context(), a, "trust_bundle", both(false, false).GetEnvelope()))
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	// The newer one is revoked: the one before stands on the other key.
	f.Must(take(t.Context(), a, "trust_bundle", both(false, true).GetEnvelope()))
	h := a.Node().TrustState().Active[snapshot.ScopeNodeRuntime]
	if h == nil || h.Verified.HeaderDigest() != first {
		t.Fatal("the one before is not in use")
	}
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	if a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Verified.HeaderDigest() != first {
		t.Fatal("what the revoked key signed later is in use")
	}
	// That one too: nothing is left.
	f.Must(take(t.Context(), a, "trust_bundle", both(true, true).GetEnvelope()))
	newKey := f.ConfigKey
	f.ConfigKey = oldKey
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	f.ConfigKey = newKey
	if a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] != nil {
		t.Fatal("something that a revoked key signed is in use")
	}
	// A store that was set back to before the revocations: its bundles are refused,
	// with an old version and with a new one.
	for _, version := range []uint64{f.Version - 2, f.Version + 10} {
		f.Version = version - 1
		f.Must(take(t.Context(), a, "trust_bundle", both(false, false).GetEnvelope()))
		if got := a.Node().TrustState().Active[snapshot.ScopeTrustBundle].Verified.Header().ConfigVersion; got == version {
			t.Fatalf("a bundle of version %d takes revocations back", version)
		}
	}
}

func signersReported(a *agent.Agent, scope snapshot.Scope) []string {
	for _, h := range a.Held() {
		if h.GetScope() == string(scope) {
			return h.GetSigners()
		}
	}
	return nil
}

// A statement of the signers has its effect at a node that reaches nobody, and keeps
// it over restarts and newer bundles that know nothing of it.
func TestEmergency(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	f.Do(func() { f.Faults.Down["all"] = true })
	a, client, stop := served(t, f, n)
	member := memberOf(f, a)
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	banned := identity.KeyID{42}
	raw := f.Emergency(1, func(e *trust.Emergency) {
		e.ConfigKeys, e.Keys = []snapshot.Digest{f.ConfigDigest()}, []identity.KeyID{banned}
		e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedPermission, Name: "continue_services"}}
	})
	apply := func(raw []byte, dry bool) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
		return client.ApplyNodeEmergency(t.Context(), &fealtyv1.ApplyNodeEmergencyRequest{Statement: raw, DryRun: dry})
	}
	resp, err := apply(raw, true)
	if err != nil || !resp.GetChanged() || !slices.Contains(resp.GetDistrusted(), "node_runtime") ||
		a.Node().TrustState().Active[snapshot.ScopeNodeRuntime] == nil {
		t.Fatalf("a dry run: %v (%v)", resp, err)
	}
	if resp, err = apply(raw, false); err != nil || !resp.GetChanged() {
		t.Fatalf("%v (%v)", resp, err)
	}
	check := func(a *agent.Agent) {
		t.Helper()
		b := a.Node().TrustState()
		if b.Active[snapshot.ScopeNodeRuntime] != nil {
			t.Error("what the revoked key signed is in use")
		}
		if !b.Revocations().Revokes(internalsnapshot.RevokedPermission, "continue_services") {
			t.Error("the permission is not revoked")
		}
		m, err := a.Node().Source().Current(t.Context())
		f.Must(err)
		if !m.Bundle().Banned(identity.ID{}, banned) {
			t.Error("connections by the banned key are not refused")
		}
	}
	check(a)
	if resp, err = apply(raw, false); err != nil || resp.GetChanged() {
		t.Fatalf("twice: %v (%v)", resp, err)
	}
	_ = stop()
	a = n.mustOpen()
	check(a)
	// A newer bundle of the coordinators, which nobody told, takes none of it back.
	f.Must(take(t.Context(), a, "trust_bundle", f.BundleWith(func(*snapshot.TrustBundle) {}).GetEnvelope()))
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(member).GetEnvelope()))
	check(a)
	f.Must(a.Close())
	// One copy that is damaged is made good by the other.
	n.Disk.Put(n.Path(dir.EmergencyAName), []byte("garbage"))
	a = n.mustOpen()
	check(a)
	f.Must(a.Close())
}

// A text that is no statement of the signers for this node has no effect and leaves nothing.
func TestEmergencyRefused(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer func() { f.Must(a.Close()) }()
	good := func(e *trust.Emergency) { e.Keys = []identity.KeyID{{7}} }
	if _, err := a.Node().ApplyEmergency(t.Context(), f.Emergency(3, good), false); err != nil {
		t.Fatal(err)
	}
	signer := f.Signer
	for _, tc := range []struct {
		name string
		raw  func() []byte
	}{
		{"garbage", func() []byte { return []byte("garbage") }},
		{"empty", func() []byte { return nil }},
		{"an altered byte", func() []byte { raw := f.Emergency(4, good); raw[40] ^= 1; return raw }},
		{"cut short", func() []byte { raw := f.Emergency(4, good); return raw[:len(raw)-1] }},
		{"another signer", func() []byte {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			f.Must(err)
			f.Signer = key
			defer func() { f.Signer = signer }()
			return f.Emergency(4, good)
		}},
		{"another root", func() []byte {
			return f.Emergency(4, func(e *trust.Emergency) { good(e); e.Root = identity.KeyID{1} })
		}},
		{"another cluster", func() []byte {
			return f.Emergency(4, func(e *trust.Emergency) { good(e); e.ClusterID = "other.example" })
		}},
		{"a number that is taken", func() []byte {
			return f.Emergency(3,
				func(e *trust.Emergency) { e.Keys = []identity.KeyID{{8}} })
		}},
		{"too large", func() []byte { return make([]byte, internalsnapshot.MaxSignedEmergency+1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := a.Node().TrustState()
			_, err := a.Node().ApplyEmergency(t.Context(), tc.raw(), false)
			if !errors.Is(err, errcode.EmergencyRefused) {
				t.Errorf("%v", err)
			}
			if a.Node().TrustState() != before {
				t.Error("the node believes something else")
			}
			if kept, _, _ := a.Node().Store().ReadEmergencies(a.Node().Self()); len(kept) != 1 {
				t.Errorf("%d statements are kept", len(kept))
			}
		})
	}
	// Statements count in whatever order they come.
	if _, err := a.Node().ApplyEmergency(t.Context(), f.Emergency(1,
		func(e *trust.Emergency) { e.Keys = []identity.KeyID{{9}} }), false); err != nil {
		t.Error(err)
	}
	if n := len(a.Node().TrustState().Emergencies); n != 2 {
		t.Errorf("%d statements in force", n)
	}
}

// A crash leaves a statement that has all of its effect at the next start, or none.
func TestEmergencyCrash(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	crash := errors.New("crash")
	a.Node().Faults = new(failpoint.Points)
	a.Node().Faults.FailNext("emergency.after-write", 1, crash)
	raw := f.Emergency(1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{7}} })
	if _, err := a.Node().ApplyEmergency(t.Context(), raw, false); !errors.Is(err, crash) {
		t.Fatal(err)
	}
	f.Must(a.Close())
	a = n.mustOpen()
	defer func() { f.Must(a.Close()) }()
	m, err := a.Node().Source().Current(t.Context())
	f.Must(err)
	if !m.Bundle().Banned(identity.ID{}, identity.KeyID{7}) {
		t.Error("a statement that was kept has no effect after a restart")
	}
}

// A member that is revoked by name is in nothing that others read or that the node acts on,
// though the snapshot that is kept and passed on lists it.
func TestRevokedByName(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer func() { f.Must(a.Close()) }()
	f.Must(take(t.Context(), a, "node_runtime", f.Runtime(memberOf(f, a)).GetEnvelope()))
	allowed := func() (file, policy bool) {
		return bytes.Contains(n.Read(dir.CurrentName(snapshot.ScopeNodeRuntime)), []byte("continue_services")),
			slices.Contains(a.Node().TrustState().Degraded().Allow, "continue_services")
	}
	if file, policy := allowed(); !file || !policy {
		t.Fatalf("allowed before: %v, %v", file, policy)
	}
	address := f.Addresses()[0]
	if !slices.Contains(a.Contact().Addresses(), address) {
		t.Fatal("the address is not known")
	}
	f.Must(take(t.Context(), a, "trust_bundle", f.BundleWith(func(b *snapshot.TrustBundle) {
		b.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedCoordinator, Name: address},
			{Kind: internalsnapshot.RevokedPermission, Name: "continue_services"}}
	}).GetEnvelope()))
	if file, policy := allowed(); file || policy {
		t.Errorf("allowed though it is revoked: %v, %v", file, policy)
	}
	if slices.Contains(a.Contact().Addresses(), address) {
		t.Error("an address that is revoked is asked")
	}
	if !bytes.Contains([]byte(a.Node().TrustState().Active[snapshot.ScopeNodeRuntime].Verified.ContentJSON()),
		[]byte("continue_services")) {
		t.Error("what was signed changed")
	}
}

// A node that knows that its identity, its key or one of its roles is revoked acts on
// nothing that it was told, and gives none of it to local services, in contact or not
// and over restarts. The ways back stay: a ban can be lifted.
func TestWithdrawnNode(t *testing.T) {
	for _, tc := range []struct {
		name   string
		bound  string
		roles  []string
		bundle func(f *nodetest.Fleet, a *agent.Agent, b *snapshot.TrustBundle)
		file   func(a *agent.Agent, e *trust.Emergency)
	}{
		{"identity banned", guard.LimitIdentity, nil, func(_ *nodetest.Fleet, a *agent.Agent, b *snapshot.TrustBundle) {
			b.BannedIDs = append(b.BannedIDs, a.Node().Me().ID)
		}, nil},
		{"key banned", guard.LimitIdentity, nil, func(_ *nodetest.Fleet, a *agent.Agent, b *snapshot.TrustBundle) {
			b.BannedKeys = append(b.BannedKeys, a.Node().SVID().Key.ID)
		}, nil},
		{"identity banned by a statement", guard.LimitIdentity, nil, nil,
			func(a *agent.Agent, e *trust.Emergency) { e.Nodes = []identity.ID{a.Node().Me().ID} }},
		{"role revoked", guard.LimitRoles, nil, func(_ *nodetest.Fleet, a *agent.Agent, b *snapshot.TrustBundle) {
			b.Revoked = []snapshot.Revoked{ingressOf(a)}
		}, nil},
		{"one of two roles revoked", guard.LimitRoles, []string{internalsnapshot.RoleCore, internalsnapshot.RoleIngress},
			func(_ *nodetest.Fleet, a *agent.Agent, b *snapshot.TrustBundle) {
				b.Revoked = []snapshot.Revoked{ingressOf(a)}
			}, nil},
		{"role revoked by a statement", guard.LimitRoles, nil, nil,
			func(a *agent.Agent, e *trust.Emergency) { e.Revoked = []snapshot.Revoked{ingressOf(a)} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := nodetest.New(t)
			n := newNode(f)
			n.MustJoin()
			a := n.mustOpen()
			member := memberOf(f, a)
			roles := tc.roles
			if roles == nil {
				roles = []string{internalsnapshot.RoleIngress}
			}
			f.Must(n.take(a, f.Runtime(member, allAllowed,
				func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
					c.Roles, c.Companions = roles, []snapshot.Scope{snapshot.ScopeRoutePolicy}
				})))
			f.Must(n.take(a, f.Companion(member, snapshot.ScopeRoutePolicy,
				&snapshot.RoutePolicy{Entry: routesTo("web").Routes}, func(h *snapshot.Header, _ *snapshot.Record) {
					h.Subject, h.Roles = snapshot.GroupSubject(roles, nil), roles
				})))
			acts := []guard.Action{guard.ContinueServices, guard.PreserveRoutes, guard.PreserveSessions,
				guard.ValidatePeers, guard.StartServices, guard.ResolveSecrets, guard.AdmitSessions}
			for _, action := range acts {
				f.Must(a.Node().Autonomy.Permit(action))
			}
			if _, err := a.Node().Autonomy.Use(snapshot.ScopeRoutePolicy); err != nil ||
				!n.Has(dir.CurrentName(snapshot.ScopeRoutePolicy)) {
				t.Fatalf("before: %v", err)
			}
			if tc.bundle != nil {
				f.Must(n.take(a, f.BundleWith(func(b *snapshot.TrustBundle) { tc.bundle(f, a, b) })))
			} else {
				_, err := a.Node().ApplyEmergency(t.Context(),
					f.Emergency(1, func(e *trust.Emergency) { tc.file(a, e) }), false)
				f.Must(err)
			}
			for _, when := range []string{"at once", "after a restart"} {
				for _, action := range acts {
					refused, ok := errors.AsType[*guard.RefusedError](a.Node().Autonomy.Permit(action))
					if !ok || refused.Reason != string(guard.Withdrawn) || refused.Bound != tc.bound {
						t.Errorf("%s: %s: %v", when, action, refused)
					}
				}
				for _, action := range []guard.Action{guard.ReconnectPeers, guard.ReportLater} {
					if err := a.Node().Autonomy.Permit(action); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				}
				if _, err := a.Node().Autonomy.Use(snapshot.ScopeRoutePolicy); err == nil ||
					n.Has(dir.CurrentName(snapshot.ScopeRoutePolicy)) {
					t.Errorf("%s: local services get the routes of a node that is revoked", when)
				}
				if until, limit := a.Node().Autonomy.DegradedUntil(); until.After(a.Node().Now()) || limit != tc.bound {
					t.Errorf("%s: it says that it works until %v by %s", when, until, limit)
				}
				f.Must(a.Close())
				a = n.mustOpen()
			}
			f.Must(a.Close())
		})
	}
}

// Local services may ask the guard as often as they like: an answer costs the same,
// however much is banned and revoked.
func TestPermitCostsLittle(t *testing.T) {
	f := nodetest.New(t)
	n, _ := routed(f)
	a := n.mustOpen()
	defer func() { f.Must(a.Close()) }()
	f.Must(n.take(a, f.BundleWith(func(b *snapshot.TrustBundle) {
		for i := range 1000 {
			id, err := identity.New(signedtest.Cluster, identity.Data, fmt.Sprintf("banned-%04d", i))
			f.Must(err)
			b.BannedIDs = append(b.BannedIDs, id)
		}
	})))
	if n := testing.AllocsPerRun(20, func() { _ = a.Node().Autonomy.Permit(guard.ContinueServices) }); n > 50 {
		t.Errorf("an answer of the guard takes %v allocations", n)
	}
}

func ingressOf(a *agent.Agent) snapshot.Revoked {
	return snapshot.Revoked{Kind: internalsnapshot.RevokedRole, Name: string(a.Node().Me().ID.Kind()) + "/" +
		a.Node().Me().ID.Name() + "/" + internalsnapshot.RoleIngress}
}

// A statement that comes when the disk lost those before is written beside them, and so
// is one that is handed in once more.
func TestEmergenciesLostOnDisk(t *testing.T) {
	for _, again := range []uint64{1, 3} {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		a := n.mustOpen()
		statements := map[uint64][]byte{}
		for _, number := range []uint64{1, 2, 3} {
			statements[number] = f.Emergency(number,
				func(e *trust.Emergency) { e.Keys = []identity.KeyID{{byte(number)}} })
		}
		for _, number := range []uint64{1, 2} {
			_, err := a.Node().ApplyEmergency(t.Context(), statements[number], false)
			f.Must(err)
		}
		f.Must(n.Disk.FS().Remove(n.Path(dir.EmergencyAName)))
		n.Disk.Put(n.Path(dir.EmergencyBName), []byte("garbage"))
		_, err := a.Node().ApplyEmergency(t.Context(), statements[again], false)
		f.Must(err)
		f.Must(a.Close())
		a = n.mustOpen()
		m, err := a.Node().Source().Current(t.Context())
		f.Must(err)
		for _, number := range []uint64{1, 2, again} {
			if !m.Bundle().Banned(identity.ID{}, identity.KeyID{byte(number)}) {
				t.Errorf("statement %d, after the file was lost and %d came: it is forgotten by the next start", number,
					again)
			}
		}
		f.Must(a.Close())
	}
}

// That the authority epoch moved on is not forgotten by a restart: what was refused for
// it stays refused, until a newer trust bundle is there.
func TestBehindOverRestarts(t *testing.T) {
	f := nodetest.New(t)
	n, m := routed(f)
	a := n.mustOpen()
	f.Must(a.Node().Autonomy.Permit(guard.StartServices))
	f.Epoch++
	f.Must(n.take(a, f.Runtime(&m)))
	f.Epoch--
	for _, when := range []string{"at once", "after a restart", "after another"} {
		if a.Node().Autonomy.Permit(guard.StartServices) == nil ||
			a.Node().Autonomy.Facts().Partition(a.Node().Now()) != guard.EpochBehind {
			t.Errorf("%s: a node that is behind starts services", when)
		}
		f.Must(a.Close())
		a = n.mustOpen()
	}
	f.Must(n.take(a, f.BundleWith(func(*snapshot.TrustBundle) {})))
	for _, when := range []string{"at once", "after a restart"} {
		if err := a.Node().Autonomy.Permit(guard.StartServices); err != nil {
			t.Errorf("with a newer bundle, %s: %v", when, err)
		}
		f.Must(a.Close())
		a = n.mustOpen()
	}
	f.Must(a.Close())
}
