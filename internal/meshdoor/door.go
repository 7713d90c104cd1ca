// Package meshdoor is how internal/pinned reaches what package mesh keeps for itself.
//
// A client that knows a server by a key is a client like any other; but who joins, or recovers a seed, is this module
// alone. So mesh sets this function when a program starts, and pinned, which knows its type, calls it.
package meshdoor

// DialPinned is declared in package pinned.
var DialPinned any
