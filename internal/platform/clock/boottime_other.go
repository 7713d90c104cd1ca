//go:build !linux

package clock

import (
	"crypto/rand"
	"time"
)

// SystemBootClock counts from the start of the process where there is no better clock: each process is
// as a start of the machine, so that what passes while none runs is not known.
func SystemBootClock() BootClock {
	boot, start := rand.Text(), time.Now()
	return func() (string, time.Duration) { return boot, time.Since(start) }
}
