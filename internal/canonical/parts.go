package canonical

import (
	"bytes"
	"fmt"
)

// Parts takes parts off the front of bytes; after a failure it gives zeros.
type Parts struct {
	in  []byte
	err string
}

// NewParts returns the parts of in.
func NewParts(in []byte) *Parts { return &Parts{in: in} }

// Fault returns why in is not what was taken, or "".
func (r *Parts) Fault() string { return r.err }

// Finish fails unless all was taken.
func (r *Parts) Finish() {
	if r.err == "" && len(r.in) != 0 {
		r.Fail(fmt.Sprintf("%d bytes after the end", len(r.in)))
	}
}

// Fail notes a failure, unless there was one before.
func (r *Parts) Fail(msg string) {
	if r.err == "" {
		r.err = msg
	}
}

// Take returns the next n bytes.
func (r *Parts) Take(n int) string {
	if r.err == "" && n > len(r.in) {
		r.Fail(fmt.Sprintf("%d bytes missing at its end", n-len(r.in)))
	}
	if r.err != "" {
		return ""
	}
	s := string(r.in[:n])
	r.in = r.in[n:]
	return s
}

// Number returns the next width bytes as a number, the highest first.
func (r *Parts) Number(width int) uint64 {
	var n uint64
	for _, b := range []byte(r.Take(width)) {
		n = n<<8 | uint64(b)
	}
	return n
}

// Count returns the next byte, at most limit.
func (r *Parts) Count(limit int) int {
	n := r.Number(1)
	if n > uint64(limit) {
		r.Fail(fmt.Sprintf("a count of %d, limit %d", n, limit))
		return 0
	}
	return int(n)
}

// Bytes returns a copy of the next part, at most limit bytes, whose length stands in width bytes before it.
func (r *Parts) Bytes(width, limit int) []byte {
	n := r.Number(width)
	if n > uint64(limit) {
		r.Fail(fmt.Sprintf("a part of %d bytes, limit %d", n, limit))
		return nil
	}
	if r.err == "" && n > uint64(len(r.in)) {
		r.Fail(fmt.Sprintf("%d bytes missing at its end", n-uint64(len(r.in))))
	}
	if r.err != "" {
		return nil
	}
	b := bytes.Clone(r.in[:n])
	r.in = r.in[n:]
	return b
}
