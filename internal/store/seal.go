package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"log/slog"
	"slices"
	"sync"
)

// sealVersion is the first byte of every sealed value.
const sealVersion = 1

// SealBytes is what sealing adds to a value: a version byte and the code.
const SealBytes = 1 + sha256.Size

// sealContext separates these codes from any other use of the key.
const sealContext = "fealty store record v1\x00"

// Authenticator marks values so that whoever can write to the database, but
// does not hold the key, cannot alter a record or move it under another key
// without being noticed.
//
// It does not hide values, and does not notice that a record was deleted or
// set back to an older value of the same key: what must not go back carries a
// counter that its reader checks.
//
// It is safe for concurrent use, and never shows its key.
type Authenticator struct {
	key []byte
	// keyed holds *coder values that have the key already: whoever reads all records of a family opens as many.
	keyed sync.Pool
}

// coder makes codes under one key, one after the other.
type coder struct {
	mac  hash.Hash
	head []byte // of what the code is over, all before the value
	code []byte
}

// NewAuthenticator returns an Authenticator for key, which it copies. The key
// has at least 32 bytes, uniformly random or derived.
func NewAuthenticator(key []byte) (*Authenticator, error) {
	if len(key) < sha256.Size {
		return nil, fmt.Errorf("store: authentication key has %d bytes, want at least %d", len(key), sha256.Size)
	}
	return &Authenticator{key: slices.Clone(key)}, nil
}

// Seal returns value marked as belonging under key:
//
//	version (1 byte, 0x01) | code (32 bytes) | value
//
// The code is HMAC-SHA256 (RFC 2104) over
//
//	"fealty store record v1" 0x00 | len(key) | key | len(value) | value
//
// with lengths as 8 bytes big endian. The result is SealBytes longer than value
// and shares no bytes with it.
func (a *Authenticator) Seal(key string, value []byte) []byte {
	sealed := make([]byte, 0, SealBytes+len(value))
	sealed = append(sealed, sealVersion)
	sealed = a.appendCode(sealed, key, value)
	return append(sealed, value...)
}

// Open returns the value that was sealed under key, aliasing sealed, or
// [ErrForged].
func (a *Authenticator) Open(key string, sealed []byte) ([]byte, error) {
	if len(sealed) < SealBytes || sealed[0] != sealVersion {
		return nil, fmt.Errorf("store: %q, %d bytes: %w", key, len(sealed), ErrForged)
	}
	value := sealed[SealBytes:]
	c := a.coder()
	defer a.keyed.Put(c)
	if !hmac.Equal(c.sum(key, value), sealed[1:SealBytes]) {
		return nil, fmt.Errorf("store: %q, %d bytes: %w", key, len(sealed), ErrForged)
	}
	return value, nil
}

func (a *Authenticator) appendCode(dst []byte, key string, value []byte) []byte {
	c := a.coder()
	defer a.keyed.Put(c)
	return append(dst, c.sum(key, value)...)
}

// coder returns one that nobody else has; it is to be put back.
func (a *Authenticator) coder() *coder {
	if c, ok := a.keyed.Get().(*coder); ok {
		return c
	}
	return &coder{mac: hmac.New(sha256.New, a.key)}
}

// sum returns the code of value under key, until the next one.
func (c *coder) sum(key string, value []byte) []byte {
	c.head = append(c.head[:0], sealContext...)
	c.head = binary.BigEndian.AppendUint64(c.head, uint64(len(key)))
	c.head = append(c.head, key...)
	c.head = binary.BigEndian.AppendUint64(c.head, uint64(len(value)))
	c.mac.Reset()
	c.mac.Write(c.head)
	c.mac.Write(value)
	c.code = c.mac.Sum(c.code[:0])
	return c.code
}

const hidden = "store.Authenticator(key hidden)"

// Format prints a fixed text for every verb, so that no log shows the key.
func (a *Authenticator) Format(f fmt.State, _ rune) { f.Write([]byte(hidden)) }

// LogValue does the same for slog.
func (a *Authenticator) LogValue() slog.Value { return slog.StringValue(hidden) }
