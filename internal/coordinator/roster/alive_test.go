package roster_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
	"github.com/fealty-io/fealty/internal/coordinator/roster"
)

// The question whether the roster is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	x := roster.New()
	alivetest.Waits(t, "(*Roster).Alive", x.Alive, x, "mu")
}
