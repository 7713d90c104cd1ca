package accept_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// stateFile is what the node tells others of what is in use.
func (m *machine) stateFile() state.StateFile {
	m.t.Helper()
	var f state.StateFile
	m.Must(dir.Unseal(m.read(dir.StateName), &f))
	return f
}

// What others read says what is in use, under which record, and when and from whom it came; over a
// restart too. A file that is damaged costs that knowledge and no more.
func TestStateForOthers(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	came := m.Ago(0)
	check := func(when string, source state.Origin) {
		t.Helper()
		f := m.stateFile()
		if f.Release != "test" || f.Identity.SVID != dir.SVIDName || f.Identity.Anchor != dir.AnchorName || len(f.Scopes) != 4 {
			t.Fatalf("%s: %+v", when, f)
		}
		for _, s := range f.Scopes {
			h := m.node.TrustState().Active[s.Scope].Verified
			record, ok := h.Record()
			if s.ConfigVersion != h.Header().ConfigVersion || s.ContentHash != h.Header().ContentHash.String() || s.Generation != record.Generation ||
				(s.FreshUntil != nil) != ok || !s.ExpiresAt.Equal(h.Header().ExpiresAt) || s.Subject != h.Header().Subject.String() {
				t.Errorf("%s: %+v", when, s)
			}
			if s.Scope == qosScope && (s.Source != source || s.VerifiedAt.Before(came)) {
				t.Errorf("%s: it came from %s at %v", when, s.Source, s.VerifiedAt)
			}
		}
	}
	check("at once", state.ByCoordinator)
	m.heard()
	m.restart(durabletest.Synced)
	check("after a restart", state.ByCoordinator)
	// Who uses it is told at each start, and with what the program for changes succeeded is known again.
	if told := m.heard(); told["changed qos_policy"] == 0 || told["applied qos_policy content of qos_policy"] != 1 {
		t.Errorf("after a restart told %v", told)
	}
	m.disk.Put(path(dir.StateName), []byte("x"))
	m.restart(durabletest.Synced)
	check("after it was damaged", state.FromDisk)
	// Of another content than the file tells of nothing is known.
	f := m.stateFile()
	for i := range f.Scopes {
		f.Scopes[i].ContentHash, f.Scopes[i].Source = strings.Repeat("0", 64), "somebody"
	}
	data, err := dir.Seal(f)
	m.Must(err)
	m.disk.Put(path(dir.StateName), data)
	m.restart(durabletest.Synced)
	check("after it told of another content", state.FromDisk)
}

// The contents for others are those in use, whatever was there before; and none is there of what may not be
// used any more, which is told to who uses it.
func TestContentsForOthers(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}, func(c *runtime) { c.Degraded.Max = time.Hour }))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	whole := string(m.read(dir.CurrentName(qosScope)))
	m.disk.Put(path(dir.CurrentName(qosScope)), []byte("somebody's"))
	m.disk.Put(path(dir.CurrentName(snapshot.ScopeRoutePolicy)), []byte("of before"))
	m.restart(durabletest.Synced)
	if got := string(m.read(dir.CurrentName(qosScope))); got != whole || m.has(dir.CurrentName(snapshot.ScopeRoutePolicy)) {
		t.Errorf("after a restart others read %q, and of what is not held: %v", got, m.has(dir.CurrentName(snapshot.ScopeRoutePolicy)))
	}
	m.heard()
	m.later(30 * 24 * time.Hour)
	_, err := m.node.Trials.EndTrials(t.Context()) // looks after the files now and then
	m.Must(err)
	if m.has(dir.CurrentName(qosScope)) || m.heard()["changed qos_policy"] == 0 {
		t.Error("what ended can still be read, or nobody is told")
	}
	if _, err := m.node.Trials.EndTrials(t.Context()); err != nil || m.heard()["changed qos_policy"] != 0 {
		t.Errorf("told twice: %v", err)
	}
}

// What the disk does not take is made up for: what was dropped goes, and what others read comes.
func TestMadeUpFor(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	// The power of the disk to remove goes when the node_runtime is in place, at any later call.
	for n := 1; ; n++ {
		c := m.copy()
		c.disk.FailAt(n, syscall.EIO)
		err := c.take(c.Gives(c.member, nil))
		failed := c.disk.Failed()
		if err == nil {
			if _, err := c.node.Trials.EndTrials(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, name := range append(dir.FilesOf(qosScope), dir.CurrentName(qosScope)) {
				if c.has(name) {
					t.Errorf("call %d failed, and %s stays", n, name)
				}
			}
			if f := c.stateFile(); len(f.Scopes) != 3 {
				t.Errorf("call %d failed, and others read of %d scopes", n, len(f.Scopes))
			}
		}
		_ = c.node.Store().Close()
		if !failed {
			break
		}
	}
}

// What was found on disk and not used is told by the start that finds it, and by each one until it is
// mended; and a snapshot that was not in its place yet is put there.
func TestResumeTells(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	m.mustTake(m.Runtime(m.member))
	newest := m.version(runtimeScope)
	good := m.read(dir.SnapshotName(runtimeScope, dir.Active))
	m.disk.Put(path(dir.SnapshotName(runtimeScope, dir.Active)), []byte("x"))
	m.heard()
	for range 2 {
		m.restart(durabletest.Synced)
		if told := m.heard(); told["rejected node_runtime malformed"] != 1 || !slices.Equal(m.refusals(), []string{"node_runtime malformed"}) {
			t.Errorf("told %v, refused %v", told, m.refusals())
		}
	}
	// As if the power had been cut before it was in its place.
	m.disk.Put(path(dir.SnapshotName(runtimeScope, dir.Pending)), good)
	m.restart(durabletest.Synced)
	if m.version(runtimeScope) != newest || m.has(dir.SnapshotName(runtimeScope, dir.Pending)) ||
		string(m.read(dir.SnapshotName(runtimeScope, dir.Active))) != string(good) {
		t.Errorf("version %d is used, want %d, and it is in its place: %v", m.version(runtimeScope), newest, !m.has(dir.SnapshotName(runtimeScope, dir.Pending)))
	}
}
