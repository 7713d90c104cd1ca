package state_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

const (
	bundleScope  = snapshot.ScopeTrustBundle
	bootScope    = snapshot.ScopeNodeBootstrap
	runtimeScope = snapshot.ScopeNodeRuntime
)

// Each way in which a file may be damaged, and what a start makes of it: which error it is, or
// what is used, and that a person is told.
func TestLoadDamaged(t *testing.T) {
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	turned := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	empty := func([]byte) []byte { return nil }
	type damage map[string]func([]byte) []byte
	all := damage{"cut": cut, "a bit turned": turned, "empty": empty}
	sealed := func(v any) func([]byte) []byte {
		return func([]byte) []byte { data, _ := dir.Seal(v); return data }
	}
	active := func(s snapshot.Scope) string { return dir.SnapshotName(s, dir.Active) }
	previous := func(s snapshot.Scope) string { return dir.SnapshotName(s, dir.Previous) }
	type after struct {
		fails errcode.Code   // the start fails, with this
		notes int            // what a person is told
		files []string       // that are named in what is refused
		use   map[string]int // how much newer than at the join the versions in use are; -1: none is
		lost  bool
	}
	fine := map[string]int{string(bundleScope): 0, string(bootScope): 0, string(runtimeScope): 1}
	for _, tc := range []struct {
		name    string
		files   []string // each is damaged, in each of the ways
		damage  damage
		missing bool // and likewise removed
		want    after
	}{
		{"the anchor", []string{dir.AnchorName}, all, false, after{fails: errcode.NodeStateCorrupt}},
		{"the anchor is of another form", []string{dir.AnchorName}, damage{"": sealed(7)}, false, after{fails: errcode.NodeStateCorrupt}},
		{"the identity", []string{dir.SVIDName}, damage{"cut": cut, "empty": empty}, true, after{fails: errcode.NodeStateCorrupt}},
		{"one copy of the marks", []string{dir.MarksAName}, all, true, after{use: fine}},
		{"the other copy of the marks", []string{dir.MarksBName}, all, true, after{use: fine}},
		{"both copies of the marks", []string{dir.MarksAName, dir.MarksBName}, all, true,
			after{notes: 1, lost: true, use: map[string]int{string(bundleScope): -1, string(bootScope): -1, string(runtimeScope): -1}}},
		// Without it nobody vouches for the others.
		{"the trust bundle", []string{active(bundleScope)}, all, false, after{files: []string{active(bundleScope), active(bootScope), active(runtimeScope), previous(runtimeScope)},
			use: map[string]int{string(bundleScope): -1, string(bootScope): -1, string(runtimeScope): -1}}},
		{"the node_runtime", []string{active(runtimeScope)}, all, false, after{files: []string{active(runtimeScope)},
			use: map[string]int{string(bundleScope): 0, string(runtimeScope): 0}}}, // the one before
		{"the node_runtime and the one before", []string{active(runtimeScope), previous(runtimeScope)}, all, false,
			after{files: []string{active(runtimeScope), previous(runtimeScope)}, use: map[string]int{string(bundleScope): 0, string(runtimeScope): -1}}},
		{"the time", []string{dir.ClockName}, damage{"cut": cut, "bits": turned, "empty": empty}, false, after{notes: 1, use: fine}},
		{"the refusals", []string{dir.RefusalsName}, all, false, after{notes: 1, use: fine}},
		{"the key of a renewal", []string{dir.NextName}, all, false, after{notes: 1, use: fine}},
		{"one copy of the statements", []string{dir.EmergencyAName}, all, false, after{notes: 1, use: fine}},
		{"both copies of the statements", []string{dir.EmergencyAName, dir.EmergencyBName}, all, false, after{notes: 1, use: fine}},
		{"nothing", nil, damage{"": nil}, false, after{use: fine}},
	} {
		ways := make(map[string]func([]byte) []byte, len(tc.damage)+1)
		for way, f := range tc.damage {
			ways[way] = f
		}
		if tc.missing {
			ways["missing"] = nil
		}
		for way, f := range ways {
			t.Run(tc.name+"/"+way, func(t *testing.T) {
				m := newMachine(t)
				m.fill()
				for _, name := range tc.files {
					data := m.read(name)
					if f == nil {
						m.Must(m.disk.FS().Remove(path(name)))
						continue
					}
					m.disk.Put(path(name), f(bytes.Clone(data)))
				}
				l, err := m.load()
				if tc.want.fails != "" {
					if !errors.Is(err, tc.want.fails) || !strings.Contains(err.Error(), tc.files[0]) {
						t.Fatalf("%v, want %s that names %s", err, tc.want.fails, tc.files[0])
					}
					return
				}
				m.Must(err)
				if len(l.Notes) != tc.want.notes || l.Lost != tc.want.lost {
					t.Errorf("told %v, lost %v; want %d notes, lost %v", l.Notes, l.Lost, tc.want.notes, tc.want.lost)
				}
				var named []string
				for _, r := range l.Refused {
					name, _, _ := strings.Cut(r.Detail, " ")
					named = append(named, name)
				}
				if !slices.Equal(named, tc.want.files) {
					t.Errorf("refused %v, want %v", named, tc.want.files)
				}
				for scope, newer := range tc.want.use {
					if got := versionOf(l.TrustState, snapshot.Scope(scope)); newer < 0 && got != 0 || newer >= 0 && got != m.filled[snapshot.Scope(scope)][newer] {
						t.Errorf("version %d of %s is used, want %v[%d]", got, scope, m.filled[snapshot.Scope(scope)], newer)
					}
				}
				if l.TrustState.Contact == nil {
					t.Error("no coordinator can be verified any more")
				}
			})
		}
	}
}

// fill gives the folder all files that it may have, each of them whole.
func (m *machine) fill() {
	m.t.Helper()
	l := m.mustLoad()
	s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
	m.Must(err)
	defer s.Close()
	s.Pin = l.Me.Pin
	_, err = s.ReadLedger()
	m.Must(err)
	b := l.TrustState
	m.filled = map[snapshot.Scope][]uint64{bundleScope: {versionOf(b, bundleScope)}, bootScope: {versionOf(b, bootScope)}}
	for range 2 {
		b = m.keep(s, l.Me, b, m.Runtime(m.member))
		m.filled[runtimeScope] = append(m.filled[runtimeScope], versionOf(b, runtimeScope))
	}
	clock := state.NewClock(m.Clock, nil)
	clock.Learn(b.Marks)
	m.Must(s.WriteSealed(dir.ClockName, clock.File()))
	m.Must(s.WriteSealed(dir.RefusalsName, []state.Refusal{}))
	key, err := dir.NewKeyPair()
	m.Must(err)
	m.Must(s.WriteNext(state.PendingKey{Key: key, Purpose: "renew"}))
	m.Must(s.WriteEmergencies(nil))
	m.Must(s.Stamp("v1"))
}

// A folder that is no member's, and one that cannot be opened.
func TestOpen(t *testing.T) {
	disk := durabletest.NewDisk()
	if _, err := state.OpenStore(disk.FS(), ""); !errors.Is(err, errcode.BadValue) {
		t.Errorf("a blank folder: %v", err)
	}
	if state.Joined(disk.FS(), signedtest.DataDir) {
		t.Error("an empty disk has a member")
	}
	s, err := state.OpenStore(disk.FS(), signedtest.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(state.NewClock(nil, nil)); !errors.Is(err, state.ErrNoMember) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := state.OpenStore(disk.FS(), signedtest.DataDir); !errors.Is(err, errcode.NodeLocked) {
		t.Errorf("a folder that somebody has open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = state.OpenStore(disk.FS(), signedtest.DataDir)
	if err != nil {
		t.Fatalf("a folder that was given back: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	if !state.Joined(m.disk.FS(), signedtest.DataDir) {
		t.Error("a member is not found")
	}
	for _, tc := range []struct {
		name string
		file any
		want errcode.Code
	}{
		{"written by this release", dir.StoreFile{Format: dir.StoreFormat, Release: "v1"}, ""},
		{"written by an older one", dir.StoreFile{Format: dir.StoreFormat - 1, Release: "v0"}, ""},
		{"written by a newer one", dir.StoreFile{Format: dir.StoreFormat + 1, Release: "v9"}, errcode.NodeStateNewer},
	} {
		data, err := dir.Seal(tc.file)
		m.Must(err)
		m.disk.Put(path(dir.StoreName), data)
		s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
		if tc.want == "" && err != nil || tc.want != "" && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err == nil {
			m.Must(s.Close())
		}
	}
	m.disk.Put(path(dir.StoreName), []byte("damaged"))
	if s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir); err != nil {
		t.Errorf("a damaged note of the release: %v", err)
	} else {
		m.Must(s.Close())
	}
	m.disk.Refuse(syscall.EROFS)
	if _, err := state.OpenStore(m.disk.FS(), "/elsewhere"); !errors.Is(err, errcode.FolderUnusable) || !strings.Contains(err.Error(), "--data") {
		t.Errorf("a disk that takes nothing: %v", err)
	}
}

// A start reads who wrote the folder last, and writes it once.
func TestStamp(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	m.Must(s.Stamp("v1"))
	m.disk.FailAt(1, syscall.ENOSPC)
	if err := s.Stamp("v1"); err != nil || m.disk.Failed() {
		t.Errorf("what is there already is written again: %v", err)
	}
	if err := s.Stamp("v2"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the next release is not written: %v", err)
	}
}

// The parts of an anchor have to be of one cluster, one node and one root.
func TestAnchorVerify(t *testing.T) {
	m := newMachine(t)
	good := m.mustLoad().Me.Anchor
	other := signedtest.New(t, []string{signedtest.Coordinator})
	elsewhere, err := identity.New("other.example", identity.Data, "node-a")
	m.Must(err)
	for name, edit := range map[string]func(a *state.Anchor){
		"no root":                         func(a *state.Anchor) { a.Root = nil },
		"another root":                    func(a *state.Anchor) { a.Root = other.Root.Raw },
		"another pin":                     func(a *state.Anchor) { a.Pin[0] ^= 1 },
		"nobody":                          func(a *state.Anchor) { a.ID = identity.ID{} },
		"an id of another cluster":        func(a *state.Anchor) { a.ID = elsewhere },
		"another cluster":                 func(a *state.Anchor) { a.Cluster = "other.example" },
		"another kind":                    func(a *state.Anchor) { a.Kind = identity.Shard },
		"no incarnation":                  func(a *state.Anchor) { a.Incarnation = identity.KeyID{} },
		"no root statement":               func(a *state.Anchor) { a.RootStatement = nil },
		"a root statement of another one": func(a *state.Anchor) { a.RootStatement = other.RootStatement() },
		"all of another root":             func(a *state.Anchor) { a.Root, a.Pin = other.Root.Raw, identity.KeyOf(other.Root) },
	} {
		a := good
		edit(&a)
		if me, err := a.Verify(m.Clock()); err == nil || me.ConfigRoot != nil {
			t.Errorf("%s: %v, %v", name, me.ID, err)
		}
	}
	me, err := good.Verify(m.Clock())
	if err != nil || me.ID != m.member.ID || len(me.ConfigRoot) == 0 {
		t.Fatalf("%+v, %v", me, err)
	}
	// Its certificates are its own, in their order, whatever the time is.
	chain := func(id identity.ID) []*x509.Certificate { return m.Issue(m.key.Signer().Public(), id, m.SVIDTTL) }
	b, err := identity.New(signedtest.Cluster, identity.Data, "node-b")
	m.Must(err)
	for name, tc := range map[string]struct {
		chain []*x509.Certificate
		want  bool
	}{
		"its own":         {chain(me.ID), true},
		"of another node": {chain(b), false},
		"of another root": {other.Issue(m.key.Signer().Public(), me.ID, m.SVIDTTL), false},
		"that ended":      {m.Issue(m.key.Signer().Public(), me.ID, time.Second), true},
	} {
		if err := me.Owns(tc.chain); (err == nil) != tc.want {
			t.Errorf("a chain %s: %v", name, err)
		}
	}
}

// A join that was durable before the power was cut is finished by the next start, and one that is
// damaged is told and forgotten: it is repeated with its key. One that may be readable later is kept.
func TestJournal(t *testing.T) {
	for _, tc := range []struct {
		name     string
		bend     func(m *machine, whole []byte)
		finished bool
		notes    int
		fails    errcode.Code
		kept     bool
	}{
		{"whole", func(m *machine, whole []byte) { m.disk.Put(path(dir.JournalName), whole) }, true, 0, "", false},
		{"cut", func(m *machine, whole []byte) { m.disk.Put(path(dir.JournalName), whole[:len(whole)-1]) }, false, 1, "", false},
		{"of another form", func(m *machine, _ []byte) {
			data, _ := dir.Seal(state.Journal{SVID: []byte("no key")})
			m.disk.Put(path(dir.JournalName), data)
		}, false, 1, "", false},
		{"that others may read", func(m *machine, whole []byte) {
			m.disk.Put(path(dir.JournalName), whole)
			m.disk.Chmod(path(dir.JournalName), 0o644)
		}, false, 0, errcode.NodeStateCorrupt, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			key, err := dir.NewKeyPair()
			m.Must(err)
			journal := m.JournalOf(&signedtest.Member{ID: m.member.ID, Incarnation: key.ID}, key)
			whole, err := dir.Seal(journal)
			m.Must(err)
			tc.bend(m, whole)
			l, err := m.load()
			if tc.fails == "" && err != nil || tc.fails != "" && !errors.Is(err, tc.fails) {
				t.Fatalf("%v, want %q", err, tc.fails)
			}
			if m.has(dir.JournalName) != tc.kept {
				t.Errorf("it is there afterwards: %v, want %v", !tc.kept, tc.kept)
			}
			if err != nil {
				return
			}
			want := m.key.ID
			if tc.finished {
				want = key.ID
			}
			if l.Finished != tc.finished || len(l.Notes) != tc.notes || l.SVID.Key.ID != want || l.Me.Incarnation != want {
				t.Errorf("finished %v, told %v, with the key of the join %v", l.Finished, l.Notes, l.SVID.Key.ID == key.ID)
			}
			if again := m.mustLoad(); again.Finished || len(again.Notes) != 0 {
				t.Errorf("the next start: finished %v, told %v", again.Finished, again.Notes)
			}
		})
	}
}

// Of two copies of the ledger the newer one that is whole counts, whichever it is, and marks of
// another root are none.
func TestLedgerCopies(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	s := m.open()
	s.Pin = l.Me.Pin
	older := l.TrustState.Ledger
	newer := m.took(l.Me, l.TrustState, m.Runtime(m.member)).Ledger
	write := func(l state.Ledger) (a, b []byte) {
		m.Must(s.WriteLedger(l))
		return m.read(dir.MarksAName), m.read(dir.MarksBName)
	}
	if _, err := s.ReadLedger(); err != nil {
		t.Fatal(err)
	}
	oldA, oldB := write(older)
	newA, newB := write(newer)
	if bytes.Equal(oldA, newA) || !bytes.Equal(newA, newB) || !bytes.Equal(oldA, oldB) {
		t.Fatal("the copies of one write are not the same, or those of two are")
	}
	same := func(a, b state.Ledger) bool {
		x, err := a.File()
		m.Must(err)
		y, err := b.File()
		m.Must(err)
		return bytes.Equal(x.Marks, y.Marks)
	}
	for name, tc := range map[string]struct {
		a, b []byte
		want state.Ledger
	}{
		"both new": {newA, newB, newer}, "only a is new": {newA, oldB, newer}, "only b is new": {oldA, newB, newer},
		"a is damaged": {newA[1:], newB, newer}, "b is damaged": {newA, newB[1:], newer},
		"the new one is damaged": {newA[1:], oldB, older}, "the new one is empty": {oldA, nil, older},
	} {
		m.disk.Put(path(dir.MarksAName), tc.a)
		m.disk.Put(path(dir.MarksBName), tc.b)
		fresh := &state.Store{FS: m.disk.FS(), Dir: signedtest.DataDir, Pin: l.Me.Pin}
		got, err := fresh.ReadLedger()
		if err != nil || !same(got, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		// What is written next counts, whatever was found.
		m.Must(fresh.WriteLedger(older))
		if got, err := (&state.Store{FS: m.disk.FS(), Dir: signedtest.DataDir, Pin: l.Me.Pin}).ReadLedger(); err != nil || !same(got, older) {
			t.Errorf("%s, and then another one was written: %v", name, err)
		}
	}
	if _, err := (&state.Store{FS: m.disk.FS(), Dir: signedtest.DataDir, Pin: identity.KeyID{1}}).ReadLedger(); !errors.Is(err, dir.ErrDamaged) {
		t.Errorf("marks of another root: %v", err)
	}
	m.Must(s.Remove(dir.MarksAName, dir.MarksBName, "not there"))
	if _, err := s.ReadLedger(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no marks: %v", err)
	}
}

// Cut anywhere, a file of the marks is not read as anything else, and the other one counts.
func TestLedgerEveryCut(t *testing.T) {
	m := newMachine(t)
	m.fill()
	whole := m.read(dir.MarksAName)
	want := versionOf(m.mustLoad().TrustState, runtimeScope)
	for n := 0; n < len(whole); n += max(1, len(whole)/60) {
		m.disk.Put(path(dir.MarksAName), whole[:n])
		if l := m.mustLoad(); l.Lost || versionOf(l.TrustState, runtimeScope) != want {
			t.Fatalf("cut to %d bytes: lost %v", n, l.Lost)
		}
	}
}

// What is written is whole or as it was, at whichever call the power is cut and whatever the disk
// comes back with (I13).
func TestInterrupted(t *testing.T) {
	type operation = func(m *machine, s *state.Store, l *state.Loaded) func() error
	author := signedtest.New(t, []string{signedtest.Coordinator})
	for name, tc := range map[string]struct {
		op operation
		// is reports which of two states the folder is in; neither is an error.
		is func(m *machine) (old, new bool)
	}{
		"the ledger": {func(m *machine, s *state.Store, l *state.Loaded) func() error {
			came := m.Runtime(m.member)
			m.disk.Put(path(dir.SnapshotName(runtimeScope, dir.Pending)), came.GetEnvelope())
			next := m.took(l.Me, l.TrustState, came).Ledger
			return func() error { return s.WriteLedger(next) }
		}, func(m *machine) (old, new bool) {
			l := m.mustLoad()
			v := versionOf(l.TrustState, runtimeScope)
			return v == 0, v != 0
		}},
		"a snapshot that the marks know": {func(m *machine, s *state.Store, l *state.Loaded) func() error {
			came := m.Runtime(m.member)
			m.disk.Put(path(dir.SnapshotName(runtimeScope, dir.Pending)), came.GetEnvelope())
			m.Must(s.WriteLedger(m.took(l.Me, l.TrustState, came).Ledger))
			return func() error { return s.Place(runtimeScope, came.GetEnvelope(), nil) }
		}, func(m *machine) (old, new bool) {
			v := versionOf(m.mustLoad().TrustState, runtimeScope)
			return false, v != 0
		}},
		"the identity": {func(m *machine, s *state.Store, l *state.Loaded) func() error {
			key, err := dir.NewKeyPair()
			m.Must(err)
			m.Must(s.WriteNext(state.PendingKey{Key: key, Purpose: "renew"}))
			svid := dir.SVID{Key: key, Chain: m.Issue(key.Signer().Public(), m.member.ID, m.SVIDTTL)}
			return func() error { return s.WriteSVID(svid) }
		}, func(m *machine) (old, new bool) {
			l := m.mustLoad()
			return l.SVID.Key.ID == m.key.ID, l.Next != nil && l.SVID.Key.ID == l.Next.Key.ID
		}},
		"leaving": {func(_ *machine, s *state.Store, _ *state.Loaded) func() error { return s.Wipe },
			func(m *machine) (old, new bool) {
				s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
				m.Must(err)
				defer s.Close()
				_, err = s.Load(state.NewClock(m.Clock, nil))
				if errors.Is(err, state.ErrNoMember) {
					return false, errors.Is(s.NotJoined(), errcode.NodeNotJoined)
				}
				return err == nil, false
			}},
		"a join": {func(m *machine, s *state.Store, _ *state.Loaded) func() error {
			m.Must(s.Wipe())
			journal := m.JournalOf(m.member, m.key)
			return func() error { return s.CommitJoin(journal) }
		}, func(m *machine) (old, new bool) {
			l, err := m.load()
			return errors.Is(err, state.ErrNoMember), err == nil && !l.Lost && l.Me.ID == m.member.ID &&
				versionOf(l.TrustState, bundleScope) != 0 && versionOf(l.TrustState, bootScope) != 0 && l.SVID.Key.ID == m.key.ID
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range durabletest.Afters() {
				// Each call with what tears most; with the others, and where time is short, some of them.
				step := 1
				if after != durabletest.Torn || testlane.Rounds(true, false) {
					step = 7
				}
				for n, cut := 1, true; cut; n += step {
					m := like(t, author)
					l := m.mustLoad()
					s := m.open()
					s.Pin = l.Me.Pin
					_, err := s.ReadLedger()
					m.Must(err)
					op := tc.op(m, s, l)
					m.disk.FailAt(n, durabletest.ErrPowerCut)
					err = op()
					cut = m.disk.Failed()
					if !cut && err != nil {
						t.Fatalf("without a fault: %v", err)
					}
					m.disk.Restart(after)
					old, is := tc.is(m)
					if old == is || !cut && !is {
						t.Fatalf("%v after the power was cut at call %d: as it was %v, as it is to be %v", after, n, old, is)
					}
				}
			}
		})
	}
}

// A full disk, or one that fails, is told with the file and the cause, and nothing that was there
// is gone.
func TestDiskFails(t *testing.T) {
	m := newMachine(t)
	l := m.mustLoad()
	s := m.open()
	s.Pin = l.Me.Pin
	for name, op := range map[string]func() error{
		dir.MarksAName:     func() error { return s.WriteLedger(l.TrustState.Ledger) },
		dir.SVIDName:       func() error { return s.WriteSVID(l.SVID) },
		dir.NextName:       func() error { return s.WriteNext(state.PendingKey{Key: m.key}) },
		dir.EmergencyAName: func() error { return s.WriteEmergencies(nil) },
		dir.SnapshotName(runtimeScope, dir.Active):   func() error { return s.Place(runtimeScope, []byte("x"), nil) },
		dir.SnapshotName(runtimeScope, dir.Previous): func() error { return s.Place(runtimeScope, []byte("x"), []byte("y")) },
		dir.JournalName: func() error { return s.CommitJoin(state.Journal{}) },
		dir.SnapshotName(bundleScope, dir.Active): func() error { return s.Remove(dir.SnapshotName(bundleScope, dir.Active)) },
		dir.RefusalsName: func() error { return s.WriteSealed(dir.RefusalsName, 1) },
	} {
		m.disk.Refuse(syscall.ENOSPC)
		err := op()
		m.disk.Refuse(nil)
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := m.read(dir.SnapshotName(bundleScope, dir.Active)); len(after) == 0 {
		t.Error("a file is gone")
	}
	if data, err := s.Read("none", 10); !errors.Is(err, fs.ErrNotExist) || data != nil {
		t.Errorf("no file: %q, %v", data, err)
	}
}

// What is on disk of a time in degraded mode comes back, and damage of it is told.
func TestPeriods(t *testing.T) {
	m := newMachine(t)
	s := m.open()
	if kept, err := s.ReadPeriods(); kept != nil || err != nil {
		t.Errorf("none: %v, %v", kept, err)
	}
	m.Must(s.WriteSealed(dir.DegradedName, []guard.Period{{From: m.Ago(time.Minute), To: m.Ago(time.Second)}}))
	if kept, err := s.ReadPeriods(); len(kept) != 1 || err != nil {
		t.Errorf("one: %v, %v", kept, err)
	}
	m.disk.Put(path(dir.DegradedName), []byte("x"))
	if kept, err := s.ReadPeriods(); kept != nil || !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("damaged: %v, %v", kept, err)
	}
}

// Leaving removes all that makes a machine a member, with what belongs to its workloads; a start
// says that it is none, and not that it lost a file.
func TestWipe(t *testing.T) {
	m := newMachine(t)
	m.fill()
	m.disk.Put(path(dir.WorkloadsName+"/a.pem"), []byte("key"))
	s := m.open()
	m.Must(s.Wipe())
	for _, name := range []string{dir.SVIDName, dir.AnchorName, dir.MarksAName, dir.MarksBName, dir.NextName, dir.JournalName, dir.LeftName,
		dir.ClockName, dir.RefusalsName, dir.EmergencyAName, dir.EmergencyBName, dir.StoreName, dir.WorkloadsName + "/a.pem",
		dir.SnapshotName(bundleScope, dir.Active), dir.SnapshotName(runtimeScope, dir.Active), dir.SnapshotName(runtimeScope, dir.Previous)} {
		if m.has(name) {
			t.Errorf("%s is still there", name)
		}
	}
	if err := s.NotJoined(); !errors.Is(err, errcode.NodeNotJoined) {
		t.Errorf("after leaving: %v", err)
	}
	// One that lost its anchor did not leave.
	m = newMachine(t)
	s = m.open()
	m.Must(s.Remove(dir.AnchorName))
	if err := s.NotJoined(); !errors.Is(err, errcode.NodeStateCorrupt) {
		t.Errorf("the anchor is gone, and the identity is there: %v", err)
	}
	// One that was cut off while it left did.
	m.Must(s.Write(dir.LeftName, nil))
	if err := s.NotJoined(); !errors.Is(err, errcode.NodeNotJoined) {
		t.Errorf("cut off while it left: %v", err)
	}
}
