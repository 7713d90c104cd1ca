//go:build linux

package pgtest_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// TestKilledAndStarted: a server that was killed can be started at once, though something keeps its
// shared memory for longer than its processes live, as a reader of their files in /proc does. PostgreSQL
// refuses to start while that memory is attached.
func TestKilledAndStarted(t *testing.T) {
	server := pgtest.New(t)
	text, err := os.ReadFile(filepath.Join(server.Data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(strings.Fields(lines[6])[1])
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	detached := make(chan error, 1)
	go func() {
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			time.Sleep(time.Millisecond)
		}
		// Longer than a server that is killed needs to be looked at once more.
		time.Sleep(200 * time.Millisecond)
		detached <- unix.SysvShmDetach(memory)
	}()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-detached; err != nil {
		t.Fatal(err)
	}
}
