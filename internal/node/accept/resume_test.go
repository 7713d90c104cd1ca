package accept_test

import (
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

// An activation that was cut off is finished by the next start. One whose content has failed its trial meanwhile is
// not: what is in use and what was before it stay where they are, each a way back from the other.
func TestFailedContentIsNotPlaced(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(2)))
	m.mustTake(m.OfGroup(m.member, &snapshot.DegradedModePolicy{Max: time.Hour, Trials: []snapshot.Trial{{Scope: qosScope, Duration: time.Hour}}}))
	active, previous, pending := dir.SnapshotName(qosScope, dir.Active), dir.SnapshotName(qosScope, dir.Previous),
		dir.SnapshotName(qosScope, dir.Pending)
	second, first := m.read(active), m.read(previous)
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(3)))
	third := m.read(active)
	// As if the power had been cut each time before it was in its place.
	cutOff := func() {
		m.disk.Put(path(active), second)
		m.disk.Put(path(previous), first)
		m.disk.Put(path(pending), third)
		m.restart(durabletest.Synced)
	}
	for n := 2; n <= state.MaxAttempts; n++ {
		if cutOff(); m.priority() != 3 || m.has(pending) || !slices.Equal(m.read(active), third) || !slices.Equal(m.read(previous), second) {
			t.Fatalf("start %d: %d is in use, and it is in its place: %v", n, m.priority(), !m.has(pending))
		}
	}
	if cutOff(); m.priority() != 2 {
		t.Fatalf("it had all its attempts, and %d is in use", m.priority())
	}
	if !slices.Equal(m.read(active), second) || !slices.Equal(m.read(previous), first) {
		t.Error("what is in use, or what was before it, is another file now")
	}
	m.restart(durabletest.Torn)
	if m.priority() != 2 {
		t.Errorf("after one more start %d is in use", m.priority())
	}
}

// A node that hears that it is behind is in degraded mode from then on, and not from when what it holds will be too
// old, which is not yet.
func TestBehindFromNowOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	m.later(time.Minute)
	began := m.node.Clock.Now()
	m.Must(m.take(m.Runtime(m.member, func(h *header, _ *runtime, r *record) { h.AuthorityEpoch, r.AuthorityEpoch = 2, 2 })))
	if !m.node.Autonomy.Facts().Behind {
		t.Fatal("it is not behind")
	}
	m.node.Autonomy.LookDegraded(t.Context())
	if got := m.periods(); len(got) != 1 || got[0].GetSince().AsTime().Before(began) || got[0].GetSince().AsTime().After(m.node.Clock.Now()) {
		t.Errorf("it was behind from %v on, and is in degraded mode since %v", began, got)
	}
}

// periods are the times in degraded mode, as the local API tells them.
func (m *machine) periods() []*fealtyv1.DegradedPeriod {
	var resp fealtyv1.GetNodeResponse
	m.node.Autonomy.StandsDegraded(&resp)
	return resp.GetDegradedPeriods()
}

// A node that finds nothing on its disk that it may use is in degraded mode from that start on, and has no time to work
// alone: both are told as of then.
func TestHoldsNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	for _, scope := range []snapshot.Scope{bundleScope, runtimeScope, bootScope} {
		m.Must(m.node.Store().Remove(dir.FilesOf(scope)...))
	}
	began := m.Clock()
	m.restart(durabletest.Synced)
	m.node.Autonomy.LookDegraded(t.Context())
	m.later(time.Minute)
	m.node.Autonomy.LookDegraded(t.Context())
	got := m.periods()
	if len(got) != 1 || got[0].GetSince().AsTime().Before(began) || got[0].GetSince().AsTime().After(began.Add(time.Minute)) ||
		!got[0].GetOverAt().AsTime().Equal(got[0].GetSince().AsTime()) {
		t.Errorf("it held nothing from %v on, and tells %v", began, got)
	}
}

// When a trust bundle does not list the key any more that signed a node_bootstrap, one that a node_runtime took the
// place of goes, as the next start would refuse it; one that says what the node is stays in use until the next comes.
func TestRotationKeepsTheTerms(t *testing.T) {
	t.Parallel()
	for _, overtaken := range []bool{false, true} {
		m := newMachine(t)
		if overtaken {
			m.mustTake(m.Runtime(m.member))
		}
		if m.version(bootScope) == 0 {
			t.Fatal("it has no node_bootstrap")
		}
		m.NextKey()
		m.Version++
		m.mustTake(m.TrustBundle())
		if there, kept := m.version(bootScope) != 0, m.has(dir.SnapshotName(bootScope, dir.Active)); there == overtaken || kept == overtaken {
			t.Errorf("overtaken %v: it is in use: %v, on disk: %v", overtaken, there, kept)
		}
		if m.node.TrustState().Terms() == nil {
			t.Errorf("overtaken %v: nothing says any more what the node is", overtaken)
		}
	}
}
