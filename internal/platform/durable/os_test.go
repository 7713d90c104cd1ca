//go:build unix

package durable_test

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable"
)

// TestMain lets the test binary be the other process of a test.
func TestMain(m *testing.M) {
	switch os.Getenv("DURABLE_TEST_ROLE") {
	case "lock":
		holdLock(os.Args[1])
	case "write":
		writeForEver(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// other starts the test binary in a role and returns it once it has written one
// line.
func other(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir)
	cmd.Env = append(os.Environ(), "DURABLE_TEST_ROLE="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func holdLock(dir string) {
	if _, err := durable.OS().Lock(filepath.Join(dir, "lock")); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	// The Closer is dropped: the lock must outlive garbage collections.
	for range 10 {
		runtime.GC()
	}
	os.Stdout.WriteString("locked\n")
	select {}
}

func TestOSLock(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "lock")
	holder := other(t, "lock", dir)
	_, err := durable.OS().Lock(name)
	var locked *durable.LockedError
	if !errors.As(err, &locked) || locked.PID != holder.Process.Pid || !strings.Contains(err.Error(), strconv.Itoa(holder.Process.Pid)) {
		t.Fatalf("while %d holds it: %v", holder.Process.Pid, err)
	}
	holder.Process.Kill()
	holder.Wait()
	lock, err := durable.OS().Lock(name)
	if err != nil {
		t.Fatalf("after its holder died: %v", err)
	}
	if _, err := durable.OS().Lock(name); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Fatalf("twice in one process: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := durable.OS().Lock(name); err != nil {
		t.Fatal(err)
	} else {
		again.Close()
	}
	if _, err := durable.OS().Lock(filepath.Join(dir, "no", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a missing directory: %v", err)
	}
}

// content returns 64 KiB of one letter, so that a torn or mixed file shows.
func content(i int) []byte { return bytes.Repeat([]byte{'a' + byte(i%26)}, 64<<10) }

func writeForEver(dir string) {
	fsys := durable.OS()
	for i := 0; ; i++ {
		if err := fsys.WriteFile(filepath.Join(dir, "f"), content(i)); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		if i == 0 {
			os.Stdout.WriteString("writing\n")
		}
	}
}

func TestOSKill(t *testing.T) {
	dir := t.TempDir()
	fsys := durable.OS()
	name := filepath.Join(dir, "f")
	for range 5 {
		cmd := other(t, "write", dir)
		for range 200 {
			data, err := fsys.ReadFile(name, 64<<10)
			if err != nil || len(data) != 64<<10 || bytes.Count(data, data[:1]) != len(data) {
				t.Fatalf("%d bytes, %v", len(data), err)
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		data, err := fsys.ReadFile(name, 64<<10)
		if err != nil || len(data) != 64<<10 || bytes.Count(data, data[:1]) != len(data) {
			t.Fatalf("after kill: %d bytes, %v", len(data), err)
		}
	}
	lock, err := fsys.Lock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("left over: %v", left)
	}
}

func TestOSFiles(t *testing.T) {
	dir := t.TempDir()
	fsys := durable.OS()
	deep := filepath.Join(dir, "a", "b")
	for range 2 {
		if err := fsys.MkdirAll(deep); err != nil {
			t.Fatal(err)
		}
	}
	if info, _ := os.Stat(deep); info.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %v", info.Mode())
	}
	name := filepath.Join(deep, "f")
	for _, data := range []string{"one", "two, longer", ""} {
		if err := fsys.WriteFile(name, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got, err := fsys.ReadSecret(name, 100); err != nil || string(got) != data {
			t.Errorf("read %q, %v, want %q", got, err, data)
		}
	}
	if info, _ := os.Stat(name); info.Mode().Perm() != 0o600 {
		t.Errorf("file has mode %v", info.Mode())
	}
	os.Chmod(name, 0o640)
	if _, err := fsys.ReadSecret(name, 100); !errors.Is(err, durable.ErrExposed) {
		t.Errorf("mode 0640: %v", err)
	}
	if err := fsys.WriteFile(name, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	if _, err := fsys.ReadFile(name, 10); !errors.Is(err, durable.ErrTooLarge) {
		t.Errorf("11 bytes within 10: %v", err)
	}

	// A link is replaced, and what it pointed to stays.
	link := filepath.Join(deep, "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if err := fsys.WriteFile(link, []byte("own")); err != nil {
		t.Fatal(err)
	}
	if got, _ := fsys.ReadFile(name, 100); len(got) != 11 {
		t.Errorf("the write went through the link: %q", got)
	}
	if got, err := fsys.ReadDir(deep); err != nil || strings.Join(got, " ") != "f link" {
		t.Errorf("ReadDir: %q, %v", got, err)
	}
	if err := fsys.Remove(name); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{fsys.Remove(name), fsys.Remove(filepath.Join(dir, "x", "y")), fsys.WriteFile(filepath.Join(dir, "x", "y"), nil)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, want fs.ErrNotExist", err)
		}
	}

	// A path that is no file is refused, at once.
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, dir, os.DevNull} {
		if _, err := fsys.ReadFile(name, 10); err == nil {
			t.Errorf("read %s", name)
		}
	}
	if err := fsys.MkdirAll(link); err == nil {
		t.Error("a file passed as a directory")
	}
}

func BenchmarkWriteFile(b *testing.B) {
	fsys := durable.OS()
	name := filepath.Join(b.TempDir(), "f")
	data := make([]byte, 256)
	for b.Loop() {
		if err := fsys.WriteFile(name, data); err != nil {
			b.Fatal(err)
		}
	}
}

// A link in the place of a lock file does not make the lock write to what it leads to.
func TestLockFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	if lock, err := durable.OS().Lock(filepath.Join(dir, "lock")); err == nil {
		lock.Close()
		t.Error("a link was locked")
	}
	if data, err := os.ReadFile(target); err != nil || string(data) != "precious" {
		t.Errorf("what the link leads to is %q (%v)", data, err)
	}
}

// Parts of one process that know nothing of each other write to one directory: nobody
// takes what another one is writing for a leftover.
func TestOSSparesOwn(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		var all sync.WaitGroup
		for i := range 8 {
			fsys := durable.OS()
			if i%2 == 1 {
				fsys = durable.Shared()
			}
			all.Go(func() {
				if err := fsys.WriteFile(filepath.Join(dir, strconv.Itoa(i)), content(i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}
