package live // inside: it holds the lock of the members

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the members are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	l := New(nil)
	alivetest.Waits(t, "(*Members).Alive", l.Alive, &l.mu)
}
