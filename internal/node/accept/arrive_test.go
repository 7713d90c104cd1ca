package accept_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// While the marks are whole it does not matter who gives a snapshot: it is verified all the same.
func TestTakeByGrant(t *testing.T) {
	m := newMachine(t)
	if _, _, err := m.node.Take(t.Context(), state.ByGrant, []state.Offer{offer(m.Runtime(m.member))}); err != nil {
		t.Fatal(err)
	}
	if m.version(runtimeScope) == 0 || len(m.refusals()) != 0 {
		t.Errorf("by a grant it is not taken: %v", m.refusals())
	}
}

// That links of the history are missing is told also where something else is refused after that, and
// of one delivery alone.
func TestLinksAreMissed(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	m.Epoch, m.Version = 2, m.Version+1
	ahead := m.TrustBundle()
	m.Epoch = 1
	older := m.Runtime(m.member, func(h *header, _ *runtime, _ *record) { h.ConfigVersion = 1 })
	for _, tc := range []struct {
		name string
		come []*fealtyv1.SignedSnapshot
		want bool
	}{
		{"a bundle without its links, and what is refused", []*fealtyv1.SignedSnapshot{older, ahead, older}, true},
		{"what is refused alone", []*fealtyv1.SignedSnapshot{older}, false},
	} {
		var offers []state.Offer
		for _, c := range tc.come {
			offers = append(offers, offer(c))
		}
		order := slices.Clone(offers)
		lost, _, err := m.node.Take(t.Context(), state.ByCoordinator, offers)
		if err != nil || lost != tc.want {
			t.Errorf("%s: links are missing: %v, %v", tc.name, lost, err)
		}
		for i := range offers {
			if offers[i].Scope != order[i].Scope {
				t.Errorf("%s: what was given is put into another order", tc.name)
			}
		}
	}
}

// A cluster that signed the future is mended by a trust bundle of the next authority epoch, which is judged by
// the machine's clock too; nothing else is.
func TestSignedFuture(t *testing.T) {
	for _, tc := range []struct {
		name string
		come func(m *machine) *fealtyv1.SignedSnapshot
		want string // why it is refused
	}{
		{"a trust bundle of the next epoch", func(m *machine) *fealtyv1.SignedSnapshot {
			m.Epoch++
			m.node.HearLinks(m.t.Context(), m.Links())
			return m.TrustBundle()
		}, ""},
		{"a trust bundle of this epoch", func(m *machine) *fealtyv1.SignedSnapshot { return m.TrustBundle() }, "trust_bundle " + internalsnapshot.ReasonValidity},
		{"a node_runtime", func(m *machine) *fealtyv1.SignedSnapshot {
			return m.Runtime(m.member, func(h *header, _ *runtime, _ *record) {
				h.RefreshAfter, h.ExpiresAt = m.Ago(-time.Hour), m.Ago(-2*time.Hour)
			})
		}, "node_runtime " + internalsnapshot.ReasonValidity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.later(10 * time.Hour)
			m.Version++
			m.mustTake(m.TrustBundle())
			m.later(-10 * time.Hour)
			if behind := m.node.Clock.Behind(); behind < 9*time.Hour {
				t.Fatalf("the machine's clock is %v behind what was signed", behind)
			}
			m.BundleLife = 5 * time.Hour // over by the node's time, and not by the machine's
			m.Version++
			m.mustTake(tc.come(m))
			if got := m.refusals(); tc.want == "" && len(got) != 0 || tc.want != "" && !slices.Equal(got, []string{tc.want}) {
				t.Errorf("refused %v, want %q", got, tc.want)
			}
			if tc.want == "" && m.node.Clock.Behind() != 0 {
				t.Error("the next epoch does not start the time anew")
			}
		})
	}
}

// onTrial is a machine whose qos_policy of priority 2 is on trial after that of priority 1.
func onTrial(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.mustTake(m.Gives(m.member, []snapshot.Scope{degradedScope, qosScope}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(1)))
	m.mustTake(m.OfGroup(m.member, &snapshot.DegradedModePolicy{Max: time.Hour, Trials: []snapshot.Trial{{Scope: qosScope, Duration: time.Hour}}}))
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(2)))
	return m
}

// priority is that of the qos_policy in use.
func (m *machine) priority() int {
	content, _ := m.node.TrustState().Active[qosScope].Verified.QoSPolicy()
	return content.Classes[0].Priority
}

// A content that failed is accepted under a higher version and not used, which is told; another one is
// tried, and then nothing is told any more.
func TestFailedContentComesAgain(t *testing.T) {
	m := onTrial(t)
	m.Must(m.node.Trials.Verdict(t.Context(), qosScope, 0, false, "no"))
	m.heard()
	again := m.OfGroup(m.member, signedtest.QoS(2))
	m.mustTake(again)
	told := m.heard()
	if m.priority() != 1 || told["rejected qos_policy "+state.ReasonQuarantined] != 1 || told["changed qos_policy"] != 0 {
		t.Errorf("in use is %d, told %v", m.priority(), told)
	}
	before := m.node.TrustState()
	m.mustTake(again)
	if m.node.TrustState() != before {
		t.Error("the same again changes what is believed")
	}
	m.restart(durabletest.Torn)
	if m.priority() != 1 {
		t.Errorf("after a restart %d is in use", m.priority())
	}
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(3)))
	if m.priority() != 3 || len(m.refusals()) != 0 {
		t.Errorf("the fix: in use is %d, refused %v", m.priority(), m.refusals())
	}
}

// What is on trial may be renewed: it falls back to what was before it, and not to itself.
func TestRenewedOnTrial(t *testing.T) {
	m := onTrial(t)
	m.mustTake(m.OfGroup(m.member, signedtest.QoS(2))) // the same content under another version
	if _, on := m.node.TrustState().OnTrial(qosScope); !on {
		t.Fatal("renewed, it is not on trial any more")
	}
	m.Must(m.node.Trials.Verdict(t.Context(), qosScope, 0, false, "no"))
	if m.priority() != 1 {
		t.Errorf("%d is in use", m.priority())
	}
	m.restart(durabletest.Torn)
	if m.priority() != 1 {
		t.Errorf("after a restart %d is in use", m.priority())
	}
}

// However a delivery ends, what is in use is judged as usual afterwards: only while something is put in
// place does the one before count as if it were not overtaken.
func TestArrivingEnds(t *testing.T) {
	m := newMachine(t)
	m.mustTake(m.Runtime(m.member))
	if m.node.TrustState().Arriving {
		t.Error("it was taken, and still arrives")
	}
	m.faults.Fail("activate.after-marks", errFault)
	_ = m.take(m.Runtime(m.member))
	m.faults.Disarm("activate.after-marks")
	if m.node.TrustState().Arriving {
		t.Error("it failed after the marks, and still arrives")
	}
	m.disk.Refuse(syscall.ENOSPC)
	_ = m.take(m.Runtime(m.member))
	m.disk.Refuse(nil)
	if m.node.TrustState().Arriving {
		t.Error("the disk was full, and it still arrives")
	}
}
