package proof

import (
	"crypto/ed25519"
	"crypto/sha512"
	"testing"
)

func TestReplicaSignature(t *testing.T) {
	key := newEd25519(t)
	pub := key.Public().(ed25519.PublicKey)
	record := []byte(`{"key":"ed25519:x"}`)
	sig := SignReplica(key, record)
	if !VerifyReplica(pub, record, sig) {
		t.Fatal("its own signature is refused")
	}
	plain := sha512.Sum512(record)
	for name, accepted := range map[string]bool{
		"another record":        VerifyReplica(pub, append(record, ' '), sig),
		"another key":           VerifyReplica(newEd25519(t).Public().(ed25519.PublicKey), record, sig),
		"no key":                VerifyReplica(nil, record, sig),
		"no signature":          VerifyReplica(pub, record, nil),
		"a signature and more":  VerifyReplica(pub, record, append(sig, 0)),
		"one without its label": VerifyReplica(pub, record, ed25519.Sign(key, record)),
		"one over a bare hash":  VerifyReplica(pub, record, ed25519.Sign(key, plain[:])),
	} {
		if accepted {
			t.Errorf("%s is accepted", name)
		}
	}
}
