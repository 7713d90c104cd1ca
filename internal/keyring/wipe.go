package keyring

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"runtime"
)

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
		//lint:ignore SA1019 The field is deprecated for those who would use the key after changing it.
		d := key.D
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
