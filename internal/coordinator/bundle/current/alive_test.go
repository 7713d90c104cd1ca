package current_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the trust bundle is alive waits while one of its locks is held.
func TestAlive(t *testing.T) {
	b := current.New(current.Config{})
	alivetest.Waits(t, "(*Current).Alive", b.Alive, b, "trustMu", "withdrawn.mu")
}
