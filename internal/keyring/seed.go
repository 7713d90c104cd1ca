// Package keyring holds the secrets of a cluster: the seed, the keys that derive
// from it, and the keepers that can seal both for a restart.
//
// Promises:
//
//   - A derived key depends on nothing but seed, salt and purpose, for ever: a
//     changed derivation is another cluster. Golden vectors in the tests hold it.
//   - No secret shows in fmt, log/slog or JSON, also inside other structs. To
//     get at the bytes code must say so: [Seed.Reveal].
//   - A secret sealed for one place (cluster, purpose, owner, seed epoch, head of
//     the history) is refused at every other, by the name of what differs.
//
// Seeds, shares and the key that others derive from lie on locked pages, as far as
// the system lets us ([LockedMemory]).
//
// Wiping is best effort: [Wipe] overwrites the bytes it is given, and Go does not
// move them, but copies that the runtime and the crypto packages made along the
// way, private keys among them, stay in the heap until their memory is reused.
// [Harden] protects them: it forbids core dumps and tracing of the process.
package keyring

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
)

const (
	// SeedBytes is the length of a seed.
	SeedBytes = 32

	// SaltBytes is the length of a salt.
	SaltBytes = 32
)

// errHidden is what encoders of text get from a secret. A secret on its way into
// a document is a bug, and a placeholder there would hide it.
var errHidden = errors.New("keyring: refusing to encode a secret")

// Seed is the secret from which a cluster's stable keys derive. Copies share the
// same bytes, so that one Wipe reaches all of them. The zero Seed is none.
type Seed struct {
	secret hidden[*locked]
}

// hidden holds a secret where printing cannot follow. As a field of an unexported
// field its owner's Formatter is not asked, and a pointer is not enough there: fmt
// follows it for a verb that does not fit, such as %s. Of a function it knows the
// address only.
type hidden[T any] func() T

func hide[T any](secret T) hidden[T] { return func() T { return secret } }

// NewSeed makes a random seed.
func NewSeed() Seed {
	l := newLocked()
	rand.Read(l.b)
	return Seed{hide(l)}
}

// SeedFrom returns a seed with a copy of b, which must be [SeedBytes] long. All
// zeros are refused: that is a buffer nobody filled, or one that was wiped.
func SeedFrom(b []byte) (Seed, error) {
	if len(b) != SeedBytes {
		return Seed{}, fmt.Errorf("keyring: a seed has %d bytes, not %d", SeedBytes, len(b))
	}
	s := Seed{hide(lockedFrom(b))}
	if s.IsZero() {
		return Seed{}, errors.New("keyring: the seed is all zeros: it was wiped, or never read")
	}
	return s, nil
}

// Reveal returns a copy of the seed's bytes, to be sealed or split into shares.
// The caller wipes it. It is nil for the zero Seed.
func (s Seed) Reveal() []byte {
	if s.secret == nil {
		return nil
	}
	l := s.secret()
	defer runtime.KeepAlive(l)
	return bytes.Clone(l.b)
}

// IsZero reports whether s is no seed: the zero value, or wiped.
func (s Seed) IsZero() bool {
	return s.secret == nil || s.secret().isZero()
}

// Equal reports whether s and o have the same bytes, in constant time. A zero
// Seed equals nothing.
func (s Seed) Equal(o Seed) bool {
	if s.IsZero() || o.IsZero() {
		return false
	}
	return s.secret().equal(o.secret())
}

// Wipe overwrites the seed in all copies of s. Nobody may be using them.
func (s Seed) Wipe() {
	if s.secret != nil {
		s.secret().wipe()
	}
}

// Format implements [fmt.Formatter] for every verb without showing the seed.
func (s Seed) Format(f fmt.State, _ rune) { fmt.Fprint(f, "keyring.Seed(hidden)") }

// LogValue implements [slog.LogValuer] without showing the seed.
func (s Seed) LogValue() slog.Value { return slog.StringValue("keyring.Seed(hidden)") }

// MarshalText always fails, and with it JSON and every other text encoding.
func (s Seed) MarshalText() ([]byte, error) { return nil, errHidden }

// NewSalt makes a random salt. It is public, new for every seed, and stands in
// the transition that introduces the seed.
func NewSalt() []byte {
	salt := make([]byte, SaltBytes)
	rand.Read(salt)
	return salt
}

// Wipe overwrites b with zeros.
func Wipe(b []byte) {
	clear(b)
	// Without a use after it the compiler may leave out the clear.
	runtime.KeepAlive(b)
}
