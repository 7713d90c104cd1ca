// Package meshform has the bounds of connections that more than package mesh keeps to.
package meshform

import "time"

// HandshakeTimeout bounds a handshake where nothing else is said.
const HandshakeTimeout = 10 * time.Second
