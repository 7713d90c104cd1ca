package keychain // inside: it holds the lock of the keys

import (
	"testing"

	"github.com/fealty-io/fealty/internal/alivetest"
)

// The question whether the keychain is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	var k Keychain
	alivetest.Waits(t, "(*Keychain).Alive", k.Alive, &k.mu)
}
