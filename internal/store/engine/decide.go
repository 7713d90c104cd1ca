package engine

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/fealty-io/fealty/internal/store"
)

// Ask says what a group is to be decided on. Its lists are sorted and name nothing twice.
type Ask struct {
	Keys   []string // in conditions and deletes
	Puts   []string // put, whether or not they are among Keys
	IDs    []string // of transactions
	Some   bool     // whether there is an entry at all
	Oldest bool     // from where on changes and outcomes are kept
}

// State is what a group is decided on. All of it is of one moment.
type State struct {
	Revision, Compacted store.Revision
	Logged              int64                     // bytes of changes ever written
	Versions            map[string]store.Revision // of Ask.Keys; 0 or missing: absent
	Outcomes            map[string]Outcome        // of Ask.IDs; missing: not seen
	Some                bool                      // there is an entry; known if it was asked for

	// Oldest is the least revision of what is kept of changes and outcomes, known if it
	// was asked for; store.MaxRevision if nothing is, or where giving up many costs nothing.
	Oldest store.Revision
}

// Outcome is what is known of a transaction ID.
type Outcome struct {
	Revision store.Revision
	Digest   []byte // nil if it was voided
}

// Plan is what a group does to the database: what leads from one revision to another.
type Plan struct {
	Before, Revision store.Revision
	Compacted, Prune store.Revision // up to where changes and outcomes were given up before, and are to be
	Logged           int64          // after it
	Changes          []Change       // of the revisions between, in their order; not of all after a raise

	results []result       // by job
	last    map[string]int // key → index of the change that touched it last
}

// Change is what one revision does. Its writes are in the order of the Tx.
type Change struct {
	Revision store.Revision
	Tx       store.Tx // with the ID, and no more if it is voided
	Digest   []byte   // of a Tx with an ID; nil if the ID is voided
	Deletes  []string // those of Tx.Delete that exist
	Logged   int64    // after it
}

// Row is a key that a change writes.
type Row struct {
	Seq     int64 // grows from row to row: the revision times RowsPerRevision, and the place in it
	Key     string
	Value   []byte // nil: the key is deleted
	Version store.Revision
	Last    bool // no later row of the plan is of this key
}

// result is what a job came to. Unless it is certain, it holds only once the group is
// written.
type result struct {
	revision store.Revision // of the answer; 0 with an error
	err      error
	certain  bool // it rests on nothing that the group writes, and is part of none of it
}

// Writes reports whether there is anything to commit, but for pruning.
func (p *Plan) Writes() bool { return p.Revision != p.Before }

// Keys returns all keys that the plan touches.
func (p *Plan) Keys() []string {
	keys := make([]string, 0, len(p.last))
	for k := range p.last {
		keys = append(keys, k)
	}
	return keys
}

// Last reports whether no change after c, which is one of the plan's, touches key.
func (p *Plan) Last(c Change, key string) bool { return p.Changes[p.last[key]].Revision == c.Revision }

// Rows returns what the plan writes, for databases that keep it in rows.
func (p *Plan) Rows() []Row {
	var rows []Row
	for _, c := range p.Changes {
		seq := int64(c.Revision) * RowsPerRevision
		add := func(key string, value []byte) {
			rows = append(rows, Row{Seq: seq, Key: key, Value: value, Version: c.Revision, Last: p.Last(c, key)})
			seq++
		}
		for _, w := range c.Tx.Put {
			value := w.Value
			if value == nil {
				value = []byte{} // nil is a deletion
			}
			add(w.Key, value)
		}
		for _, key := range c.Deletes {
			add(key, nil)
		}
	}
	return rows
}

// ask returns what jobs are to be decided on.
func ask(jobs []*job) Ask {
	var a Ask
	for _, j := range jobs {
		for _, c := range j.tx.If {
			a.Keys = append(a.Keys, c.Key)
		}
		for _, w := range j.tx.Put {
			a.Puts = append(a.Puts, w.Key)
		}
		a.Keys = append(a.Keys, j.tx.Delete...)
		if id := j.tx.ID + j.id; id != "" { // a job has one of them
			a.IDs = append(a.IDs, id)
		}
		a.Some = a.Some || j.kind == raise
	}
	for _, list := range []*[]string{&a.Keys, &a.Puts, &a.IDs} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return a
}

// decision decides the jobs of a group, one after the other, each on the state that the
// ones before it leave.
type decision struct {
	*Plan
	state   State           // as the jobs before leave it
	touched map[string]bool // IDs that the group decides
	cfg     *Config
}

// decide says what the jobs come to. It does not change s.
func decide(s State, jobs []*job, cfg *Config) *Plan {
	s.Versions, s.Outcomes = maps.Clone(s.Versions), maps.Clone(s.Outcomes)
	if s.Versions == nil {
		s.Versions = map[string]store.Revision{}
	}
	if s.Outcomes == nil {
		s.Outcomes = map[string]Outcome{}
	}
	d := &decision{
		Plan: &Plan{
			Before: s.Revision, Revision: s.Revision, Compacted: s.Compacted, Prune: s.Compacted, Logged: s.Logged,
			results: make([]result, len(jobs)), last: map[string]int{},
		},
		state: s, touched: map[string]bool{}, cfg: cfg,
	}
	for i, j := range jobs {
		switch j.kind {
		case commit:
			d.results[i] = d.commit(j)
		case outcome:
			d.results[i] = d.outcome(j.id)
		case raise:
			d.results[i] = d.raise(j)
		}
	}
	return d.Plan
}

func (d *decision) commit(j *job) result {
	tx := &j.tx
	if known, seen := d.state.Outcomes[tx.ID]; seen && tx.ID != "" {
		certain := !d.touched[tx.ID]
		switch {
		case known.Digest == nil:
			return result{err: fmt.Errorf("store: transaction %q: %w", tx.ID, store.ErrVoided), certain: certain}
		case !bytes.Equal(known.Digest, j.digest):
			return result{err: &store.ReusedError{ID: tx.ID, Applied: known.Revision}, certain: certain}
		}
		return result{revision: known.Revision, certain: certain}
	}
	certain := true
	conflict := tx.Conflict(func(key string) (store.Revision, error) {
		if _, changed := d.last[key]; changed {
			certain = false
		}
		return d.state.Versions[key], nil
	})
	if conflict != nil {
		return result{err: conflict, certain: certain}
	}
	if d.Revision >= store.MaxRevision {
		return d.lastRevision()
	}
	d.Revision++
	c := Change{Revision: d.Revision, Tx: *tx, Digest: j.digest}
	for _, w := range tx.Put {
		d.touch(w.Key, c.Revision)
		d.Logged += int64(len(w.Key) + len(w.Value))
		d.state.Some = true
	}
	for _, key := range tx.Delete {
		if d.state.Versions[key] == 0 {
			continue // it does not exist, so nothing changes
		}
		d.touch(key, 0)
		d.Logged += int64(len(key))
		c.Deletes = append(c.Deletes, key)
	}
	d.add(c)
	return result{revision: c.Revision}
}

func (d *decision) lastRevision() result {
	err := fmt.Errorf("store: revision %d is the last one: restore %s", store.MaxRevision, d.cfg.Anew)
	return result{err: err, certain: true}
}

// touch records that the change to be added next writes key.
func (d *decision) touch(key string, version store.Revision) {
	d.last[key] = len(d.Changes)
	d.state.Versions[key] = version
}

// add adds the change of the newest revision, and the outcome of its ID.
func (d *decision) add(c Change) {
	c.Logged = d.Logged
	d.Changes = append(d.Changes, c)
	if id := c.Tx.ID; id != "" {
		d.state.Outcomes[id] = Outcome{c.Revision, c.Digest}
		d.touched[id] = true
	}
}

// outcome looks an ID up, and voids it if it is not there.
func (d *decision) outcome(id string) result {
	notApplied := fmt.Errorf("store: transaction %q was not applied: %w", id, store.ErrNotFound)
	known, seen := d.state.Outcomes[id]
	switch {
	case !seen && d.Revision >= store.MaxRevision:
		return d.lastRevision()
	case !seen:
		d.Revision++
		d.add(Change{Revision: d.Revision, Tx: store.Tx{ID: id}})
		return result{err: notApplied}
	case known.Digest == nil:
		return result{err: notApplied, certain: !d.touched[id]}
	}
	return result{revision: known.Revision, certain: !d.touched[id]}
}

func (d *decision) raise(j *job) result {
	if d.state.Some && !j.over {
		err := fmt.Errorf("store: revisions of %s cannot be raised: %w: restore %s",
			d.cfg.Name, store.ErrNotEmpty, d.cfg.Anew)
		return result{err: err, certain: !d.Writes()}
	}
	d.Revision = max(j.floor, d.Revision)
	return result{revision: d.Revision}
}
