package auditing // inside: it holds the lock of a queue

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the queue is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	q := New(Config{})
	alivetest.Waits(t, "(*Queue).Alive", q.Alive, &q.mu)
}
