package mesh

import (
	"crypto/tls"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/meshdoor"
)

// pinned knows a server by something else than an identity; see package internal/pinned.
type pinned interface {
	ClientTLS(now func() time.Time, opts credential.ClientOptions) (*tls.Config, error)
	String() string
}

// pinMismatch is an error of a handshake with another server than the pinned one.
type pinMismatch interface {
	error
	PinMismatch()
}

// Joining needs more than what is public, and nobody else does; see package meshdoor.
func init() {
	meshdoor.DialPinned = func(target string, pin any, opts Options) *Conn {
		c := newConn(target, opts)
		c.pin = pin.(pinned)
		c.start()
		return c
	}
}
