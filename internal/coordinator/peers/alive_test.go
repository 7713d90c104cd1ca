package peers // inside: it holds the lock of what the others said

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the other coordinators are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	p := New(Config{})
	alivetest.Waits(t, "(*Peers).Alive", p.Alive, &p.mu)
}
