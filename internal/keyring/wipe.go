package keyring

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"runtime"
	"slices"
)

// scalarOf returns a copy of the secret of key, for the caller to wipe. [ecdsa.PrivateKey.Bytes]
// returns the very bytes that the key signs with: to wipe those would have a signature
// that is under way be made with something else.
func scalarOf(key *ecdsa.PrivateKey) ([]byte, error) {
	shared, err := key.Bytes()
	return slices.Clone(shared), err
}

// WipeKey overwrites the secret of an ed25519.PrivateKey or *ecdsa.PrivateKey, as
// far as Go lets it: crypto/ecdsa may hold a copy in a form of its own. The key
// must not be used again. Other types, nil included, are left alone.
func WipeKey(key crypto.Signer) {
	switch key := key.(type) {
	case ed25519.PrivateKey:
		Wipe(key)
	case *ecdsa.PrivateKey:
		if key == nil {
			return
		}
		d := key.D //nolint:staticcheck // deprecated for those who would use the key after changing it
		if d == nil {
			return
		}
		words := d.Bits()
		clear(words)
		runtime.KeepAlive(words)
		d.SetInt64(0)
	case Signer:
		if key.key != nil {
			WipeKey(key.key())
		}
	}
}
