package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/embedded/embeddedtest"
	"github.com/fealty-io/fealty/test/wait"
)

// A coordinator that brings its store along keeps what it acknowledged over the death of the store's process and over its own, tells what it
// saw, and leaves no process behind.
func TestEmbeddedStore(t *testing.T) {
	t.Parallel()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, exe, "embedded", "info")
	f.environ = []string{"FEALTY_STORE_PROGRAM=" + embeddedtest.Program(t)}
	const name = "c" // the path of a socket is short
	if f.listens[name], err = freeport.Addr(); err != nil {
		t.Fatal(err)
	}
	f.start(name)
	socket := f.socket(name)
	f.until("it answers", func(out string) bool { return out != "" }, "status", "-o", "json", "--socket", socket)
	f.must("manifest", "init", "--cluster", "prod.example", "--socket", socket, "--signer-key-out", "alice.key",
		"--keeper", "file:"+filepath.Join(f.dir, "seed.key"), "--out", "m.yaml")
	f.must("manifest", "set", "m.yaml", "--socket", socket)
	f.ready(name)
	folder := filepath.Join(f.dir, name, "store", "embedded")
	if out := f.must("status", "--socket", socket); !strings.Contains(out, "embedded:"+folder) {
		t.Errorf("status does not name the store:\n%s", out)
	}

	// What looks at the folder while the coordinator has it is told who has.
	out, err := f.run("backup", "restore", "--in-place", "--store", "embedded:"+folder, "--sign-with", "alice.key")
	if err == nil || !strings.Contains(err.Error(), "FE-S101") {
		t.Errorf("a restore beside it: %s, %v", out, err)
	}

	was := holder(t, folder)
	f.must("token", "create", "--entry", "nodes", "--name", "before", "--socket", socket)
	if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.until("the death of its process is told", func(out string) bool { return strings.Contains(out, "FE-S124") },
		"status", "-o", "json", "--socket", socket)
	wait.UntilNil(t, "the store takes writes again", func() error {
		_, err := f.run("token", "create", "--entry", "nodes", "--name", "after", "--socket", socket)
		return err
	})
	if now := holder(t, folder); now == was {
		t.Errorf("process %d was killed, and has the folder", was)
	}

	// Told to end, it ends, and its store with it.
	f.stop(name)
	gone(t, folder)
	f.start(name)
	f.ready(name)
	for _, token := range []string{"before", "after"} {
		if out := f.must("token", "list", "--socket", socket); !strings.Contains(out, token) {
			t.Errorf("the token for %s is lost:\n%s", token, out)
		}
	}

	// Killed, it leaves a store that ends by itself, and comes back to it.
	f.kill(name)
	f.start(name)
	f.ready(name)
	if out := f.must("token", "list", "--socket", socket); !strings.Contains(out, "after") {
		t.Errorf("a token is lost:\n%s", out)
	}
	f.stop(name)
	gone(t, folder)
}

// holder returns the process that has the store's folder.
func holder(t *testing.T, folder string) int {
	t.Helper()
	held, err := durable.Holder(filepath.Join(folder, embedded.LockName))
	if err != nil || held == nil {
		t.Fatalf("nobody has %s: %v", folder, err)
	}
	return held.PID
}

// gone waits until nobody has the store's folder, and no process of this machine is of it.
func gone(t *testing.T, folder string) {
	t.Helper()
	wait.UntilNil(t, "the store has ended", func() error {
		if held, err := durable.Holder(filepath.Join(folder, embedded.LockName)); held != nil || err != nil {
			return fmt.Errorf("%v, %w", held, err)
		}
		return nil
	})
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if at, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); err == nil && at == folder {
			text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			t.Errorf("process %s is left: %s, %v", e.Name(), bytes.ReplaceAll(text, []byte{0}, []byte{' '}), err)
		}
	}
}
