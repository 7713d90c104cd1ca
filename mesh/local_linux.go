package mesh

import (
	"github.com/fealty-io/fealty/identity"
	"golang.org/x/sys/unix"
)

// peerCredentials are those of the process that opened or listened on the other
// end, at that moment (unix(7), SO_PEERCRED).
func peerCredentials(fd int) (identity.Local, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return identity.Local{}, err
	}
	return identity.Local{UID: c.Uid, GID: c.Gid, PID: c.Pid}, nil
}
