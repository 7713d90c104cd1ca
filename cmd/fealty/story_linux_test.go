package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/devcluster"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/proxytest"
)

// TestStoryWithProcesses tells the steps of the story about high availability with
// processes: three coordinators and an agent of the real program on etcd. A process that
// the story cuts off inside its own is killed here with SIGKILL, or loses its network. The step about a
// late write is [TestPausedCoordinator].
func TestStoryWithProcesses(t *testing.T) {
	t.Parallel()
	server := etcdtest.New(t, etcdtest.Options{})
	way := proxytest.New(t, server.Members[0].Addr())
	st, err := etcd.Open(t.Context(), server.URL("/prod"), etcd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	first, second := three[0], three[1] // the first reaches the store by way
	f := startThree(t, server.URL("/prod"), "", map[string]string{first: server.URLVia(way.Addr(), "/prod")})
	token := f.must("token", "create", "--entry", "nodes", "--name", "node-a", "--socket", f.socket(second))
	f.must("join", strings.TrimSpace(token), "--data", "node-a")
	f.agent("node-a")

	// succeeds waits until another one than a coordinator leads, in a later term.
	succeeds := func(before store.Revision, not string) {
		t.Helper()
		await(t, "another leader", func() bool { now, at := leads(t, st); return at > before && now != "" && now != not })
	}
	put := func(record, at string) {
		t.Helper()
		text := "kind: qos\nname: " + record + "\npriority: 10\n"
		if err := os.WriteFile(filepath.Join(f.dir, "qos.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.must("config", "put", "-f", "qos.yaml", "--socket", f.socket(at))
	}
	uses := func(record string) {
		t.Helper()
		await(t, "node-a to use "+record, func() bool {
			content, err := os.ReadFile(filepath.Join(f.dir, "node-a", "current", "qos_policy.json"))
			return err == nil && strings.Contains(string(content), `"`+record+`"`)
		})
	}
	lead := func(name string) store.Revision {
		t.Helper()
		f.until(name+" leads", func(string) bool { now, _ := leads(t, st); return now == name },
			"leader", "transfer", "--to", name, "--reason", "test", "--socket", f.socket(name))
		_, term := leads(t, st)
		return term
	}
	step := func(id string) {
		t.Helper()
		if !slices.Contains(devcluster.Steps(), id) {
			t.Errorf("the story has no step %s", id)
		}
	}

	step("leader-killed")
	term := lead(second)
	f.kill(second)
	succeeds(term, second)
	put("while-it-is-killed", first) // and who leads now publishes it
	uses("while-it-is-killed")

	step("peer-recovery") // nothing is left of it but its key, and there is no keeper
	files, err := os.ReadDir(filepath.Join(f.dir, second))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range files {
		if e.Name() == "enrolment.key" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.dir, second, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	f.start(second)
	f.ready(second)

	// A partition: the leader lives, and does not reach the store.
	term = lead(first)
	way.BlackHole()
	succeeds(term, first)
	put("while-it-is-cut-off", second)
	way.Heal()
	f.ready(first)
	uses("while-it-is-cut-off")
	if now, at := leads(t, st); at <= term || now == "" {
		t.Errorf("after the partition %q leads in term %d, after %d", now, at, term)
	}

	// The member is connected to one of them, and banned at another one.
	step("ban")
	var node struct {
		Coordinator string `json:"coordinator"`
		Connected   bool   `json:"connected"`
	}
	f.until("node-a is connected", func(out string) bool {
		return json.Unmarshal([]byte(out), &node) == nil && node.Connected
	}, "status", "-o", "json", "--data", "node-a")
	connected, asked := "", ""
	for _, name := range three {
		if f.listens[name] == node.Coordinator {
			connected = name
		} else {
			asked = name
		}
	}
	said := f.must("member", "ban", "data/node-a", "--reason", "stolen", "--yes", "--socket", f.socket(asked))
	if want := "1 connection of it ended at " + connected + "; none at "; !strings.Contains(said, want) {
		t.Errorf("a ban at %s of a member that is connected to %s says %q, want %q", asked, connected, said, want)
	}
}

// agent starts the agent of a member that joined.
func (f *fleet) agent(name string) {
	f.t.Helper()
	f.spawn(name, "agent", "--data", name, "--log-level", "warn")
}
