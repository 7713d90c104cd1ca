package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/dev/story"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// TestStoryWithProcesses tells the steps of the story about high availability with
// processes: three coordinators and an agent of the real program on etcd. A process that
// the story cuts off inside its own is killed here with SIGKILL, or loses its network. The
// step about a late write is [TestPausedCoordinator].
func TestStoryWithProcesses(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	ways, stores := map[string]*proxytest.Proxy{}, map[string]string{} // to the store
	for _, name := range three {
		ways[name] = proxytest.New(t, server.Members[0].Addr())
		stores[name] = server.URLVia(ways[name].Addr(), "/prod")
	}
	st, err := etcd.Open(t.Context(), server.URL("/prod"), etcd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	f := startThree(t, server.URL("/prod"), "", stores, true)
	token := f.must("token", "create", "--entry", "nodes", "--name", "node-a", "--socket", f.socket(three[1]))
	if err := os.WriteFile(filepath.Join(f.dir, "token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must("join", "--token-file", "token", "--data", "node-a")
	f.agent("node-a")

	// succeeds waits until another one than a coordinator leads, in a later term.
	succeeds := func(before store.Revision, not string) {
		t.Helper()
		wait.Until(t, "another leader", func() bool { now, at := leads(t, st); return at > before && now != "" && now != not })
	}
	put := func(record, at string) { t.Helper(); f.put(record, f.socket(at)) }
	holds := func(record string) bool { return f.holds("node-a", record) }
	uses := func(record string) {
		t.Helper()
		wait.Until(t, "node-a to use "+record, func() bool { return holds(record) })
	}
	lead := func(name string) store.Revision {
		t.Helper()
		f.until(name+" leads", func(string) bool { now, _ := leads(t, st); return now == name },
			"leader", "transfer", "--to", name, "--reason", "test", "--socket", f.socket(name))
		_, term := leads(t, st)
		return term
	}
	// streams waits until the member has a stream to another one than a coordinator, and
	// returns to which.
	streams := func(not string) (at string) {
		t.Helper()
		f.until("node-a has a stream to another one than "+not, func(out string) bool {
			var node memberStatus
			if json.Unmarshal([]byte(out), &node) != nil || !node.Connected {
				return false
			}
			i := slices.IndexFunc(three, func(name string) bool { return f.reached(name) == node.Coordinator })
			if i < 0 || three[i] == not {
				return false
			}
			at = three[i]
			return true
		}, "status", "-o", "json", "--data", "node-a")
		return at
	}
	other := func(not ...string) string {
		return three[slices.IndexFunc(three, func(name string) bool { return !slices.Contains(not, name) })]
	}
	step := func(id string) {
		t.Helper()
		if !slices.Contains(story.Steps(), id) {
			t.Errorf("the story has no step %s", id)
		}
	}

	step("leader-killed") // and the member hears of it from no other one
	killed := streams("")
	term := lead(killed)
	f.kill(killed)
	succeeds(term, killed)
	put("while-it-is-killed", other(killed)) // and who leads now publishes it
	uses("while-it-is-killed")
	streams(killed)

	step("peer-recovery") // nothing is left of it but its key, and there is no keeper
	files, err := os.ReadDir(filepath.Join(f.dir, killed))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range files {
		if e.Name() == "enrolment.key" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.dir, killed, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	f.store = stores[killed]
	f.start(killed)
	f.ready(killed)

	// A partition: the leader lives, and does not reach the store.
	alone := other(killed)
	term = lead(alone)
	ways[alone].BlackHole()
	succeeds(term, alone)
	put("while-it-is-cut-off", killed)
	ways[alone].Heal()
	f.ready(alone)
	uses("while-it-is-cut-off")
	if now, at := leads(t, st); at <= term || now == "" {
		t.Errorf("after the partition %q leads in term %d, after %d", now, at, term)
	}

	// A partition: the member and all coordinators live, and it reaches none of them. It
	// goes on with what it holds, and follows once it reaches one.
	step("degraded")
	for _, way := range f.ways {
		way.Refuse()
	}
	f.until("node-a tried all of them", func(out string) bool {
		var node memberStatus
		if json.Unmarshal([]byte(out), &node) != nil || node.Connected {
			return false
		}
		return !slices.ContainsFunc(three, func(name string) bool { return !strings.Contains(node.LastError, f.reached(name)) })
	}, "status", "-o", "json", "--data", "node-a")
	put("while-the-member-is-cut-off", killed)
	f.must("cert", "show", filepath.Join("node-a", "identity", "svid.pem"))
	if !holds("while-it-is-cut-off") || holds("while-the-member-is-cut-off") {
		t.Error("without a coordinator node-a does not hold what it held")
	}
	step("reconnect")
	for _, way := range f.ways {
		way.Heal()
	}
	uses("while-the-member-is-cut-off")

	// The member is connected to one of them, and banned at another one.
	step("ban")
	connected := streams("")
	said := f.must("member", "ban", "data/node-a", "--reason", "stolen", "--yes", "--socket", f.socket(other(connected)))
	if want := "1 connection of it ended at " + connected + "; none at "; !strings.Contains(said, want) {
		t.Errorf("a ban at another one of a member that is connected to %s says %q, want %q", connected, said, want)
	}
}

// memberStatus is what fealty status says of a member, on its machine.
type memberStatus struct {
	Coordinator string `json:"coordinator"`
	Connected   bool   `json:"connected"`
	LastError   string `json:"last_error"`
}

// agent starts the agent of a member that joined.
func (f *fleet) agent(name string) {
	f.t.Helper()
	f.spawn(name, "agent", "--data", name, "--log-level", "warn")
}
