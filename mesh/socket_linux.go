package mesh

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long what was sent may stay unacknowledged, as gRPC sets it on the
// connections that it makes itself.
const userTimeout = 10 * time.Second

// keepAlive has the system end a TCP connection whose other end is gone.
func keepAlive(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	// Without it gRPC finds out too, by its own questions.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond))
	})
}
