package roster // inside: it holds the lock of a roster

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the roster is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	x := New()
	alivetest.Waits(t, "(*Roster).Alive", x.Alive, &x.mu)
}
