package delivery_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/delivery"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the delivery is alive waits while one of its locks is held.
func TestAlive(t *testing.T) {
	d := delivery.New(delivery.Config{})
	alivetest.Waits(t, "(*Delivery).Alive", d.Alive, d, "pulls.mu", "patches.mu")
}
