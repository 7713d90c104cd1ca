package ratelimit_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// A thing in parts is taken up to its size, and nothing of another size than asked.
func TestReceiveParts(t *testing.T) {
	const size = ratelimit.PartBytes + 2
	full, two := make([]byte, ratelimit.PartBytes), []byte("ab")
	for _, tc := range []struct {
		name  string
		whole []byte
		parts [][]byte // the last one says so
		bytes int
		want  error
	}{
		{"two parts", nil, [][]byte{full, two}, size, nil},
		{"less than there may be", nil, [][]byte{two}, 2, nil},
		{"what follows on the first", two, [][]byte{two, two}, 6, nil},
		{"all was there", make([]byte, size), nil, size, nil},
		{"more than there may be", nil, [][]byte{full, two, two}, size, nil},
		{"an empty part", nil, [][]byte{two, nil}, 0, errcode.RequestField},
		{"a part that is too large", nil, [][]byte{append([]byte("x"), full...)}, 0, errcode.RequestField},
		{"one byte too many", nil, [][]byte{full, []byte("abc")}, 0, errcode.RequestField},
		{"a caller that hangs up", nil, [][]byte{}, 0, io.EOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			readers, left := new(ratelimit.Readers), tc.parts
			got, err := ratelimit.ReceiveParts(t.Context(), readers, bytes.Clone(tc.whole), size,
				func() ([]byte, bool, error) {
					if len(left) == 0 {
						return nil, false, io.EOF
					}
					part := left[0]
					left = left[1:]
					return part, len(left) > 0, nil
				})
			readers.Wait()
			if !errors.Is(err, tc.want) || len(got) != tc.bytes {
				t.Errorf("%d bytes (%v), want %d (%v)", len(got), err, tc.bytes, tc.want)
			}
		})
	}
}
