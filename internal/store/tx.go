package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Limits of every engine. They are constants of the contract, so that data
// moves from one engine to any other.
const (
	MaxKeyBytes   = 512      // of a key, a prefix or a transaction ID
	MaxValueBytes = 4 << 20  // of one value, sealed or not
	MaxTxOps      = 1024     // conditions, puts and deletes of a Tx together
	MaxTxBytes    = 16 << 20 // keys and values of a Tx together
)

// Tx is a set of writes that happen together, if all conditions hold.
type Tx struct {
	// ID makes the outcome of the Tx known later (Store.Outcome), and a second
	// commit of it harmless. It has the form of a key, is unique among all Tx of
	// the database, and is best made by NewTxID. Empty means none: cheaper, for
	// writes whose outcome can be read from what they wrote.
	ID string

	// If lists what must hold, at most once for each key.
	If []Condition

	// Put and Delete list what to do: at least one write, no key twice. Deleting
	// a key that does not exist does nothing.
	Put    []Write
	Delete []string
}

// Condition holds if the key's version is exactly Version; 0 means that the key
// must not exist.
type Condition struct {
	Key     string
	Version Revision
}

// Write sets Key to Value. A nil value is an empty one.
type Write struct {
	Key   string
	Value []byte
}

// NewTxID returns a new ID: 26 characters, at least 128 random bits.
func NewTxID() string { return rand.Text() }

// Validate checks tx against the limits. Errors match [ErrInvalid]: *[KeyError]
// for a key or an ID, *[LimitError] for a size, and [ErrInvalid] itself for a
// Tx that writes nothing or names a key twice. Engines call it first.
func (tx Tx) Validate() error {
	if tx.ID != "" {
		if err := CheckTxID(tx.ID); err != nil {
			return err
		}
	}
	if n := len(tx.If) + len(tx.Put) + len(tx.Delete); n > MaxTxOps {
		return &LimitError{What: "operations of a transaction", Got: n, Max: MaxTxOps}
	}
	if len(tx.Put)+len(tx.Delete) == 0 {
		return invalid("transaction %q writes nothing: give it a put or a delete, or use List to read", tx.ID)
	}
	bytes := 0
	conditions := make([]string, 0, len(tx.If))
	for _, c := range tx.If {
		if err := CheckKey(c.Key); err != nil {
			return err
		}
		bytes += len(c.Key)
		conditions = append(conditions, c.Key)
	}
	writes := make([]string, 0, len(tx.Put)+len(tx.Delete))
	for _, w := range tx.Put {
		if err := CheckKey(w.Key); err != nil {
			return err
		}
		if len(w.Value) > MaxValueBytes {
			return &LimitError{What: "bytes of the value of " + w.Key, Got: len(w.Value), Max: MaxValueBytes}
		}
		bytes += len(w.Key) + len(w.Value)
		writes = append(writes, w.Key)
	}
	for _, k := range tx.Delete {
		if err := CheckKey(k); err != nil {
			return err
		}
		bytes += len(k)
		writes = append(writes, k)
	}
	if bytes > MaxTxBytes {
		return &LimitError{What: "bytes of a transaction", Got: bytes, Max: MaxTxBytes}
	}
	if k, twice := duplicate(conditions); twice {
		return invalid("two conditions on key %q in one transaction: state one", k)
	}
	if k, twice := duplicate(writes); twice {
		return invalid("key %q is written twice in one transaction: write it once", k)
	}
	return nil
}

// duplicate returns a string that is in list more than once. It sorts list.
func duplicate(list []string) (string, bool) {
	slices.Sort(list)
	for i := 1; i < len(list); i++ {
		if list[i] == list[i-1] {
			return list[i], true
		}
	}
	return "", false
}

// Size returns the bytes of all keys and values of tx.
func (tx Tx) Size() int {
	n := 0
	for _, c := range tx.If {
		n += len(c.Key)
	}
	for _, w := range tx.Put {
		n += len(w.Key) + len(w.Value)
	}
	for _, k := range tx.Delete {
		n += len(k)
	}
	return n
}

// Clone returns a copy of tx that shares no bytes with it.
func (tx Tx) Clone() Tx {
	out := Tx{ID: tx.ID, If: slices.Clone(tx.If), Put: slices.Clone(tx.Put), Delete: slices.Clone(tx.Delete)}
	for i := range out.Put {
		out.Put[i].Value = slices.Clone(out.Put[i].Value)
	}
	return out
}

// Digest identifies what tx does, without its ID: engines keep it beside the ID
// to tell a repeated Tx from a different one under a reused ID.
//
// It is SHA-256 over the conditions, puts and deletes in their order, each list
// preceded by its length and each string by its own, as 8 bytes big endian.
func (tx Tx) Digest() [sha256.Size]byte {
	h := sha256.New()
	var b [8]byte
	number := func(n uint64) {
		binary.BigEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	number(uint64(len(tx.If)))
	for _, c := range tx.If {
		number(uint64(len(c.Key)))
		h.Write([]byte(c.Key))
		number(uint64(c.Version))
	}
	number(uint64(len(tx.Put)))
	for _, w := range tx.Put {
		number(uint64(len(w.Key)))
		h.Write([]byte(w.Key))
		number(uint64(len(w.Value)))
		h.Write(w.Value)
	}
	number(uint64(len(tx.Delete)))
	for _, k := range tx.Delete {
		number(uint64(len(k)))
		h.Write([]byte(k))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Conflict compares tx's conditions, in order, with the versions that lookup
// returns (0: does not exist). It returns a *[ConflictError] for the first that
// does not hold, or the first error of lookup.
func (tx Tx) Conflict(lookup func(key string) (Revision, error)) error {
	for _, c := range tx.If {
		got, err := lookup(c.Key)
		if err != nil {
			return err
		}
		if got != c.Version {
			return &ConflictError{Key: c.Key, Want: c.Version, Got: got}
		}
	}
	return nil
}

// CheckKey returns a *[KeyError] unless key has 1 to MaxKeyBytes bytes, all
// printable ASCII (0x20 to 0x7e). Keys are paths by convention, as in
// "history/latest"; binary names are written in hex.
func CheckKey(key string) error {
	if key == "" {
		return &KeyError{Key: key, Problem: "is empty"}
	}
	return checkText(key)
}

// CheckPrefix is CheckKey for prefixes, which may be empty.
func CheckPrefix(prefix string) error { return checkText(prefix) }

// CheckTxID is CheckKey for transaction IDs.
func CheckTxID(id string) error { return CheckKey(id) }

func checkText(s string) error {
	if len(s) > MaxKeyBytes {
		return &KeyError{Key: s, Problem: "is too long"}
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return &KeyError{Key: s, Problem: "is not printable ASCII"}
		}
	}
	return nil
}

// SwapTx returns the Tx that is a CompareAndSwap.
func SwapTx(key string, old Revision, value []byte) Tx {
	return Tx{If: []Condition{{Key: key, Version: old}}, Put: []Write{{Key: key, Value: value}}}
}

// PrefixEnd returns the least string above every key that starts with prefix,
// for engines that select a range: 0x7f sorts above each byte a key may hold.
func PrefixEnd(prefix string) string { return prefix + "\x7f" }
