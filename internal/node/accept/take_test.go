package accept_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

type (
	header  = snapshot.Header
	runtime = snapshot.NodeRuntime
	record  = snapshot.Record
)

// A snapshot that is refused changes nothing: not what is in use, not the marks, not the disk but for
// the refusal, which is counted once, stands in the status and survives a restart until a good one
// of the scope is in use (I14).
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		name     string
		come     func(m *machine) state.Offer
		want     string // scope and reason
		evidence bool   // what came is kept: it proves that its signer lies
		behind   bool   // it shows that the authority epoch moved on
	}{
		{"no snapshot", func(*machine) state.Offer { return state.Offer{Scope: "node_runtime", Raw: []byte("x")} }, "node_runtime malformed", false, false},
		{"no snapshot, of a scope that is made up", func(*machine) state.Offer { return state.Offer{Scope: "a b", Raw: []byte("x")} }, "other malformed", false, false},
		{"by the key of somebody else", func(m *machine) state.Offer {
			was := m.ConfigKey
			defer func() { m.ConfigKey = was }()
			_, m.ConfigKey, _ = ed25519.GenerateKey(nil)
			return offer(m.Runtime(m.member))
		}, "node_runtime signature", false, false},
		{"an older version", func(m *machine) state.Offer {
			return offer(m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 }))
		}, "node_runtime config_version", false, false},
		{"another content of the version in use", func(m *machine) state.Offer {
			was := m.version(runtimeScope)
			return offer(m.Runtime(m.member, func(h *header, c *runtime, _ *record) { h.ConfigVersion, c.Entry = was, "x" }))
		}, "node_runtime equivocation", true, false},
		{"that ended", func(m *machine) state.Offer {
			return offer(m.Runtime(m.member, func(h *header, _ *runtime, _ *record) {
				h.IssuedAt, h.ValidFrom, h.RefreshAfter, h.ExpiresAt = m.Ago(3*time.Hour), m.Ago(3*time.Hour), m.Ago(2*time.Hour), m.Ago(time.Hour)
			}))
		}, "node_runtime validity", false, false},
		{"for another node", func(m *machine) state.Offer {
			other, _ := m.NewMember("node-b")
			return offer(m.Runtime(other))
		}, "node_runtime subject", false, false},
		{"for another incarnation", func(m *machine) state.Offer {
			return offer(m.Runtime(&signedtest.Member{ID: m.member.ID, Incarnation: identity.KeyID{1}}))
		}, "node_runtime subject", false, false},
		{"of the next authority epoch", func(m *machine) state.Offer {
			return offer(m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 2, 2 }))
		}, "node_runtime authority_epoch", false, true},
		{"a companion that is not listed", func(m *machine) state.Offer { return offer(m.Companion(m.member, qosScope, &snapshot.QoSPolicy{})) },
			"qos_policy grants", false, false},
		{"an older trust bundle", func(m *machine) state.Offer {
			m.Version -= 2
			defer func() { m.Version += 2 }()
			return offer(m.TrustBundle())
		}, "trust_bundle config_version", false, false},
		{"a trust bundle whose history nobody shows", func(m *machine) state.Offer {
			m.Epoch++
			defer func() { m.Epoch-- }()
			return offer(m.TrustBundle())
		}, "trust_bundle history", false, false},
		{"called by another scope", func(m *machine) state.Offer {
			o := offer(m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 }))
			o.Scope = "qos_policy"
			return o
		}, "node_runtime config_version", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.mustTake(m.Runtime(m.member))
			before, marks := m.node.TrustState(), m.read(dir.MarksAName)
			came := tc.come(m)
			m.heard()
			lost, shown, err := m.node.Take(t.Context(), state.ByCoordinator, []state.Offer{came})
			if err != nil {
				t.Fatalf("a refusal is an error: %v", err)
			}
			if m.node.TrustState() != before || !bytes.Equal(m.read(dir.MarksAName), marks) {
				t.Error("a refusal changes what is believed")
			}
			if got := m.refusals(); !slices.Equal(got, []string{tc.want}) {
				t.Fatalf("refused: %v, want %s", got, tc.want)
			}
			if told := m.heard(); told["rejected "+tc.want] != 1 || told["report"] == 0 || told["renew"] != 0 {
				t.Errorf("told: %v", told)
			}
			scope := snapshot.Scope(strings.Fields(tc.want)[0])
			if has := m.has(dir.SnapshotName(scope, dir.Refused)); has != tc.evidence {
				t.Errorf("the evidence is kept: %v", has)
			}
			if m.has(dir.SnapshotName(scope, dir.Pending)) {
				t.Error("it is pending")
			}
			if m.has(dir.BehindName) != tc.behind || m.node.Autonomy.Facts().Behind != tc.behind {
				t.Errorf("the node is behind: %v on disk, %v in memory", m.has(dir.BehindName), m.node.Autonomy.Facts().Behind)
			}
			if lost != strings.HasSuffix(tc.want, "history") {
				t.Errorf("links are missing: %v", lost)
			}
			if (shown != nil) != (tc.want == "trust_bundle config_version") {
				t.Errorf("who gave it is shown a bundle: %v", shown != nil)
			}
			m.restart(durabletest.Synced)
			// What the node is not to hold anyway is nothing to mend, and not told again.
			minds := m.node.TrustState().Concerns(scope)
			if got := m.refusals(); minds && !slices.Equal(got, []string{tc.want}) || !minds && len(got) != 0 {
				t.Errorf("after a restart: %v", got)
			}
			if m.node.Autonomy.Facts().Behind != tc.behind {
				t.Error("a restart caught up, or fell behind")
			}
			if tc.behind {
				m.mustTake(m.Runtime(m.member))
				if !m.node.Autonomy.Facts().Behind {
					t.Error("a snapshot of this epoch is in use, and the node is not behind any more")
				}
			}
			// A good one ends it.
			m.Version++
			m.mustTake(m.TrustBundle())
			m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
			m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
			if got := m.refusals(); len(got) != 0 && scope != "other" {
				t.Errorf("a good one of each is in use, and refused is %v", got)
			}
			if m.node.Autonomy.Facts().Behind {
				t.Error("a newer trust bundle is in use, and the node is behind")
			}
		})
	}
}

// What is taken is in use, on disk in its place, for others to read, and told to who uses it; over a
// restart too. What is in use already is no news.
func TestTaken(t *testing.T) {
	m := newMachine(t)
	m.heard()
	first := m.Gives(m.member, []snapshot.Scope{qosScope})
	one, two := m.OfGroup(m.member, signedtest.QoS(1)), m.OfGroup(m.member, signedtest.QoS(2))
	m.mustTake(first)
	m.mustTake(one)
	if told := m.heard(); told["changed node_runtime"] == 0 || told["changed qos_policy"] == 0 || told["report"] == 0 {
		t.Errorf("told %v", told)
	}
	m.mustTake(two)
	for place, want := range map[string]*fealtyv1.SignedSnapshot{dir.Active: two, dir.Previous: one} {
		if got := m.read(dir.SnapshotName(qosScope, place)); !bytes.Equal(got, want.GetEnvelope()) {
			t.Errorf("%s is another one", place)
		}
	}
	if m.has(dir.SnapshotName(qosScope, dir.Pending)) {
		t.Error("it is still pending")
	}
	content := m.read(dir.CurrentName(qosScope))
	if got := m.node.TrustState().Active[qosScope].Verified.ContentJSON(); string(content) != string(got) {
		t.Errorf("others read %s", content)
	}
	// A renewal of the same header takes nothing's place.
	record, _ := m.node.TrustState().Active[qosScope].Verified.Record()
	is := m.node.TrustState().Active[qosScope].Verified.Header()
	renewed := m.OfGroup(m.member, signedtest.QoS(2), func(h *header, _ *snapshot.Record) { *h = is })
	m.mustTake(renewed)
	if now, _ := m.node.TrustState().Active[qosScope].Verified.Record(); now.Generation <= record.Generation {
		t.Errorf("under a record of generation %d", now.Generation)
	}
	if got := m.read(dir.SnapshotName(qosScope, dir.Previous)); !bytes.Equal(got, one.GetEnvelope()) {
		t.Error("a renewal took the place of the one before")
	}
	m.heard()
	before := m.node.TrustState()
	m.mustTake(renewed)
	if told := m.heard(); m.node.TrustState() != before || len(told) != 0 {
		t.Errorf("the same again: %v", told)
	}
	m.restart(durabletest.Synced)
	if m.version(qosScope) != is.ConfigVersion || len(m.refusals()) != 0 {
		t.Errorf("after a restart version %d, refused %v", m.version(qosScope), m.refusals())
	}
	held := accept.HeldBy(m.node.TrustState(), m.node.Clock.Now())
	if len(held) != 4 || !slices.IsSortedFunc(held, func(a, b *fealtyv1.HeldSnapshot) int { return strings.Compare(a.GetScope(), b.GetScope()) }) {
		t.Errorf("held: %v", held)
	}
	for _, h := range held {
		if signed := len(h.GetSigners()) > 0; signed != (h.GetScope() != string(bundleScope)) || h.GetConfigVersion() == 0 || len(h.GetContentHash()) == 0 {
			t.Errorf("held: %v", h)
		}
	}
}

// In whatever order they come, together or one by one, what belongs together is in use at the end.
func TestAnyOrder(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, together := range []bool{true, false} {
		for _, order := range orders {
			m := newMachine(t)
			m.NextKey() // what follows is signed by a key that the node does not know yet
			m.Version++
			all := []*fealtyv1.SignedSnapshot{m.TrustBundle(), m.Gives(m.member, []snapshot.Scope{qosScope}), m.OfGroup(m.member, signedtest.QoS(1))}
			var come []*fealtyv1.SignedSnapshot
			for _, i := range order {
				come = append(come, all[i])
			}
			if together {
				m.mustTake(come...)
			} else {
				for _, c := range come {
					m.mustTake(c)
				}
			}
			if m.version(runtimeScope) == 0 || m.version(qosScope) == 0 || len(m.refusals()) != 0 {
				t.Errorf("in the order %v, together %v: node_runtime %d, qos_policy %d, refused %v", order, together,
					m.version(runtimeScope), m.version(qosScope), m.refusals())
			}
		}
	}
}

// While the marks are lost only a coordinator can say what holds, scope by scope.
func TestTakeWithoutMarks(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	boot, runtime, bundle := m.read(dir.SnapshotName(bootScope, dir.Active)), m.read(dir.SnapshotName(runtimeScope, dir.Active)),
		m.read(dir.SnapshotName(bundleScope, dir.Active))
	for _, name := range []string{dir.MarksAName, dir.MarksBName} {
		m.Must(m.disk.FS().Remove(path(name)))
	}
	m.restart(durabletest.Synced)
	offers := []state.Offer{{Scope: "trust_bundle", Raw: bundle}, {Scope: "node_bootstrap", Raw: boot}, {Scope: "node_runtime", Raw: runtime}}
	if _, _, err := m.node.Take(t.Context(), state.ByGrant, offers); err != nil {
		t.Fatal(err)
	}
	if len(m.node.TrustState().Active) != 0 || !slices.Contains(m.refusals(), "trust_bundle unrecorded") {
		t.Fatalf("by a grant %d are in use, refused %v", len(m.node.TrustState().Active), m.refusals())
	}
	if _, _, err := m.node.Take(t.Context(), state.ByCoordinator, offers); err != nil {
		t.Fatal(err)
	}
	if m.version(bundleScope) == 0 || m.version(runtimeScope) == 0 {
		t.Errorf("by a coordinator %d are in use, refused %v", len(m.node.TrustState().Active), m.refusals())
	}
	if m.node.TrustState().Doubts(bundleScope) || !m.node.TrustState().Doubts(qosScope) {
		t.Error("what a coordinator said holds for other scopes, or not for its own")
	}
	m.restart(durabletest.Synced)
	if m.version(bundleScope) == 0 || m.version(runtimeScope) == 0 || m.node.TrustState().Doubts(runtimeScope) {
		t.Error("after a restart it is forgotten")
	}
}

// At whichever call the power is cut, and whatever the disk comes back with: what is in use is
// the old snapshot or the new one, and what was accepted is not taken back (I11, I13).
func TestTakeInterrupted(t *testing.T) {
	before := newMachine(t)
	before.mustTake(before.Gives(before.member, []snapshot.Scope{qosScope}))
	before.mustTake(before.OfGroup(before.member, signedtest.QoS(1)))
	before.Version++
	come := []*fealtyv1.SignedSnapshot{before.TrustBundle(), before.Gives(before.member, []snapshot.Scope{qosScope}),
		before.OfGroup(before.member, signedtest.QoS(2))}
	for _, after := range durabletest.Afters() {
		// Each call with what tears most; with the others, and where time is short, some of them.
		step := 1
		if after != durabletest.Torn || testlane.Rounds(true, false) {
			step = 7
		}
		for n, cut := 1, true; cut; n += step {
			m := before.copy()
			scopes := []snapshot.Scope{bundleScope, runtimeScope, qosScope}
			var old []uint64
			for _, s := range scopes {
				old = append(old, m.version(s))
			}
			m.disk.FailAt(n, durabletest.ErrPowerCut)
			err := m.take(come...)
			cut = m.disk.Failed()
			if !cut && err != nil {
				t.Fatal(err)
			}
			var now []uint64 // in memory, until the machine was off
			for _, s := range scopes {
				now = append(now, m.version(s))
			}
			m.restart(after)
			for i, s := range scopes {
				is := m.version(s)
				if is < now[i] || is < old[i] || !cut && is == old[i] {
					t.Fatalf("%v, the power was cut at call %d: version %d of %s is in use, before it was %d, and in memory %d", after, n, is, s, old[i], now[i])
				}
			}
			if len(m.refusals()) != 0 {
				t.Fatalf("%v, the power was cut at call %d: refused %v", after, n, m.refusals())
			}
			m.mustTake(come...)
			for i, s := range scopes {
				if m.version(s) <= old[i] {
					t.Fatalf("%v, the power was cut at call %d: %s does not come any more: %v", after, n, s, m.refusals())
				}
			}
			_ = m.node.Store().Close()
		}
	}
}

// On a disk that takes nothing the one in use stays, that is an error of the storage, and what was accepted
// is not taken back in memory; a ban counts for connections all the same. It is made up for later.
func TestFullDisk(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	was := m.version(runtimeScope)
	next := m.Runtime(m.member)
	older := m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.ConfigVersion-- })
	m.disk.Refuse(syscall.ENOSPC)
	if err := m.take(next); !errors.Is(err, state.ErrStorage) || !errors.Is(err, syscall.ENOSPC) || m.version(runtimeScope) != was {
		t.Fatalf("%v, in use is %d", err, m.version(runtimeScope))
	}
	m.Banned = append(m.Banned, identity.KeyID{7})
	m.Version++
	if err := m.take(m.TrustBundle()); !errors.Is(err, state.ErrStorage) {
		t.Fatal(err)
	}
	if cur, err := m.node.Source().Current(t.Context()); err != nil || !cur.Bundle().Banned(m.member.ID, identity.KeyID{7}) {
		t.Errorf("a ban waits for the disk: %v", err)
	}
	m.disk.Refuse(nil)
	m.mustTake(next, m.TrustBundle())
	if m.version(runtimeScope) <= was || m.version(bundleScope) != m.Version {
		t.Errorf("in use is %d, refused %v", m.version(runtimeScope), m.refusals())
	}
	// The marks were raised and not written: what is lower does not come in meanwhile.
	third := m.Runtime(m.member)
	m.faults.Fail("activate.after-marks", errFault)
	if err := m.take(third); !errors.Is(err, errFault) {
		t.Fatal(err)
	}
	m.faults.Disarm("activate.after-marks")
	m.mustTake(older)
	if got := m.refusals(); len(got) != 1 || !strings.HasPrefix(got[0], "node_runtime ") {
		t.Errorf("an older one, after a newer one was accepted: %v, in use is %d", got, m.version(runtimeScope))
	}
	m.mustTake(third)
	if len(m.refusals()) != 0 {
		t.Errorf("the same again: %v", m.refusals())
	}
}

// A header that comes without its content is judged as the whole is, and what is at hand is found.
func TestCheckHeader(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	one := m.OfGroup(m.member, signedtest.QoS(1))
	m.mustTake(one)
	is := m.node.TrustState().Active[qosScope].Verified.Header()
	without := func(came *fealtyv1.SignedSnapshot) *snapshot.Signed {
		s, err := snapshot.Unmarshal(came.GetEnvelope())
		m.Must(err)
		s.Content = nil
		return s
	}
	check := func(b *state.TrustState, s *snapshot.Signed) (checked bool, reason string) {
		c, err := accept.CheckHeader(m.node.Self(), b, s, m.node.Clock.Now())
		if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
			return false, string(r.Reason)
		}
		m.Must(err)
		return c != nil, ""
	}
	for name, tc := range map[string]struct {
		b       *state.TrustState
		came    *snapshot.Signed
		checked bool
		reason  string
	}{
		"the next one":                  {m.node.TrustState(), without(m.OfGroup(m.member, signedtest.QoS(2))), true, ""},
		"in use":                        {m.node.TrustState(), without(one), false, ""},
		"accepted, and not in use":      {m.node.TrustState().Without(qosScope), without(one), true, ""},
		"older":                         {m.node.TrustState(), without(m.OfGroup(m.member, signedtest.QoS(2), func(h *header, _ *record) { h.ConfigVersion = 1 })), false, "config_version"},
		"without a trust bundle in use": {m.node.TrustState().Without(bundleScope), without(m.OfGroup(m.member, signedtest.QoS(2))), false, internalsnapshot.ReasonSignature},
	} {
		if checked, reason := check(tc.b, tc.came); checked != tc.checked || reason != tc.reason {
			t.Errorf("%s: checked %v, refused for %q", name, checked, reason)
		}
	}
	content := accept.ContentAtHand(m.node.Store(), m.node.TrustState(), qosScope, is.ContentHash)
	if snapshot.DigestOf(content) != is.ContentHash {
		t.Errorf("in use: %q", content)
	}
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(2)))
	if got := accept.ContentAtHand(m.node.Store(), m.node.TrustState(), qosScope, is.ContentHash); !bytes.Equal(got, content) {
		t.Errorf("the one before: %q", got)
	}
	if got := accept.ContentAtHand(m.node.Store(), m.node.TrustState().Without(qosScope), qosScope, m.node.TrustState().Active[qosScope].Verified.Header().ContentHash); got == nil {
		t.Error("what is on disk, and not in use, is not found")
	}
	if got := accept.ContentAtHand(m.node.Store(), m.node.TrustState(), qosScope, snapshot.Digest{}); got != nil {
		t.Errorf("nobody's: %q", got)
	}
	m.Must(m.node.Decline(t.Context(), state.Refusal{Scope: "qos_policy", Reason: "unavailable", At: m.node.Clock.Now()}, errFault, state.Offer{}))
	if got := m.refusals(); !slices.Equal(got, []string{"qos_policy unavailable"}) {
		t.Errorf("declined: %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.node.Decline(ctx, state.Refusal{}, errFault, state.Offer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits any more: %v", err)
	}
	if _, _, err := m.node.Take(ctx, state.ByCoordinator, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits any more: %v", err)
	}
}

// What the node_runtime does not give any more is out of use, off the disk, and not refused.
func TestDropped(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(2)))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(3), func(h *header, _ *record) { h.ConfigVersion = 1 }))
	if len(m.refusals()) != 1 {
		t.Fatalf("refused %v", m.refusals())
	}
	m.mustTake(m.Gives(m.member, nil))
	for _, name := range append(dir.FilesOf(qosScope), dir.CurrentName(qosScope)) {
		if m.has(name) {
			t.Errorf("%s is there", name)
		}
	}
	if m.version(qosScope) != 0 || len(m.refusals()) != 0 {
		t.Errorf("version %d is in use, refused %v", m.version(qosScope), m.refusals())
	}
	m.restart(durabletest.Synced)
	if m.version(qosScope) != 0 || len(m.refusals()) != 0 {
		t.Errorf("after a restart version %d is in use, refused %v", m.version(qosScope), m.refusals())
	}
	// A refusal of what is given, and not held yet, ends with that too.
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(&fealtyv1.SignedSnapshot{Scope: string(qosScope), Envelope: []byte("x")})
	if got := m.refusals(); !slices.Equal(got, []string{"qos_policy malformed"}) {
		t.Fatalf("refused %v", got)
	}
	m.mustTake(m.Gives(m.member, nil))
	if got := m.refusals(); len(got) != 0 {
		t.Errorf("nothing is to be held, and refused is %v", got)
	}
	// It may come back.
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(4)))
	if m.version(qosScope) == 0 || !m.has(dir.CurrentName(qosScope)) {
		t.Errorf("given again: %v", m.refusals())
	}
}
