// Package sdnotify tells systemd how a service is, by the protocol of sd_notify(3): datagrams of NAME=value lines to the socket
// that NOTIFY_SOCKET names. Without that variable nobody asked, and nothing is told.
//
// What is told is what a [Watch] of the process says when it is asked:
//
//	READY=1       once, when it serves
//	STATUS=…      the line that systemctl status shows, when it is another one
//	WATCHDOG=1    while it serves; a service that does not is ended and started again by systemd
//	RELOADING=1   when it begins to read its files again, with MONOTONIC_USEC, and READY=1 after it
//	STOPPING=1    when it was told to end
package sdnotify

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	longestPause = 2 * time.Second        // between two looks
	startPause   = 100 * time.Millisecond // the same, until the process serves: who waits for it waits no longer
	maxStatus    = 500                    // bytes of the line
	writeWithin  = time.Second
)

// Health is how a process is when it is looked at.
type Health struct {
	Serves bool   // it takes calls, and is not stuck
	Status string // one line for people; longer than 500 bytes it is cut
}

// A Watch looks at a process. One that hangs, as where a lock is not free, is no sign of life.
type Watch func() Health

// A Notifier tells systemd. A nil one tells nobody.
type Notifier struct {
	conn      *net.UnixConn
	pause     time.Duration // between two looks
	watched   bool          // systemd wants signs of life
	monotonic func() (time.Duration, error)

	mu     sync.Mutex
	watch  Watch  // guarded by mu
	ready  bool   // READY=1 was told; guarded by mu
	status string // that was told; guarded by mu
}

// Open reads what systemd asks for from the environment: NOTIFY_SOCKET, WATCHDOG_USEC, and WATCHDOG_PID, which is to be
// pid or missing. It returns nil where systemd asks for nothing.
func Open(getenv func(string) string, pid int) (*Notifier, error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET is %q, want the path of a unix socket", path)
	}
	n := &Notifier{pause: longestPause, monotonic: monotonic}
	if text := getenv("WATCHDOG_USEC"); text != "" && (getenv("WATCHDOG_PID") == "" || getenv("WATCHDOG_PID") == strconv.Itoa(pid)) {
		usec, err := strconv.ParseInt(text, 10, 64)
		if err != nil || usec < 1 || usec > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC is %q, want microseconds up to a day", text)
		}
		n.watched = true
		n.pause = min(longestPause, time.Duration(usec)*time.Microsecond/4)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("reach systemd: %w", err)
	}
	n.conn = conn
	return n, nil
}

// Watch has the process looked at by w from now on. Before, it is taken to be starting.
func (n *Notifier) Watch(w Watch) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watch = w
}

// Run looks at the process again and again and tells what it sees, until ctx ends, which it tells too. What systemd does
// not take is told at the next look.
func (n *Notifier) Run(ctx context.Context) {
	if n == nil {
		return
	}
	defer n.conn.Close()
	for {
		pause := n.pause
		if !n.look(ctx) {
			pause = min(pause, startPause)
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			again.Stop()
			_ = n.tell("STOPPING=1") // systemd sees the end of the process too
			return
		case <-again.C:
		}
	}
}

// look looks once, and reports whether systemd heard that the process serves. Where the process hangs it waits until ctx ends,
// and leaves the look behind then.
func (n *Notifier) look(ctx context.Context) (ready bool) {
	n.mu.Lock()
	w := n.watch
	n.mu.Unlock()
	if w == nil {
		return false
	}
	seen := make(chan Health, 1)
	go func() { seen <- w() }()
	var h Health
	select {
	case <-ctx.Done():
		return false
	case h = <-seen:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var lines []string
	if h.Serves && !n.ready {
		lines = append(lines, "READY=1")
	}
	status := line(h.Status)
	if status != n.status {
		lines = append(lines, "STATUS="+status)
	}
	if h.Serves && n.watched {
		lines = append(lines, "WATCHDOG=1")
	}
	if len(lines) > 0 && n.tell(lines...) == nil {
		n.ready, n.status = n.ready || h.Serves, status
	}
	return n.ready
}

// Reloading says that files are read again from now on, and returns what says that they were. systemd hears of neither
// before it heard that the process serves.
func (n *Notifier) Reloading() (done func()) {
	if n == nil {
		return func() {}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := n.monotonic()
	if !n.ready || err != nil || n.tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", at.Microseconds())) != nil {
		return func() {}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.tell("READY=1") != nil {
			n.ready = false // told by the next look
		}
	}
}

// tell sends lines as one datagram.
func (n *Notifier) tell(lines ...string) error {
	if err := n.conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	_, err := n.conn.Write([]byte(strings.Join(lines, "\n")))
	return err
}

// line returns text as one line that can be told.
func line(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > maxStatus {
		text = strings.ToValidUTF8(text[:maxStatus-len("…")], "") + "…"
	}
	return text
}
