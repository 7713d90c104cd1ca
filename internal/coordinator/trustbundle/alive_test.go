package trustbundle_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
	"github.com/fealty-io/fealty/internal/coordinator/trustbundle"
)

// The question whether the trust bundle is alive waits while one of its locks is held.
func TestAlive(t *testing.T) {
	b := trustbundle.New(trustbundle.Config{})
	alivetest.Waits(t, "(*Current).Alive", b.Alive, b, "trustMu", "withdrawn.mu")
}
