package localsocket_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
	"github.com/fealty-io/fealty/test/wait"
)

func listen(t *testing.T, path string) (*localsocket.Listener, error) {
	t.Helper()
	return localsocket.Listen(path, 0o600, nil, nil)
}

// leave leaves the socket of a process that died at path.
func leave(t *testing.T, path string) {
	t.Helper()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
}

// serve answers everybody who connects to l with word, until l is closed.
func serve(t *testing.T, l net.Listener, word string) {
	t.Helper()
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, word)
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); done.Wait() })
}

// hear returns what whoever serves at path says; "": nobody does.
func hear(path string) string {
	c, err := net.Dial("unix", path)
	if err != nil {
		return ""
	}
	defer c.Close()
	word, _ := io.ReadAll(c)
	return string(word)
}

// A socket of a dead process gives way; somebody's file does not.
func TestListenRemovesSocketsAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	leave(t, path)
	l, err := listen(t, path)
	if err != nil {
		t.Fatalf("after a dead process: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v (%v), want 0600", info.Mode(), err)
	}
	if l.Addr().String() != path {
		t.Errorf("it listens on %s, want %s", l.Addr(), path)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is there after its end: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t, path); err == nil {
		t.Error("a file was taken for an old socket")
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "precious" {
		t.Errorf("the file is gone: %q, %v", raw, err)
	}
}

// A live socket is never taken: not of another process of ours, which holds the lock, and not of a stranger's, which
// knows of none. It serves on, and its end leaves the path to the next.
func TestLiveSocketIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(path string) (net.Listener, error){
		"ours":       func(path string) (net.Listener, error) { return localsocket.Listen(path, 0o600, nil, nil) },
		"a stranger": func(path string) (net.Listener, error) { return net.Listen("unix", path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "s")
			l, err := first(path)
			if err != nil {
				t.Fatal(err)
			}
			serve(t, l, "first")
			for range 3 {
				second, err := listen(t, path)
				if !errors.Is(err, localsocket.ErrInUse) || !strings.Contains(err.Error(), path) {
					t.Fatalf("a second one: %v, %v", second, err)
				}
			}
			if got := hear(path); got != "first" {
				t.Errorf("then %q serves there", got)
			}
			l.Close()
			next, err := listen(t, path)
			if err != nil {
				t.Fatalf("after the end of the first: %v", err)
			}
			serve(t, next, "next")
			if got := hear(path); got != "next" {
				t.Errorf("at last %q serves there", got)
			}
		})
	}
}

// Of many that begin at one time, one gets the path.
func TestOneOfManyGetsThePath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	leave(t, path)
	var all sync.WaitGroup
	got := make(chan *localsocket.Listener, 32)
	for range cap(got) {
		all.Go(func() {
			l, err := localsocket.Listen(path, 0o600, nil, nil)
			switch {
			case err == nil:
				got <- l
			case !errors.Is(err, localsocket.ErrInUse):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(got) != 1 {
		t.Fatalf("%d listen there", len(got))
	}
	(<-got).Close()
}

// A path that was removed, or that leads to a process which is gone, is taken back. While somebody else serves there it is
// left to them, and told.
func TestPathIsTakenBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	var log strings.Builder
	l, err := localsocket.Listen(path, 0o600, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, "ours")
	if got := hear(path); got != "ours" || l.Lost() != nil {
		t.Fatalf("%q serves there, and it is lost: %v", got, l.Lost())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a removed socket is served again", func() bool { return hear(path) == "ours" })

	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	other.SetUnlinkOnClose(false)
	serve(t, other, "theirs")
	if err := os.Rename(path+".other", path); err != nil { // in one step: it is never free
		t.Fatal(err)
	}
	wait.Until(t, "a socket that another serves is told", func() bool { return errors.Is(l.Lost(), localsocket.ErrInUse) })
	if got := hear(path); got != "theirs" {
		t.Errorf("%q serves there, want who took it", got)
	}
	other.Close() // its file stays, and leads to nobody
	wait.Until(t, "the path of one that is gone is taken back", func() bool { return hear(path) == "ours" })
	if err := l.Lost(); err != nil {
		t.Errorf("it is told as lost still: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it has mode %v (%v), want 0600", info.Mode(), err)
	}
}

// Who ends while somebody else serves at the path leaves that alone.
func TestCloseLeavesAnothersSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := listen(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, other, "theirs")
	if err := l.Close(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if got := hear(path); got != "theirs" {
		t.Errorf("%q serves there", got)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it accepts still: %v", err)
	}
}

// The lock ends with the process, and its file may stay; who holds it is told by its number.
func TestLockOfASocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	lock, err := durable.OS().Lock(path + localsocket.LockSuffix)
	if err != nil {
		t.Fatal(err)
	}
	_, err = listen(t, path)
	if used, ok := errors.AsType[*localsocket.InUseError](err); !ok || used.PID != os.Getpid() {
		t.Errorf("another holds the lock: %v", err)
	}
	lock.Close()
	l, err := listen(t, path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestOwnUser(t *testing.T) {
	me := uint32(os.Geteuid())
	for uid, want := range map[uint32]bool{0: true, me: true, me + 1: false, ^uint32(0): false} {
		if got := localsocket.OwnUser(identity.Local{UID: uid}); got != want {
			t.Errorf("OwnUser(%d) = %v", uid, got)
		}
	}
}
