// Package meshdoor is how internal/pinned reaches what package mesh keeps for itself.
//
// A client that knows a server by a key is a client like any other, and a gate asks the guard behind it; but who joins,
// who recovers a seed and who bounds strangers so is this module alone. So mesh sets these functions when a program
// starts, and those packages, which know their types, call them.
package meshdoor

// DialPinned is as its caller declares it.
var DialPinned any
