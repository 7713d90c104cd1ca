package sdnotify_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/sdnotify"
)

// manager is systemd's end: a real socket of datagrams.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	env  map[string]string
}

func listen(t *testing.T) *manager {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("systemd is on Linux")
	}
	dir, err := os.MkdirTemp("", "sd") // short, because a unix socket's path is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn, map[string]string{"NOTIFY_SOCKET": path}}
}

// next returns the lines of the next datagram.
func (m *manager) next() []string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(string(buf[:n]), "\n")
}

// until reads until a datagram has a line, and returns all lines up to it.
func (m *manager) until(line string) (seen []string) {
	m.t.Helper()
	for {
		lines := m.next()
		seen = append(seen, lines...)
		if has(lines, line) {
			return seen
		}
	}
}

func has(lines []string, line string) bool {
	for _, l := range lines {
		if l == line {
			return true
		}
	}
	return false
}

// open opens the notifier of a process.
func (m *manager) open() *sdnotify.Notifier {
	m.t.Helper()
	n, err := sdnotify.Open(func(name string) string { return m.env[name] }, 42)
	if err != nil || n == nil {
		m.t.Fatal(n, err)
	}
	return n
}

// run runs a notifier until the function that it returns is called.
func run(n *sdnotify.Notifier) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { n.Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

// A service is ready once it serves and not before, has signs of life only while it serves, and says that it stops.
func TestLife(t *testing.T) {
	t.Parallel()
	m := listen(t)
	m.env["WATCHDOG_USEC"], m.env["WATCHDOG_PID"] = "40000", "42"
	n := m.open()
	end := run(n)
	var serves atomic.Bool
	var looks atomic.Int64
	n.Watch(func() sdnotify.Health {
		return sdnotify.Health{Serves: serves.Load(), Status: "look " + strconv.FormatInt(looks.Add(1), 10)}
	})
	for _, line := range m.until("STATUS=look 4") {
		if !strings.HasPrefix(line, "STATUS=look ") {
			t.Errorf("before it serves it told %q", line)
		}
	}
	serves.Store(true)
	m.until("READY=1")
	for range 3 { // it goes on, and is ready once
		for _, line := range m.until("WATCHDOG=1") {
			if line == "READY=1" {
				t.Error("it was ready twice")
			}
		}
	}
	serves.Store(false)
	last := looks.Load()
	m.until("STATUS=look " + strconv.FormatInt(last+1, 10)) // a look that was under way may have seen the state of before
	for _, line := range m.until("STATUS=look " + strconv.FormatInt(last+5, 10)) {
		if line == "WATCHDOG=1" {
			t.Error("it has a sign of life while it does not serve")
		}
	}
	end()
	m.until("STOPPING=1")
}

// A process that hangs has no sign of life, and can be told to end.
func TestHangs(t *testing.T) {
	t.Parallel()
	m := listen(t)
	m.env["WATCHDOG_USEC"] = "40000"
	n := m.open()
	release := make(chan struct{})
	defer close(release)
	hangs, looked := make(chan struct{}), 0
	n.Watch(func() sdnotify.Health {
		if looked++; looked == 3 {
			close(hangs)
			<-release
		}
		return sdnotify.Health{Serves: true}
	})
	end := run(n)
	<-hangs
	end()
	alive := 0
	for _, line := range m.until("STOPPING=1") {
		if line == "WATCHDOG=1" {
			alive++
		}
	}
	if alive != 2 {
		t.Errorf("%d signs of life of a process that hung at the third look", alive)
	}
}

// Reading again begins and ends with a word, at a time that systemd can compare. Before a service is ready systemd hears of none.
func TestReloads(t *testing.T) {
	t.Parallel()
	m := listen(t)
	n := m.open()
	n.Reloading()()
	n.Watch(func() sdnotify.Health { return sdnotify.Health{Serves: true, Status: "serves\nREADY=1"} })
	end := run(n)
	if seen := m.until("READY=1"); has(seen, "RELOADING=1") || !has(seen, "STATUS=serves READY=1") {
		t.Errorf("it told %q", seen)
	}
	var before int64
	for range 2 {
		done := n.Reloading()
		lines := m.next()
		if len(lines) != 2 || lines[0] != "RELOADING=1" {
			t.Fatalf("it told %q, want RELOADING=1 and a time", lines)
		}
		at, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "MONOTONIC_USEC="), 10, 64)
		if err != nil || at <= before {
			t.Errorf("it told %q after %d", lines[1], before)
		}
		before = at
		done()
		if lines := m.next(); len(lines) != 1 || lines[0] != "READY=1" {
			t.Errorf("it told %q, want READY=1", lines)
		}
	}
	end()
}

// Nobody is told where nobody asked, and what cannot be understood is refused.
func TestOpen(t *testing.T) {
	t.Parallel()
	m := listen(t)
	socket := m.env["NOTIFY_SOCKET"]
	n, err := sdnotify.Open(func(string) string { return "" }, 42)
	if n != nil || err != nil {
		t.Fatal(n, err)
	}
	n.Watch(func() sdnotify.Health { return sdnotify.Health{} }) // a nil one takes every call
	n.Run(t.Context())
	n.Reloading()()
	for name, env := range map[string]map[string]string{
		"no path":       {"NOTIFY_SOCKET": "x"},
		"no socket":     {"NOTIFY_SOCKET": socket + "x"},
		"no number":     {"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "1s"},
		"not above 0":   {"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "0"},
		"more than any": {"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "9223372036854775807"},
	} {
		if n, err := sdnotify.Open(func(name string) string { return env[name] }, 42); err == nil {
			t.Errorf("%s: %v, want an error", name, n)
		}
	}
}

// A watchdog that is for another process is not fed.
func TestWatchdogOfAnother(t *testing.T) {
	t.Parallel()
	m := listen(t)
	m.env["WATCHDOG_USEC"], m.env["WATCHDOG_PID"] = "40000", "43"
	n := m.open()
	n.Watch(func() sdnotify.Health { return sdnotify.Health{Serves: true} })
	end := run(n)
	seen := m.until("READY=1")
	end()
	for _, line := range append(seen, m.until("STOPPING=1")...) {
		if line == "WATCHDOG=1" {
			t.Error("it fed the watchdog of another process")
		}
	}
}
