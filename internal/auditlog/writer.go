package auditlog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Limits of a writer's chains.
const (
	// MaxLanes bounds the chains that one writer adds to at once. A caller that needs
	// one more waits until one of these transactions is over.
	MaxLanes = 256
	// MaxChainAge is how long after its start a chain gets entries. So what may still grow is
	// found among the youngest.
	MaxChainAge = time.Hour
	// MaxChainEntries bounds a chain.
	MaxChainEntries = 1_000_000
)

// WriterOf is what names the chains of a shard: a shard has the same one whatever its key is, so
// that what it wrote down before a long outage is known as its own after. The chains of a coordinator are
// named after its key.
//
//	the first 16 hex digits of SHA-256("fealty-journal writer v1" 0x00 | identity)
func WriterOf(identity string) string {
	digest := sha256.Sum256([]byte("fealty-journal writer v1\x00" + identity))
	return hex.EncodeToString(digest[:])[:writerDigits]
}

// ChainWriter returns which writer a chain is named after.
func ChainWriter(chain string) string {
	writer, _, _ := strings.Cut(chain, "/")
	return writer
}

// A Write is a value for a key of the store.
type Write struct {
	Key   string
	Value []byte
}

// Writer gives entries their places in the chains of one process. It is safe for concurrent
// use.
type Writer struct {
	who   string
	now   func() time.Time
	since func() time.Duration // on a clock that only goes forward
	lanes chan struct{}        // held by each transaction that is under way

	mu   sync.Mutex
	free []*lane // the one that was used last is last; guarded by mu
}

// A lane is a chain that one transaction at a time adds to.
type lane struct {
	chain   string
	started time.Duration
	number  uint64 // of the last entry that was applied
	hash    Hash   // of that entry
}

// NewWriter returns a writer for the process of who: 16 hex digits of its key's digest. now
// is its clock.
func NewWriter(who string, now func() time.Time) (*Writer, error) {
	if !isDigits(who, writerDigits, true) {
		return nil, fmt.Errorf("auditlog: %.80q is no writer: want %d lower case hex digits", who, writerDigits)
	}
	began := time.Now()
	return &Writer{who: who, now: now, since: func() time.Duration { return time.Since(began) }, lanes: make(chan struct{}, MaxLanes)}, nil
}

// Stamped are entries with their places, for one transaction. Exactly one of its methods is
// called once the transaction is over.
type Stamped struct {
	// Writes are to be put by the transaction.
	Writes []Write
	// Begins is a key that Writes have and the store does not, if a chain begins with them; else
	// empty. The transaction is to be on that condition: whoever writes it again, because the
	// answer was lost, then finds that it was applied.
	Begins string

	w      *Writer
	lane   *lane
	number uint64
	hash   Hash
}

// Stamp gives entries the next places of a chain that no other transaction adds to. It waits
// for one while [MaxLanes] are under way.
func (w *Writer) Stamp(ctx context.Context, entries []Entry) (*Stamped, error) {
	select {
	case w.lanes <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l := w.take()
	s := &Stamped{w: w, lane: l, number: l.number, hash: l.hash, Writes: make([]Write, 0, len(entries)+1)}
	for _, e := range entries {
		s.number++
		e.At, e.Chain, e.Number, e.Previous = e.At.UTC(), "", 0, s.hash
		value, err := json.Marshal(e)
		if err == nil && len(value) > MaxEntryBytes {
			err = fmt.Errorf("it has %d bytes, above %d", len(value), MaxEntryBytes)
		}
		if err != nil {
			s.Discarded()
			return nil, fmt.Errorf("auditlog: the entry of %.80q: %w", e.Action, err)
		}
		key := Key(l.chain, s.number)
		s.hash = HashOf(key, value)
		s.Writes = append(s.Writes, Write{key, value})
	}
	if l.number == 0 { // who makes checkpoints finds the chain by this
		head, err := json.Marshal(Head{At: w.now().UTC()})
		if err != nil {
			s.Discarded()
			return nil, err
		}
		s.Begins = HeadPrefix + l.chain
		s.Writes = append(s.Writes, Write{s.Begins, head})
	}
	return s, nil
}

// take returns a lane that nobody else has. The one that was used last comes first, so that a
// process that does one thing at a time has one chain.
func (w *Writer) take() *lane {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.free) > 0 {
		l := w.free[len(w.free)-1]
		w.free = w.free[:len(w.free)-1]
		if l.number < MaxChainEntries && w.since()-l.started < MaxChainAge {
			return l
		}
	}
	random := make([]byte, startRandom/2)
	rand.Read(random)
	start := max(w.now().UnixNano(), 0)
	return &lane{chain: fmt.Sprintf("%s/%0*d-%s", w.who, startDigits, start, hex.EncodeToString(random)), started: w.since()}
}

// Applied says that the transaction was applied.
func (s *Stamped) Applied() { s.give(s.number, s.hash) }

// Discarded says that the transaction was not applied, and never will be: the next one takes
// its places.
func (s *Stamped) Discarded() { s.give(s.lane.number, s.lane.hash) }

// Unknown says that the transaction may have been applied, or may yet be. Nothing more is
// added to its chain, which ends before these entries or with them.
func (s *Stamped) Unknown() { <-s.w.lanes }

func (s *Stamped) give(number uint64, hash Hash) {
	s.w.mu.Lock()
	s.lane.number, s.lane.hash = number, hash
	s.w.free = append(s.w.free, s.lane)
	s.w.mu.Unlock()
	<-s.w.lanes
}
