package postgres

import (
	"bytes"
	"fmt"

	"github.com/fealty-io/fealty/internal/store"
)

// state is what a group is decided on: read from the database while the revision
// row is locked.
type state struct {
	revision, compacted store.Revision
	oldest              store.Revision            // of what is kept of changes and outcomes; known if some of it is due to go
	logged              int64                     // bytes ever written to the log
	versions            map[string]store.Revision // of the keys that conditions and deletes name; 0 or missing: absent
	outcomes            map[string]outcome        // of the transaction IDs that jobs name
	some                bool                      // there is an entry; known if a job raises
}

type outcome struct {
	revision store.Revision
	digest   []byte // nil if it was voided
}

// result is what a job came to. Unless it is certain, it holds only once the
// group is durable.
type result struct {
	revision store.Revision // of the answer; 0 with an error
	err      error
	certain  bool // it rests on nothing that the group writes, and is part of none of it
}

// plan is what a group does to the database.
type plan struct {
	results  []result // by job; of those that were given up it is empty
	before   store.Revision
	revision store.Revision // newest after it
	logged   int64          // after it

	// The changes, in their order. A nil value is a deletion.
	seqs   []int64
	keys   []string
	values [][]byte
	last   map[string]int // key → index of its last change

	outcomeIDs       []string
	outcomeRevisions []int64
	outcomeDigests   [][]byte
}

// writes reports whether there is anything to commit.
func (p *plan) writes() bool { return p.revision != p.before }

// decide says what the jobs come to, one after the other, each on the state that
// the ones before it leave. It changes the maps of s.
func decide(s state, jobs []*job, place string) *plan {
	p := &plan{
		results: make([]result, len(jobs)), before: s.revision, revision: s.revision, logged: s.logged,
		last: make(map[string]int),
	}
	touched := make(map[string]bool) // IDs that the group decides
	for i, j := range jobs {
		if j == nil {
			continue
		}
		switch j.kind {
		case jobCommit:
			p.results[i] = p.commit(&s, j, touched)
		case jobOutcome:
			p.results[i] = p.outcome(&s, j.id, touched)
		case jobRaise:
			p.results[i] = p.raise(&s, j.floor, j.over, place)
		}
	}
	return p
}

func (p *plan) commit(s *state, j *job, touched map[string]bool) result {
	tx := &j.tx
	if known, seen := s.outcomes[tx.ID]; seen && tx.ID != "" {
		certain := !touched[tx.ID]
		switch {
		case known.digest == nil:
			return result{err: fmt.Errorf("store: transaction %q: %w", tx.ID, store.ErrVoided), certain: certain}
		case !bytes.Equal(known.digest, j.digest):
			return result{err: &store.ReusedError{ID: tx.ID, Applied: known.revision}, certain: certain}
		}
		return result{revision: known.revision, certain: certain}
	}
	certain := true
	conflict := tx.Conflict(func(key string) (store.Revision, error) {
		if _, changed := p.last[key]; changed {
			certain = false
		}
		return s.versions[key], nil
	})
	if conflict != nil {
		return result{err: conflict, certain: certain}
	}
	if p.revision >= store.MaxRevision {
		return result{err: fmt.Errorf("store: revision %d is the last one: restore into a new database", store.MaxRevision), certain: true}
	}
	p.revision++
	place := int64(0)
	change := func(key string, value []byte) {
		p.last[key] = len(p.seqs)
		p.seqs = append(p.seqs, int64(p.revision)*store.MaxTxOps+place)
		p.keys = append(p.keys, key)
		p.values = append(p.values, value)
		p.logged += int64(len(key) + len(value))
		place++
	}
	for _, w := range tx.Put {
		value := w.Value
		if value == nil {
			value = []byte{} // nil would be SQL's null
		}
		change(w.Key, value)
		s.versions[w.Key] = p.revision
		s.some = true
	}
	for _, key := range tx.Delete {
		if s.versions[key] == 0 {
			continue // it does not exist, so nothing changes
		}
		change(key, nil)
		s.versions[key] = 0
	}
	if tx.ID != "" {
		p.decided(s, tx.ID, j.digest, touched)
	}
	return result{revision: p.revision}
}

// decided records the outcome of an ID as the newest revision.
func (p *plan) decided(s *state, id string, digest []byte, touched map[string]bool) {
	p.outcomeIDs = append(p.outcomeIDs, id)
	p.outcomeRevisions = append(p.outcomeRevisions, int64(p.revision))
	p.outcomeDigests = append(p.outcomeDigests, digest)
	s.outcomes[id] = outcome{p.revision, digest}
	touched[id] = true
}

// outcome looks an ID up, and voids it if it is not there.
func (p *plan) outcome(s *state, id string, touched map[string]bool) result {
	notApplied := fmt.Errorf("store: transaction %q was not applied: %w", id, store.ErrNotFound)
	known, seen := s.outcomes[id]
	switch {
	case !seen:
		p.revision++
		p.decided(s, id, nil, touched)
		return result{err: notApplied}
	case known.digest == nil:
		return result{err: notApplied, certain: !touched[id]}
	}
	return result{revision: known.revision, certain: !touched[id]}
}

func (p *plan) raise(s *state, floor store.Revision, over bool, place string) result {
	if s.some && !over {
		return result{err: fmt.Errorf("store: revisions of %s cannot be raised: %w: restore into a new database", place, store.ErrNotEmpty), certain: !p.writes()}
	}
	p.revision = max(floor, p.revision)
	return result{revision: p.revision}
}

// final returns what the changes leave of the keys they touch: the numbers of the
// changes that put the values to be kept, and the keys to be deleted. A key that
// the group itself both created and deleted is among the latter, harmlessly.
func (p *plan) final() (puts []int64, deletes []string) {
	for i, key := range p.keys {
		switch {
		case p.last[key] != i:
		case p.values[i] == nil:
			deletes = append(deletes, key)
		default:
			puts = append(puts, p.seqs[i])
		}
	}
	return puts, deletes
}
