package owner // inside: it holds the lock of the attempt, and looks at the limit in force

import (
	"testing"

	"github.com/fealty-io/fealty/test/alivetest"
)

// The streams of owners are bounded as the constant says, but where the config says otherwise.
func TestLimitInForce(t *testing.T) {
	for config, want := range map[int]int{0: MaxBringing, 7: 7} {
		if got := New(Config{MaxBringing: config}).recoveries.owners.Limits().Most; got != want {
			t.Errorf("with %d in the config %d streams are taken, want %d", config, got, want)
		}
	}
}

// Alive waits for the lock that calls of owners take.
func TestAlive(t *testing.T) {
	c := New(Config{})
	alivetest.Waits(t, "(*OwnerRecovery).Alive", c.Alive, c, "recoveries.mu")
}
