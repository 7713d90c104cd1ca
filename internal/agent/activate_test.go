package agent_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// take gives a what a coordinator would send.
func (n *node) take(a *agent.Agent, s *fealtyv1.SignedSnapshot) error {
	return take(n.Fleet.TB.Context(), a, s.GetScope(), s.GetEnvelope())
}

// A power cut at any point of an activation leaves the old snapshot or the new
// one, whole, and the coordinator's sending it again puts the new one into use.
func TestActivationCrash(t *testing.T) {
	f := nodetest.New(t)
	joined := newNode(f)
	joined.MustJoin()
	// Twice, so that there is a previous one to mix up.
	a := joined.mustOpen()
	f.TrustChanged(func() {})
	f.Must(joined.take(a, f.TrustBundle()))
	a.Close()
	f.TrustChanged(func() {})
	next := f.TrustBundle()

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
		if v := trustVersion(a); v != 12 && (v != 11 || done) {
			t.Errorf("version %d is in use, want 11 or 12", v)
		}
		if reason := a.Unready(); reason != "" || len(a.Node().Status().Refusals()) != 0 {
			t.Errorf("unready: %q, refusals %v", reason, a.Node().Status().Refusals())
		}
		if err := n.take(a, next); err != nil || trustVersion(a) != 12 || len(a.Node().Status().Refusals()) != 0 {
			t.Errorf("sent again: %v, version %d, refusals %v", err, trustVersion(a), a.Node().Status().Refusals())
		}
	})
}

// The next start uses what the marks know, without anybody's help; so any
// number of crashes in a row, each amid another activation, loses nothing.
func TestActivationCrashesInARow(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	for range 5 {
		points := new(failpoint.Points)
		a, err := agent.Open(t.Context(), agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock, Log: nodetest.Quiet(),
			Dial: f.Dial, Faults: points})
		f.Must(err)
		was := trustVersion(a)
		f.TrustChanged(func() {})
		points.Arm("activate.after-marks", func() error {
			n.Disk.FailAt(1, durabletest.ErrPowerCut)
			return nil
		})
		if err := n.take(a, f.TrustBundle()); !errors.Is(err, state.ErrStorage) {
			t.Fatal(err)
		}
		n.Disk.Restart(durabletest.Synced)
		a = n.mustOpen()
		if got := trustVersion(a); got != was+1 || a.Unready() != "" {
			t.Fatalf("version %d is in use, accepted was %d; %s", got, was+1, a.Unready())
		}
		if n.Has(dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Pending)) ||
			!bytes.Equal(n.Read(dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active)),
				a.Node().TrustState().Active[snapshot.ScopeTrustBundle].Raw) {
			t.Error("the start did not finish the activation")
		}
		a.Close()
	}
}

// While its first node_runtime is put in place, a node is what its node_bootstrap
// says; and after the disk failed, which is what the marks are for, it is not.
func TestTermsWhileActivating(t *testing.T) {
	for _, disk := range []error{nil, durabletest.ErrPowerCut} {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		points := new(failpoint.Points)
		a, err := agent.Open(t.Context(), agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock, Log: nodetest.Quiet(),
			Dial: f.Dial, Faults: points})
		f.Must(err)
		defer a.Close()
		looked := false
		points.Arm("activate.after-marks", func() error {
			looked = true
			if facts := a.Node().Autonomy.Facts(); a.Node().TrustState().Terms() == nil ||
				facts.Overall(a.Node().Now()) != snapshot.Fresh || facts.Degraded(a.Node().Now()) {
				t.Errorf("in between the node is %s", facts.Overall(a.Node().Now()))
			}
			if disk != nil {
				n.Disk.FailAt(1, disk)
			}
			return nil
		})
		state := f.Member(a.Node().Me().ID)
		err = n.take(a, f.Runtime(&state))
		if !looked || (err != nil) != (disk != nil) {
			t.Fatalf("looked %v, error %v", looked, err)
		}
		if b := a.Node().TrustState(); b.Arriving || (b.Terms() == nil) != (disk != nil) {
			t.Errorf("the disk says %v: arriving %v, terms %v", disk, b.Arriving, b.Terms())
		}
	}
}

// An accepted mark does not come down, even if the disk failed right after.
func TestAcceptedInMemoryToo(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	f.TrustChanged(func() {})
	between := f.TrustBundle()
	f.TrustChanged(func() {})
	newest := f.TrustBundle()
	calls := 0
	n.Disk.FailAt(1<<30, nil)
	f.Must(a.Node().Store().Write(dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Pending), newest.GetEnvelope()))
	calls = n.Disk.Calls()
	n.Disk.FailAt(2*calls+1, syscall.EIO) // after pending and the first copy of the marks
	if err := n.take(a, newest); !errors.Is(err, state.ErrStorage) {
		t.Fatal(err)
	}
	f.Must(n.take(a, between))
	if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != string(snapshot.ReasonVersion) ||
		trustVersion(a) != 10 {
		t.Errorf("an older one than was accepted: version %d in use, refusals %v", trustVersion(a), got)
	}
	f.Must(n.take(a, newest))
	if trustVersion(a) != 12 {
		t.Errorf("version %d in use", trustVersion(a))
	}
}

// A disk error at any point keeps what was in use, and lets the same snapshot in
// when it is over.
func TestActivationDiskErrors(t *testing.T) {
	f := nodetest.New(t)
	joined := newNode(f)
	joined.MustJoin()
	f.TrustChanged(func() {})
	next := f.TrustBundle()
	for _, errno := range []error{syscall.ENOSPC, syscall.EIO} {
		for call := 1; ; call++ {
			n := joined.clone()
			a := n.mustOpen()
			n.Disk.FailAt(call, errno)
			err := n.take(a, next)
			if !n.Disk.Failed() {
				break
			}
			if err != nil && !errors.Is(err, state.ErrStorage) {
				t.Fatalf("%v at call %d: %v", errno, call, err)
			}
			if v := trustVersion(a); (v == 11) != (err == nil) {
				t.Fatalf("%v at call %d: version %d after %v", errno, call, v, err)
			}
			if err := n.take(a, next); err != nil || trustVersion(a) != 11 || len(a.Node().Status().Refusals()) != 0 {
				t.Fatalf("%v at call %d, then again: %v, version %d, %v", errno, call, err, trustVersion(a),
					a.Node().Status().Refusals())
			}
			n.Disk.Restart(durabletest.Synced)
			a = n.mustOpen()
			if trustVersion(a) != 11 || a.Unready() != "" {
				t.Fatalf("%v at call %d: opened with version %d, %s", errno, call, trustVersion(a), a.Unready())
			}
			a.Close()
		}
	}
}

// A ban takes effect although the disk is full.
func TestBanOnAFullDisk(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	f.TrustChanged(func() { f.Banned = append(f.Banned, identity.KeyID{7}) })
	n.Disk.FailAt(1, syscall.ENOSPC)
	if err := n.take(a, f.TrustBundle()); !errors.Is(err, state.ErrStorage) {
		t.Fatal(err)
	}
	m, err := a.Node().Source().Current(t.Context())
	f.Must(err)
	if !slices.Contains(m.Bundle().BannedKeys(), identity.KeyID{7}) {
		t.Error("the ban is not known to connections")
	}
	if trustVersion(a) != 10 {
		t.Error("a snapshot that is not durable is in use")
	}
}

// refusedSnapshots are what an agent that holds version 11 must not take.
var refusedSnapshots = []struct {
	name   string
	scope  snapshot.Scope
	reason snapshot.Reason
	make   func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot
}{
	{"garbage", snapshot.ScopeTrustBundle, "malformed",
		func(*nodetest.Fleet, *signedtest.Member) *fealtyv1.SignedSnapshot {
			return &fealtyv1.SignedSnapshot{Scope: "trust_bundle", Envelope: []byte("garbage")}
		}},
	{"nothing", snapshot.ScopeTrustBundle, "malformed",
		func(*nodetest.Fleet, *signedtest.Member) *fealtyv1.SignedSnapshot {
			return &fealtyv1.SignedSnapshot{Scope: "trust_bundle"}
		}},
	{"an unknown scope", "other", "malformed", func(*nodetest.Fleet, *signedtest.Member) *fealtyv1.SignedSnapshot {
		return &fealtyv1.SignedSnapshot{Scope: "made up\x00", Envelope: []byte{1}}
	}},
	{"another cluster's", snapshot.ScopeTrustBundle, internalsnapshot.ReasonSignature,
		func(f *nodetest.Fleet, _ *signedtest.Member) *fealtyv1.SignedSnapshot {
			return nodetest.New(f.TB).TrustBundle()
		}},
	{"an older version", snapshot.ScopeTrustBundle, snapshot.ReasonVersion,
		func(f *nodetest.Fleet, _ *signedtest.Member) *fealtyv1.SignedSnapshot {
			h := f.TrustHeader()
			h.ConfigVersion = 9
			return f.SignTrust(h, f.Content())
		}},
	{"the same version with other content", snapshot.ScopeTrustBundle, snapshot.ReasonEquivocation,
		func(f *nodetest.Fleet, _ *signedtest.Member) *fealtyv1.SignedSnapshot {
			content := f.Content()
			content.BannedKeys = []identity.KeyID{{1}}
			return f.SignTrust(f.TrustHeader(), content)
		}},
	{"one that ended", snapshot.ScopeTrustBundle, internalsnapshot.ReasonValidity,
		func(f *nodetest.Fleet, _ *signedtest.Member) *fealtyv1.SignedSnapshot {
			h := f.TrustHeader()
			h.ConfigVersion = 50
			h.ValidFrom, h.RefreshAfter, h.ExpiresAt = h.IssuedAt.Add(-time.Hour), h.IssuedAt.Add(-30*time.Minute), h.IssuedAt.Add(-time.Minute)
			return f.SignTrust(h, f.Content())
		}},
	{"a bootstrap for another node", snapshot.ScopeNodeBootstrap, internalsnapshot.ReasonSubject,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			id, err := identity.New(signedtest.Cluster, identity.Data, "node-z")
			f.Must(err)
			return f.Bootstrap(&signedtest.Member{ID: id, Incarnation: m.Incarnation})
		}},
	{"a bootstrap for an earlier incarnation", snapshot.ScopeNodeBootstrap, internalsnapshot.ReasonSubject,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			return f.Bootstrap(&signedtest.Member{ID: m.ID, Incarnation: identity.KeyID{1}})
		}},
	{"a runtime for another node", snapshot.ScopeNodeRuntime, internalsnapshot.ReasonSubject,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			id, err := identity.New(signedtest.Cluster, identity.Data, "node-z")
			f.Must(err)
			return f.Runtime(&signedtest.Member{ID: id, Incarnation: m.Incarnation})
		}},
	{"a runtime for an earlier incarnation", snapshot.ScopeNodeRuntime, internalsnapshot.ReasonSubject,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			return f.Runtime(&signedtest.Member{ID: m.ID, Incarnation: identity.KeyID{1}})
		}},
	{"a runtime of an unknown key", snapshot.ScopeNodeRuntime, internalsnapshot.ReasonSignature,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			return nodetest.New(f.TB).Runtime(m)
		}},
	{"another root under the generation of the bootstrap", snapshot.ScopeNodeRuntime, snapshot.ReasonEquivocation,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			return f.Runtime(m, func(_ *snapshot.Header, _ *snapshot.NodeRuntime,
				r *snapshot.Record) {
				r.Generation = 101
			})
		}},
	{"a bootstrap of an unknown key", snapshot.ScopeNodeBootstrap, internalsnapshot.ReasonSignature,
		func(f *nodetest.Fleet, m *signedtest.Member) *fealtyv1.SignedSnapshot {
			return nodetest.New(f.TB).Bootstrap(m)
		}},
}

// A refused snapshot changes nothing. Its reason is counted, kept, and shown.
func TestRefusalKeepsTheGood(t *testing.T) {
	f := nodetest.New(t)
	joined := newNode(f)
	id := joined.MustJoin().ID
	a := joined.mustOpen()
	f.TrustChanged(func() {})
	f.Must(joined.take(a, f.TrustBundle()))
	a.Close()
	for _, c := range refusedSnapshots {
		t.Run(c.name, func(t *testing.T) {
			n := joined.clone()
			a := n.mustOpen()
			m := f.Member(id)
			before := a.Node().TrustState()
			marks := n.Read(dir.MarksAName)
			if err := n.take(a, c.make(f, &m)); err != nil {
				t.Fatalf("a refusal is an error: %v", err)
			}
			if a.Node().TrustState() != before || string(n.Read(dir.MarksAName)) != string(marks) {
				t.Error("a refusal changed the trust state or marks")
			}
			got := a.Node().Status().Refusals()
			if len(got) != 1 || got[0].Scope != string(c.scope) || got[0].Reason != string(c.reason) {
				t.Errorf("refusals %v, want %s for %s", got, c.reason, c.scope)
			}
			if count := testutil.ToFloat64(a.Counters().Rejected().WithLabelValues(string(c.scope),
				string(c.reason))); count != 1 {
				t.Errorf("counted %v times", count)
			}
			if evidence := state.Known(c.scope) && n.Has(dir.SnapshotName(c.scope,
				dir.Refused)); evidence != (c.reason == snapshot.ReasonEquivocation) {
				t.Errorf("evidence kept: %v", evidence)
			}
			a.Close()

			a = n.mustOpen() // it is known after a restart, until something newer is in use
			defer a.Close()
			if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != string(c.reason) {
				t.Errorf("after a restart: %v", got)
			}
			f.Do(func() {
				switch c.scope {
				case snapshot.ScopeNodeBootstrap:
					f.Must(n.take(a, f.Bootstrap(&m)))
				case snapshot.ScopeNodeRuntime:
					f.Must(n.take(a, f.Runtime(&m)))
				default:
					h := f.TrustHeader()
					h.ConfigVersion += 100
					f.Must(n.take(a, f.SignTrust(h, f.Content())))
				}
			})
			if got := a.Node().Status().Refusals(); len(got) != 0 && c.scope != "other" {
				t.Errorf("still refused after a good one: %v", got)
			}
		})
	}
	reasons := make(map[snapshot.Reason]bool)
	for _, c := range refusedSnapshots {
		reasons[c.reason] = true
	}
	for _, r := range []snapshot.Reason{internalsnapshot.ReasonSignature, snapshot.ReasonVersion,
		snapshot.ReasonEquivocation, internalsnapshot.ReasonValidity, internalsnapshot.ReasonSubject} {
		if !reasons[r] {
			t.Errorf("nothing is refused for %s", r)
		}
	}
}

// A snapshot that is in use already is neither news nor a refusal.
func TestUnchangedIsNoNews(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	again := &fealtyv1.SignedSnapshot{Envelope: n.Read(dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active))}
	n.Disk.FailAt(1<<30, nil)
	if err := n.take(a, again); err != nil || n.Disk.Calls() != 0 || len(a.Node().Status().Refusals()) != 0 {
		t.Fatalf("%v, %d writes, %v", err, n.Disk.Calls(), a.Node().Status().Refusals())
	}
}

// A new authority epoch's bootstrap that arrives before its trust bundle is used
// as soon as the bundle is.
func TestBootstrapBeforeItsBundle(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	id := n.MustJoin().ID
	a := n.mustOpen()
	defer a.Close()
	m := f.Member(id)
	f.TrustChanged(func() { f.Epoch = 2 })
	var boot *fealtyv1.SignedSnapshot
	f.Do(func() { boot = f.Bootstrap(&m) })
	f.Must(n.take(a, boot))
	if got := a.Node().Status().Refusals(); len(got) != 1 || got[0].Reason != string(internalsnapshot.ReasonEpoch) {
		t.Fatalf("refusals %v", got)
	}
	f.Must(n.take(a, f.TrustBundle()))
	header := a.Node().TrustState().Active[snapshot.ScopeNodeBootstrap].Verified.Header()
	if header.AuthorityEpoch != 2 || len(a.Node().Status().Refusals()) != 0 {
		t.Fatalf("the bootstrap in use is of epoch %d, refusals %v", header.AuthorityEpoch, a.Node().Status().Refusals())
	}
}

// The same refusal again and again is not written down again and again.
func TestRefusalsAreNotAFlood(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	bad := &fealtyv1.SignedSnapshot{Scope: "trust_bundle", Envelope: []byte("garbage")}
	f.Must(n.take(a, bad))
	n.Disk.FailAt(1<<30, nil)
	for range 100 {
		f.Must(n.take(a, bad))
	}
	if calls := n.Disk.Calls(); calls != 0 {
		t.Errorf("%d writes for a refusal that is known", calls)
	}
}

// An activation waits for its turn, and not for ever.
func TestTakeWaitsItsTurn(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	defer a.Close()
	release, err := a.Node().Activation.Acquire(t.Context())
	f.Must(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := take(ctx, a, "", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	release()
	f.Must(take(t.Context(), a, "trust_bundle", nil))
}

func TestRefusalText(t *testing.T) {
	long := strings.Repeat("ä", 4096)
	r := state.RefusalOf("trust_bundle", errors.New(long), time.Now())
	if len(r.Detail) > state.MaxDetailBytes {
		t.Errorf("a detail of %d bytes", len(r.Detail))
	}
	if !utf8.ValidString(r.Detail) {
		t.Errorf("%q is not text", r.Detail)
	}
}

// A snapshot that was refused for want of what may follow gets a second look when that
// came. If a newer one is in use by then, the refusal that ended with it is not told anew.
func TestOlderIsNotRefusedAgain(t *testing.T) {
	for _, way := range []string{"whole", "announced"} {
		t.Run(way, func(t *testing.T) {
			f := nodetest.New(t)
			n := newNode(f)
			id := n.MustJoin().ID
			a := n.mustOpen()
			defer a.Close()
			m := f.Member(id)
			var old, newer *fealtyv1.SignedSnapshot
			f.Do(func() { old, newer = f.Runtime(&m), f.Runtime(&m) })
			signed, err := snapshot.Unmarshal(old.GetEnvelope())
			f.Must(err)
			signed.Publication.Signatures[0].Bytes[0] ^= 1 // by a key that may become known
			if way == "announced" {
				signed.Content = nil
			}
			raw, err := signed.Marshal()
			f.Must(err)
			in := &fetch.SourceFetcher{F: a.Fetcher(), From: state.ByCoordinator, Sources: func() []fetch.Source { return nil }}
			f.Must(in.Take(t.Context(), fetch.Notice{Scope: old.GetScope(), Raw: raw}))
			if got := a.Node().Status().Refusals(); len(got) != 1 ||
				got[0].Reason != string(internalsnapshot.ReasonSignature) {
				t.Fatalf("the older: refusals %v", got)
			}
			f.Must(in.Take(t.Context(), fetch.Notice{Scope: newer.GetScope(), Raw: newer.GetEnvelope()}))
			if got := a.Node().Status().Refusals(); len(got) != 0 {
				t.Errorf("the newer is in use, and the older is refused again: %v", got)
			}
			// The first time it is told, whatever is in use.
			f.Must(in.Take(t.Context(), fetch.Notice{Scope: old.GetScope(), Raw: raw}))
			if got := a.Node().Status().Refusals(); len(got) != 1 {
				t.Errorf("the older comes anew: refusals %v", got)
			}
		})
	}
}
