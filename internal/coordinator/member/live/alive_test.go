package live_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the members are alive waits while their lock is held.
func TestAlive(t *testing.T) {
	l := live.New(nil)
	alivetest.Waits(t, "(*Members).Alive", l.Alive, l, "mu")
}
