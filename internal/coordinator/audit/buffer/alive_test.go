package buffer_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/audit/buffer"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the queue is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	q := buffer.New(buffer.Config{})
	alivetest.Waits(t, "(*Queue).Alive", q.Alive, q, "mu")
}
