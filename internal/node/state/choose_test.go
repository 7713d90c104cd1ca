package state_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// Of each scope a start uses the newest on disk that the marks know and that verifies, wherever it
// lies; what nobody accepted, or nobody is to hold, is removed without a word, and what should be
// good and is not is told.
func TestLoadChooses(t *testing.T) {
	name := dir.SnapshotName
	type after struct {
		version int // of what is used: an index into all that came, -1: none
		unsaved bool
		dropped []string
		refused []string // reasons
	}
	for _, tc := range []struct {
		name string
		do   func(x *chooser)
		want after
	}{
		{"active and previous", func(*chooser) {}, after{version: 1}},
		{"pending, and the marks know it", func(x *chooser) {
			x.put(dir.Pending, 2)
			x.Must(x.s.WriteLedger(x.accepted(2)))
		}, after{version: 2, unsaved: true}},
		{"pending, and the marks do not know it", func(x *chooser) { x.put(dir.Pending, 2) },
			after{version: 1, dropped: []string{name(runtimeScope, dir.Pending)}}},
		{"pending, and in place already", func(x *chooser) {
			x.put(dir.Pending, 1)
		}, after{version: 1, dropped: []string{name(runtimeScope, dir.Pending)}}},
		{"the one before lies in both places", func(x *chooser) {
			x.put(dir.Active, 0)
			x.put(dir.Pending, 1)
		}, after{version: 1, unsaved: true}},
		{"the previous one is too old to be known", func(x *chooser) {
			x.put(dir.Previous, 0)
			x.Must(x.s.WriteLedger(x.accepted(2)))
			x.put(dir.Active, 2)
		}, after{version: 2}},
		{"the active one is not known, and the previous one is", func(x *chooser) { x.put(dir.Active, 3) },
			after{version: 0, refused: []string{"unrecorded"}}},
		{"another scope lies in its place", func(x *chooser) {
			x.disk.Put(path(name(runtimeScope, dir.Active)), x.read(name(bootScope, dir.Active)))
		}, after{version: 0, refused: []string{"malformed"}}},
		{"nothing", func(x *chooser) { x.Must(x.s.Remove(dir.FilesOf(runtimeScope)...)) }, after{version: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newChooser(t)
			tc.do(x)
			l := x.lockedLoad(x.s)
			want := uint64(0)
			if tc.want.version >= 0 {
				want = x.versions[tc.want.version]
			}
			if got := versionOf(l.TrustState, runtimeScope); got != want {
				t.Errorf("version %d is used, of %v", got, x.versions)
			}
			old, unsaved := l.Unsaved[runtimeScope]
			if unsaved != tc.want.unsaved || unsaved && !bytes.Equal(old, x.read(name(runtimeScope, dir.Active))) {
				t.Errorf("it is to be put in place: %v, instead of %d bytes", unsaved, len(old))
			}
			// Files of scopes that the node is not to hold are dropped at each start, there or not.
			dropped := slices.DeleteFunc(l.Dropped, func(name string) bool { return !slices.Contains(dir.FilesOf(runtimeScope), name) })
			if !slices.Equal(dropped, tc.want.dropped) {
				t.Errorf("dropped %v, want %v", dropped, tc.want.dropped)
			}
			var reasons []string
			for _, r := range l.Refused {
				reasons = append(reasons, r.Reason)
			}
			if !slices.Equal(reasons, tc.want.refused) {
				t.Errorf("refused %v, want %v", l.Refused, tc.want.refused)
			}
		})
	}
}

// chooser is a machine with four versions of its node_runtime, of which the second is in use.
type chooser struct {
	*machine
	s        *state.Store
	me       state.Self
	all      [][]byte
	ledgers  []state.Ledger
	versions []uint64
}

func newChooser(t *testing.T) *chooser {
	t.Helper()
	x := &chooser{machine: newMachine(t)}
	x.s = x.open()
	l := x.lockedLoad(x.s)
	x.me = l.Me
	b := l.TrustState
	for range 4 {
		came := x.Runtime(x.member)
		b = x.took(x.me, b, came)
		x.all, x.ledgers, x.versions = append(x.all, came.GetEnvelope()), append(x.ledgers, b.Ledger), append(x.versions, versionOf(b, runtimeScope))
	}
	x.Must(x.s.WriteLedger(x.accepted(1)))
	x.put(dir.Previous, 0)
	x.put(dir.Active, 1)
	return x
}

// put puts a version into a place.
func (x *chooser) put(place string, i int) {
	x.disk.Put(path(dir.SnapshotName(runtimeScope, place)), x.all[i])
}

// accepted is the ledger of a node that accepted up to this version.
func (x *chooser) accepted(i int) state.Ledger { return x.ledgers[i] }

// The trust bundle before is not used where the one that is gone revoked more: it would trust again
// what that one revoked. It is known as stale, and bans whom it bans.
func TestLoadTakesNoRevocationBack(t *testing.T) {
	for _, tc := range []struct {
		name   string
		bans   bool // the bundle that is damaged revokes more
		used   bool // the one before is
		reason string
	}{{"it revokes the same", false, true, "malformed"}, {"it revoked more", true, false, "config_version"}} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			s := m.open()
			l := m.lockedLoad(s)
			was := versionOf(l.TrustState, bundleScope)
			m.Version++
			if tc.bans {
				m.Banned = append(m.Banned, identity.KeyID{7})
			}
			m.keep(s, l.Me, l.TrustState, m.TrustBundle())
			m.disk.Put(path(dir.SnapshotName(bundleScope, dir.Active)), []byte("x"))
			l = m.lockedLoad(s)
			if used := versionOf(l.TrustState, bundleScope) == was; used != tc.used {
				t.Errorf("the one before is used: %v", used)
			}
			if stale := l.TrustState.Stale != nil && l.TrustState.Stale.Header().ConfigVersion == was; stale == tc.used {
				t.Errorf("the one before is known as stale: %v", stale)
			}
			if l.TrustState.Contact == nil || !slices.ContainsFunc(l.Refused, func(r state.Refusal) bool { return r.Reason == tc.reason }) {
				t.Errorf("refused %v", l.Refused)
			}
		})
	}
}

// A companion on disk for what the node was before is removed without a word.
func TestLoadDropsCompanions(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	l := m.lockedLoad(s)
	qos := snapshot.ScopeQoSPolicy
	b := m.keep(s, l.Me, l.TrustState, m.Gives(m.member, []snapshot.Scope{qos}))
	b = m.keep(s, l.Me, b, m.OfGroup(m.member, signedtest.QoS(1)))
	if got := m.lockedLoad(s); versionOf(got.TrustState, qos) == 0 || slices.Contains(got.Dropped, dir.SnapshotName(qos, dir.Active)) {
		t.Fatalf("it is not used: %v", got.Refused)
	}
	for name, came := range map[string]func() *fealtyv1.SignedSnapshot{
		"it is of another group": func() *fealtyv1.SignedSnapshot {
			return m.Gives(m.member, []snapshot.Scope{qos}, func(c *runtime) { c.Organizations = []string{"globex"} })
		},
		"it is not listed": func() *fealtyv1.SignedSnapshot { return m.Gives(m.member, nil) },
	} {
		next := m.keep(s, l.Me, b, came())
		b = next
		got := m.lockedLoad(s)
		if versionOf(got.TrustState, qos) != 0 || !slices.Contains(got.Dropped, dir.SnapshotName(qos, dir.Active)) || len(got.Refused) != 0 {
			t.Errorf("%s: version %d is used, dropped %v, refused %v", name, versionOf(got.TrustState, qos), got.Dropped, got.Refused)
		}
	}
}

// A snapshot without its content is in use if its very header is, under its record or a newer one.
func TestUses(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	b := m.took(l.Me, l.TrustState, m.Runtime(m.member))
	is, was := b.Active[runtimeScope].Verified.Header(), m.signed(&fealtyv1.SignedSnapshot{Envelope: b.Active[runtimeScope].Raw})
	renewal := m.Runtime(m.member, same(b))
	renewed := m.took(l.Me, b, renewal)
	check := func(s *snapshot.Signed, marks snapshot.Marks, again bool) *snapshot.Checked {
		verify := snapshot.VerifyHeader
		if again {
			verify = snapshot.RecheckHeader
		}
		c, err := verify(s, l.Me.Trust(b), marks, m.Clock())
		m.Must(err)
		return c
	}
	old := check(was, b.Marks, true)
	newer := check(m.signed(renewal), b.Marks, false)
	other := check(m.signed(m.Runtime(m.member)), b.Marks, false)
	for name, tc := range map[string]struct {
		b    *state.TrustState
		c    *snapshot.Checked
		want bool
	}{
		"in use": {b, old, true}, "under a newer record": {renewed, old, true}, "a newer record": {b, newer, false},
		"that record": {renewed, newer, true}, "another header": {b, other, false}, "nothing of the scope": {l.TrustState, old, false},
	} {
		if got := tc.b.Uses(tc.c); got != tc.want {
			t.Errorf("%s: %v (version %d)", name, got, is.ConfigVersion)
		}
	}
}

// An identity that is not that of the anchor is told, and nothing is done as somebody else.
func TestLoadOfAnotherNode(t *testing.T) {
	for _, tc := range []struct {
		name  string
		chain func(m *machine, key dir.KeyPair) []*x509.Certificate
		want  errcode.Code
	}{
		{"of another node", func(m *machine, key dir.KeyPair) []*x509.Certificate {
			b, _ := m.NewMember("node-b")
			return m.Issue(key.Signer().Public(), b.ID, m.SVIDTTL)
		}, errcode.NodeWrong},
		{"under another root", func(m *machine, key dir.KeyPair) []*x509.Certificate {
			return signedtest.New(m.t, []string{signedtest.Coordinator}).Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL)
		}, errcode.NodeStateCorrupt},
		{"its own", func(m *machine, key dir.KeyPair) []*x509.Certificate {
			return m.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL)
		}, ""},
	} {
		m := newMachine(t)
		s := m.open()
		key, err := dir.NewKeyPair()
		m.Must(err)
		m.Must(s.WriteSVID(dir.SVID{Key: key, Chain: tc.chain(m, key)}))
		_, err = s.Load(state.NewClock(m.Clock, nil))
		if tc.want == "" && err != nil || tc.want != "" && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// What is told of an identity that is of no use says what mends it: the mode, a copy, or the command that
// enrols this very member again, by whichever part of the identity can still be read.
func TestUnusableIdentitySaysWhatToDo(t *testing.T) {
	cut := func(m *machine, name string) { m.disk.Put(path(name), m.read(name)[:40]) }
	for _, tc := range []struct {
		name string
		do   func(m *machine)
		want []string
	}{
		{"others may read it", func(m *machine) { m.disk.Chmod(path(dir.SVIDName), 0o644) }, []string{"chmod 600 " + path(dir.SVIDName), "member replace data/node-a"}},
		{"the certificate is cut", func(m *machine) { cut(m, dir.SVIDName) }, []string{"put it back from a copy", "member replace data/node-a", "--name node-a"}},
		{"the certificate is missing", func(m *machine) { m.Must(m.disk.FS().Remove(path(dir.SVIDName))) }, []string{"it is missing", "member replace data/node-a"}},
		{"the anchor is cut", func(m *machine) { cut(m, dir.AnchorName) }, []string{dir.AnchorName, "member replace data/node-a"}},
		{"both are cut", func(m *machine) { cut(m, dir.AnchorName); cut(m, dir.SVIDName) }, []string{"member replace KIND/NAME"}},
	} {
		m := newMachine(t)
		tc.do(m)
		_, err := m.load()
		if !errors.Is(err, errcode.NodeStateCorrupt) {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: it does not say %q: %v", tc.name, part, err)
			}
		}
	}
}

// What a coordinator said of a scope holds for that scope, and ends the doubt about it alone.
func TestDoubtEnds(t *testing.T) {
	m := newMachine(t)
	m.Must(m.disk.FS().Remove(path(dir.MarksAName)))
	m.Must(m.disk.FS().Remove(path(dir.MarksBName)))
	l := m.mustLoad()
	for _, scope := range state.Scopes {
		if !l.TrustState.Doubts(scope) {
			t.Errorf("the marks are lost, and %s is not in doubt", scope)
		}
	}
	raw := m.read(dir.SnapshotName(bundleScope, dir.Active))
	d, err := state.Decide(l.Me, l.TrustState, m.signed(&fealtyv1.SignedSnapshot{Envelope: raw}), m.Clock())
	m.Must(err)
	if next := d.After(l.TrustState, raw); !d.Raised || next.Doubts(bundleScope) || !next.Doubts(runtimeScope) || !l.TrustState.Doubts(bundleScope) {
		t.Errorf("raised %v; the bundle is in doubt: %v, the node_runtime: %v", d.Raised, next.Doubts(bundleScope), next.Doubts(runtimeScope))
	}
}
