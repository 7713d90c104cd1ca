package identity

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// KeyID names a public key: the SHA-256 of its SubjectPublicKeyInfo in DER (RFC 5280
// §4.1.2.7). The zero KeyID names no key.
type KeyID [sha256.Size]byte

// KeyOf returns the id of c's public key as it was signed. c must come from a parser;
// for anything else, nil included, the result is the zero KeyID.
func KeyOf(c *x509.Certificate) KeyID {
	if c == nil || len(c.RawSubjectPublicKeyInfo) == 0 {
		return KeyID{}
	}
	return sha256.Sum256(c.RawSubjectPublicKeyInfo)
}

// KeyOfPublic returns the id of pub, which is equal to that of a certificate for it.
// It fails for types that crypto/x509 cannot encode.
func KeyOfPublic(pub crypto.PublicKey) (KeyID, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return KeyID{}, fmt.Errorf("identity: naming a key of type %T: %w", pub, err)
	}
	return sha256.Sum256(der), nil
}

// ParseKeyID reads what [KeyID.String] prints: 64 lowercase hexadecimal digits.
func ParseKeyID(s string) (KeyID, error) {
	var k KeyID
	raw, err := hex.DecodeString(s)
	// Uppercase is refused so that one key has one name wherever texts are compared.
	if err != nil || len(raw) != len(k) || hex.EncodeToString(raw) != s {
		return KeyID{}, fmt.Errorf("invalid key id %s: want the SHA-256 of a public key as %d lowercase hexadecimal digits", identity.Clip(s), 2*len(k))
	}
	copy(k[:], raw)
	return k, nil
}

// String returns the id as 64 lowercase hexadecimal digits.
func (k KeyID) String() string { return hex.EncodeToString(k[:]) }

// IsZero reports whether k names no key.
func (k KeyID) IsZero() bool { return k == KeyID{} }

// Compare orders key ids bytewise.
func (k KeyID) Compare(other KeyID) int { return bytes.Compare(k[:], other[:]) }

// MarshalText returns what String does.
func (k KeyID) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what String prints, and nothing else; on an error k keeps its value.
func (k *KeyID) UnmarshalText(text []byte) error {
	parsed, err := ParseKeyID(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}
