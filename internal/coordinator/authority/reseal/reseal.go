// Package reseal moves the records of a cluster to a new seed: whole, or not at all (docs/explanation/reseed.md).
//
// A reseed comes into force like every other move of the head. Different are the records under the
// record MAC: they have to stand under the new key, all of them as they were when the head moved, and nothing
// that the old key signs afterwards may count. A store transaction is too small for a fleet. So before the head
// moves the records are locked, and a ledger of their hashes is written under the new key; after it they are
// moved one batch after the other, each only if it is what the ledger says. A crash at any point leaves the old
// seed with its records, or the new one with a ledger that the next start goes on with.
package reseal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Where a reseed keeps what it needs until the records are moved.
const (
	Prefix       = "reseed/"
	LedgerPrefix = Prefix + "ledger/"
)

// Families are the record families under the record MAC, by what a reseed does with them.
type Families struct {
	Moved  []string // it keeps them, and moves them in this order
	Ended  []string // they end with the root
	Tokens string   // of those, the one of join tokens
}

// Config is what a Reseal is made of.
type Config struct {
	Self   *authority.Enrolment
	Head   *authority.Head
	Turn   *authority.Turn
	Store  store.Store
	Faults *failpoint.Points
	Log    *slog.Logger
	Now    func() time.Time

	Families Families
}

// Reseal locks the records, and moves them.
type Reseal struct {
	cfg       Config
	unsettled atomic.Bool // a reseed may have left the records locked
}

// New returns a Reseal. It looks at nothing yet.
func New(cfg Config) *Reseal { return &Reseal{cfg: cfg} }

// Unsettled reports whether a reseed may have left the records locked: the history is to be read again, and
// [Reseal.Break] called.
func (r *Reseal) Unsettled() bool { return r.unsettled.Load() }

// Tokens is the family of join tokens, which end with the root.
func (r *Reseal) Tokens() string { return r.cfg.Families.Tokens }

// Settle notes, under the turn, that what a reseed may have left was looked at.
func (r *Reseal) Settle() { r.unsettled.Store(false) }

// RecordLock is the value of the record lock: which seed the records wait for, by whom, since when.
type RecordLock struct {
	Salt   history.Salt `json:"salt"`
	Ledger string       `json:"ledger"` // of this try: an earlier one may have left another
	By     string       `json:"by"`     // the enrolment key of the coordinator
	At     time.Time    `json:"at"`
}

// LockLimit is how long a record lock is waited for that another coordinator made. Moving
// the records of a large fleet takes seconds.
const LockLimit = time.Minute

// Lock makes every change of a record fail, on every replica, until the returned
// function is called or the records are moved. It names the seed by its salt. The caller has the turn.
func (r *Reseal) Lock(ctx context.Context, s *authority.State, salt history.Salt) (f RecordLock, unlock func(),
	err error) {
	f = RecordLock{salt, record.NewID(), r.cfg.Self.EnrolmentKey(), r.cfg.Now().UTC()}
	value, err := json.Marshal(f)
	if err != nil {
		return f, nil, err
	}
	ch := s.Records.NewChange(s.HeadVersion) // which wants that it does not exist
	ch.Tx.Put = append(ch.Tx.Put, store.Write{Key: record.LockKey, Value: value})
	version, err := ch.Commit(ctx)
	if err != nil {
		r.Unsettle() // it may be there, of this try or of an earlier one
		return f, nil, r.cfg.Head.StoreError("lock the records", err)
	}
	if err := r.cfg.Faults.Hit("reseed.after-freeze"); err != nil {
		r.Unsettle()
		return f, nil, err
	}
	return f, func() {
		ctx, cancel := context.WithTimeout(timeout.Beyond(ctx), unlockTimeout)
		defer cancel()
		tx := store.Tx{If: []store.Condition{{Key: record.LockKey, Version: version}},
			Delete: []string{record.LockKey}}
		if _, err := r.cfg.Store.Commit(ctx, tx); err != nil {
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the records are still locked, which is tried again",
				slog.Any("err", err))
			r.Unsettle()
		}
	}, nil
}

// unlockTimeout bounds the end of a record lock: it is not given up with its caller.
const unlockTimeout = 10 * time.Second

// Unsettle makes the loop that follows the head look at the record lock.
func (r *Reseal) Unsettle() {
	r.unsettled.Store(true)
	r.cfg.Head.LookAgain()
}

// Await takes the turn, and so waits for a reseed of ours to end, and has a record lock looked at that
// nobody seems to end.
func (r *Reseal) Await(ctx context.Context) {
	release, err := r.cfg.Turn.Take(ctx)
	if err != nil {
		return
	}
	release()
	r.Look(ctx)
}

// Look has a record lock ended that nobody seems to end. It waits for no reseed.
func (r *Reseal) Look(ctx context.Context) {
	e, err := r.cfg.Store.Get(ctx, record.LockKey)
	if err != nil {
		return // most likely it is over
	}
	var f RecordLock
	if err := json.Unmarshal(e.Value, &f); err != nil || r.cfg.Now().Sub(f.At).Abs() > LockLimit {
		r.Unsettle()
	}
}

// Break ends a record lock that nobody will end: its coordinator stopped before the
// head moved. A coordinator that may yet move the head under it is stopped by the same transaction,
// which writes the head again, as it is, under another version; so ending one too
// early costs another try, and no more. One that is young is left alone, unless this
// coordinator made it. A record lock for the seed of the head stays: the records are to be
// moved. The caller has the turn, so that it is none of ours that is under way.
func (r *Reseal) Break(ctx context.Context) error {
	e, err := r.cfg.Store.Get(ctx, record.LockKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var f RecordLock
	if err := json.Unmarshal(e.Value,
		&f); err == nil && f.By != r.cfg.Self.EnrolmentKey() && r.cfg.Now().Sub(f.At).Abs() <= LockLimit {
		return nil
	}
	head, err := r.cfg.Store.Get(ctx, history.HeadKey)
	if errors.Is(err, store.ErrNotFound) { // nobody of ours made it
		_, err := r.cfg.Store.Commit(ctx, store.Tx{If: []store.Condition{{Key: record.LockKey, Version: e.Version}},
			Delete: []string{record.LockKey}})
		return err
	}
	if err != nil {
		return err
	}
	// A head that cannot be followed is told by who reads the history next, and the record lock
	// stays until there is one that can.
	shown, err := history.DecodeRecord(head.Value)
	if err != nil {
		return nil
	}
	blob, err := r.cfg.Store.Get(ctx, history.BlobKey(shown.Hash))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	t, err := history.Decode(blob.Value)
	if err != nil {
		return nil
	}
	if f.Salt == t.Salt {
		return nil
	}
	r.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
		"a reseed was cut off before the head moved: the records are free again, and the old seed stays")
	_, err = r.cfg.Store.Commit(ctx, store.Tx{
		If: []store.Condition{{Key: record.LockKey, Version: e.Version},
			{Key: history.HeadKey, Version: head.Version}},
		Put:    []store.Write{{Key: history.HeadKey, Value: head.Value}},
		Delete: []string{record.LockKey},
	})
	return err
}

// Ledger is the SHA-256 of each record's value when the head moved, in hex, by key.
type Ledger map[string]string

// ledgerLine is one of a ledger that is written.
type ledgerLine struct{ key, sum string }

// ledgerCost cuts a ledger into parts of half of what a transaction takes: each is one value.
func ledgerCost(l ledgerLine) (ops, bytes int) { return 0, 2 * len(`"":"",`+l.key+l.sum) }

func (f RecordLock) prefix() string {
	return LedgerPrefix + hex.EncodeToString(f.Salt[:]) + "/" + f.Ledger + "/"
}

func valueSum(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// WriteLedger writes what counts of the records when the head moves, sealed under
// the key of the new seed. A record that is not genuine under the old one is left out, and so
// never becomes genuine.
func (r *Reseal) WriteLedger(ctx context.Context, s *authority.State, mv *transition.Move, f RecordLock) error {
	auth, err := mv.Secrets.Records()
	if err != nil {
		return err
	}
	var lines []ledgerLine
	for _, prefix := range r.cfg.Families.Moved {
		l, err := r.cfg.Store.List(ctx, prefix)
		if err != nil {
			return r.cfg.Head.StoreError("read the records", err)
		}
		for _, e := range l.Entries {
			if _, err := s.Records.Auth.Open(e.Key, e.Value); err != nil {
				r.cfg.Head.Forged(ctx, e.Key, err)
				continue
			}
			lines = append(lines, ledgerLine{e.Key, valueSum(e.Value)})
		}
	}
	parts := slices.Collect(store.Cut(lines, store.Tx{}, ledgerCost))
	if len(parts) == 0 {
		parts = append(parts, nil) // so that an empty one is told from none
	}
	for n, lines := range parts {
		part := Ledger{}
		for _, line := range lines {
			part[line.key] = line.sum
		}
		raw, err := json.Marshal(part)
		if err != nil {
			return err
		}
		key := f.prefix() + strconv.Itoa(n)
		if _, err := r.cfg.Head.Overwrite(ctx, key, auth.Seal(key, raw)); err != nil {
			return err
		}
	}
	return r.cfg.Faults.Hit("reseed.after-ledger")
}

// readLedger returns the ledger of a record lock, for the seed of s.
func (r *Reseal) readLedger(ctx context.Context, s *authority.State, f RecordLock) (Ledger, error) {
	l, err := r.cfg.Store.List(ctx, f.prefix())
	if err != nil {
		return nil, err
	}
	all := Ledger{}
	for n := range l.Entries {
		key := f.prefix() + strconv.Itoa(n)
		i := slices.IndexFunc(l.Entries, func(e store.Entry) bool { return e.Key == key })
		if i < 0 {
			return nil, fmt.Errorf("part %d of the ledger of the reseed is missing: %w", n, store.ErrForged)
		}
		raw, err := s.Records.Auth.Open(key, l.Entries[i].Value)
		if err != nil {
			return nil, err
		}
		var part Ledger
		if err := json.Unmarshal(raw, &part); err != nil {
			return nil, fmt.Errorf("part %d of the ledger of the reseed does not decode: %w", n, err)
		}
		maps.Copy(all, part)
	}
	if len(l.Entries) == 0 {
		return nil, fmt.Errorf("the ledger of the reseed is missing: %w", store.ErrForged)
	}
	return all, nil
}

// Move brings the records under the seed of s, after a reseed whose head is
// in force: those that the ledger names as they are, and nothing else. It goes on
// where an earlier try was cut off. Without a record lock there is nothing to do.
//
// All coordinators do it at once, each as soon as it knows the head: what fails because
// another one was first is looked at again.
func (r *Reseal) Move(ctx context.Context, s *authority.State) error {
	for range record.CommitTries {
		e, err := r.cfg.Store.Get(ctx, record.LockKey)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		err = r.moveLocked(ctx, s, e)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, store.ErrConflict) && !r.movedOn(ctx, s):
		case errors.Is(err, store.ErrForged) && r.unlocked(ctx, e.Version):
		default:
			return err
		}
		if err := watch.Sleep(ctx, mathrand.N(record.ConflictPause)); err != nil {
			return err
		}
	}
	return record.Busy("the records under the new seed")
}

// movedOn reports whether the store shows another head than that of s.
func (r *Reseal) movedOn(ctx context.Context, s *authority.State) bool {
	e, err := r.cfg.Store.Get(ctx, history.HeadKey)
	return err == nil && e.Version != s.HeadVersion
}

// unlocked reports whether a record lock has ended: then what was locked is elsewhere, and not
// missing.
func (r *Reseal) unlocked(ctx context.Context, at store.Revision) bool {
	e, err := r.cfg.Store.Get(ctx, record.LockKey)
	return errors.Is(err, store.ErrNotFound) || err == nil && e.Version != at
}

// moveLocked is one try at it, under the record lock e.
func (r *Reseal) moveLocked(ctx context.Context, s *authority.State, e store.Entry) error {
	lockedAt := e.Version
	trust, err := r.cfg.Store.Get(ctx, bundle.StateKey)
	if err == nil {
		_, err = s.Records.Auth.Open(bundle.StateKey, trust.Value)
	}
	if err != nil && !errors.Is(err, store.ErrForged) && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	moved := err == nil // it moves last
	var f RecordLock
	other := json.Unmarshal(e.Value, &f) != nil || f.Salt != s.Head.Salt
	switch {
	case other && moved:
		return nil // the record lock is of a reseed after that of s
	case other:
		return errors.New("the records are locked for another seed than that of the head")
	case moved:
		// It moves with the end of the record lock: somebody put the record lock back, and what it
		// says is void.
		_, err := r.cfg.Store.Commit(ctx, store.Tx{If: []store.Condition{{Key: record.LockKey, Version: lockedAt}},
			Delete: []string{record.LockKey}})
		if !errors.Is(err, store.ErrConflict) { // it was there still
			r.cfg.Head.Forged(ctx, record.LockKey, fmt.Errorf("the reseed that it is of has ended: %w",
				store.ErrForged))
		}
		return err
	}
	book, err := r.readLedger(ctx, s, f)
	if err != nil {
		return err
	}
	locked := func() *record.Change {
		ch := s.Records.LockedChange(s.HeadVersion)
		ch.Require(record.LockKey, lockedAt)
		return ch
	}
	for _, prefix := range r.cfg.Families.Ended {
		l, err := r.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for batch := range store.Cut(l.Entries, locked().Tx, store.DeleteCost) {
			ch := locked() // what is made after the record lock stays
			for _, e := range batch {
				ch.Delete(e.Key, e.Version)
			}
			if _, err := ch.Commit(ctx); err != nil {
				return fmt.Errorf("end the join tokens: %w", err)
			}
		}
	}
	var last *store.Entry
	for _, prefix := range r.cfg.Families.Moved {
		l, err := r.cfg.Store.List(ctx, prefix)
		if err != nil {
			return err
		}
		var due []store.Entry
		for _, e := range l.Entries {
			if _, err := s.Records.Auth.Open(e.Key, e.Value); err == nil {
				continue // by a try before this one
			}
			if book[e.Key] != valueSum(e.Value) {
				r.cfg.Head.Forged(ctx, e.Key, fmt.Errorf("it is not what it was when the seed changed: %w",
					store.ErrForged))
				continue
			}
			if e.Key == bundle.StateKey {
				last = &e
				continue
			}
			due = append(due, e)
		}
		for batch := range store.Cut(due, locked().Tx, store.ReplaceCost) {
			ch := locked()
			for _, e := range batch {
				ch.Reseal(e)
			}
			if _, err := ch.Commit(ctx); err != nil {
				return fmt.Errorf("move the records to the new seed: %w", err)
			}
			if err := r.cfg.Faults.Hit("reseed.after-batch"); err != nil {
				return err
			}
		}
	}
	// The trust state last, and the record lock with it: from here on the ledger is void. So
	// while it is missing, from the store or from a ledger that was cut short, all stays.
	if last == nil {
		return fmt.Errorf("the trust state is not what it was when the seed changed: %w", store.ErrForged)
	}
	ch := s.Records.LockedChange(s.HeadVersion)
	ch.Reseal(*last)
	ch.Delete(record.LockKey, lockedAt)
	if _, err := ch.Commit(ctx); err != nil {
		return fmt.Errorf("move the trust state to the new seed: %w", err)
	}
	r.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "the records are under the new seed", slog.Int("records", len(book)),
		slog.Uint64("seed_epoch", s.Head.SeedEpoch))
	return r.cfg.Faults.Hit("reseed.after-move")
}
