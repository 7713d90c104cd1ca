package state_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// What says who the node is: its node_bootstrap until there is a node_runtime of the epoch, and never
// again after that.
func TestTerms(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	joined := l.TrustState
	ran := m.took(l.Me, joined, m.Runtime(m.member, func(_ *header, c *runtime, _ *record) {
		c.Coordinators = []string{"c2.prod.example:7443"}
		c.State = snapshot.MemberDraining
		c.Degraded.Max = time.Hour
	}))
	arriving := *ran.Without(runtimeScope)
	arriving.Arriving = true
	none := m.took(l.Me, ran, m.Runtime(m.member, func(_ *header, c *runtime, _ *record) { c.Degraded = nil }))
	nextEpoch := m.took(l.Me, m.nextEpoch(l.Me, ran.Without(runtimeScope)), m.Bootstrap(m.member))
	for _, tc := range []struct {
		name     string
		b        *state.TrustState
		terms    snapshot.Scope // "" for none
		address  string
		standing string
		max      bool // there is a time to work alone
		fresh    bool // the bootstrap has a freshness
	}{
		{"joined", joined, bootScope, signedtest.Coordinator, "", true, true},
		{"with a node_runtime", ran, runtimeScope, "c2.prod.example:7443", "draining", true, false},
		{"the node_runtime is damaged", ran.Without(runtimeScope), "", signedtest.Coordinator, "", false, false},
		{"the node_runtime is put in place", &arriving, bootScope, signedtest.Coordinator, "", true, true},
		{"a bootstrap of the next epoch", nextEpoch, bootScope, signedtest.Coordinator, "", true, true},
		{"neither", ran.Without(runtimeScope).Without(bootScope), "", "", "", false, false},
	} {
		var got snapshot.Scope
		if h := tc.b.Terms(); h != nil {
			got = h.Verified.Header().ScopeType
		}
		if got != tc.terms {
			t.Errorf("%s: the terms are %q, want %q", tc.name, got, tc.terms)
		}
		if all := strings.Join(tc.b.Coordinators(), " "); all != tc.address {
			t.Errorf("%s: the coordinators are %s", tc.name, all)
		}
		if got := tc.b.Standing(m.member.ID); got != tc.standing {
			t.Errorf("%s: it is %q", tc.name, got)
		}
		if got := tc.b.Degraded(); (got.Max > 0) != tc.max {
			t.Errorf("%s: it works alone for %v", tc.name, got.Max)
		}
		if got := tc.b.Freshness(bootScope, m.Clock()); (got != "") != tc.fresh {
			t.Errorf("%s: the bootstrap is %q", tc.name, got)
		}
	}
	if got := none.Degraded(); got.Max != 0 || got.Allow != nil {
		t.Errorf("terms without degraded mode give %+v", got)
	}
}

// What the node is ready by, and how fresh it is.
func TestReadyAndFresh(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	b := m.took(l.Me, l.TrustState, m.Runtime(m.member))
	end := b.Active[bundleScope].Verified.Header().ExpiresAt
	for _, tc := range []struct {
		b    *state.TrustState
		at   time.Time
		want string
	}{
		{b, m.Clock(), ""}, {b, end.Add(-1), ""}, {b, end, "expired"}, {b.Without(bundleScope), m.Clock(), "no trust bundle"},
	} {
		if got := tc.b.Ready(tc.at); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("at %v: %q, want %q", tc.at, got, tc.want)
		}
	}
	// The node_runtime is fresh as long as its record, which ends first; without it the bundle counts,
	// and a bootstrap that was overtaken does not.
	rec, _ := b.Active[runtimeScope].Verified.Record()
	if since, until := b.FreshSpan(); !since.Equal(rec.IssuedAt) || !until.Equal(rec.FreshUntil) {
		t.Errorf("fresh from %v to %v, want %v to %v", since, until, rec.IssuedAt, rec.FreshUntil)
	}
	bundle := b.Active[bundleScope].Verified.Header()
	if since, until := b.Without(runtimeScope).FreshSpan(); !since.Equal(bundle.IssuedAt) || !until.Equal(bundle.RefreshAfter) {
		t.Errorf("without it from %v to %v, want %v to %v", since, until, bundle.IssuedAt, bundle.RefreshAfter)
	}
	// What ends first counts, in whatever place it stands, and of header and record the one that ends first.
	ran := m.took(l.Me, l.TrustState, m.Gives(m.member, []snapshot.Scope{qosScope}))
	first, _ := ran.Active[runtimeScope].Verified.Record()
	longer := m.took(l.Me, ran, m.OfGroup(m.member, signedtest.QoS(1), func(_ *header, r *record) { r.FreshUntil = r.FreshUntil.Add(time.Hour) }))
	if since, until := longer.FreshSpan(); !since.Equal(first.IssuedAt) || !until.Equal(first.FreshUntil) {
		t.Errorf("beside what is fresh longer: from %v to %v, want %v to %v", since, until, first.IssuedAt, first.FreshUntil)
	}
	shorter := m.took(l.Me, ran, m.OfGroup(m.member, signedtest.QoS(1), func(h *header, _ *record) { h.RefreshAfter = h.IssuedAt.Add(time.Minute) }))
	own := shorter.Active[qosScope].Verified.Header()
	if since, until := shorter.FreshSpan(); !since.Equal(own.IssuedAt) || !until.Equal(own.RefreshAfter) {
		t.Errorf("with a header that ends before its record: from %v to %v, want %v to %v", since, until, own.IssuedAt, own.RefreshAfter)
	}
	if since, until := (&state.TrustState{}).FreshSpan(); !since.IsZero() || !until.IsZero() {
		t.Errorf("nothing is fresh from %v to %v", since, until)
	}
	boot, _ := l.TrustState.Active[bootScope].Verified.Record()
	if got := l.TrustState.NewestRecord(); state.CompareRecords(got, boot) != 0 {
		t.Errorf("the newest record is of generation %d", got.Generation)
	}
	if got := b.NewestRecord(); state.CompareRecords(got, rec) != 0 || state.CompareRecords(rec, boot) <= 0 {
		t.Errorf("the newest record is of generation %d, want %d", got.Generation, rec.Generation)
	}
}

// What companions a node is to hold, lacks, minds and stops using.
func TestCompanions(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	b := l.TrustState
	if b.Lacks() != nil || !b.Concerns(qosScope) {
		t.Error("a node without a node_runtime lacks something, or minds nothing")
	}
	routes := snapshot.ScopeRoutePolicy
	b = m.took(l.Me, b, m.Gives(m.member, []snapshot.Scope{qosScope, routes}))
	if got := b.Lacks(); !slices.Equal(got, []snapshot.Scope{qosScope, routes}) {
		t.Errorf("it lacks %v", got)
	}
	b = m.took(l.Me, b, m.OfGroup(m.member, signedtest.QoS(1)))
	if got := b.Lacks(); !slices.Equal(got, []snapshot.Scope{routes}) {
		t.Errorf("it lacks %v", got)
	}
	for scope, want := range map[snapshot.Scope]bool{bundleScope: true, bootScope: true, qosScope: true, routes: true,
		snapshot.ScopePeerDirectory: false, "unknown": true} {
		if got := b.Concerns(scope); got != want {
			t.Errorf("it minds %s: %v", scope, got)
		}
	}
	if same, gone := b.Pruned(); same.Active[qosScope] == nil || len(gone) != 0 {
		t.Errorf("%v is gone", gone)
	}
	for name, come := range map[string]func() *state.TrustState{
		"it is not listed any more": func() *state.TrustState { return m.took(l.Me, b, m.Gives(m.member, nil)) },
		"it is of another group": func() *state.TrustState {
			return m.took(l.Me, b, m.Gives(m.member, []snapshot.Scope{qosScope}, func(c *runtime) { c.Organizations = []string{"globex"} }))
		},
		"there is no node_runtime": func() *state.TrustState { return b.Without(runtimeScope) },
	} {
		next, gone := come().Pruned()
		if next.Active[qosScope] != nil || !slices.Equal(gone, []snapshot.Scope{qosScope}) || next.Active[bundleScope] == nil {
			t.Errorf("%s: %v is gone", name, gone)
		}
		if b.Active[qosScope] == nil {
			t.Fatal("the state before is changed in place")
		}
		if _, ok := next.Marks.Get(qosScope, b.Active[qosScope].Verified.Header().Subject); !ok {
			t.Errorf("%s: its mark is gone too", name)
		}
	}
}

// Nobody waits for what was overtaken.
func TestOvertook(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	b := m.took(l.Me, l.TrustState, m.Runtime(m.member))
	is := versionOf(b, runtimeScope)
	of := func(edit func(*header, *runtime, *record)) *snapshot.Signed {
		return m.signed(m.Runtime(m.member, edit))
	}
	for _, tc := range []struct {
		name  string
		b     *state.TrustState
		scope snapshot.Scope
		came  *snapshot.Signed
		want  bool
	}{
		{"an older version", b, runtimeScope, of(func(h *header, _ *runtime, _ *record) { h.ConfigVersion = is - 1 }), true},
		{"the same version", b, runtimeScope, of(func(h *header, _ *runtime, _ *record) { h.ConfigVersion = is }), false},
		{"a newer version", b, runtimeScope, of(func(h *header, _ *runtime, _ *record) { h.ConfigVersion = is + 1 }), false},
		{"a newer version of the next epoch", b, runtimeScope, of(func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch, h.ConfigVersion = 2, 2, 1 }), false},
		{"of another scope", b, bundleScope, of(func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 }), false},
		{"nothing is in use", l.TrustState, runtimeScope, of(func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 }), false},
		{"what cannot be read", b, runtimeScope, &snapshot.Signed{Header: []byte("{")}, false},
	} {
		if got := tc.b.Overtook(tc.scope, tc.came); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	next := m.took(l.Me, m.nextEpoch(l.Me, b), m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 }))
	if !next.Overtook(runtimeScope, m.signed(m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 1, 1 }))) {
		t.Error("a higher version of the epoch before is waited for")
	}
}

// What a node may rely on is that which neither its trust bundle nor a statement of the signers
// revokes, and the facts of the guard say so.
func TestFacts(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	joined := l.TrustState
	ran := m.took(l.Me, joined, m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope}, func(c *runtime) {
		c.Degraded.Allow = []string{"continue_services", "preserve_routes"}
	}))
	whole := m.took(l.Me, m.took(l.Me, ran, m.OfGroup(m.member, &snapshot.DegradedModePolicy{Allow: []string{"preserve_routes"}, Max: time.Minute,
		RouteTTL: time.Second, SessionTTL: 2 * time.Second})), m.OfGroup(m.member, signedtest.QoS(1)))
	stating := func(b *state.TrustState, edit func(*trust.Emergency)) *state.TrustState {
		signed, err := trust.UnmarshalEmergency(m.Emergency(1, edit))
		m.Must(err)
		e, err := trust.DecodeEmergency(signed.Statement)
		m.Must(err)
		next := *b
		next.Emergencies = []*trust.Emergency{e}
		return &next
	}
	active := func(f guard.Facts) string {
		var out []string
		for s := range f.Active {
			out = append(out, string(s))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	lists := func(f guard.Facts) string {
		var out []string
		for s, is := range f.Lists {
			if is {
				out = append(out, string(s))
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for _, tc := range []struct {
		name          string
		b             *state.TrustState
		active, lists string
		allow         string
		max           time.Duration
		withdrawn     string
		spent         bool
		bounded       bool // the policy ends with a snapshot
	}{
		{"joined", joined, "node_bootstrap trust_bundle", "trust_bundle", "continue_services", 24 * time.Hour, "", false, false},
		{"with a node_runtime that lists more", ran, "node_runtime trust_bundle", "degraded_mode_policy qos_policy trust_bundle", "", 0, "", true, false},
		{"with all", whole, "degraded_mode_policy node_runtime qos_policy trust_bundle", "degraded_mode_policy qos_policy trust_bundle",
			"preserve_routes", time.Minute, "", true, true},
		{"without the node_runtime that gave them", whole.Without(runtimeScope), "trust_bundle", "node_runtime trust_bundle", "", 0, "", true, false},
		{"without the bootstrap too", whole.Without(runtimeScope).Without(bootScope), "trust_bundle", "node_runtime trust_bundle", "", 0, "", false, false},
		{"without a trust bundle", whole.Without(bundleScope), "degraded_mode_policy node_runtime qos_policy", "degraded_mode_policy qos_policy trust_bundle",
			"preserve_routes", time.Minute, "", true, true},
		{"its role is revoked", stating(whole, func(e *trust.Emergency) {
			e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedRole, Name: "data/node-a/core"}}
		}), "degraded_mode_policy node_runtime qos_policy trust_bundle", "degraded_mode_policy qos_policy trust_bundle", "preserve_routes", time.Minute, guard.LimitRoles, true, true},
		{"the role of another one is revoked", stating(whole, func(e *trust.Emergency) {
			e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedRole, Name: "data/node-b/core"}}
		}), "degraded_mode_policy node_runtime qos_policy trust_bundle", "degraded_mode_policy qos_policy trust_bundle", "preserve_routes", time.Minute, "", true, true},
		{"a permission is revoked", stating(whole, func(e *trust.Emergency) {
			e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedPermission, Name: "preserve_routes"}}
		}), "degraded_mode_policy node_runtime qos_policy trust_bundle", "degraded_mode_policy qos_policy trust_bundle", "", time.Minute, "", true, true},
		{"a permission is revoked, and there is no policy but that of its terms", stating(joined, func(e *trust.Emergency) {
			e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedPermission, Name: "continue_services"}}
		}), "node_bootstrap trust_bundle", "trust_bundle", "", 24 * time.Hour, "", false, false},
	} {
		f := tc.b.Facts()
		if active(f) != tc.active || lists(f) != tc.lists {
			t.Errorf("%s: it may use %s and lists %s", tc.name, active(f), lists(f))
		}
		if got := strings.Join(f.Policy.Allow, " "); got != tc.allow || f.Policy.Max != tc.max || f.Until.IsZero() == tc.bounded {
			t.Errorf("%s: alone it may %q for %v until %v", tc.name, got, f.Policy.Max, f.Until)
		}
		if f.Withdrawn != tc.withdrawn || (f.Spent != nil) != tc.spent || f.Missing {
			t.Errorf("%s: withdrawn %q, spent %v, missing %v", tc.name, f.Withdrawn, f.Spent, f.Missing)
		}
	}
	// The newest word is the latest that anything in use was signed, be it a record.
	newest := whole.NewestRecord()
	if f := whole.Facts(); f.Word.Before(newest.IssuedAt) || f.Word.Before(whole.Active[bundleScope].Verified.Header().IssuedAt) {
		t.Errorf("the newest word is of %v, and a record of %v", f.Word, newest.IssuedAt)
	}
	// A record over the same header is a newer word, and one that is older than it is none.
	m.Shift.Add(int64(time.Hour))
	is := whole.Active[qosScope].Verified.Header()
	renewed := m.took(l.Me, whole, m.OfGroup(m.member, signedtest.QoS(1), func(h *header, _ *record) { *h = is }))
	if got := renewed.Facts().Word; !got.Equal(renewed.NewestRecord().IssuedAt) || !got.After(newest.IssuedAt) {
		t.Errorf("under a newer record the newest word is of %v, want %v", got, renewed.NewestRecord().IssuedAt)
	}
	m.Shift.Store(0)
	// Of several records the newest counts, by epoch and then by generation.
	wrong := func(_ *header, r *record) { r.Revocations, r.IssuedAt = snapshot.Digest{1}, m.Ago(-time.Second) }
	one := m.OfGroup(m.member, signedtest.QoS(2), wrong)
	lagging := m.took(l.Me, whole, one)
	if !lagging.Facts().Missing {
		t.Error("the newest of several records names revocations that the bundle does not have, and none is missing")
	}
	if caught := m.took(l.Me, lagging, m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope})); caught.Facts().Missing {
		t.Error("an older record names revocations that the bundle does not have, and some are missing")
	}
	// The epoch comes first: a record of the next one counts, however low its generation is.
	next := m.nextEpoch(l.Me, whole)
	missing := m.took(l.Me, next, m.OfGroup(m.member, signedtest.QoS(3), func(h *header, r *record) {
		wrong(h, r)
		r.Generation = 1
	}))
	for range 30 { // what is in use has no order
		if !missing.Facts().Missing {
			t.Fatal("a record of the epoch before hides that revocations are missing by one of this epoch")
		}
	}
	m.Epoch--
	// A record that names other revocations than the bundle in use: some are missing, until a bundle
	// that is newer than the record comes.
	other := m.took(l.Me, joined, m.Runtime(m.member, func(h *header, _ *runtime, r *record) {
		r.Revocations, r.IssuedAt = snapshot.Digest{1}, m.Ago(-time.Second)
	}))
	if !other.Facts().Missing {
		t.Error("the newest record names revocations that the bundle does not have, and none is missing")
	}
	if other.Without(bundleScope).Facts().Missing || !joined.Without(bootScope).Facts().Word.Equal(joined.Active[bundleScope].Verified.Header().IssuedAt) {
		t.Error("without a bundle something is missing, or the word is not the bundle's")
	}
	old := m.took(l.Me, joined, m.Runtime(m.member, func(_ *header, _ *runtime, r *record) {
		r.Revocations, r.IssuedAt = snapshot.Digest{1}, m.Ago(time.Hour)
	}))
	if old.Facts().Missing {
		t.Error("a bundle that was signed later has more revocations than the record names, and some are missing")
	}
}

// Where coordinators are: those that it was told, and then those of the join, each once, so many, and
// none that is revoked.
func TestMergeAddresses(t *testing.T) {
	m := newMachine(t)
	b := m.mustLoad().TrustState
	if got := state.MergeAddresses(b, []string{"x:1", signedtest.Coordinator, "x:1"}); !slices.Equal(got, []string{signedtest.Coordinator, "x:1"}) {
		t.Errorf("%v", got)
	}
	var many []string
	for i := range 2 * state.MaxAddresses {
		many = append(many, fmt.Sprintf("c%d:1", i))
	}
	if got := state.MergeAddresses(b, many); len(got) != state.MaxAddresses || got[0] != signedtest.Coordinator {
		t.Errorf("%d addresses, the first of them %s", len(got), got[0])
	}
	signed, err := trust.UnmarshalEmergency(m.Emergency(1, func(e *trust.Emergency) {
		e.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedCoordinator, Name: "x:1"}}
	}))
	m.Must(err)
	e, err := trust.DecodeEmergency(signed.Statement)
	m.Must(err)
	next := *b
	next.Emergencies = []*trust.Emergency{e}
	if got := state.MergeAddresses(&next, []string{"x:1", "y:1"}); !slices.Equal(got, []string{signedtest.Coordinator, "y:1"}) {
		t.Errorf("with one revoked: %v", got)
	}
}

// A program beside the agent sees what the agent would say, and why it can see nothing.
func TestReadTrustView(t *testing.T) {
	m := newMachine(t)
	m.fill()
	files := m.disk.FS()
	v, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock())
	if err != nil || v.Lost || v.Stale || v.Trust.Me != m.member.ID || len(v.Marks.All()) == 0 || len(v.Coordinators) == 0 || v.Quarantined(qosScope, snapshot.Digest{}) {
		t.Fatalf("%+v, %v", v, err)
	}
	if v, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock().Add(100*24*time.Hour)); err != nil || !v.Stale || v.Lost {
		t.Errorf("when the bundle ended: %+v, %v", v, err)
	}
	raw, err := state.ReadActive(files, signedtest.DataDir, runtimeScope)
	if err != nil || !bytes.Equal(raw, m.read(dir.SnapshotName(runtimeScope, dir.Active))) {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if _, err := state.ReadActive(files, signedtest.DataDir, qosScope); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is in use: %v", err)
	}
	m.Must(files.Remove(path(dir.MarksAName)))
	m.Must(files.Remove(path(dir.MarksBName)))
	if v, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock()); err != nil || !v.Lost || !v.Stale || len(v.Marks.All()) == 0 {
		t.Errorf("without the marks: %+v, %v", v, err)
	}
	anchor := m.read(dir.AnchorName)
	m.disk.Put(path(dir.AnchorName), anchor[1:])
	if _, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock()); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("a damaged anchor: %v", err)
	}
	m.Must(files.Remove(path(dir.AnchorName)))
	if _, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock()); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("without an anchor, and with an identity: %v", err)
	}
	m.Must(files.Remove(path(dir.SVIDName)))
	if _, err := state.ReadTrustView(files, signedtest.DataDir, m.Clock()); !errors.Is(err, errcode.NodeNotJoined) {
		t.Errorf("no member: %v", err)
	}
}

// Statements of the signers are there if either copy has them, of this cluster and root alone, each once.
func TestEmergenciesOnDisk(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	me := m.lockedLoad(s).Me
	ban := func(n uint64, edit func(*trust.Emergency)) []byte {
		return m.Emergency(n, func(e *trust.Emergency) {
			e.Keys = []identity.KeyID{{byte(n)}}
			if edit != nil {
				edit(e)
			}
		})
	}
	one, two := ban(1, nil), ban(2, nil)
	elsewhere := ban(3, func(e *trust.Emergency) { e.Root = identity.KeyID{9} })
	foreign := ban(4, func(e *trust.Emergency) { e.ClusterID = "other.example" })
	if raw, all, err := s.ReadEmergencies(me); raw != nil || all != nil || err != nil {
		t.Errorf("none: %v, %v, %v", raw, all, err)
	}
	for _, tc := range []struct {
		name     string
		a, b     [][]byte
		want     int
		problems bool
	}{
		{"both have both", [][]byte{one, two}, [][]byte{one, two}, 2, false},
		{"the first has more", [][]byte{one, two}, [][]byte{one}, 2, false},
		{"the second has more", [][]byte{one}, [][]byte{one, two}, 2, false},
		{"they have different ones", [][]byte{one}, [][]byte{two}, 2, false},
		{"one under another root", [][]byte{elsewhere, one}, nil, 1, false},
		{"one of another cluster", [][]byte{foreign, one}, nil, 1, false},
		{"one that is none", [][]byte{[]byte("x"), one}, nil, 1, true},
	} {
		seal := func(list [][]byte) []byte {
			data, err := dir.Seal(map[string]any{"statements": list})
			m.Must(err)
			return data
		}
		m.disk.Put(path(dir.EmergencyAName), seal(tc.a))
		m.disk.Put(path(dir.EmergencyBName), seal(tc.b))
		raw, all, err := s.ReadEmergencies(me)
		if len(raw) != tc.want || len(all) != tc.want || (err != nil) != tc.problems {
			t.Errorf("%s: %d and %d of %d, %v", tc.name, len(raw), len(all), tc.want, err)
		}
		if l := m.lockedLoad(s); len(l.TrustState.Emergencies) != tc.want || len(l.TrustState.Statements) != tc.want {
			t.Errorf("%s: a start knows %d", tc.name, len(l.TrustState.Emergencies))
		}
	}
	kept := state.WithStatement(nil, one)
	if kept = state.WithStatement(kept, one); len(kept) != 1 {
		t.Errorf("the same twice: %d", len(kept))
	}
	if kept = state.WithStatement(kept, two); len(kept) != 2 {
		t.Errorf("another one: %d", len(kept))
	}
	// With other signatures it is the same statement.
	signed, err := trust.UnmarshalEmergency(one)
	m.Must(err)
	_, key, _ := ed25519.GenerateKey(nil)
	m.Must(signed.Sign(key))
	more, err := signed.Marshal()
	m.Must(err)
	if kept = state.WithStatement(kept, more); len(kept) != 2 {
		t.Errorf("with more signatures: %d", len(kept))
	}
}

// That the authority epoch moved on counts until a newer bundle than then is in use.
func TestBehind(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	l := m.lockedLoad(s)
	b := l.TrustState
	if behind, err := s.ReadBehind(b); behind || err != nil {
		t.Errorf("no file: %v, %v", behind, err)
	}
	m.Must(s.WriteSealed(dir.BehindName, state.BehindAt(b.Bundle())))
	stale := *b.Without(bundleScope)
	stale.Stale = b.Bundle()
	m.Version++
	newer := m.took(l.Me, b, m.TrustBundle())
	m.Version = 1
	for name, tc := range map[string]struct {
		b    *state.TrustState
		want bool
	}{
		"the same bundle": {b, true}, "the same bundle, stale": {&stale, true}, "a newer one": {newer, false},
		"one of the next epoch, with a lower version": {m.nextEpoch(l.Me, b), false}, "none": {b.Without(bundleScope), false},
	} {
		if behind, err := s.ReadBehind(tc.b); behind != tc.want || err != nil {
			t.Errorf("%s: %v, %v", name, behind, err)
		}
	}
	m.disk.Put(path(dir.BehindName), []byte("x"))
	if behind, err := s.ReadBehind(b); behind || !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("damaged: %v, %v", behind, err)
	}
}
