// Package chunk divides content that is too long for one value of a store into parts, and joins
// them again.
//
// A content is known by its SHA-256. A short one is a value under that. A long one is an index
// under it, and each of its parts is a value under the part's own hash. The parts are written
// first, then the index, and then whatever names the content: so that what is named is whole,
// however a writer ended. Parts that two contents have in common are the same values.
//
// Nothing of it is trusted: [Join] returns what has the hash, or an error. That parts are there for
// as long as an index names them, and go after that, is up to the one who keeps them.
package chunk

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

const (
	// MaxBytes is the longest content that is not divided, and the longest part: sealed, and with its
	// key, less than half of what a transaction of many takes.
	MaxBytes = 511 << 10
	// MaxParts bounds the parts that an index names.
	MaxParts = 4096
)

// Hash is the SHA-256 of a content or of a part.
type Hash = [sha256.Size]byte

// ErrNoIndex: a value is neither what has the hash nor an index.
var ErrNoIndex = errors.New("it is no index of parts")

// An Error says that a content cannot be put together of what its index names.
type Error struct {
	Part Hash  // zero: the parts are those that the index names, and are not the content
	Err  error // of the one who was asked for the part; nil: it was altered
}

func (e *Error) Error() string {
	switch {
	case e.Part == Hash{}:
		return "its parts are those of another content"
	case e.Err == nil:
		return fmt.Sprintf("its part %x was altered", e.Part)
	}
	return fmt.Sprintf("its part %x: %v", e.Part, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// An index is this, the length of the content in decimal, a newline, and the hashes of the parts in
// their order, of 32 bytes each.
const magic = "fealty-parts/1 "

// Split returns the parts of a content, which alias it, and their index; no parts and no index of one
// that is not divided. It panics above [MaxParts].
func Split(content []byte) (index []byte, list [][]byte) {
	if len(content) <= MaxBytes {
		return nil, nil
	}
	index = fmt.Appendf(nil, "%s%d\n", magic, len(content))
	for part := range slices.Chunk(content, MaxBytes) {
		hash := sha256.Sum256(part)
		index, list = append(index, hash[:]...), append(list, part)
	}
	if len(list) > MaxParts {
		panic(fmt.Sprintf("chunk: a content of %d bytes", len(content)))
	}
	return index, list
}

// Named returns the length of the content whose index this is, and the hashes of its parts. Errors:
// [ErrNoIndex].
func Named(index []byte) (size int, hashes []Hash, err error) {
	rest, ok := bytes.CutPrefix(index, []byte(magic))
	digits, rest, found := bytes.Cut(rest, []byte("\n"))
	if !ok || !found || len(digits) > 10 || len(rest)%sha256.Size != 0 || len(rest)/sha256.Size > MaxParts {
		return 0, nil, ErrNoIndex
	}
	size, err = strconv.Atoi(string(digits))
	if err != nil || size < 1 || strconv.Itoa(size) != string(digits) || len(rest) == 0 {
		return 0, nil, ErrNoIndex
	}
	for hash := range slices.Chunk(rest, sha256.Size) {
		hashes = append(hashes, Hash(hash))
	}
	return size, hashes, nil
}

// Join returns the content with a hash, of at most limit bytes, of the value that is kept under the
// hash: the content itself, or its index. get returns the part with a hash. The content may alias what
// it is given.
//
// Errors: [ErrNoIndex], if value is neither, or says that it is longer; [*Error].
func Join(hash Hash, value []byte, limit int, get func(Hash) ([]byte, error)) ([]byte, error) {
	if sha256.Sum256(value) == hash {
		return value, nil
	}
	size, hashes, err := Named(value)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%w that may be read: the content has %d bytes, the limit is %d",
			ErrNoIndex, size, limit)
	}
	content := make([]byte, 0, size)
	for _, h := range hashes {
		part, err := get(h)
		if err != nil {
			return nil, &Error{Part: h, Err: err}
		}
		if sha256.Sum256(part) != h {
			return nil, &Error{Part: h}
		}
		if len(part) > size-len(content) {
			return nil, &Error{}
		}
		content = append(content, part...)
	}
	if sha256.Sum256(content) != hash {
		return nil, &Error{}
	}
	return content, nil
}
