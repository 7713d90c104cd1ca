// Package localsocket listens on unix sockets that the own user alone can open, and says who that is.
package localsocket

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/fealty-io/fealty/identity"
)

// Listen listens on the unix socket at path, which only the own user can
// open. A socket that a dead process left there is removed: that nobody lives
// behind it is the caller's to know, by a lock. A file that is no socket stays, and
// is an error.
func Listen(path string) (net.Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("local socket: look for an old one: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("local socket: %s is in its way, and is no socket: move it, or name another path", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("local socket: remove the old one: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("local socket: listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("local socket: keep others away from it: %w", err)
	}
	return l, nil
}

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
