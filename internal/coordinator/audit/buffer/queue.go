// Package buffer keeps audit entries in memory while the store takes no writes, and writes them to
// the audit log afterwards.
//
// Most entries become durable with the change that they describe, in its transaction. An act that
// needs no store has none: its entries wait in a [Queue], and the log of the process has each of
// them at once. They are written in their order, each of them once, whatever becomes of an answer
// of the store.
package buffer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

const (
	// MaxWaiting bounds the entries that wait. Those that come above it are dropped, and
	// their number is an entry of its own.
	MaxWaiting = 10_000

	placeBytes = 1 << 10         // of the key of an entry, and of what its place adds to it, at most
	writePause = 5 * time.Second // between attempts to write
)

// Config is what a [Queue] is made of. Every field is required.
type Config struct {
	Store store.Store
	Now   func() time.Time
	Log   *slog.Logger
}

// A Queue holds the entries that the store did not take yet, and gives the entries of this
// process their places in the audit log. It is for concurrent use, except for [Queue.Write].
type Queue struct {
	cfg    Config
	places *auditlog.Writer // set by Open

	mu      sync.Mutex
	entries []record.AuditEntry // oldest first; guarded by mu
	dropped int                 // for want of room; guarded by mu
	// placed are transactions of entries that have their places, and that are there already,
	// perhaps; guarded by mu
	placed []store.Tx

	// sending is a batch of which it is not known whether it was written; owned by Write.
	sending *sending
}

// sending is a transaction that is made of the first entries of the queue.
type sending struct {
	tx      store.Tx
	places  *auditlog.Stamped // nil: they have theirs
	again   bool              // its answer was lost before
	entries int
	placed  int
	dropped int
}

// New returns an empty queue. Nothing is written before [Queue.Open].
func New(cfg Config) *Queue { return &Queue{cfg: cfg} }

// Open begins the chains of this process. who tells it from others: 16 hex digits of its
// key's digest, and anything else is an error.
func (q *Queue) Open(who string) (err error) {
	q.places, err = auditlog.NewWriter(who, q.cfg.Now)
	return err
}

// Places gives the entries of this process their places, those of changes too.
func (q *Queue) Places() record.AuditPlaces { return q.places }

// Add keeps an entry until the store takes it. The log has it at once.
func (q *Queue) Add(e record.AuditEntry) {
	q.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "audit entry waits for the store",
		slog.String("action", e.Action), slog.String("target", e.Target))
	q.add(e)
}

func (q *Queue) add(entries ...record.AuditEntry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		if len(q.entries)+len(q.placed) >= MaxWaiting {
			q.dropped++
			continue
		}
		q.entries = append(q.entries, e)
	}
}

// Again queues the entries of a change that was not committed, as far as is known: the rest
// of it is not made again. Those that may be there already keep their places, so that they
// are written once.
func (q *Queue) Again(ch *record.Change) {
	if ch.Err != nil || ch.Entries != nil {
		q.add(ch.Entries...)
		return
	}
	// The rest of the change is no condition any more either.
	tx := store.Tx{ID: store.NewTxID()}
	for _, w := range ch.Tx.Put {
		if strings.HasPrefix(w.Key, auditlog.ChainPrefix) || strings.HasPrefix(w.Key, auditlog.HeadPrefix) {
			tx.Put = append(tx.Put, w)
		}
	}
	for _, i := range ch.Tx.If {
		if strings.HasPrefix(i.Key, auditlog.HeadPrefix) {
			tx.If = append(tx.If, i)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries)+len(q.placed) >= MaxWaiting {
		q.dropped++
		return
	}
	q.placed = append(q.placed, tx)
}

// Run writes queued entries whenever the store takes them, until ctx ends.
func (q *Queue) Run(ctx context.Context) error {
	for {
		if err := watch.Sleep(ctx, writePause); err != nil {
			return err
		}
		if err := q.Write(ctx); err != nil && ctx.Err() == nil {
			q.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "queued audit entries are not written yet", slog.Any("err", err))
		}
	}
}

// Write writes what is queued, in its order, until nothing is left or the store does not
// take it, whose error it returns then. If the answer to a batch was lost nothing else is
// sent before the store says what became of it, so that none of it is written twice or over
// another: its places are free again only if it never will be there. Only one call may go on
// at a time: it is [Queue.Run] that makes them.
func (q *Queue) Write(ctx context.Context) error {
	for {
		if q.sending == nil {
			var err error
			if q.sending, err = q.next(ctx); q.sending == nil {
				return err
			}
		}
		s := q.sending
		var err error
		if s.again {
			switch _, err = q.cfg.Store.Outcome(ctx, s.tx.ID); {
			case errors.Is(err, store.ErrNotFound): // nor will it ever be applied
				q.takeBack(s)
				continue
			case err != nil:
				return err
			}
		} else if _, err = q.cfg.Store.Commit(ctx, s.tx); errors.Is(err, store.ErrUnknownOutcome) {
			s.again = true
			return err
		}
		if errors.Is(err, store.ErrConflict) && s.places == nil {
			err = nil // the chain that they begin is there, and so are they
		}
		q.sending = nil
		switch {
		case s.places == nil:
		case err == nil:
			s.places.Applied()
		default:
			s.places.Discarded()
		}
		if err != nil {
			return err
		}
		q.mu.Lock()
		q.entries, q.placed, q.dropped = q.entries[s.entries:], q.placed[s.placed:], q.dropped-s.dropped
		if len(q.entries) == 0 {
			q.entries = nil
		}
		q.mu.Unlock()
	}
}

// takeBack frees the places of what will never be in the store. Entries that another
// transaction may have written keep theirs.
func (q *Queue) takeBack(s *sending) {
	q.sending = nil
	if s.places != nil {
		s.places.Discarded()
	}
	if s.placed > 0 {
		q.mu.Lock()
		q.placed[0].ID = store.NewTxID()
		q.mu.Unlock()
	}
}

// next makes a transaction of what is first in the queue; nil if nothing is.
func (q *Queue) next(ctx context.Context) (*sending, error) {
	q.mu.Lock()
	s := &sending{tx: store.Tx{ID: store.NewTxID()}}
	var entries []record.AuditEntry
	if len(q.placed) > 0 {
		s.tx, s.placed = q.placed[0], 1
	} else {
		// They are measured once the lock that callers take is free again.
		entries, s.dropped = slices.Clone(q.entries[:min(len(q.entries), store.CutOps)]), q.dropped
	}
	q.mu.Unlock()
	s.entries = fitting(entries)
	entries = entries[:s.entries]
	if s.dropped > 0 {
		entries = append(entries, record.AuditEntry{
			At: q.cfg.Now().UTC(), Actor: "coordinator", Action: "audit.dropped", Target: "queue",
			Fields: map[string]string{"entries": fmt.Sprint(s.dropped)},
		})
	}
	if len(entries) == 0 {
		if s.placed == 0 {
			return nil, nil
		}
		return s, nil
	}
	var err error
	if s.places, err = q.places.Stamp(ctx, entries); err != nil {
		return nil, err
	}
	s.tx = record.WithPlaces(s.tx, s.places)
	return s, nil
}

// fitting returns how many of the entries go into one transaction: one at least, if there is one.
func fitting(entries []record.AuditEntry) int {
	n, room := 0, store.RoomBeside(store.Tx{})
	room.Take(3, 3*placeBytes) // the count of those that were dropped, and the beginning of a chain
	for ; n < len(entries); n++ {
		raw, err := json.Marshal(entries[n])
		if err != nil || !room.Take(1, len(raw)+placeBytes) {
			break // an error is that of its place, too
		}
	}
	return min(max(1, n), len(entries))
}

// Waiting is how many entries wait for the store, those of one lost answer counted as one.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.entries) + len(q.placed)
}

// Alive returns once the lock that callers take was free.
func (q *Queue) Alive() {
	q.mu.Lock()
	defer q.mu.Unlock()
}
