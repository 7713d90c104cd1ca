package keychain_test

import (
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/test/alivetest"
)

// The question whether the keychain is alive waits while its lock is held.
func TestAlive(t *testing.T) {
	var k keychain.Keychain
	alivetest.Waits(t, "(*Keychain).Alive", k.Alive, &k, "mu")
}
