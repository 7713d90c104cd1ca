package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/internal/store/embedded"
	"github.com/fealty-io/fealty/internal/store/embedded/embeddedtest"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// folder makes one whose sockets have short names. The process makes what is in it.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "es")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "store")
}

func config(t testing.TB, dir string) embedded.Config {
	return embedded.Config{Program: embeddedtest.Program(t), Dir: dir, Log: slog.New(slog.DiscardHandler)}
}

func start(t testing.TB, cfg embedded.Config) *embedded.Process {
	t.Helper()
	p, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func open(t testing.TB, p *embedded.Process) *etcd.Store {
	t.Helper()
	st, err := etcd.OpenSocket(t.Context(), p.Socket(), "embedded", etcd.Options{Known: p.Down, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func put(t testing.TB, st store.Store, key, value string) {
	t.Helper()
	if _, err := st.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}); err != nil {
		t.Fatal(err)
	}
}

func holds(t testing.TB, st store.Store, key, value string) {
	t.Helper()
	if e, err := st.Get(t.Context(), key); err != nil || string(e.Value) != value {
		t.Errorf("%s is %q, %v, want %q", key, e.Value, err, value)
	}
}

func runs(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A store serves its owner alone, is ended with it, and is there again at the next start.
func TestProcess(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := start(t, config(t, dir))
	st := open(t, p)
	put(t, st, "a", "1")
	for path, mode := range map[string]os.FileMode{
		dir: os.ModeDir | 0o700, p.Socket(): os.ModeSocket | 0o600, filepath.Join(dir, embedded.DataName): os.ModeDir | 0o700,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, %v, want %v", path, info.Mode(), err, mode)
		}
	}
	if _, err := embedded.Start(t.Context(), config(t, dir)); !isLocked(err, os.Getpid()) {
		t.Errorf("a second one in the folder: %v", err)
	}
	pid := p.PID()
	onNoNetwork(t, pid)
	if err := errors.Join(st.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if runs(pid) {
		t.Errorf("process %d runs after its owner closed it", pid)
	}
	if ends := p.Ends(); ends.Count != 0 {
		t.Errorf("that it was closed counts as an end: %+v", ends)
	}
	holds(t, open(t, start(t, config(t, dir))), "a", "1")
}

// onNoNetwork fails if a process has a socket of TCP or UDP.
func onNoNetwork(t *testing.T, pid int) {
	t.Helper()
	var network strings.Builder
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile("/proc/net/" + protocol)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		network.Write(text)
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sockets := 0
	for _, e := range open {
		leads, err := os.Readlink(filepath.Join(dir, e.Name()))
		inode, ok := strings.CutPrefix(leads, "socket:[")
		if err != nil || !ok {
			continue
		}
		sockets++
		if inode = strings.TrimSuffix(inode, "]"); strings.Contains(network.String(), " "+inode+" ") {
			t.Errorf("it has a socket on a network: %s", leads)
		}
	}
	if sockets == 0 {
		t.Error("no socket of it was found")
	}
}

func isLocked(err error, pid int) bool {
	held, ok := errors.AsType[*embedded.LockedError](err)
	return ok && held.PID == pid
}

// One that was killed is started again, with all that it acknowledged. What was seen is told, and calls meanwhile fail as they
// do with any store that does not answer.
func TestKilled(t *testing.T) {
	t.Parallel()
	p := start(t, config(t, folder(t)))
	st := open(t, p)
	const kills = 2
	for i := range kills {
		put(t, st, "a", fmt.Sprint(i))
		was := p.PID()
		if err := syscall.Kill(was, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "it is noticed", func() bool { return p.Ends().Count == i+1 })
		if said := p.Ends().Said; said != "signal: killed" {
			t.Errorf("it ended with %q", said)
		}
		wait.Until(t, "it serves again", func() bool { return p.Down() == "" })
		wait.UntilNil(t, "the store answers", func() error { _, err := st.Get(t.Context(), "a"); return err })
		holds(t, st, "a", fmt.Sprint(i))
		if p.PID() == was {
			t.Errorf("it has the number of the one that was killed")
		}
	}
}

// While the program cannot be started again, outages say what is known of it.
func TestGone(t *testing.T) {
	t.Parallel()
	cfg := config(t, folder(t))
	there := filepath.Join(filepath.Dir(cfg.Dir), "program")
	if err := os.Symlink(cfg.Program, there); err != nil {
		t.Fatal(err)
	}
	cfg.Program = there
	p := start(t, cfg)
	st := open(t, p)
	put(t, st, "a", "1")
	if err := errors.Join(os.Remove(there), syscall.Kill(p.PID(), syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "it was tried again", func() bool { return p.Ends().Count > 1 })
	wait.Until(t, "an outage says why", func() bool {
		_, err := st.Get(t.Context(), "a")
		out, ok := errors.AsType[*store.OutageError](err)
		return ok && out.Outage == store.Unreachable && strings.Contains(out.Said, "could not be started") &&
			strings.Contains(out.Said, "no such file")
	})
	if err := os.Symlink(embeddedtest.Program(t), there); err != nil {
		t.Fatal(err)
	}
	wait.UntilNil(t, "the store answers", func() error { _, err := st.Get(t.Context(), "a"); return err })
	holds(t, st, "a", "1")
}

// One that cannot serve at the start is not tried again, and says why.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, row := range map[string]struct {
		program string
		before  func(dir string) error
		said    string
	}{
		"it ends at once":           {program: script("exit 3"), said: "exit status 3"},
		"it panics":                 {program: script("echo 'panic: no disk' >&2; echo 'goroutine 1' >&2; exit 2"), said: "panic: no disk"},
		"others can open the data":  {before: func(dir string) error { return os.MkdirAll(filepath.Join(dir, embedded.DataName), 0o755) }, said: "mode 0700"},
		"the data is a file":        {before: func(dir string) error { return writeBelow(dir, embedded.DataName, "") }, said: "mode 0700"},
		"the database is damaged":   {before: func(dir string) error { return writeBelow(dir, "data/member/snap/db", strings.Repeat("x", 1<<16)) }, said: "invalid database"},
		"it is of another release":  {program: script(`head -n 1 >/dev/null; echo '{"level":"error","msg":"another release"}' >&2; exit 1`), said: "another release"},
		"it warned, and was killed": {program: script("echo warned >&2; kill -KILL $$"), said: "signal: killed"},
		"it says nothing and is ok": {program: script("exit 0"), said: "exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, folder(t))
			if row.program != "" {
				cfg.Program = row.program
			}
			if row.before != nil {
				if err := row.before(cfg.Dir); err != nil {
					t.Fatal(err)
				}
			}
			_, err := embedded.Start(t.Context(), cfg)
			e, ok := errors.AsType[*embedded.StartError](err)
			if !ok || !strings.Contains(e.Said, row.said) || strings.Contains(e.Said, "warned") {
				t.Errorf("%v, want %q in it", err, row.said)
			}
			// Nobody holds the folder.
			if _, err := embedded.Start(t.Context(), cfg); isLocked(err, os.Getpid()) {
				t.Error(err)
			}
		})
	}
}

func writeBelow(dir, name, text string) error {
	path := filepath.Join(dir, name)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
}

// A server ends when whoever started it is gone, however, and not before: neither by what a terminal sends to all nor by
// what a service manager does. Who comes next waits for it.
func TestEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	settings, err := json.Marshal(embedded.Settings{Protocol: embedded.Protocol, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(embeddedtest.Program(t))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := in.Write(append(settings, '\n')); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != embedded.ReadyLine+"\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	before, err := etcd.OpenSocket(t.Context(), filepath.Join(dir, embedded.SocketName), "embedded", etcd.Options{})
	if err != nil {
		t.Fatalf("after signals: %v", err)
	}
	put(t, before, "a", "1")
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	// Its owner is gone, and another one starts while it ends.
	in.Close()
	holds(t, open(t, start(t, config(t, dir))), "a", "1")
}

// What the server logs is in the log of its owner, at the level that it has there.
func TestLogs(t *testing.T) {
	t.Parallel()
	cfg := config(t, folder(t))
	cfg.Program = filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(cfg.Program, []byte(`#!/bin/sh
echo '{"level":"warn","ts":1,"msg":"slow disk","took":"2s","a":1}' >&2
echo '{"level":"error","ts":1,"msg":"bad disk"}' >&2
head -c 100000 /dev/zero | tr '\0' x >&2
echo >&2
exit 1
`), 0o700); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := embedded.Start(t.Context(), cfg); err == nil {
		t.Error("it started")
	}
	for _, want := range []string{
		`level=WARN msg="the embedded store logs" said="slow disk, a: 1, took: 2s"`, `level=ERROR msg="the embedded store logs" said="bad disk"`,
		strings.Repeat("x", 300) + "…",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The engine keeps the contract of the store on it.
func TestConformance(t *testing.T) {
	testlane.Nightly(t)
	storetest.Run(t, storetest.Engine{OutsideClock: true, New: func(t testing.TB, retain int) conformance.Database {
		cfg := config(t, folder(t))
		var p *embedded.Process
		open := func() (store.Store, error) {
			if p == nil {
				var err error
				if p, err = embedded.Start(context.Background(), cfg); err != nil {
					return nil, err
				}
			}
			return etcd.OpenSocket(context.Background(), p.Socket(), "embedded", etcd.Options{RetainCommits: retain,
				Log: slog.New(slog.DiscardHandler)})
		}
		end := func() (err error) {
			if p != nil {
				err, p = p.Close(), nil
			}
			return err
		}
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
		return conformance.Database{
			Shared: true, // by several handles of the coordinator
			Open:   open,
			Restart: func(s store.Store) (store.Store, error) {
				if err := errors.Join(s.Close(), end()); err != nil {
					return nil, err
				}
				return open()
			},
			Kill: func(s store.Store) (store.Store, error) {
				ends := p.Ends().Count
				if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
					return nil, err
				}
				wait.Until(t, "it serves again", func() bool { return p.Ends().Count > ends && p.Down() == "" })
				if err := s.Close(); err != nil {
					return nil, err
				}
				return open()
			},
		}
	}})
}
