package auditing_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
	"github.com/fealty-io/fealty/internal/coordinator/auditing"
)

// The question whether the queue is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	q := auditing.New(auditing.Config{})
	alivetest.Waits(t, "(*Queue).Alive", q.Alive, q, "mu")
}
