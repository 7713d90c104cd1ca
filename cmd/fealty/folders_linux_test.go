package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// TestFoldersBothWays has programs of an earlier release make the folders of members, in each state in
// which an upgrade can find one, and opens them with this release; and then goes back, as it does the other
// way round. In each state the member is who it was, and follows the next change. Folders hold private
// keys, so that none stands in the repository: they are made anew by the program of before.
func TestFoldersBothWays(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	old, err := previous()
	if err != nil {
		t.Fatal(err)
	}
	next, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if old == next {
		t.Logf("commit %s is not in this clone: this release reads its own folders alone", previousCommit)
	}
	t.Run("up", func(t *testing.T) { foldersOf(t, old, next) })
	t.Run("back", func(t *testing.T) { foldersOf(t, next, old) })
}

func foldersOf(t *testing.T, from, to string) {
	f := startOne(t, from)
	const coordinator = "coordinator-1"
	token := func(name string) string {
		return strings.TrimSpace(f.must("token", "create", "--entry", "nodes", "--name", name, "--socket",
			f.socket(coordinator)))
	}
	write := func(data []byte, path ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(append([]string{f.dir}, path...)...), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	active := func(member string) string { return filepath.Join(f.dir, member, "snapshots", "qos_policy.active") }
	states := []struct {
		member string
		leave  func(member string) // its folder in that state
	}{
		{"joined", f.stop},
		{"killed", f.kill},
		{"pending", func(member string) {
			f.stop(member)
			// It was cut off between the marks and the end of the activation.
			if err := os.Rename(active(member), strings.TrimSuffix(active(member), "active")+"pending"); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged", func(member string) {
			f.stop(member)
			if err := os.Truncate(active(member), 100); err != nil {
				t.Fatal(err)
			}
		}},
		{"lost-marks", func(member string) {
			f.stop(member)
			write([]byte("x"), member, "marks.a")
			write([]byte("x"), member, "marks.b")
		}},
	}
	all := func(record string) {
		t.Helper()
		f.put(record, f.socket(coordinator))
		for _, s := range states {
			wait.Until(t, s.member+" to use "+record, func() bool { return f.holds(s.member, record) })
		}
	}
	ids := make(map[string]string)
	id := func(member string) string {
		t.Helper()
		chain, err := os.ReadFile(filepath.Join(f.dir, member, "identity", "anchor.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(chain)
	}
	for _, s := range states {
		f.must("join", token(s.member), "--data", s.member)
		f.agent(s.member)
	}
	all("before")
	// The next content is on trial, and stays so over both restarts.
	write([]byte("kind: degraded\nname: trials\ntrials: {qos_policy: 1h}\n"), "trials.yaml")
	f.must("config", "put", "-f", "trials.yaml", "--socket", f.socket(coordinator))
	for _, s := range states {
		wait.Until(t, s.member+" to hold the policy", func() bool {
			content, err := os.ReadFile(filepath.Join(f.dir, s.member, "current", "degraded_mode_policy.json"))
			return err == nil && strings.Contains(string(content), "qos_policy")
		})
	}
	all("on-trial")
	for _, s := range states {
		s.leave(s.member)
		ids[s.member] = id(s.member)
	}
	half := token("half")
	f.stop(coordinator)
	if out, err := f.run("join", half, "--data", "half", "--wait", "1s"); err == nil {
		t.Fatalf("joined without a coordinator: %s", out)
	}

	f.exe = to
	f.start(coordinator)
	f.ready(coordinator)
	f.must("join", half, "--data", "half")
	f.agent("half")
	for _, s := range states {
		f.agent(s.member)
	}
	all("there")
	wait.Until(t, "half to use there", func() bool { return f.holds("half", "there") })
	for _, s := range states {
		f.stop(s.member)
	}
	f.stop("half")
	f.stop(coordinator)

	f.exe = from
	f.start(coordinator)
	f.ready(coordinator)
	for _, s := range states {
		f.agent(s.member)
	}
	f.agent("half")
	all("and-back")
	wait.Until(t, "half to use and-back", func() bool { return f.holds("half", "and-back") })
	for _, s := range states {
		if id(s.member) != ids[s.member] {
			t.Errorf("%s has another anchor than before", s.member)
		}
	}
}
