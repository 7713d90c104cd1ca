// Package mesh limits what clients of a server cost before they proved who they are: handshakes,
// connections and HTTP/2 frames.
//
// A [RateLimiter] limits expensive requests, such as handshakes, for each source network. A [FairQueue] limits how many
// computations run at once and shares the limit fairly among networks. A [Limiter] has a bounded
// number of slots, and when it is full one client in it gives way to a newcomer. A [FrameCounter]
// counts what a client sends over HTTP/2 as it is read.
//
// All that is remembered of clients is bounded. [mesh.Gate] of the public package puts the parts together.
// What a client may ask once it is connected is bounded by package internal/platform/ratelimit.
package mesh

import "time"

// HandshakeTimeout bounds a handshake where nothing else is said.
const HandshakeTimeout = 10 * time.Second
