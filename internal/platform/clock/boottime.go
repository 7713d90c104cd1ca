package clock

import "time"

// BootClock returns which start of the machine this is, and the time since it, suspend included.
// A blank start means that there is no such clock here.
type BootClock func() (start string, elapsed time.Duration)
