package status_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/peer/status"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the other coordinators are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	p := status.New(status.Config{})
	alivetest.Waits(t, "(*Peers).Alive", p.Alive, p, "mu")
}
