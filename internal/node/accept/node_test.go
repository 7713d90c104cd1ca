package accept_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/accept"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	bundleScope   = snapshot.ScopeTrustBundle
	bootScope     = snapshot.ScopeNodeBootstrap
	runtimeScope  = snapshot.ScopeNodeRuntime
	qosScope      = snapshot.ScopeQoSPolicy
	degradedScope = snapshot.ScopeDegradedModePolicy
)

// machine is one that joined, with the authorities of its cluster and no network: what comes is what
// the author signs, and whoever gives it is said beside it.
type machine struct {
	*signedtest.Author
	t      testing.TB
	member *signedtest.Member
	key    dir.KeyPair
	disk   *durabletest.Disk
	node   *accept.Node
	faults *failpoint.Points

	mu   sync.Mutex
	told map[string]int // what was reported, by what and about what
}

// newMachine is one whose node is open.
func newMachine(t testing.TB) *machine {
	t.Helper()
	m := &machine{Author: signedtest.New(t, []string{signedtest.Coordinator}), t: t, disk: durabletest.NewDisk(), told: make(map[string]int)}
	m.member, m.key = m.NewMember("node-a")
	m.Enrol(m.disk.FS(), signedtest.DataDir, m.member, m.key)
	m.open()
	return m
}

// copy is another machine with the same files, whose node is open.
func (m *machine) copy() *machine {
	m.t.Helper()
	c := &machine{Author: m.Author, t: m.t, member: m.member, key: m.key, disk: durabletest.NewDisk(), told: make(map[string]int)}
	names := []string{dir.AnchorName, dir.SVIDName, dir.MarksAName, dir.MarksBName, dir.StoreName, dir.StateName, dir.ClockName}
	for _, scope := range state.Scopes {
		names = append(names, dir.CurrentName(scope), dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous))
	}
	for _, name := range names {
		if m.has(name) {
			c.disk.Put(path(name), m.read(name))
		}
	}
	c.open()
	return c
}

func (m *machine) tell(what ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told[fmt.Sprint(what...)]++
}

// heard returns what was reported since it was asked last.
func (m *machine) heard() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := maps.Clone(m.told)
	clear(m.told)
	return out
}

// load opens the folder and reads it.
func (m *machine) load() (*state.Store, *state.Clock, *state.Loaded) {
	m.t.Helper()
	s, err := state.OpenStore(m.disk.FS(), signedtest.DataDir)
	m.Must(err)
	clock := state.NewClock(m.Clock, nil)
	l, err := s.Load(clock)
	m.Must(err)
	m.t.Cleanup(func() { _ = s.Close() })
	return s, clock, l
}

// open starts the node from what is on disk.
func (m *machine) open() {
	m.t.Helper()
	s, clock, l := m.load()
	m.faults = new(failpoint.Points)
	n, err := accept.New(accept.Config{Store: s, Clock: clock, Release: "test", Log: slog.New(slog.DiscardHandler), Faults: m.faults,
		Reports: accept.Reports{
			Rejected: func(scope, reason string) { m.tell("rejected ", scope, " ", reason) },
			Refused:  func(action, reason string) { m.tell("refused ", action, " ", reason) },
			Entered:  func() { m.tell("entered") },
			Report:   func() { m.tell("report") }, Renew: func() { m.tell("renew") },
			Changed: func(of ...snapshot.Scope) {
				for _, scope := range of {
					m.tell("changed ", scope)
				}
			},
			Applied:   func(scope snapshot.Scope, content string) { m.tell("applied ", scope, " ", content) },
			AppliedTo: func(scope snapshot.Scope) string { return "content of " + string(scope) },
		}}, l)
	m.Must(err)
	n.Resume(m.t.Context(), l)
	m.node = n
}

// restart ends the process, and starts another one with what the disk comes back with.
func (m *machine) restart(after durabletest.After) {
	m.t.Helper()
	m.disk.Restart(after)
	m.open()
}

// offer is what somebody gives.
func offer(came *fealtyv1.SignedSnapshot) state.Offer {
	return state.Offer{Scope: came.GetScope(), Raw: came.GetEnvelope(), Giver: "c1"}
}

// take gives the node what a coordinator has.
func (m *machine) take(came ...*fealtyv1.SignedSnapshot) error {
	m.t.Helper()
	var offers []state.Offer
	for _, c := range came {
		offers = append(offers, offer(c))
	}
	_, _, err := m.node.Take(m.t.Context(), state.ByCoordinator, offers)
	return err
}

func (m *machine) mustTake(came ...*fealtyv1.SignedSnapshot) {
	m.t.Helper()
	m.Must(m.take(came...))
}

// version is what is in use of scope; 0 for nothing.
func (m *machine) version(scope snapshot.Scope) uint64 {
	if h := m.node.TrustState().Active[scope]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

func path(name string) string { return signedtest.DataDir + "/" + name }

func (m *machine) has(name string) bool {
	_, err := m.disk.FS().ReadFile(path(name), 64<<20)
	return err == nil
}

func (m *machine) read(name string) []byte {
	m.t.Helper()
	data, err := m.disk.FS().ReadFile(path(name), 64<<20)
	m.Must(err)
	return data
}

// refusals are those that stand, as scope and reason, sorted.
func (m *machine) refusals() []string {
	var out []string
	for _, r := range m.node.Status().Refusals() {
		out = append(out, r.Scope+" "+r.Reason)
	}
	slices.Sort(out)
	return out
}

// errFault is what a fault of a test comes to.
var errFault = errors.New("a fault of the test")
