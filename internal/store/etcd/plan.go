package etcd

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
)

// state is what a group is decided on: all of it was read at one moment, and the
// group is written only if the head is still the same.
type state struct {
	head     head
	entries  map[string]meta    // of the keys that jobs name; missing: absent
	outcomes map[string]outcome // of the transaction IDs that jobs name
	some     bool               // there is an entry; known if a job raises
}

type outcome struct {
	revision store.Revision
	digest   []byte // nil if it was voided
}

// result is what a job came to. Unless it is certain, it holds only once the
// group is written.
type result struct {
	revision store.Revision // of the answer; 0 with an error
	err      error
	certain  bool // it rests on nothing that the group writes, and is part of none of it
}

// plan is what a group does to the store.
type plan struct {
	results []result // by job
	before  store.Revision
	head    head // after it; By and Pending are not set
	changes []*change

	last map[string]int // key → index of the change that touched it last
}

// writes reports whether there is anything to commit.
func (p *plan) writes() bool { return p.head.Revision != p.before }

// decide says what the jobs come to, one after the other, each on the state that
// the ones before it leave. It changes the maps of s.
func decide(s state, jobs []*job, place string) *plan {
	p := &plan{results: make([]result, len(jobs)), before: s.head.Revision, head: s.head, last: map[string]int{}}
	touched := make(map[string]bool) // IDs that the group decides
	for i, j := range jobs {
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
		return s.entries[key].Version, nil
	})
	if conflict != nil {
		return result{err: conflict, certain: certain}
	}
	if p.head.Revision >= store.MaxRevision {
		return result{err: fmt.Errorf("store: revision %d is the last one: restore under a new prefix", store.MaxRevision), certain: true}
	}
	c := p.next(tx.ID, j.digest)
	c.puts = tx.Put
	for i, w := range tx.Put {
		p.last[w.Key] = len(p.changes) - 1
		m := meta{Version: c.revision, Bytes: len(w.Value), Chunks: chunksOf(len(w.Value))}
		if m.Chunks > 0 {
			m.Put = i
		}
		s.entries[w.Key] = m
		s.some = true
	}
	for _, key := range tx.Delete {
		if s.entries[key].Version == 0 {
			continue // it does not exist, so nothing changes
		}
		p.last[key] = len(p.changes) - 1
		delete(s.entries, key)
		c.deletes = append(c.deletes, key)
	}
	p.head.Logged += c.size()
	c.logged = p.head.Logged
	if tx.ID != "" {
		s.outcomes[tx.ID] = outcome{c.revision, j.digest}
		touched[tx.ID] = true
	}
	return result{revision: c.revision}
}

// next begins the change of the next revision.
func (p *plan) next(id string, digest []byte) *change {
	p.head.Revision++
	c := &change{revision: p.head.Revision, id: id, digest: digest, logged: p.head.Logged}
	p.changes = append(p.changes, c)
	return c
}

// outcome looks an ID up, and voids it if it is not there.
func (p *plan) outcome(s *state, id string, touched map[string]bool) result {
	notApplied := fmt.Errorf("store: transaction %q was not applied: %w", id, store.ErrNotFound)
	known, seen := s.outcomes[id]
	switch {
	case !seen:
		c := p.next(id, nil)
		s.outcomes[id] = outcome{revision: c.revision}
		touched[id] = true
		return result{err: notApplied}
	case known.digest == nil:
		return result{err: notApplied, certain: !touched[id]}
	}
	return result{revision: known.revision, certain: !touched[id]}
}

func (p *plan) raise(s *state, floor store.Revision, over bool, place string) result {
	if s.some && !over {
		return result{err: fmt.Errorf("store: revisions of %s cannot be raised: %w: restore under a new prefix", place, store.ErrNotEmpty), certain: !p.writes()}
	}
	p.head.Revision = max(floor, p.head.Revision)
	return result{revision: p.head.Revision}
}

// keys returns all keys that the group touched, and whether each still exists.
func (p *plan) keys() []string {
	all := make([]string, 0, len(p.last))
	for k := range p.last {
		all = append(all, k)
	}
	return all
}

// under returns what c did to the keys that begin with prefix, or nil.
func (c *change) under(prefix string) *store.Change {
	if c == nil {
		return nil
	}
	out := &store.Change{Revision: c.revision}
	for _, w := range c.puts {
		if strings.HasPrefix(w.Key, prefix) {
			out.Put = append(out.Put, store.Entry{Key: w.Key, Value: append([]byte{}, w.Value...), Version: c.revision})
		}
	}
	for _, k := range c.deletes {
		if strings.HasPrefix(k, prefix) {
			out.Delete = append(out.Delete, k)
		}
	}
	if len(out.Put)+len(out.Delete) == 0 {
		return nil
	}
	return out
}

// item is an entry as it is listed. A value that stands apart is yet to be read.
type item struct {
	entry store.Entry
	meta  meta
}

// overlay returns all as it is after told, of which any part may be in it
// already.
func overlay(all []item, told *store.Change) []item {
	touched := make(map[string]bool, len(told.Put)+len(told.Delete))
	for _, e := range told.Put {
		touched[e.Key] = true
	}
	for _, k := range told.Delete {
		touched[k] = true
	}
	all = slices.DeleteFunc(all, func(e item) bool { return touched[e.entry.Key] })
	for _, e := range told.Put {
		all = append(all, item{entry: e})
	}
	slices.SortStableFunc(all, func(a, b item) int { return strings.Compare(a.entry.Key, b.entry.Key) })
	return all
}
