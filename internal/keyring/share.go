package keyring

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
)

const (
	// MaxShares is how many shares a seed can be split into: their indexes are the
	// elements of GF(2^8) but 0, where the seed itself stands.
	MaxShares = 255

	// ShareSetBytes is the length of the id of a set of shares.
	ShareSetBytes = 16
)

var (
	// ErrTooFewShares is matched when shares are fewer than the threshold.
	ErrTooFewShares = errors.New("too few shares of the seed")

	// ErrDuplicateShare is matched when two shares have one index.
	ErrDuplicateShare = errors.New("one share of the seed is given twice")

	// ErrMixedShares is matched when shares come from different splits: the seed,
	// its owners or their threshold changed in between.
	ErrMixedShares = errors.New("shares of the seed belong to different sets")

	// ErrInconsistentShares is matched when there are more shares than the
	// threshold, and they do not agree on a seed. Which one is bad, its commitment
	// tells.
	ErrInconsistentShares = errors.New("shares of the seed contradict one another")

	// ErrNoShare is matched when something is asked of a zero or wiped Share.
	ErrNoShare = errors.New("no share of the seed: it was never set, or it was wiped")
)

// Share is one owner's share of a seed. Copies share the same bytes, so that one
// Wipe reaches all of them. The zero Share is none.
//
// Index and set are public; the value is hidden like a [Seed]. With a threshold of
// 1 the value is the seed.
type Share struct {
	held hidden[*heldShare]
}

type heldShare struct {
	index byte
	set   [ShareSetBytes]byte
	value *locked
}

// Split makes n shares of seed, of which any threshold bring it back, and fewer
// say nothing of it (Shamir 1979, in GF(2^8) for each byte). They have the indexes
// 1 to n, and the id of one new random set.
//
// Errors match [ErrNoSeed], or name the numbers: want 1 <= threshold <= n <= [MaxShares].
func Split(seed Seed, threshold, n int) ([]Share, error) {
	if seed.IsZero() {
		return nil, fmt.Errorf("keyring: splitting the seed: %w", ErrNoSeed)
	}
	if threshold < 1 || threshold > n || n > MaxShares {
		return nil, fmt.Errorf("keyring: splitting the seed into %d shares with threshold %d: want 1 <= threshold <= shares <= %d", n, threshold, MaxShares)
	}
	// coefficients[d] are those of x^d, one for each byte of the seed. All but the
	// seed are uniform, 0 included: another choice would tell something.
	coefficients := make([][SeedBytes]byte, threshold)
	defer func() {
		for d := range coefficients {
			Wipe(coefficients[d][:])
		}
	}()
	l := seed.secret()
	copy(coefficients[0][:], l.b)
	runtime.KeepAlive(l)
	for d := 1; d < threshold; d++ {
		rand.Read(coefficients[d][:])
	}
	return evaluate(coefficients, n), nil
}

// evaluate returns the values of the polynomials at 1 to n.
func evaluate(coefficients [][SeedBytes]byte, n int) []Share {
	var set [ShareSetBytes]byte
	rand.Read(set[:])
	shares := make([]Share, n)
	for i := range shares {
		h := &heldShare{byte(i + 1), set, newLocked()}
		y := h.value.b
		for d := len(coefficients) - 1; d >= 0; d-- {
			for b := range y {
				y[b] = gfMul(y[b], h.index) ^ coefficients[d][b]
			}
		}
		shares[i] = Share{hide(h)}
	}
	return shares
}

// Combine brings back the seed from at least threshold shares of one set. Shares
// beyond the threshold must agree with the others.
//
// A wrong share among exactly threshold gives another seed without an error:
// compare each with its commitment first.
//
// Errors match [ErrTooFewShares], [ErrDuplicateShare], [ErrMixedShares],
// [ErrInconsistentShares] or [ErrNoShare].
func Combine(threshold int, shares []Share) (Seed, error) {
	if threshold < 1 || threshold > MaxShares {
		return Seed{}, fmt.Errorf("keyring: combining shares with threshold %d: want 1 to %d", threshold, MaxShares)
	}
	if len(shares) < threshold {
		return Seed{}, fmt.Errorf("keyring: %d of the %d shares that are needed: %w", len(shares), threshold, ErrTooFewShares)
	}
	var seen [MaxShares + 1]bool
	xs := make([]byte, len(shares))
	for i, s := range shares {
		switch {
		case s.IsZero():
			return Seed{}, fmt.Errorf("keyring: combining shares: %w", ErrNoShare)
		case s.Set() != shares[0].Set():
			return Seed{}, fmt.Errorf("keyring: share %d is of set %x, and share %d of set %x: %w", shares[0].Index(), shares[0].Set(), s.Index(), s.Set(), ErrMixedShares)
		case seen[s.Index()]:
			return Seed{}, fmt.Errorf("keyring: share %d: %w", s.Index(), ErrDuplicateShare)
		}
		seen[s.Index()], xs[i] = true, byte(s.Index())
	}
	basis := shares[:threshold]
	var value [SeedBytes]byte
	defer Wipe(value[:])
	for i, s := range shares[threshold:] {
		interpolate(&value, basis, xs[:threshold], xs[threshold+i])
		given := s.held().value
		same := subtle.ConstantTimeCompare(value[:], given.b) == 1
		runtime.KeepAlive(given)
		if !same {
			return Seed{}, fmt.Errorf("keyring: of %d shares with threshold %d: %w", len(shares), threshold, ErrInconsistentShares)
		}
	}
	interpolate(&value, basis, xs[:threshold], 0)
	seed, err := SeedFrom(value[:])
	if err != nil {
		return Seed{}, fmt.Errorf("keyring: the shares combine to no seed: %w", ErrInconsistentShares)
	}
	return seed, nil
}

// interpolate sets value to what the polynomials through shares are at x.
func interpolate(value *[SeedBytes]byte, shares []Share, xs []byte, x byte) {
	clear(value[:])
	for i, s := range shares {
		weight, y := gfLagrange(xs, i, x), s.held().value
		for b := range value {
			value[b] ^= gfMul(weight, y.b[b])
		}
		runtime.KeepAlive(y)
	}
}

// ShareFrom returns the share with the given index, set and value, which it
// copies: the caller wipes value. A value of zeros is refused: it is a buffer
// nobody filled, or one that was wiped.
func ShareFrom(index int, set [ShareSetBytes]byte, value []byte) (Share, error) {
	if index < 1 || index > MaxShares {
		return Share{}, fmt.Errorf("keyring: a share has index %d, want 1 to %d", index, MaxShares)
	}
	if len(value) != SeedBytes {
		return Share{}, fmt.Errorf("keyring: a share has %d bytes, want %d", len(value), SeedBytes)
	}
	s := Share{hide(&heldShare{byte(index), set, lockedFrom(value)})}
	if s.IsZero() {
		return Share{}, fmt.Errorf("keyring: a share of zeros: %w", ErrNoShare)
	}
	return s, nil
}

// Index is the share's place among the shares of its set, from 1; 0 of the zero
// Share.
func (s Share) Index() int {
	if s.held == nil {
		return 0
	}
	return int(s.held().index)
}

// Set is the random id of the split that the share comes from.
func (s Share) Set() [ShareSetBytes]byte {
	if s.held == nil {
		return [ShareSetBytes]byte{}
	}
	return s.held().set
}

// Reveal returns a copy of the share's value, to be encrypted. The caller wipes
// it. It is nil for the zero Share.
func (s Share) Reveal() []byte {
	if s.held == nil {
		return nil
	}
	y := s.held().value
	defer runtime.KeepAlive(y)
	return bytes.Clone(y.b)
}

// IsZero reports whether s is no share: the zero value, or wiped.
func (s Share) IsZero() bool {
	return s.held == nil || s.held().value.isZero()
}

// Equal reports whether s and o are the same share, in constant time as far as
// the values go. A zero Share equals nothing.
func (s Share) Equal(o Share) bool {
	if s.IsZero() || o.IsZero() || s.Index() != o.Index() || s.Set() != o.Set() {
		return false
	}
	return s.held().value.equal(o.held().value)
}

// Wipe overwrites the share in all copies of s. Nobody may be using them.
func (s Share) Wipe() {
	if s.held != nil {
		s.held().value.wipe()
	}
}

// shareCommitmentLabel begins what is hashed for a commitment.
const shareCommitmentLabel = "fealty/v1/share-commitment"

// Commitment returns the public commitment to s: SHA-256 over label and cluster,
// each with its length before it in 4 bytes, then seed epoch (8 bytes), set,
// index (1 byte) and value; integers are big endian. It stands in the transition,
// so that a wrong, foreign or old share is refused by its owner's name. Each split
// has other commitments, at threshold 1 too, where the value stays the same. It
// tells nothing of a value of 32 random bytes.
//
// It panics if s is zero or wiped: its commitment would match the wrong thing.
func (s Share) Commitment(cluster string, seedEpoch uint64) [32]byte {
	if s.IsZero() {
		panic("keyring: commitment to a share that was wiped, or never set")
	}
	h := sha256.New()
	for _, part := range []string{shareCommitmentLabel, cluster} {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		h.Write([]byte(part))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, seedEpoch))
	held := s.held()
	h.Write(held.set[:])
	h.Write([]byte{held.index})
	h.Write(held.value.b)
	runtime.KeepAlive(held.value)
	return [32]byte(h.Sum(nil))
}

// Format implements [fmt.Formatter] for every verb without showing the share.
func (s Share) Format(f fmt.State, _ rune) { fmt.Fprint(f, "keyring.Share(hidden)") }

// LogValue implements [slog.LogValuer] without showing the share.
func (s Share) LogValue() slog.Value { return slog.StringValue("keyring.Share(hidden)") }

// MarshalText always fails, and with it JSON and every other text encoding.
func (s Share) MarshalText() ([]byte, error) { return nil, errHidden }
