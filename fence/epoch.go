package fence

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/signed"
)

// Epoch is one life of a holder's process. The upper 32 bits count the grants that the
// authority gave the holder, the lower 32 bits the lives that the holder counted itself
// since, so that a plain comparison orders both. The first life is 1: the zero Epoch is
// none.
type Epoch uint64

// NewEpoch returns the epoch of a life under a grant; grant 0 is that of a holder to which
// no authority grants anything.
func NewEpoch(grant, life uint32) Epoch { return Epoch(uint64(grant)<<32 | uint64(life)) }

// Grant returns the number of the authority's grant.
func (e Epoch) Grant() uint32 { return uint32(e >> 32) }

// Life returns which start of the process since the grant it is.
func (e Epoch) Life() uint32 { return uint32(e) }

// Next returns the epoch of the next life under the same grant, or an error that matches
// [ErrExhausted].
func (e Epoch) Next() (Epoch, error) {
	if e.Life() == math.MaxUint32 {
		return 0, fmt.Errorf("fence: epoch %v is the last life of its grant: ask the authority for a new grant: %w",
			e, ErrExhausted)
	}
	return e + 1, nil
}

// String returns grant and life in decimal, "2.17".
func (e Epoch) String() string {
	return strconv.FormatUint(uint64(e.Grant()), 10) + "." + strconv.FormatUint(uint64(e.Life()), 10)
}

// Incarnation tells two processes apart that have one epoch, because one of them runs
// with a copy of the other's state. Each process makes its own when it starts.
type Incarnation [16]byte

// NewIncarnation returns a random one.
func NewIncarnation() Incarnation {
	var i Incarnation
	_, _ = rand.Read(i[:]) // never fails (crypto/rand)
	return i
}

// String returns 32 lower case hex digits.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// IsZero reports whether i is no incarnation.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// ParseIncarnation reads 32 lower case hex digits that are not all zero.
func ParseIncarnation(s string) (Incarnation, error) {
	var i Incarnation
	if !parseHex(i[:], s) || i.IsZero() {
		return Incarnation{},
			fmt.Errorf("fence: %.80q is no incarnation: want 32 lower case hex digits, not all zero: %w", s,
				ErrMalformed)
	}
	return i, nil
}

// Lineage are the newest incarnations that a holder had since its grant, the oldest first
// and without its own; at most 64.
//
// It is how a receiver believes a life that nobody granted. A copy of a state counts its
// lives too, and names those that it had itself: the incarnation in the receiver's mark is
// not among them once the original has acted, and the copy is refused.
type Lineage []Incarnation

// String returns the incarnations with a dot between them.
func (l Lineage) String() string {
	var b strings.Builder
	for n, i := range l {
		if n > 0 {
			b.WriteByte('.')
		}
		b.WriteString(i.String())
	}
	return b.String()
}

// ParseLineage reads what [Lineage.String] wrote, and no other spelling of it.
func ParseLineage(s string) (Lineage, error) {
	if s == "" {
		return nil, nil
	}
	const each = 2*len(Incarnation{}) + 1
	if n := (len(s) + 1) / each; n > signed.MaxLineage || (len(s)+1)%each != 0 {
		return nil,
			fmt.Errorf("fence: a lineage of %d bytes: want at most %d incarnations with a dot between them: %w",
				len(s), signed.MaxLineage, ErrMalformed)
	}
	l := make(Lineage, 0, (len(s)+1)/each)
	for part := range strings.SplitSeq(s, ".") {
		i, err := ParseIncarnation(part)
		if err != nil {
			return nil, err
		}
		if slices.Contains(l, i) {
			return nil, fmt.Errorf("fence: a lineage names %v twice: %w", i, ErrMalformed)
		}
		l = append(l, i)
	}
	return l, nil
}

// ErrExhausted is matched where a counter is at its end: it never starts again.
var ErrExhausted = errors.New("counter exhausted")

// counter numbers the attempts of one process. The zero counter is ready, and may be
// used by several goroutines.
type counter struct{ last atomic.Uint64 }

// counterFrom returns a sequence whose first number is the one after last.
func counterFrom(last uint64) *counter {
	s := new(counter)
	s.last.Store(last)
	return s
}

// Next returns a number that is above all that it returned before, and never 0; or an
// error that matches [ErrExhausted].
func (s *counter) Next() (uint64, error) {
	for {
		last := s.last.Load()
		if last == math.MaxUint64 {
			return 0, fmt.Errorf("fence: the sequence is at its end: start the process again, for a new epoch: %w", ErrExhausted)
		}
		if s.last.CompareAndSwap(last, last+1) {
			return last + 1, nil
		}
	}
}

// parseHex fills dst from exactly 2*len(dst) lower case hex digits. Package encoding/hex
// would take upper case too, and one value would have two spellings.
func parseHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) || strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') &&
			(r < 'a' || r > 'f')
	}) {
		return false
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}
