// Package record reads, seals and commits the records of a cluster in its store (I20).
//
// A record is a value in JSON under a key, with a MAC that derives from the seed: whoever
// can write the store but holds no seed can neither make a member nor lift a ban. A [Change]
// is one transaction: it holds only under the head of the history that it was decided under,
// and its audit entries become durable with it.
//
// The package knows the records that several packages share, which are a [Member], a [Ban] and an
// [AuditEntry]. Every other record is known to the package that keeps it. It also says how long
// what members hold counts: how often they renew ([RenewEvery]), how much longer than its record
// says a member can be certified ([StretchOf]), and how long a banned key is remembered
// ([KeyMemory]).
//
// # The families of the store
//
// Every family but audit and what belongs to it, sealed, seed/share, recovery and replica is
// under the record MAC.
//
//	member/<kind>/<name>        a member; kept until it leaves or is removed
//	token/<id>                  a join token; kept for a week after its end
//	tokenuse/<id>/<key id>      what a token admitted; kept as long as the token
//	count/<entry>               members under an entry with max_members
//	trust/state                 what the trust bundle is compiled from, but bans
//	trust/ban/id/<kind>/<name>  a banned identity; kept until lifted
//	trust/unban/id/<kind>/<name>
//	                            that the ban of an identity was lifted, and which one; kept
//	trust/ban/key/<key id>      a banned key; kept for svid_ttl + rejoin_grace,
//	                            in the bundle while a certificate can be valid
//	rollout/<coordinator>       whom a coordinator heard confirm a config key
//	config/…                    the desired config
//	publication/…               what members are told
//	leader/…                    who leads
//	sealed/…                    seed and mesh CA key, encrypted by a keeper; see package sealed
//	seed/set/<transition>       which shares of the seed that transition made
//	seed/share/<seed epoch>/<salt>/<set>/<owner>
//	                            a share of the seed, encrypted to its owner
//	recovery/open/<key id>      the open attempt of a coordinator, signed by its key
//	recovery/<attempt>/<owner>  shares that gather, each encrypted to a key in memory
//	replica/<key id>            a coordinator as it says itself, signed by its
//	                            enrolment key; kept for a week after the last word
//	reseed/…                    while a reseed moves the records
//	upkeep/backup, upkeep/drill/<owner>
//	                            when the last backup was sent, and when the share of an owner was
//	                            found good last
//	audit/…, audithead/…, checkpoint/…
//	                            who did what, in chains under signed checkpoints; kept for
//	                            90 days; see package auditlog
package record

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/fealty-io/fealty/internal/store"
)

// Versioned is a record with the store version that it was read at; version 0
// means that there is none.
type Versioned[T any] struct {
	Value   T
	Version store.Revision
}

// Exists reports whether there is a record.
func (v Versioned[T]) Exists() bool { return v.Version != 0 }

// Records reads and writes the families that are under the record MAC.
type Records struct {
	Store store.Store
	Auth  *store.Authenticator // seals and opens
	Audit AuditPlaces
	// Next are the records under the seed that takes over, once the head moved to
	// it: whoever still reads under this one reads what is moved already. Nothing is
	// written on what was read so, because the head moved.
	Next *atomic.Pointer[Records]
}

// Open returns what was sealed under key. The error of what was not sealed here matches
// [store.ErrForged].
func (r Records) Open(key string, sealed []byte) ([]byte, error) {
	plain, err := r.Auth.Open(key, sealed)
	if err != nil && r.Next != nil {
		if next := r.Next.Load(); next != nil {
			return next.Open(key, sealed)
		}
	}
	return plain, err
}

// Get reads the record at key. Absence is version 0 and no error; a record that
// fails its MAC is an error that matches [store.ErrForged].
func Get[T any](ctx context.Context, r Records, key string) (Versioned[T], error) {
	e, err := r.Store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Versioned[T]{}, nil
	case err != nil:
		return Versioned[T]{}, err
	}
	return Open[T](r, e)
}

// Open returns the record that e holds; see [Get].
func Open[T any](r Records, e store.Entry) (Versioned[T], error) {
	plain, err := r.Open(e.Key, e.Value)
	if err != nil {
		return Versioned[T]{}, err
	}
	v := Versioned[T]{Version: e.Version}
	if err := json.Unmarshal(plain, &v.Value); err != nil {
		return Versioned[T]{}, fmt.Errorf("record %s passes its MAC but does not decode: %w", e.Key, err)
	}
	return v, nil
}

// maxAltered is how many records that were altered in the store an answer with a list names.
const maxAltered = 100

// AddAltered adds a record that was altered in the store to those that an answer with a list names, unless it names
// enough. Who writes to the store chose the name: one that is no text would end the whole answer.
func AddAltered(names []string, name string) []string {
	if len(names) >= maxAltered {
		return names
	}
	return append(names, strings.ToValidUTF8(name[:min(len(name), store.MaxKeyBytes)], "?"))
}

// List reads every record below prefix, sorted by key, for what is not to be had without one of them. One
// that fails its MAC is an error, which matches [store.ErrForged].
func List[T any](ctx context.Context, r Records, prefix string) ([]Versioned[T], error) {
	l, err := r.Store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := make([]Versioned[T], 0, len(l.Entries))
	for _, e := range l.Entries {
		v, err := Open[T](r, e)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Seal returns the write of value at key, under the record MAC.
func (r Records) Seal(key string, value any) (store.Write, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return store.Write{}, fmt.Errorf("record %s does not encode: %w", key, err)
	}
	return store.Write{Key: key, Value: r.Auth.Seal(key, plain)}, nil
}

// NewID returns 128 random bits in hex, which name what nothing else names.
func NewID() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}
