//go:build race

package sim_test

import "runtime"

// Two timers of a bubble that fire at once on two processors use the same state of the race
// detector, which then ends the process (https://go.dev/issue/78156). Time here is virtual, so a
// second processor shows nothing that one does not.
func init() { runtime.GOMAXPROCS(1) }
