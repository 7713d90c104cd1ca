package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
)

// broken is a handle with one defect: a method that is set replaces the sound
// one, which it gets as inner.
type broken struct {
	*memoryHandle
	get     func(inner *memoryHandle, ctx context.Context, key string) (store.Entry, error)
	list    func(inner *memoryHandle, ctx context.Context, prefix string) (store.Listing, error)
	commit  func(inner *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error)
	outcome func(inner *memoryHandle, ctx context.Context, id string) (store.Revision, error)
	watch   func(inner *memoryHandle, ctx context.Context, key string) iter.Seq2[store.Entry, error]
	changes func(inner *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error]
	raise   func(inner *memoryHandle, ctx context.Context, floor store.Revision) error
	lift    func(inner *memoryHandle, ctx context.Context, floor store.Revision) error
	close   func(inner *memoryHandle) error

	restart func(m *Memory) // what a restart or a kill does to the database

	// hangs: what the case waits for may never happen, so that it is found by the
	// test's timeout.
	hangs bool
}

func (b *broken) Get(ctx context.Context, key string) (store.Entry, error) {
	if b.get != nil {
		return b.get(b.memoryHandle, ctx, key)
	}
	return b.memoryHandle.Get(ctx, key)
}

func (b *broken) List(ctx context.Context, prefix string) (store.Listing, error) {
	if b.list != nil {
		return b.list(b.memoryHandle, ctx, prefix)
	}
	return b.memoryHandle.List(ctx, prefix)
}

func (b *broken) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if b.commit != nil {
		return b.commit(b.memoryHandle, ctx, tx)
	}
	return b.memoryHandle.Commit(ctx, tx)
}

func (b *broken) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	return b.Commit(ctx, store.SwapTx(key, old, value))
}

func (b *broken) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if b.outcome != nil {
		return b.outcome(b.memoryHandle, ctx, id)
	}
	return b.memoryHandle.Outcome(ctx, id)
}

func (b *broken) Watch(ctx context.Context, key string) iter.Seq2[store.Entry, error] {
	if b.watch != nil {
		return b.watch(b.memoryHandle, ctx, key)
	}
	return b.memoryHandle.Watch(ctx, key)
}

func (b *broken) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	if b.changes != nil {
		return b.changes(b.memoryHandle, ctx, prefix, after)
	}
	return b.memoryHandle.Changes(ctx, prefix, after)
}

func (b *broken) Raise(ctx context.Context, floor store.Revision) error {
	if b.raise != nil {
		return b.raise(b.memoryHandle, ctx, floor)
	}
	return b.memoryHandle.Raise(ctx, floor)
}

func (b *broken) Lift(ctx context.Context, floor store.Revision) error {
	if b.lift != nil {
		return b.lift(b.memoryHandle, ctx, floor)
	}
	return b.memoryHandle.Lift(ctx, floor)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close(b.memoryHandle)
	}
	return b.memoryHandle.Close()
}

// forget undoes the newest commit, as a crash does that finds it unsynced.
func forget(m *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.log) == 0 {
		return
	}
	last := m.log[len(m.log)-1]
	m.log = m.log[:len(m.log)-1]
	for _, e := range last.Put {
		m.drop(e.Key)
	}
}

// planted are the defects that the suite must find, and the case that finds
// each.
var planted = []struct {
	bug   string
	found string
	store broken
}{
	{"an empty value is a deletion", "ReadWrite", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		tx = tx.Clone()
		for _, w := range tx.Put {
			if len(w.Value) == 0 {
				tx.Delete = append(tx.Delete, w.Key)
			}
		}
		tx.Put = slices.DeleteFunc(tx.Put, func(w store.Write) bool { return len(w.Value) == 0 })
		return h.Commit(ctx, tx)
	}}},
	{"a prefix is taken for the start of a range", "ReadWrite", broken{list: func(h *memoryHandle, ctx context.Context, prefix string) (store.Listing, error) {
		l, err := h.List(ctx, "")
		l.Entries = slices.DeleteFunc(l.Entries, func(e store.Entry) bool { return e.Key < prefix })
		return l, err
	}}},
	{"a listing is in no order", "ReadWrite", broken{list: func(h *memoryHandle, ctx context.Context, prefix string) (store.Listing, error) {
		l, err := h.List(ctx, prefix)
		slices.Reverse(l.Entries)
		return l, err
	}}},
	{"a commit is two steps", "Atomic", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		if len(tx.Put) == 2 {
			if r, err := h.Commit(ctx, store.Tx{If: tx.If, Put: tx.Put[:1]}); err != nil {
				return r, err
			}
			tx.If, tx.Put = nil, tx.Put[1:]
		}
		return h.Commit(ctx, tx)
	}}},
	{"a conflict stops only what comes after it", "Atomic", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if errors.Is(err, store.ErrConflict) {
			h.Commit(ctx, store.Tx{Put: tx.Put[:1]})
		}
		return r, err
	}}},
	{"a condition is at least, not exactly", "Conditions", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		tx = tx.Clone()
		for i, c := range tx.If {
			if e, err := h.Get(ctx, c.Key); err == nil && c.Version > e.Version {
				tx.If[i].Version = e.Version
			}
		}
		return h.Commit(ctx, tx)
	}}},
	{"must not exist is not checked", "Conditions", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		tx = tx.Clone()
		tx.If = slices.DeleteFunc(tx.If, func(c store.Condition) bool { return c.Version == 0 })
		return h.Commit(ctx, tx)
	}}},
	{"conditions are checked before the transaction", "Race", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		err := tx.Conflict(func(key string) (store.Revision, error) {
			e, err := h.Get(ctx, key)
			if errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return e.Version, err
		})
		if err != nil {
			return 0, err
		}
		time.Sleep(time.Millisecond)
		return h.Commit(ctx, store.Tx{ID: tx.ID, Put: tx.Put, Delete: tx.Delete})
	}}},
	{"IDs are not remembered", "TxID", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		tx.ID = ""
		return h.Commit(ctx, tx)
	}}},
	{"any Tx under a known ID is taken for the first", "TxID", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if reused, ok := errors.AsType[*store.ReusedError](err); ok {
			return reused.Applied, nil
		}
		return r, err
	}}},
	{"a listing claims more than it shows", "RevisionOrder", broken{list: func(h *memoryHandle, ctx context.Context, prefix string) (store.Listing, error) {
		l, err := h.List(ctx, prefix)
		time.Sleep(time.Millisecond)
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		l.Revision = h.m.revision
		if n := len(l.Entries); n > 0 && l.Revision > 200 {
			l.Entries = l.Entries[:n-1]
		}
		return l, err
	}}},
	{"a commit answers with a revision before its own", "RevisionOrder", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		return max(r, 2) - 1, err
	}}},
	{"a key begins again at its first version", "NeverBack", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if err == nil && len(tx.Put) == 1 && len(tx.If) == 0 {
			h.m.mu.Lock()
			defer h.m.mu.Unlock()
			e := h.m.entries[tx.Put[0].Key]
			e.Version = r%5 + 1
			h.m.entries[e.Key] = e
			return e.Version, nil
		}
		return r, err
	}}},
	{"following begins one too early", "Changes", broken{changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		return h.Changes(ctx, prefix, max(after, 1)-1)
	}}},
	{"following begins one too late", "Changes", broken{hangs: true, changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		return h.Changes(ctx, prefix, min(after+1, h.m.revision))
	}}},
	{"a commit is told in pieces", "Changes", broken{changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		return func(yield func(store.Change, error) bool) {
			for c, err := range h.Changes(ctx, prefix, after) {
				for len(c.Put) > 1 {
					if !yield(store.Change{Revision: c.Revision, Put: c.Put[:1]}, nil) {
						return
					}
					c.Put = c.Put[1:]
				}
				if !yield(c, err) {
					return
				}
			}
		}
	}}},
	{"compaction is silent", "Compaction", broken{hangs: true, changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		return h.Changes(ctx, prefix, max(after, h.m.compacted))
	}}},
	{"a future revision is waited for", "Compaction", broken{hangs: true, changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		return h.Changes(ctx, prefix, min(after, h.m.revision))
	}}},
	{"a quiet reader stays where it was", "QuietReader", broken{changes: func(h *memoryHandle, ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
		return func(yield func(store.Change, error) bool) {
			for {
				changes, seen, err := h.readChanges(ctx, prefix, after)
				for _, c := range changes {
					if !yield(c, nil) {
						return
					}
					after = c.Revision
				}
				if err == nil {
					err = h.wait(ctx, seen)
				}
				if err != nil {
					yield(store.Change{}, err)
					return
				}
			}
		}
	}}},
	{"a watch begins with the next change", "Watch", broken{hangs: true, watch: func(h *memoryHandle, ctx context.Context, key string) iter.Seq2[store.Entry, error] {
		return func(yield func(store.Entry, error) bool) {
			first := true
			for e, err := range h.Watch(ctx, key) {
				if (!first || err != nil) && !yield(e, err) {
					return
				}
				first = false
			}
		}
	}}},
	{"a watch does not tell of deletions", "Watch", broken{hangs: true, watch: func(h *memoryHandle, ctx context.Context, key string) iter.Seq2[store.Entry, error] {
		return func(yield func(store.Entry, error) bool) {
			first := true
			for e, err := range h.Watch(ctx, key) {
				if (first || e.Version != 0 || err != nil) && !yield(e, err) {
					return
				}
				first = false
			}
		}
	}}},
	{"a watch ends without a word", "Watch", broken{watch: func(h *memoryHandle, ctx context.Context, key string) iter.Seq2[store.Entry, error] {
		return func(yield func(store.Entry, error) bool) {
			for e, err := range h.Watch(ctx, key) {
				if err != nil || !yield(e, err) {
					return
				}
			}
		}
	}}},
	{"large values are cut", "LargeValues", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		if err := tx.Validate(); err != nil {
			return 0, err
		}
		tx = tx.Clone()
		for i, w := range tx.Put {
			tx.Put[i].Value = w.Value[:min(len(w.Value), 1<<20)]
		}
		return h.Commit(ctx, tx)
	}}},
	{"a binary key is only not found", "BadKeys", broken{get: func(h *memoryHandle, ctx context.Context, key string) (store.Entry, error) {
		if key != "" && store.CheckKey(key) != nil {
			return store.Entry{}, store.ErrNotFound
		}
		return h.Get(ctx, key)
	}}},
	{"the store keeps the caller's bytes", "Ownership", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if err == nil {
			h.m.mu.Lock()
			defer h.m.mu.Unlock()
			h.m.entries[tx.Put[0].Key] = store.Entry{Key: tx.Put[0].Key, Value: tx.Put[0].Value, Version: r}
		}
		return r, err
	}}},
	{"the caller gets the store's bytes", "Ownership", broken{get: func(h *memoryHandle, ctx context.Context, key string) (store.Entry, error) {
		if e, err := h.Get(ctx, key); err != nil {
			return e, err
		}
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		return h.m.entries[key], nil
	}}},
	{"a cancelled commit is done, and says that it is not", "Cancel", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		r, err := h.Commit(context.WithoutCancel(ctx), tx)
		time.Sleep(2 * time.Millisecond)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return r, err
	}}},
	{"an ended context goes unnoticed", "Cancel", broken{list: func(h *memoryHandle, ctx context.Context, prefix string) (store.Listing, error) {
		return h.List(context.WithoutCancel(ctx), prefix)
	}}},
	{"a restart loses the last commit", "Restart", broken{restart: forget}},
	{"a kill loses the last commit", "Kill", broken{restart: forget}},
	{"a full store does not say so", "Full", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if errors.Is(err, store.ErrFull) {
			err = errors.New("refused")
		}
		return r, err
	}}},
	{"a full store leaves it in doubt what happened", "Full", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if errors.Is(err, store.ErrFull) {
			err = errors.Join(err, store.ErrUnknownOutcome)
		}
		return r, err
	}}},
	{"a full store writes what is small", "Full", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		r, err := h.Commit(ctx, tx)
		if errors.Is(err, store.ErrFull) && len(tx.Put) > 1 {
			h.m.SetFull(false)
			h.Commit(ctx, store.Tx{Put: tx.Put[1:]})
			h.m.SetFull(true)
		}
		return r, err
	}}},
	{"a full store answers no reads", "Full", broken{list: func(h *memoryHandle, ctx context.Context, prefix string) (store.Listing, error) {
		h.m.mu.Lock()
		full := h.m.full
		h.m.mu.Unlock()
		if full {
			return store.Listing{}, store.ErrFull
		}
		return h.List(ctx, prefix)
	}}},
	{"revisions come from the wall clock", "Clock", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		h.m.mu.Lock()
		// Careful about two in one millisecond, but not about steps.
		if now := store.Revision(time.Now().UnixMilli()); now > h.m.revision || now+1000 < h.m.revision {
			h.m.revision = now
		}
		h.m.mu.Unlock()
		return h.Commit(ctx, tx)
	}}},
	{"a Tx whose outcome was asked may still arrive", "LostAnswers", broken{outcome: func(h *memoryHandle, ctx context.Context, id string) (store.Revision, error) {
		r, err := h.Outcome(ctx, id)
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		if h.m.outcomes[id].revision == 0 {
			delete(h.m.outcomes, id)
		}
		return r, err
	}}},
	{"reads come from a follower", "Linearizable", broken{get: func(h *memoryHandle, ctx context.Context, key string) (store.Entry, error) {
		e, err := h.Get(ctx, key)
		time.Sleep(time.Duration(len(e.Value)) * 300 * time.Microsecond)
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		// The newest commit has not arrived there.
		for i := len(h.m.log) - 2; i >= 0 && err == nil; i-- {
			for _, old := range h.m.log[i].Put {
				if old.Key == key {
					return copyEntry(old), nil
				}
			}
		}
		return e, err
	}}},
	{"conditions are checked before the transaction, once in a while", "Linearizable", broken{commit: func(h *memoryHandle, ctx context.Context, tx store.Tx) (store.Revision, error) {
		if len(tx.Put) != 2 || len(tx.If) == 0 {
			return h.Commit(ctx, tx)
		}
		err := tx.Conflict(func(key string) (store.Revision, error) {
			e, err := h.Get(ctx, key)
			if errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return e.Version, err
		})
		if err != nil {
			return 0, err
		}
		time.Sleep(100 * time.Microsecond)
		return h.Commit(ctx, store.Tx{ID: tx.ID, Put: tx.Put, Delete: tx.Delete})
	}}},
	{"a closed store still answers", "Close", broken{hangs: true, close: func(*memoryHandle) error { return nil }}},
	{"a store that is not empty can be raised", "Raise", broken{raise: func(h *memoryHandle, ctx context.Context, floor store.Revision) error {
		if err := h.Raise(ctx, floor); !errors.Is(err, store.ErrNotEmpty) {
			return err
		}
		return nil
	}}},
	{"a raised store keeps all changes", "RaisedForgets", broken{hangs: true, raise: func(h *memoryHandle, ctx context.Context, floor store.Revision) error {
		h.m.mu.Lock()
		h.m.retain = 1 << 40
		h.m.mu.Unlock()
		return h.Raise(ctx, floor)
	}}},
	{"a store is lifted only while it is empty", "Lift", broken{lift: func(h *memoryHandle, ctx context.Context, floor store.Revision) error {
		err := h.Raise(ctx, floor)
		if errors.Is(err, store.ErrNotEmpty) {
			return nil
		}
		return err
	}}},
	{"raising lowers, too", "Raise", broken{raise: func(h *memoryHandle, ctx context.Context, floor store.Revision) error {
		err := h.Raise(ctx, floor)
		if err == nil {
			h.m.mu.Lock()
			defer h.m.mu.Unlock()
			h.m.revision = floor
		}
		return err
	}}},
}

const plantedBug = "FEALTY_STORETEST_BUG"

// TestPlanted runs, for each planted defect, the case that must find it, in a
// process of its own: a failing subtest cannot be taken back.
func TestPlanted(t *testing.T) {
	if bug := os.Getenv(plantedBug); bug != "" {
		for _, p := range planted {
			if p.bug == bug {
				Run(t, brokenEngine(p.store))
			}
		}
		return
	}
	covered := map[string]bool{}
	for _, p := range planted {
		covered[p.found] = true
	}
	for _, c := range cases() {
		if !covered[c.name] {
			t.Errorf("no planted defect shows that case %s can fail", c.name)
		}
	}
	for _, p := range planted {
		t.Run(p.found+"/"+p.bug, func(t *testing.T) {
			t.Parallel()
			timeout := "2m"
			if p.store.hangs {
				timeout = "3s"
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestPlanted$/^"+p.found+"$", "-test.timeout="+timeout)
			cmd.Env = append(os.Environ(), plantedBug+"="+p.bug)
			out, err := cmd.CombinedOutput()
			failed := strings.Contains(string(out), "--- FAIL: TestPlanted/"+p.found)
			hung := p.store.hangs && strings.Contains(string(out), "panic: test timed out after 3s")
			if err == nil || !failed && !hung {
				t.Fatalf("not found: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, ".go:") && !strings.Contains(line, "promise:") && !strings.Contains(line, "seed ") {
					t.Log(strings.TrimSpace(line)[:min(len(strings.TrimSpace(line)), 200)])
					break
				}
			}
		})
	}
}

func brokenEngine(b broken) Engine {
	return Engine{New: func(t testing.TB, retain int) conformance.Database {
		m := NewMemory(retain)
		open := func() (store.Store, error) {
			s := b
			s.memoryHandle = m.Open().(*memoryHandle)
			return &s, nil
		}
		again := func(s store.Store) (store.Store, error) {
			if err := s.Close(); err != nil {
				return nil, fmt.Errorf("Close: %w", err)
			}
			if b.restart != nil {
				b.restart(m)
			}
			return open()
		}
		return conformance.Database{Shared: true, Open: open, Restart: again, Kill: again, Full: func(s store.Store, full bool) (store.Store, error) {
			m.SetFull(full)
			return s, nil
		}}
	}}
}
