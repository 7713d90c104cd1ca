package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

// Memory is a database that keeps every promise of package store but
// durability: it lives as long as the process. Each call is one step under one
// lock, so it is also the shortest statement of what the promises mean. It does
// no I/O and starts no goroutine, which suits simulations in a synctest bubble.
type Memory struct {
	retain int

	mu        sync.Mutex // guards what follows
	revision  store.Revision
	compacted store.Revision
	entries   map[string]store.Entry
	keys      map[string][]string // of entries, sorted, by what stands before the first slash of them
	log       []store.Change      // of revisions above compacted
	outcomes  map[string]memoryOutcome
	waiters   map[chan struct{}]struct{} // closed at the next commit
	full      bool                       // writes are refused
}

type memoryOutcome struct {
	revision store.Revision // 0: voided
	digest   [sha256.Size]byte
}

// NewMemory returns an empty database that keeps the changes of retain commits;
// 0 means 1,000,000. It remembers all transaction IDs.
func NewMemory(retain int) *Memory {
	if retain == 0 {
		retain = 1_000_000
	}
	return &Memory{
		retain:   retain,
		entries:  map[string]store.Entry{},
		keys:     map[string][]string{},
		outcomes: map[string]memoryOutcome{},
		waiters:  map[chan struct{}]struct{}{},
	}
}

// Open returns a new handle. Any number may be open at a time.
func (m *Memory) Open() store.Store {
	return &memoryHandle{m: m, closed: make(chan struct{})}
}

// SetFull makes writes find no space, or has them find it again.
func (m *Memory) SetFull(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

// A Dump is what a Memory held at one time.
type Dump struct{ of *Memory }

// Dump returns what the database holds now.
func (m *Memory) Dump() Dump {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Dump{m.copyLocked()}
}

// copyLocked returns a database that holds the same. Values are never written to.
func (m *Memory) copyLocked() *Memory {
	c := &Memory{
		retain: m.retain, revision: m.revision, compacted: m.compacted,
		entries: maps.Clone(m.entries), log: slices.Clone(m.log), outcomes: maps.Clone(m.outcomes),
	}
	c.index()
	return c
}

// family is what stands before the first slash of a key, or of a prefix that has one.
func family(key string) string {
	before, _, _ := strings.Cut(key, "/")
	return before
}

// index makes the keys anew: to list a few entries of many costs what there are few of, as in a database.
func (m *Memory) index() {
	m.keys = map[string][]string{}
	for key := range m.entries {
		m.keys[family(key)] = append(m.keys[family(key)], key)
	}
	for _, keys := range m.keys {
		slices.Sort(keys)
	}
}

// put sets an entry, and drop removes one, if it is there.
func (m *Memory) put(e store.Entry) {
	if _, exists := m.entries[e.Key]; !exists {
		f := family(e.Key)
		i, _ := slices.BinarySearch(m.keys[f], e.Key)
		m.keys[f] = slices.Insert(m.keys[f], i, e.Key)
	}
	m.entries[e.Key] = e
}

func (m *Memory) drop(key string) (existed bool) {
	if _, existed = m.entries[key]; existed {
		f := family(key)
		i, _ := slices.BinarySearch(m.keys[f], key)
		m.keys[f] = slices.Delete(m.keys[f], i, i+1)
		delete(m.entries, key)
	}
	return existed
}

// under returns the keys that begin with a prefix, sorted.
func (m *Memory) under(prefix string) []string {
	if !strings.Contains(prefix, "/") {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(m.entries)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
	}
	keys := m.keys[family(prefix)]
	from, _ := slices.BinarySearch(keys, prefix)
	n := 0
	for from+n < len(keys) && strings.HasPrefix(keys[from+n], prefix) {
		n++
	}
	return keys[from : from+n]
}

// GoBack has the database hold what d says, revision and all, as one does whose disk is
// put back. It is the one way in which a Memory breaks a promise of package store.
func (m *Memory) GoBack(d Dump) {
	c := d.of.copyLocked() // nobody else has d.of
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision, m.compacted, m.log, m.outcomes = c.revision, c.compacted, c.log, c.outcomes
	m.entries, m.keys = c.entries, c.keys
	for c := range m.waiters {
		close(c)
	}
	clear(m.waiters)
}

// Tamper calls f with what the database holds, by key, and its revision, to be changed as by somebody who has the files.
func (m *Memory) Tamper(f func(entries map[string]store.Entry, revision *store.Revision)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.entries, &m.revision)
	m.index()
}

// Applied reports whether a transaction with this ID was.
func (m *Memory) Applied(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outcomes[id].revision != 0
}

type memoryHandle struct {
	m      *Memory
	once   sync.Once
	closed chan struct{}
}

var _ store.Lifter = (*memoryHandle)(nil)

// begin locks the database for one call, unless ctx or the handle ended.
func (h *memoryHandle) begin(ctx context.Context) error {
	select {
	case <-h.closed:
		return store.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: not begun, nothing was written: %w", err)
	}
	h.m.mu.Lock()
	return nil
}

func (h *memoryHandle) end() { h.m.mu.Unlock() }

func (h *memoryHandle) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func copyEntry(e store.Entry) store.Entry {
	if e.Version != 0 {
		e.Value = append([]byte{}, e.Value...)
	}
	return e
}

func (h *memoryHandle) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := store.CheckKey(key); err != nil {
		return store.Entry{}, err
	}
	if err := h.begin(ctx); err != nil {
		return store.Entry{}, err
	}
	defer h.end()
	e := h.m.entryLocked(key)
	if e.Version == 0 {
		return store.Entry{}, fmt.Errorf("store: key %q: %w", key, store.ErrNotFound)
	}
	return e, nil
}

// look returns key's entry, of version 0 if there is none, and the revision at
// which it looked.
func (h *memoryHandle) look(ctx context.Context, key string) (store.Entry, store.Revision, error) {
	if err := h.begin(ctx); err != nil {
		return store.Entry{}, 0, err
	}
	defer h.end()
	return h.m.entryLocked(key), h.m.revision, nil
}

func (m *Memory) entryLocked(key string) store.Entry {
	e := m.entries[key]
	e.Key = key
	return copyEntry(e)
}

func (h *memoryHandle) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return store.Listing{}, err
	}
	if err := h.begin(ctx); err != nil {
		return store.Listing{}, err
	}
	defer h.end()
	l := store.Listing{Revision: h.m.revision}
	for _, key := range h.m.under(prefix) {
		l.Entries = append(l.Entries, copyEntry(h.m.entries[key]))
	}
	return l, nil
}

func (h *memoryHandle) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return h.Commit(ctx, store.SwapTx(key, old, value))
}

func (h *memoryHandle) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := tx.Validate(); err != nil {
		return 0, err
	}
	if err := h.begin(ctx); err != nil {
		return 0, err
	}
	defer h.end()
	m := h.m
	digest := tx.Digest()
	if known, seen := m.outcomes[tx.ID]; seen && tx.ID != "" {
		switch {
		case known.revision == 0:
			return 0, fmt.Errorf("store: transaction %q: %w", tx.ID, store.ErrVoided)
		case known.digest != digest:
			return 0, &store.ReusedError{ID: tx.ID, Applied: known.revision}
		}
		return known.revision, nil
	}
	if err := tx.Conflict(func(key string) (store.Revision, error) { return m.entries[key].Version, nil }); err != nil {
		return 0, err
	}
	if m.full {
		return 0, fmt.Errorf("store: nothing was written: %w", store.ErrFull)
	}
	m.revision++
	change := store.Change{Revision: m.revision}
	for _, w := range tx.Put {
		e := copyEntry(store.Entry{Key: w.Key, Value: w.Value, Version: m.revision})
		m.put(e)
		change.Put = append(change.Put, e)
	}
	for _, key := range tx.Delete {
		if m.drop(key) {
			change.Delete = append(change.Delete, key)
		}
	}
	if len(change.Put)+len(change.Delete) > 0 {
		m.log = append(m.log, change)
	}
	if over := m.revision - m.compacted; over > store.Revision(2*m.retain) {
		m.compacted = m.revision - store.Revision(m.retain)
		m.log = slices.DeleteFunc(m.log, func(c store.Change) bool { return c.Revision <= m.compacted })
	}
	if tx.ID != "" {
		m.outcomes[tx.ID] = memoryOutcome{m.revision, digest}
	}
	for c := range m.waiters {
		close(c)
	}
	clear(m.waiters)
	return m.revision, nil
}

func (h *memoryHandle) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if err := store.CheckTxID(id); err != nil {
		return 0, err
	}
	if err := h.begin(ctx); err != nil {
		return 0, err
	}
	defer h.end()
	if known := h.m.outcomes[id]; known.revision != 0 {
		return known.revision, nil
	}
	h.m.outcomes[id] = memoryOutcome{}
	return 0, fmt.Errorf("store: transaction %q was not applied: %w", id, store.ErrNotFound)
}

func (h *memoryHandle) Raise(ctx context.Context, floor store.Revision) error {
	return h.lift(ctx, floor, false)
}

func (h *memoryHandle) Lift(ctx context.Context, floor store.Revision) error {
	return h.lift(ctx, floor, true)
}

func (h *memoryHandle) lift(ctx context.Context, floor store.Revision, over bool) error {
	if floor > store.MaxRevision/2 {
		return fmt.Errorf("%w: floor %d is above %d", store.ErrInvalid, floor, store.MaxRevision/2)
	}
	if err := h.begin(ctx); err != nil {
		return err
	}
	defer h.end()
	if len(h.m.entries) > 0 && !over {
		return store.ErrNotEmpty
	}
	h.m.revision = max(h.m.revision, floor)
	return nil
}

// wait returns when there is a commit after seen, ctx ended or the handle is
// closed.
func (h *memoryHandle) wait(ctx context.Context, seen store.Revision) error {
	m := h.m
	m.mu.Lock()
	if m.revision != seen {
		m.mu.Unlock()
		return ctx.Err()
	}
	c := make(chan struct{})
	m.waiters[c] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.waiters, c)
	}()
	select {
	case <-c:
	case <-ctx.Done():
	case <-h.closed:
		return store.ErrClosed
	}
	return ctx.Err()
}

func (h *memoryHandle) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := store.CheckKey(key); err != nil {
			yield(store.Entry{}, err)
			return
		}
		for first, seen := true, store.Revision(0); ; first = false {
			e, at, err := h.look(ctx, key)
			if err == nil && (first || e.Version != seen) && !yield(e, nil) {
				return
			}
			seen = e.Version
			if err == nil {
				err = h.wait(ctx, at)
			}
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
		}
	}
}

func (h *memoryHandle) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Change{}, err)
			return
		}
		for {
			changes, seen, err := h.readChanges(ctx, prefix, after)
			for _, c := range changes {
				if !yield(c, nil) {
					return
				}
			}
			after = seen
			if err == nil {
				err = h.wait(ctx, after)
			}
			if err != nil {
				yield(store.Change{}, err)
				return
			}
		}
	}
}

func (h *memoryHandle) readChanges(ctx context.Context, prefix string, after store.Revision) ([]store.Change, store.Revision, error) {
	if err := h.begin(ctx); err != nil {
		return nil, 0, err
	}
	defer h.end()
	m := h.m
	if after < m.compacted || after > m.revision {
		return nil, 0, &store.CompactedError{After: after, Oldest: m.compacted, Current: m.revision}
	}
	from, _ := slices.BinarySearchFunc(m.log, after+1, func(c store.Change, r store.Revision) int {
		switch {
		case c.Revision < r:
			return -1
		case c.Revision > r:
			return 1
		}
		return 0
	})
	var changes []store.Change
	for _, c := range m.log[from:] {
		out := store.Change{Revision: c.Revision}
		for _, e := range c.Put {
			if strings.HasPrefix(e.Key, prefix) {
				out.Put = append(out.Put, copyEntry(e))
			}
		}
		for _, k := range c.Delete {
			if strings.HasPrefix(k, prefix) {
				out.Delete = append(out.Delete, k)
			}
		}
		if len(out.Put)+len(out.Delete) > 0 {
			changes = append(changes, out)
		}
	}
	return changes, m.revision, nil
}
