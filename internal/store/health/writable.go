package health

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// WriteSettles is how long after the last refused write a store counts as one that refuses
// some, though it takes others: what is small may find space where the rest does not.
const WriteSettles = 30 * time.Second

// WriteState is what is known of a store.
type WriteState struct {
	Reason store.Reason // of the last refusal; 0: it takes writes, as far as is known
	Said   string       // the words of the database about it
	Since  time.Time    // of the first refusal
	Last   time.Time    // refusal
	Takes  time.Time    // since when it takes some again; zero: none since Last
}

// Blocks reports whether no write was taken since the last that was refused.
func (s WriteState) Blocks() bool { return s.Reason != 0 && s.Takes.IsZero() }

// Text says it for a person; empty if the store takes writes.
func (s WriteState) Text(now time.Time) string {
	switch {
	case s.Reason == 0:
		return ""
	case s.Takes.IsZero():
		return fmt.Sprintf("the store has taken no writes for %s, because %s", now.Sub(s.Since).Round(time.Second), s.Why())
	}
	return fmt.Sprintf("since %s the store takes some writes; it refused others until %s, because %s", clock(s.Takes), clock(s.Last), s.Why())
}

// Why says why the store refused the last write, with its own words.
func (s WriteState) Why() string {
	if s.Said == "" {
		return s.Reason.String()
	}
	return s.Reason.String() + `; in its words: "` + s.Said + `"`
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05 MST") }

// WriteNews is what a write changed.
type WriteNews int

const (
	Nothing WriteNews = iota
	Refuses           // the store refuses writes, or for another reason than before
	Again             // it takes writes again
)

// A WriteRecord is what the writes of one process came to. The zero value knows of none.
type WriteRecord struct {
	mu sync.Mutex
	s  WriteState // guarded by mu
}

// Note takes in how a write ended. An error that says nothing of whether writes are
// taken, such as a conflict, is none to note.
func (r *WriteRecord) Note(err error, now time.Time) WriteNews {
	reason := store.ReasonOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.s
	if before.over(now) {
		before = WriteState{}
	}
	switch {
	case reason != 0:
		r.s = WriteState{Reason: reason, Since: before.Since, Last: now}
		if e, ok := errors.AsType[*store.RefusedError](err); ok {
			r.s.Said = e.Said()
		}
		if before.Reason == 0 {
			r.s.Since = now
		}
		if before.Reason != reason {
			return Refuses
		}
	case err == nil && r.s.Reason != 0:
		if r.s.Takes.IsZero() {
			r.s.Takes = now
		}
		if r.s.over(now) {
			r.s = WriteState{}
			return Again
		}
	}
	return Nothing
}

// State returns what is known now.
func (r *WriteRecord) State(now time.Time) WriteState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.s.over(now) {
		return WriteState{}
	}
	return r.s
}

func (s WriteState) over(now time.Time) bool {
	return !s.Takes.IsZero() && now.Sub(s.Last) > WriteSettles
}
