// Package mesh limits what clients of a server cost before they proved who they are: handshakes,
// connections and HTTP/2 frames.
//
// A [RateLimiter] limits expensive requests for each source network. A [FairQueue] limits how many
// computations run at once and shares the limit fairly among networks. A [Limiter] has a bounded
// number of slots, and when it is full one client in it gives way to a newcomer. A [FrameCounter]
// counts what a client sends over HTTP/2 as it is read.
//
// All that is remembered of clients is bounded. Public package mesh puts the parts together.
package mesh

import (
	"net/netip"
	"time"
)

// HandshakeTimeout bounds a handshake where nothing else is said.
const HandshakeTimeout = 10 * time.Second

// GateConfig bounds what clients cost before they proved who they are. Where there is no
// room for one more, one of the network with the most connections gives way: an IPv4 /24
// or an IPv6 /48.
type GateConfig struct {
	// MaxSockets bounds the connections whose first message is not whole; it is at most
	// a quarter of the files that the process may have open. MaxHellos bounds those
	// that wait for their handshake to begin, and MaxHandshakes the handshakes under
	// way. Zero means 1,024, 1,024 and 256.
	MaxSockets, MaxHellos, MaxHandshakes int

	// HandshakeRate is the handshakes per second that clients of one network begin, and
	// HandshakeBurst how many at once. Zero means 500 and
	// 1,000.
	HandshakeRate, HandshakeBurst int

	// MaxStrangers bounds the connections that stand without a verified client
	// certificate. Zero means 256.
	MaxStrangers int

	// StrangerBytes bounds the headers and data of calls that one of them sends while a
	// call of it is open, and AllStrangersBytes those of all of them. Zero means
	// 96 KiB and 8 MiB.
	StrangerBytes, AllStrangersBytes int64

	// Proxies are who has to say, by version 2 of the PROXY protocol, for whom it opens
	// a connection. From everybody else that is an error of the protocol.
	Proxies []netip.Prefix
}
