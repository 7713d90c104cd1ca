package peers_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
	"github.com/fealty-io/fealty/internal/coordinator/peers"
)

// The question whether the other coordinators are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	p := peers.New(peers.Config{})
	alivetest.Waits(t, "(*Peers).Alive", p.Alive, p, "mu")
}
