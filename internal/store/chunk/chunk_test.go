package chunk_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
)

const limit = 8 << 20

var errMissing = errors.New("missing")

// content returns bytes that repeat nowhere.
func content(n int) []byte {
	out := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(out)
	return out
}

// shelf holds values by their hash.
type shelf map[chunk.Hash][]byte

func (s shelf) get(h chunk.Hash) ([]byte, error) {
	if part, ok := s[h]; ok {
		return part, nil
	}
	return nil, errMissing
}

// put keeps a content as its parts and their index.
func (s shelf) put(c []byte) chunk.Hash {
	hash := sha256.Sum256(c)
	index, list := chunk.Split(c)
	if index == nil {
		index = c
	}
	for _, part := range list {
		s[sha256.Sum256(part)] = part
	}
	s[hash] = index
	return hash
}

func TestSplitAndJoin(t *testing.T) {
	for _, n := range []int{0, 1, chunk.MaxBytes, chunk.MaxBytes + 1, 2 * chunk.MaxBytes, 2*chunk.MaxBytes + 1, 4 << 20} {
		c := content(n)
		s := make(shelf)
		hash := s.put(c)
		got, err := chunk.Join(hash, s[hash], limit, s.get)
		if err != nil || !bytes.Equal(got, c) {
			t.Errorf("%d bytes come back as %d (%v)", n, len(got), err)
		}
		if want := 1 + (n+chunk.MaxBytes-1)/chunk.MaxBytes; n > chunk.MaxBytes && len(s) != want {
			t.Errorf("%d bytes are %d values, want %d", n, len(s), want)
		}
		for _, v := range s {
			if len(v) > chunk.MaxBytes {
				t.Errorf("%d bytes have a value of %d", n, len(v))
			}
		}
	}
	// Contents that differ at their end share what comes before.
	s := make(shelf)
	c := content(3 * chunk.MaxBytes)
	s.put(c)
	s.put(append(bytes.Clone(c[:2*chunk.MaxBytes]), 1, 2, 3))
	if len(s) != 2+3+1 {
		t.Errorf("two contents with two parts in common are %d values", len(s))
	}
}

// A content that was kept whole by an earlier release, however long it is, is read.
func TestWholeIsRead(t *testing.T) {
	c := content(store.MaxValueBytes)
	got, err := chunk.Join(sha256.Sum256(c), c, limit, shelf{}.get)
	if err != nil || !bytes.Equal(got, c) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// Nothing comes back that has another hash, when parts or the index are altered, missing or made up.
func TestJoinRefuses(t *testing.T) {
	c := content(3*chunk.MaxBytes + 10)
	hash := sha256.Sum256(c)
	index, list := chunk.Split(c)
	other := content(2 * chunk.MaxBytes)
	otherIndex, _ := chunk.Split(other)
	at := func(i int) chunk.Hash { return sha256.Sum256(list[i]) }
	for name, tc := range map[string]struct {
		spoil func(s shelf) []byte // returns what is under the hash
		want  error
	}{
		"a part is missing": {func(s shelf) []byte { delete(s, at(1)); return index }, errMissing},
		"a part is altered": {func(s shelf) []byte {
			s[at(1)] = append(bytes.Clone(s[at(1)][:5]), s[at(1)][4:]...)
			return index
		}, &chunk.Error{Part: at(1)}},
		"a part is cut short":    {func(s shelf) []byte { s[at(3)] = s[at(3)][:9]; return index }, &chunk.Error{Part: at(3)}},
		"the index is another's": {func(s shelf) []byte { s.put(other); return otherIndex }, &chunk.Error{}},
		"parts in another order": {func(s shelf) []byte {
			i := bytes.Clone(index)
			n := len(i) - 4*sha256.Size
			copy(i[n:], index[n+sha256.Size:n+2*sha256.Size])
			copy(i[n+sha256.Size:], index[n:n+sha256.Size])
			return i
		}, &chunk.Error{}},
		"a part too few":  {func(shelf) []byte { return index[:len(index)-sha256.Size] }, &chunk.Error{}},
		"a part too many": {func(shelf) []byte { return append(bytes.Clone(index), index[len(index)-sha256.Size:]...) }, &chunk.Error{}},
		"half a hash":     {func(shelf) []byte { return index[:len(index)-1] }, chunk.ErrNoIndex},
		"no parts":        {func(shelf) []byte { return index[:len(index)-4*sha256.Size] }, chunk.ErrNoIndex},
		"nothing":         {func(shelf) []byte { return nil }, chunk.ErrNoIndex},
		"another content": {func(shelf) []byte { return other[:100] }, chunk.ErrNoIndex},
		"longer than may be": {func(shelf) []byte {
			return fmt.Appendf(nil, "fealty-parts/1 %d\n%s", limit+1, index[len(index)-sha256.Size:])
		}, chunk.ErrNoIndex},
		"an index of no length": {func(shelf) []byte { return []byte("fealty-parts/1 \n") }, chunk.ErrNoIndex},
		"a length in another form": {func(shelf) []byte {
			return fmt.Appendf(nil, "fealty-parts/1 0%d\n%s", len(c), index[len(index)-4*sha256.Size:])
		}, chunk.ErrNoIndex},
	} {
		s := make(shelf)
		for _, part := range list {
			s[sha256.Sum256(part)] = part
		}
		got, err := chunk.Join(hash, tc.spoil(s), limit, s.get)
		var of *chunk.Error
		want, isPart := tc.want.(*chunk.Error)
		switch {
		case got != nil:
			t.Errorf("%s: %d bytes come back", name, len(got))
		case isPart && (!errors.As(err, &of) || *of != *want), !isPart && !errors.Is(err, tc.want):
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
