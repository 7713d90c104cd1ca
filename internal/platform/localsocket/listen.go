// Package localsocket listens on unix sockets that only the user of the process can open, and
// checks the user at the other end.
package localsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/platform/durable"
)

// LockSuffix is what the name of the file has behind that of its socket by which a process says that it serves there.
// The file stays: who removed it would let in two.
const LockSuffix = ".lock"

const (
	lookEvery  = 2 * time.Second // for whether the path still leads here
	answerTime = time.Second     // that somebody behind a path has to answer
)

// ErrInUse matches an [*InUseError].
var ErrInUse = errors.New("local socket: in use")

// InUseError says that somebody else serves at a path.
type InUseError struct {
	Path string
	PID  int // 0: unknown
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("local socket: %s serves at %s: end it, or name another path", who, e.Path)
}

// Is reports that it matches [ErrInUse].
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// A Listener listens at a path of the file system, and takes it back when somebody removed it, or it leads to
// a process that is gone. Make it with [Listen].
type Listener struct {
	path string
	mode fs.FileMode
	log  *slog.Logger
	lock io.Closer

	mu     sync.Mutex
	inner  *net.UnixListener // guarded by mu
	own    fs.FileInfo       // of the socket; guarded by mu
	lost   error             // why the path does not lead here; nil: it does; guarded by mu
	closed bool              // guarded by mu
}

// Listen listens on the unix socket at path, which gets mode, and which nobody could open by another one before. A
// socket that a dead process left there is removed. What somebody serves stays: the error is an [*InUseError].
// So does a file that is no socket.
//
// Two processes of Fealty exclude each other by a lock on the file beside the socket, see [LockSuffix], and anybody else is
// noticed by that it answers. The lock is among locks. log nil: nothing is logged.
func Listen(path string, mode fs.FileMode, locks *durable.Locks, log *slog.Logger) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lock, err := locks.OS().Lock(path + LockSuffix)
	if locked, ok := errors.AsType[*durable.LockedError](err); ok {
		return nil, &InUseError{Path: path, PID: locked.PID}
	}
	if err != nil {
		return nil, fmt.Errorf("local socket: lock %s: %w", path, err)
	}
	l := &Listener{path: path, mode: mode, log: log, lock: lock}
	if err := l.bind(); err != nil {
		lock.Close()
		return nil, err
	}
	return l, nil
}

// bind listens at the path, in place of where it listened before. The caller has mu, or l to itself.
func (l *Listener) bind() error {
	switch info, err := os.Lstat(l.path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("local socket: look for an old one: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("local socket: %s is in its way, and is no socket: move it, or name another path", l.path)
	case answers(l.path):
		return &InUseError{Path: l.path}
	default:
		if err := os.Remove(l.path); err != nil {
			return fmt.Errorf("local socket: remove the old one: %w", err)
		}
	}
	inner, err := bindAt(l.path, l.mode)
	if errors.Is(err, syscall.EADDRINUSE) {
		return &InUseError{Path: l.path} // it came just now
	}
	if err != nil {
		return fmt.Errorf("local socket: listen: %w", err)
	}
	// A umask may have taken bits away, and other systems than Linux know the mode only now.
	if err := os.Chmod(l.path, l.mode); err != nil {
		inner.Close()
		return fmt.Errorf("local socket: keep others away from it: %w", err)
	}
	own, err := os.Lstat(l.path)
	if err != nil {
		inner.Close()
		return fmt.Errorf("local socket: look at it: %w", err)
	}
	if l.inner != nil {
		l.inner.Close()
	}
	l.inner, l.own = inner, own
	return nil
}

// bindAt binds a socket that has mode, less the umask, from its beginning. It does not remove it when it is closed:
// by then the path may lead to somebody else.
func bindAt(path string, mode fs.FileMode) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(c.Control(func(fd uintptr) { setMode(int(fd), mode) }))
	}}
	any, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	inner := any.(*net.UnixListener)
	inner.SetUnlinkOnClose(false)
	return inner, nil
}

// answers reports whether somebody lives behind the socket at path. Who cannot be asked, since it is another user's, does.
func answers(path string) bool {
	c, err := net.DialTimeout("unix", path, answerTime)
	if err == nil {
		c.Close()
		return true
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// Accept returns the next connection. While none comes, it looks every two seconds for whether the path leads here.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		inner, closed := l.inner, l.closed
		if !closed {
			_ = inner.SetDeadline(time.Now().Add(lookEvery)) // it fails with the listener, and then Accept says so
		}
		l.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		c, err := inner.Accept()
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		l.look()
	}
}

// look takes the path back if it leads to nobody.
func (l *Listener) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	before := l.lost
	l.lost = nil
	if !l.here() {
		if err := l.bind(); err != nil {
			l.lost = err
		} else {
			l.log.LogAttrs(context.Background(), slog.LevelWarn, "a local socket was gone, and is served again",
				slog.String("socket", l.path))
			return
		}
	}
	if l.lost != nil && before == nil {
		l.log.LogAttrs(context.Background(), slog.LevelError, "a local socket leads elsewhere: nobody reaches this process by it",
			slog.String("socket", l.path), slog.String("reason", l.lost.Error()))
	}
}

// here reports whether the path leads to l. The caller has mu. The number of a socket's file is given to no other
// file while the socket is open.
func (l *Listener) here() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.own)
}

// Lost says why the path does not lead here, or nil. It is as of the last look.
func (l *Listener) Lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Close ends the listener, and removes the socket unless the path leads to another one.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	var gone error
	if l.here() {
		gone = os.Remove(l.path) // while it is open and locked: whoever comes next finds nothing of ours
	}
	return errors.Join(l.inner.Close(), gone, l.lock.Close())
}

// Addr is the path.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// CheckPath reports whether path fits into a unix socket's address, which is shorter than other paths may be.
func CheckPath(path string) error {
	if path == "" {
		return errors.New("local socket: its path is blank")
	}
	if len(path) > maxPath {
		return fmt.Errorf("local socket: its path %s has %d bytes, at most %d are possible: use a shorter directory",
			path, len(path), maxPath)
	}
	return nil
}

// OwnUser lets in the processes of our own user and of root: enough for a
// process that reaches itself and for its admin surface.
func OwnUser(l identity.Local) bool { return l.UID == 0 || int64(l.UID) == int64(os.Geteuid()) }
