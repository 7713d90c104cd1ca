package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
	storeengine "github.com/fealty-io/fealty/internal/store/engine"
)

// database is what any number of handles share.
type database struct {
	mu      sync.Mutex // guards what follows
	content content
	safe    *content // what a crash leaves, if that is not content
	full    bool
	hubs    []*storeengine.Hub
}

type content struct {
	revision, compacted store.Revision
	logged              int64
	entries             map[string]store.Entry
	log                 []store.Change
	outcomes            map[string]storeengine.Outcome
}

func newDatabase() *database {
	return &database{content: content{
		entries: map[string]store.Entry{}, outcomes: map[string]storeengine.Outcome{},
	}}
}

func (c *content) clone() *content {
	d := *c
	d.entries, d.outcomes, d.log = maps.Clone(c.entries), maps.Clone(c.outcomes), slices.Clone(c.log)
	return &d
}

// crash leaves what is durable.
func (db *database) crash() {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.safe != nil {
		db.content, db.safe = *db.safe, nil
	}
}

// step is where an engine can fail.
type step int

const (
	reading step = iota
	writing
)

// fate is what becomes of a step.
type fate int

const (
	well      fate = iota
	fails          // nothing was written, and it cannot be mended
	again          // nothing was written, and another attempt may do better
	rejects        // nothing was written, and another group may do better
	losesBoth      // it is not written, and that is not known
	losesNews      // it is written and seen, not durable, and that is not known
)

// engine is a handle of a database.
type engine struct {
	db  *database
	hub *storeengine.Hub

	// fate decides; nil: all is well. It is called by the writer's goroutine.
	fate func(at step, p *storeengine.Plan) fate

	busy                 bool // each tick finds something to tidy
	left, answered, idle int  // how often these were called; of the writer's goroutine
}

var (
	errOther  = errors.New("the engine is out of order")
	errMoved  = errors.New("someone else was faster")
	errReject = errors.New("this cannot be stored")
)

func (e *engine) what(at step, p *storeengine.Plan) fate {
	if e.fate == nil {
		return well
	}
	return e.fate(at, p)
}

func failure(f fate) error {
	return map[fate]error{fails: errOther, again: errMoved, rejects: errReject}[f]
}

// open opens a handle, with what adjust makes of its configuration.
func (db *database) open(e *engine, adjust func(*storeengine.Config)) *storeengine.Store {
	e.db, e.hub = db, storeengine.NewHub()
	db.mu.Lock()
	db.hubs = append(db.hubs, e.hub)
	c := db.content
	db.mu.Unlock()
	cfg := storeengine.Config{
		Name: "memory", Anew: "elsewhere", Reader: e, Writer: e, Hub: e.hub,
		Found:  storeengine.Found{Compacted: c.compacted, Revision: c.revision, Logged: c.logged},
		Retain: storeengine.RetentionLimits{Age: 1 << 60, Commits: 1_000_000, Bytes: 1 << 40}, Queue: 64,
		Most: storeengine.Cost{Bytes: 16 << 20}, Log: slog.New(slog.DiscardHandler),
		Close: func() error {
			db.mu.Lock()
			defer db.mu.Unlock()
			db.hubs = slices.DeleteFunc(db.hubs, func(h *storeengine.Hub) bool { return h == e.hub })
			return nil
		},
	}
	if adjust != nil {
		adjust(&cfg)
	}
	return storeengine.Start(cfg)
}

func (e *engine) Read(_ context.Context, ask storeengine.Ask) (storeengine.State, error) {
	if f := e.what(reading, nil); f != well {
		return storeengine.State{}, failure(f)
	}
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	c := &e.db.content
	st := storeengine.State{
		Revision: c.revision, Compacted: c.compacted, Logged: c.logged, Some: len(c.entries) > 0,
		Versions: map[string]store.Revision{}, Outcomes: map[string]storeengine.Outcome{},
		Oldest: store.MaxRevision,
	}
	for _, k := range ask.Keys {
		if x, ok := c.entries[k]; ok {
			st.Versions[k] = x.Version
		}
	}
	for _, id := range ask.IDs {
		if o, ok := c.outcomes[id]; ok {
			st.Outcomes[id] = o
		}
	}
	return st, nil
}

func (e *engine) Leave() { e.left++ }

func (e *engine) Write(_ context.Context, p *storeengine.Plan) error {
	f := e.what(writing, p)
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	db := e.db
	switch {
	case failure(f) != nil:
		return failure(f)
	case p.Before != db.content.revision || p.Compacted != db.content.compacted:
		return errMoved
	case db.full:
		return &store.RefusedError{Reason: store.NoSpace, Err: errors.New("it is full")}
	case f == losesBoth:
		return storeengine.Unknown(errOther)
	case f == losesNews && db.safe == nil:
		db.safe = db.content.clone()
	case f == well:
		db.safe = nil
	}
	db.content.apply(p)
	for _, h := range db.hubs {
		if h != e.hub {
			h.Notify(p.Revision, p.Logged, p.Keys(), false)
		}
	}
	if f == losesNews {
		return storeengine.Unknown(errOther)
	}
	return nil
}

func (c *content) apply(p *storeengine.Plan) {
	for _, change := range p.Changes {
		told := store.Change{Revision: change.Revision}
		for _, w := range change.Tx.Put {
			x := store.Entry{Key: w.Key, Value: append([]byte{}, w.Value...), Version: change.Revision}
			c.entries[w.Key] = x
			told.Put = append(told.Put, x)
		}
		for _, k := range change.Deletes {
			delete(c.entries, k)
			told.Delete = append(told.Delete, k)
		}
		if len(told.Put)+len(told.Delete) > 0 {
			c.log = append(c.log, told)
		}
		if change.Tx.ID != "" {
			c.outcomes[change.Tx.ID] = storeengine.Outcome{Revision: change.Revision, Digest: change.Digest}
		}
	}
	c.revision, c.compacted, c.logged = p.Revision, p.Prune, p.Logged
	c.log = slices.DeleteFunc(c.log, func(x store.Change) bool { return x.Revision <= c.compacted })
	for id, o := range c.outcomes {
		if o.Revision <= c.compacted {
			delete(c.outcomes, id)
		}
	}
}

func (e *engine) Mend(_ context.Context, err error, tries int) error {
	switch {
	case errors.Is(err, errMoved) && tries < 100:
		return nil
	case errors.Is(err, errReject):
		return &storeengine.RejectedError{Err: err}
	}
	return err
}

func (e *engine) Upkeep(when storeengine.Occasion) bool {
	switch when {
	case storeengine.Answered:
		e.answered++
	case storeengine.Idle:
		e.idle++
	}
	return e.busy && when == storeengine.Ticked
}

func (e *engine) Entry(ctx context.Context, key string) (store.Entry, error) {
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	x, ok := e.db.content.entries[key]
	if !ok {
		x.Key = key
	}
	x.Value = slices.Clone(x.Value)
	return x, ctx.Err()
}

func (e *engine) Entries(ctx context.Context, prefix string) (store.Listing, error) {
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	l := store.Listing{Revision: e.db.content.revision}
	for _, k := range slices.Sorted(maps.Keys(e.db.content.entries)) {
		if x := e.db.content.entries[k]; strings.HasPrefix(k, prefix) {
			x.Value = slices.Clone(x.Value)
			l.Entries = append(l.Entries, x)
		}
	}
	return l, ctx.Err()
}

// pageChanges is how many changes a page has at most.
const pageChanges = 3

func (e *engine) Page(ctx context.Context, prefix string, after store.Revision) (storeengine.Page, error) {
	e.db.mu.Lock()
	defer e.db.mu.Unlock()
	c := &e.db.content
	if after < c.compacted || after > c.revision {
		return storeengine.Page{}, &store.CompactedError{After: after, Oldest: c.compacted, Current: c.revision}
	}
	page := storeengine.Page{Seen: c.revision}
	for _, change := range c.log {
		if change.Revision <= after {
			continue
		}
		if len(page.Changes) == pageChanges {
			page.Seen, page.More = page.Changes[pageChanges-1].Revision, true
			break
		}
		for _, x := range change.Put {
			if strings.HasPrefix(x.Key, prefix) {
				page.Add(change.Revision, x.Key, false, slices.Clone(x.Value))
			}
		}
		for _, k := range change.Delete {
			if strings.HasPrefix(k, prefix) {
				page.Add(change.Revision, k, true, nil)
			}
		}
	}
	return page, ctx.Err()
}
