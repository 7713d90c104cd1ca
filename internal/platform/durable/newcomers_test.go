//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package durable_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/test/logs"
)

// TestNewcomers: who holds a lock is told of processes that were refused it, by their number, and at most once a minute. Who is
// refused is still told who holds it.
func TestNewcomers(t *testing.T) {
	if at := os.Getenv("FEALTY_TEST_TAKE"); at != "" {
		if _, err := durable.OS().Lock(at); err == nil {
			os.Exit(0)
		}
		os.Exit(7)
	}
	at := filepath.Join(t.TempDir(), "lock")
	take := func() (pid int, got bool) {
		t.Helper()
		other := exec.Command(os.Args[0], "-test.run=^TestNewcomers$")
		other.Env = append(os.Environ(), "FEALTY_TEST_TAKE="+at)
		err := other.Run()
		if _, ended := err.(*exec.ExitError); err != nil && !ended {
			t.Fatal(err)
		}
		return other.Process.Pid, err == nil
	}
	synctest.Test(t, func(t *testing.T) {
		var locks durable.Locks
		lock, err := locks.OS().Lock(at)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var log logs.Text
		go locks.TellNewcomers(ctx, log.Logger(slog.LevelInfo))
		told := func(want int, pid int) {
			t.Helper()
			synctest.Wait()
			text := log.String()
			if strings.Count(text, "wanted what this one uses") != want || want > 0 && !strings.Contains(text, "lock="+at+" pid="+strconv.Itoa(pid)) {
				t.Errorf("told, want %d times and of %d:\n%s", want, pid, text)
			}
		}
		time.Sleep(10 * time.Second)
		told(0, 0)
		first, got := take()
		if got {
			t.Fatal("two have it")
		}
		if held, err := durable.Holder(at); err != nil || held == nil || held.PID != os.Getpid() {
			t.Errorf("then it is held by %+v, %v", held, err)
		}
		time.Sleep(3 * time.Second)
		told(1, first)
		take()
		last, _ := take()
		time.Sleep(50 * time.Second)
		told(1, first)
		time.Sleep(20 * time.Second)
		told(2, last)
		time.Sleep(time.Hour)
		told(2, last)
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		if _, got := take(); !got {
			t.Error("nobody has it, and it was refused")
		}
		// Locks that are taken in turns are nobody's claim.
		for range 20 {
			lock, err := locks.OS().Lock(at)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := locks.OS().Lock(at); err == nil {
				t.Fatal("two have it")
			}
			time.Sleep(900 * time.Millisecond)
			lock.Close()
		}
		told(2, last)
	})
}
