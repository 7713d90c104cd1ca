package delivery // inside: it holds the locks of pulls and patches

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the delivery is alive waits while one of its locks is held.
func TestAlive(t *testing.T) {
	d := New(Config{})
	alivetest.Waits(t, "(*Delivery).Alive", d.Alive, &d.pulls.mu, &d.patches.mu)
}
