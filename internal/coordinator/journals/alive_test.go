package journals // inside: it holds the lock of the ends that are remembered

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether journals are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	j := New(Config{})
	alivetest.Waits(t, "(*Journals).Alive", j.Alive, &j.mu)
}
