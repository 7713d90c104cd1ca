// Package auditlog chains the entries of a cluster's audit log so that it cannot be altered
// unnoticed: it decides how entries are chained, what a checkpoint says, and what is wrong with a
// log that somebody shows.
//
// Each writer chains its own entries: each names the hash of the one before it, and no two
// writers share a chain. A process has one chain for each transaction that is under way at
// once, so that no entry waits for another: a [Writer] gives an entry its place when its
// transaction is about to be committed, and takes the place back if that was not applied. So
// a chain has no gap, whatever fails.
//
// Hashes alone prove nothing, as whoever alters an entry can make the hashes after it anew.
// So the leader signs checkpoints ([Checkpoint]) of what it found: how far each chain went,
// and the hash there. A checkpoint names the hash of the one before it, so that the newest
// one vouches for all of them. [Verifier] reads entries and checkpoints, and finds what is
// altered, missing, moved or invented behind a checkpoint. It finds no lie that a
// coordinator itself wrote.
//
// The package does no I/O; package auditlog/store keeps the log in a store.
package auditlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Where the store has the log.
//
//	audit/<time>-<random>              an entry of a release before chains
//	audit/chain/<writer>/<start>/<n>   entry n of a chain, counted from 1
//	audithead/chain/<writer>/<start>   how far a chain that may grow is behind a checkpoint
//	audithead/last                     which checkpoint is the last
//	checkpoint/<n>                     a signed checkpoint, counted from 1
const (
	Prefix           = "audit/"
	ChainPrefix      = "audit/chain/"
	NotePrefix       = "audithead/" // of the heads and of LastKey
	HeadPrefix       = "audithead/chain/"
	LastKey          = "audithead/last"
	CheckpointPrefix = "checkpoint/"
)

// Limits of what is read.
const (
	MaxEntryBytes = 256 << 10 // of an entry as it stands in the store
	MaxChainBytes = 96        // of the name of a chain
	numberDigits  = 10        // of an entry's number in its key
	maxNumber     = 9_999_999_999
	writerDigits  = 16 // hex digits
	startDigits   = 20 // nanoseconds since 1970
	startRandom   = 8  // hex digits
)

// Hash is a SHA-256. Its text is 64 lower case hex digits.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether h was never set.
func (h Hash) IsZero() bool { return h == Hash{} }

// MarshalText writes the text of h.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes, and nothing else.
func (h *Hash) UnmarshalText(text []byte) error {
	var out Hash
	if len(text) != 2*len(out) || bytes.ContainsAny(text, "ABCDEF") {
		return errors.New("no SHA-256 in lower case hex digits")
	}
	if _, err := hex.Decode(out[:], text); err != nil {
		return errors.New("no SHA-256 in lower case hex digits")
	}
	*h = out
	return nil
}

// Entry is one line of the audit log: who did what.
type Entry struct {
	At     time.Time         `json:"at"`
	Actor  string            `json:"actor"`
	Action string            `json:"action"`
	Target string            `json:"target"`
	Reason string            `json:"reason,omitempty"`
	Fields map[string]string `json:"fields,omitempty"`

	// Chain is the one that the entry is in, and Number its place there, from 1. An entry of a
	// release before chains has neither. Both are in its key, which its hash covers, and so
	// not in what is written of it; what says them all the same has to say what the key does.
	Chain  string `json:"chain,omitempty"`
	Number uint64 `json:"number,omitempty"`
	// Previous is the hash of the entry before it in the chain; zero for the first.
	Previous Hash `json:"previous,omitzero"`
}

// Chained reports whether the entry is in a chain.
func (e *Entry) Chained() bool { return e.Chain != "" }

// HashOf is the hash of the entry that stands at key, over its exact bytes:
//
//	SHA-256("fealty audit entry v1" 0x00 | len(key) | key | value)
//
// with the length as 8 bytes big endian.
func HashOf(key string, value []byte) Hash {
	h := sha256.New()
	io.WriteString(h, "fealty audit entry v1\x00")
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(key)))
	h.Write(n[:])
	io.WriteString(h, key)
	h.Write(value)
	return Hash(h.Sum(nil))
}

// Key is where entry number of chain stands.
func Key(chain string, number uint64) string {
	return fmt.Sprintf("%s%s/%0*d", ChainPrefix, chain, numberDigits, number)
}

// bucketDigits are those of a number that a bucket leaves out: it has 100 entries.
const bucketDigits = 2

// BucketSize is how many numbers of a chain share a bucket.
const BucketSize = 100

// Bucket is the prefix of the keys of chain that share all but the last digits with number's.
func Bucket(chain string, number uint64) string {
	k := Key(chain, number)
	return k[:len(k)-bucketDigits]
}

// ParseKey reads the key of a chained entry. It reports false for any other.
func ParseKey(key string) (chain string, number uint64, ok bool) {
	rest, ok := strings.CutPrefix(key, ChainPrefix)
	if !ok {
		return "", 0, false
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 || len(rest)-i-1 != numberDigits {
		return "", 0, false
	}
	number, err := strconv.ParseUint(rest[i+1:], 10, 64)
	if err != nil || number == 0 || !ValidChain(rest[:i]) {
		return "", 0, false
	}
	return rest[:i], number, true
}

// ValidChain reports whether s has the form of a chain's name, as a [Writer] makes them.
func ValidChain(s string) bool {
	writer, start, ok := strings.Cut(s, "/")
	nanos, random, dashed := strings.Cut(start, "-")
	return ok && dashed && isDigits(writer, writerDigits, true) && isDigits(nanos, startDigits, false) && isDigits(random, startRandom, true)
}

// isDigits reports whether s is n decimal or lower case hex digits.
func isDigits(s string, n int, hex bool) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if b := s[i]; (b < '0' || b > '9') && (!hex || b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}

// Decode reads the entry that stands at key. The link that says that it is in a chain stands at
// its place there.
func Decode(key string, value []byte) (*Entry, error) {
	if len(value) > MaxEntryBytes {
		return nil, fmt.Errorf("it has %d bytes, above %d", len(value), MaxEntryBytes)
	}
	var e Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return nil, errors.New("it is no entry: " + err.Error())
	}
	chain, number, chained := ParseKey(key)
	switch {
	case chained && (e.Chain != "" || e.Number != 0) && (e.Chain != chain || e.Number != number):
		return nil, fmt.Errorf("it says that it is number %d of chain %.*q, and stands elsewhere", e.Number, MaxChainBytes, e.Chain)
	case !chained && e.Chained():
		return nil, errors.New("it says that it is in a chain, and stands in none")
	case chained && (number == 1) != e.Previous.IsZero():
		return nil, errors.New("the first entry of a chain, and no other, follows none")
	}
	e.Chain, e.Number = chain, number
	return &e, nil
}
