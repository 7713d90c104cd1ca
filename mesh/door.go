package mesh

import "github.com/fealty-io/fealty/internal/meshdoor"

// Joining needs more than what is public, and nobody else does. See package meshdoor.
func init() {
	meshdoor.DialPinned = func(target string, pin any, opts Options) *Conn {
		c := newConn(target, opts)
		c.pin = pin.(pinned)
		c.start()
		return c
	}
}
