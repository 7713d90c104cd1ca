// Package boottime measures time since the machine started, by a clock that nobody sets.
package boottime

import "time"

// Clock returns which start of the machine this is, and the time since it, suspend included.
// A blank start means that there is no such clock here.
type Clock func() (start string, elapsed time.Duration)
