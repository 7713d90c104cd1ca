package keyring_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"testing"

	"github.com/fealty-io/fealty/internal/keyring"
)

// A mesh CA key goes on signing while it is handed over: what is wiped after that is a
// copy. crypto/ecdsa gives away the very bytes that it signs with.
func TestHandOverLeavesTheKeyInUse(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	inUse, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(inUse)
	to, err := keyring.NewEphemeral()
	if err != nil {
		t.Fatal(err)
	}
	h := keyring.Handover{Purpose: "recover", Cluster: "c", From: "f", To: "t", Head: [32]byte{1}}
	if _, err := keyring.HandOver(to.Public(), h, keyring.Handed{Seed: keyring.NewSeed(), Mesh: key}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(inUse, want) {
		t.Error("the key in use was overwritten")
	}
}
