package manifest

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// A Key is an Ed25519 public key (RFC 8032), of a signer or of an entry. The
// zero Key is no key.
type Key [ed25519.PublicKeySize]byte

// ErrBadKey is matched by every error of [ParseKey] and [NewKey].
var ErrBadKey = errors.New("bad key")

const keyPrefix = "ed25519:"

// NewKey returns public as a Key. It refuses another length, and the points of
// small order, under which anyone can sign.
func NewKey(public ed25519.PublicKey) (Key, error) {
	if len(public) != ed25519.PublicKeySize {
		return Key{}, fmt.Errorf("%w: %d bytes, an Ed25519 public key has %d", ErrBadKey, len(public),
			ed25519.PublicKeySize)
	}
	k := Key(public)
	if k.smallOrder() {
		return Key{}, fmt.Errorf("%w: a point of small order, under which anyone can sign; make a new key pair",
			ErrBadKey)
	}
	return k, nil
}

// ParseKey reads the form that [Key.String] prints, ed25519:<standard base64,
// padded>, or ed25519:<64 hex digits>.
func ParseKey(s string) (Key, error) {
	text, ok := strings.CutPrefix(s, keyPrefix)
	if !ok {
		return Key{}, fmt.Errorf("%w: it does not begin with %s", ErrBadKey, keyPrefix)
	}
	var raw []byte
	var err error
	if len(text) == hex.EncodedLen(ed25519.PublicKeySize) {
		raw, err = hex.DecodeString(text)
	} else if strings.ContainsAny(text, "\r\n") { // which the decoder would skip
		err = errors.New("a line break inside")
	} else {
		raw, err = base64.StdEncoding.Strict().DecodeString(text)
	}
	if err != nil {
		return Key{}, fmt.Errorf("%w: neither 64 hex digits nor padded base64: %v", ErrBadKey, err)
	}
	return NewKey(raw)
}

// String returns ed25519:<standard base64, padded>, the one canonical form.
func (k Key) String() string { return keyPrefix + base64.StdEncoding.EncodeToString(k[:]) }

// Public returns a copy of the key for crypto/ed25519.
func (k Key) Public() ed25519.PublicKey { return ed25519.PublicKey(k[:]) }

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k == Key{} }

// MarshalText returns the text of [Key.String].
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what [ParseKey] reads.
func (k *Key) UnmarshalText(text []byte) error {
	parsed, err := ParseKey(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}

// smallOrder reports whether the point that k encodes has order 1, 2, 4 or 8:
// crypto/ed25519 takes such a key, and for it a signature can be made without
// any private key. The encodings, the sign bit aside, are those of the eight
// torsion points of edwards25519 and their non-canonical forms (RFC 8032 §5.1;
// the same list as libsodium's ge25519_has_small_order).
func (k Key) smallOrder() bool {
	k[31] &= 0x7f
	for _, s := range [...]string{
		"0000000000000000000000000000000000000000000000000000000000000000", // order 4
		"0100000000000000000000000000000000000000000000000000000000000000", // order 1
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05", // order 8
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a", // order 8
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p-1: order 2
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p: order 4
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f", // p+1: order 1
	} {
		if hex.EncodeToString(k[:]) == s {
			return true
		}
	}
	return false
}
