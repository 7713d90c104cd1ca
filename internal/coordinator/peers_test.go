package coordinator

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// peerFleet returns a ready coordinator whose seed no keeper holds, and n replicas that
// the manifest admits and that never ran.
func peerFleet(t testing.TB, n int, config func(*Config)) (*fleet, []*fleet) {
	t.Helper()
	f := newFleet(t, config)
	for range n {
		newReplica(t, f)
	}
	f.people = newPeople(t, "alice", "bob")
	if err := f.setPeople(""); err != nil {
		t.Fatal(err)
	}
	f.awaitReplica(func(r replica) bool { return r.Phase == "ready" })
	return f, f.replicas
}

// setPeople sets a manifest whose seed people own alone.
func (f *fleet) setPeople(extra string) error {
	f.t.Helper()
	first := f
	if f.first != nil {
		first = f.first
	}
	return f.set(withSeed(f.manifest(extra), first.people.seed(1, "")))
}

// audited returns the audit entries of these actions, oldest first.
func (f *fleet) audited(actions ...string) []auditEntry {
	f.t.Helper()
	st := f.store
	if f.first != nil {
		st = f.first.store
	}
	l, err := st.List(context.Background(), auditPrefix)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []auditEntry
	for _, e := range l.Entries {
		var entry auditEntry
		if err := json.Unmarshal(e.Value, &entry); err != nil {
			f.t.Fatal(err)
		}
		if slices.Contains(actions, entry.Action) {
			out = append(out, entry)
		}
	}
	return out
}

// An empty replica becomes ready from a peer, without a human and without a transition,
// and the audit log shows who gave what to whom, by which proof.
func TestEmptyReplicaRecoversFromAPeer(t *testing.T) {
	f, rs := peerFleet(t, 1, nil)
	r := rs[0]
	r.start()
	r.awaitHead(f)
	a, b := f.c.state.Load(), r.c.state.Load()
	if !a.secrets.seed.Equal(b.secrets.seed) || a.meshKey != b.meshKey || a.rootPin != b.rootPin || a.head.Hash != b.head.Hash || b.head.Index != 1 {
		t.Error("it is ready with other secrets, or at another head")
	}
	given, received := f.audited("seed.given"), f.audited("seed.received", "mesh.received")
	if len(given) != 1 || given[0].Target != "coordinator/coordinator-2" || given[0].Actor != "spiffe://test.example/coordinator/coordinator-1" || given[0].Fields["key"] != r.c.EnrolmentKey() ||
		given[0].Fields["head"] != a.head.Hash.String() || given[0].Fields["proof"] == "" {
		t.Errorf("the audit log says of the giver %+v", given)
	}
	if len(received) != 2 || received[0].Fields["via"] != "peer" || received[0].Fields["key"] != f.c.EnrolmentKey() || received[0].Fields["from"] != "coordinator-1" || given[0].At.After(received[0].At) {
		t.Errorf("the audit log says of the taker %+v", received)
	}
	// It serves: a member joins at it, and both of them know the member.
	r.member("node-a")
	if c := r.catalog(); !strings.Contains(c, "node-a") || c != f.catalog() {
		t.Errorf("the catalog is %s", c)
	}
}

// Several replicas that start at once are all ready, and so is each after a restart
// while another one runs.
func TestReplicasRecoverTogether(t *testing.T) {
	f, rs := peerFleet(t, 3, nil)
	for _, r := range rs {
		r.start()
	}
	for _, r := range rs {
		r.awaitHead(f)
	}
	f.kill()
	f.start()
	f.awaitHead(rs[0])
	if got := len(f.audited("seed.given")); got != 4 {
		t.Errorf("the seed was given %d times", got)
	}
}
