package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A command that may open no more files says that, however far it came: no login is missing then, no file is away, and no
// coordinator is out of reach.
func TestNoFilesLeft(t *testing.T) {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := startOne(t, exe)
	const name = "coordinator-1"
	token := f.must("token", "create", "--entry", "admins", "--name", "alice", "--socket", f.socket(name))
	f.must("login", token)
	if err := os.WriteFile(filepath.Join(f.dir, "gold.yaml"), []byte("kind: qos\nname: gold\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	told := 0
	for what, args := range map[string][]string{
		"a login":  {"member", "list"},
		"a socket": {"member", "list", "--socket", f.socket(name)},
		"a file":   {"config", "put", "-f", "gold.yaml", "--dry-run", "--socket", f.socket(name)},
		"a proof":  {"verify", "--manifest", "m.yaml", "--coordinator", f.listens[name]},
	} {
		works := false
		for most := 4; most < 40 && !works; most++ {
			cmd := f.fealty(t.Context(), args...)
			// The shell's own descriptors are closed as it becomes the program.
			cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, most), f.exe}, args...)
			cmd.Path = "/bin/sh"
			raw, err := cmd.CombinedOutput()
			out := string(raw)
			switch {
			case err == nil:
				works = true
			case strings.Contains(out, "FE-U121"):
				told++
				if !strings.Contains(out, "ulimit -n") {
					t.Errorf("%s, with %d files: there is no remedy: %s", what, most, out)
				}
			case strings.Contains(out, "FE-"):
				t.Errorf("%s, with %d files: %s", what, most, out)
			}
		}
		if !works {
			t.Errorf("%s: it does not work with 40 files", what)
		}
	}
	if told < 3 { // below that the runtime of Go does not begin
		t.Errorf("%d runs told why they failed", told)
	}
}

// A socket that this user may not open is told as that: the process behind it may well run.
func TestSocketOfAnotherUserIsNoFaultOfTheNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := startOne(t, exe)
	const name = "coordinator-1"
	// The other user reaches the socket, and a copy of the program, in a place that everybody may enter.
	open, err := os.MkdirTemp("/tmp", "fealty-other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(open) })
	raw, err := os.ReadFile(exe)
	if err == nil {
		err = os.Chmod(open, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(open, "fealty"), raw, 0o755)
	}
	if err == nil {
		err = os.Link(filepath.Join(f.dir, f.socket(name)), filepath.Join(open, "admin.sock"))
	}
	if err != nil {
		t.Skipf("no place for another user: %v", err)
	}
	for _, args := range [][]string{{"status"}, {"member", "list"}} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(open, "fealty"), append(args, "--socket", filepath.Join(open, "admin.sock"))...)
		cmd.Dir, cmd.Env = open, []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "FE-U122: the socket "+open+"/admin.sock may not be opened by this user") ||
			!strings.Contains(string(out), "with sudo") || strings.Contains(string(out), "cannot be reached") {
			t.Errorf("%v: status %d: %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}
