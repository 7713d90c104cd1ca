package trustbundle // inside: it holds the locks of a trust bundle

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the trust bundle is alive waits while one of its locks is held.
func TestAlive(t *testing.T) {
	b := New(Config{})
	alivetest.Waits(t, "(*Current).Alive", b.Alive, &b.trustMu, &b.withdrawn.mu)
}
