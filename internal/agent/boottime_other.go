//go:build !linux

package agent

import (
	"crypto/rand"
	"time"
)

// systemElapsed counts from the start of the process where there is no better clock:
// what passes while the agent is down does not count.
func systemElapsed() Elapsed {
	boot, start := rand.Text(), time.Now()
	return func() (string, time.Duration) { return boot, time.Since(start) }
}
