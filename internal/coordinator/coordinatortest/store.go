package coordinatortest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
	"github.com/fealty-io/fealty/test/testlane"
)

// MemStore is a [storetest.Memory] with fault switches: it can be down, and it can
// lose the answers of writes that happened, or of writes that did not. It watches no key.
type MemStore struct {
	db     *storetest.Memory
	handle store.Store // of db, without faults

	Mu      sync.Mutex
	down    error                           // what every call returns; guarded by Mu
	unread  string                          // the family that cannot be listed; "": every one can; guarded by Mu
	lost    []LostAnswer                    // of the next commits; guarded by Mu
	before  func(store.Tx)                  // called before each commit, without the lock; guarded by Mu
	after   func(store.Tx)                  // called after each commit that was applied, without the lock; guarded by Mu
	answers int                             // calls until it is down with ErrDown; -1: it stays up; guarded by Mu
	hangs   bool                            // what is down answers nobody, instead of failing; guarded by Mu
	refuses error                           // what every write returns while reads go on; guarded by Mu
	counted string                          // what of it is read is counted; guarded by Mu
	read    int                             // entries below counted that were read; guarded by Mu
	called  int                             // how many calls there were; guarded by Mu
	told    func(store.Change) store.Change // what Changes makes of each; guarded by Mu
	onFull  func()                          // called after each write that was refused, without the lock; guarded by Mu
}

// ErrFull is how a store refuses a write for which it has no space.
var ErrFull = fmt.Errorf("no room in /secret/path: %w", store.ErrFull)

// SetFull lets no write find space, or every one.
func (m *MemStore) SetFull(full bool) {
	var err error
	if full {
		err = ErrFull
	}
	m.SetRefusing(err)
}

// SetRefusing has every write refused with err, or none.
func (m *MemStore) SetRefusing(err error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.refuses = err
}

// RefusedFor is how a store refuses a write for a reason.
func RefusedFor(r store.Reason) error {
	return &store.RefusedError{Reason: r, Err: errors.New("of /secret/path")}
}

// CountReads counts the entries below prefix that are read from now on.
func (m *MemStore) CountReads(prefix string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.counted, m.read = prefix, 0
}

// ReadSince returns how many were read since it was asked last.
func (m *MemStore) ReadSince() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	n := m.read
	m.read = 0
	return n
}

// Calls returns how many calls there were: each is a round trip.
func (m *MemStore) Calls() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.called
}

// SetUnread has nobody list a family from now on; with "" everybody can.
func (m *MemStore) SetUnread(prefix string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.unread = prefix
}

func (m *MemStore) countLocked(key string) {
	if m.counted != "" && strings.HasPrefix(key, m.counted) {
		m.read++
	}
}

// WhenFull has f called after each write that finds no space.
func (m *MemStore) WhenFull(f func()) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.onFull = f
}

// hangFor is how long an engine waits for a server that does not answer.
const hangFor = 20 * time.Second

// ErrDown is how a store fails after its answers are used up.
var ErrDown = errors.New("the store is down")

// LostAnswer is what happens to one commit.
type LostAnswer int

const (
	Answered     LostAnswer = iota
	LostApplied             // it happened, and nobody hears of it at once
	LostDropped             // it did not happen
	LostForGood             // it happened, and the next answered stands for Outcome failing
	LostForGoodN            // the same, of one that did not happen
)

// Losses returns the ways in which the answer of a commit is lost.
func Losses() []LostAnswer {
	return []LostAnswer{LostApplied, LostDropped, LostForGood, LostForGoodN}
}

// InTurn returns in how many ways the nth row of a table is done: in one in its turn in the quick
// lane, and in all of them in the nightly one. Each is a cluster that is made anew.
func InTurn[T any](n int, all ...T) []T { return testlane.Rounds(all[n%len(all):][:1], all) }

// keptChanges is of how many commits a [MemStore] keeps what they changed.
const keptChanges = 64

// NewMemStore returns an empty one.
func NewMemStore() *MemStore {
	db := storetest.NewMemory(keptChanges)
	return &MemStore{db: db, handle: db.Open(), answers: -1}
}

// FailAfter lets n more calls be answered.
func (m *MemStore) FailAfter(n int) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.answers = n
}

// IsDown reports whether a call was not answered.
func (m *MemStore) IsDown() bool {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.down != nil
}

// SetHanging makes the store a black hole, or one that fails, while it is down.
func (m *MemStore) SetHanging(hangs bool) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.hangs = hangs
}

// enter takes the lock for one call, unless the store is down.
func (m *MemStore) enter(ctx context.Context) error {
	m.Mu.Lock()
	m.called++
	switch {
	case m.answers == 0 && m.down == nil:
		m.down = ErrDown
	case m.answers > 0:
		m.answers--
	}
	err := errors.Join(m.down, ctx.Err())
	if err == nil {
		return nil
	}
	hangs := m.hangs && m.down != nil
	m.Mu.Unlock()
	if hangs {
		t := time.NewTimer(hangFor)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// SetDown has every call fail with err; nil: none any more.
func (m *MemStore) SetDown(err error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.down, m.answers = err, -1
}

// Lose has the answers of the next writes lost, each in its way.
func (m *MemStore) Lose(how ...LostAnswer) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.lost = how
}

// Intercept calls f before each commit, until it is given nil.
func (m *MemStore) Intercept(f func(store.Tx)) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.before = f
}

// Follow calls f after each commit that was applied, before its answer, until it is
// given nil.
func (m *MemStore) Follow(f func(store.Tx)) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.after = f
}

// Snapshot returns a copy of all entries.
func (m *MemStore) Snapshot() (all map[string]store.Entry) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) { all = maps.Clone(entries) })
	return all
}

// Revert puts entries back as they were, as a restored backup does. The revision goes on.
func (m *MemStore) Revert(to map[string]store.Entry) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) {
		clear(entries)
		maps.Copy(entries, to)
	})
}

// Put puts an entry there as it is, keeping its version.
func (m *MemStore) Put(e store.Entry) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) { entries[e.Key] = e })
}

// Alter changes the value of key behind everybody's back, keeping its version.
func (m *MemStore) Alter(key string, f func([]byte) []byte) (ok bool) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) {
		var e store.Entry
		if e, ok = entries[key]; !ok {
			return
		}
		if e.Value = f(slices.Clone(e.Value)); e.Value == nil {
			delete(entries, key)
			return
		}
		entries[key] = e
	})
	return ok
}

// Write writes key, whatever the switches say.
func (m *MemStore) Write(key string, value []byte) (at store.Revision) {
	m.db.Tamper(func(entries map[string]store.Entry, revision *store.Revision) {
		*revision++
		at = *revision
		entries[key] = store.Entry{Key: key, Value: value, Version: at}
	})
	return at
}

// Lifter raises the revision, whatever the switches say.
func (m *MemStore) Lifter() store.Lifter { return m.handle.(store.Lifter) }

// Revision is that of the last write.
func (m *MemStore) Revision() (at store.Revision) {
	m.db.Tamper(func(_ map[string]store.Entry, revision *store.Revision) { at = *revision })
	return at
}

// ForgetLost has all answers heard again.
func (m *MemStore) ForgetLost() {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.lost = nil
}

// Remove deletes an entry, as somebody does who has the database.
func (m *MemStore) Remove(key string) {
	m.db.Tamper(func(entries map[string]store.Entry, revision *store.Revision) {
		*revision++
		delete(entries, key)
	})
}

// Version is that of a key; 0: it is absent.
func (m *MemStore) Version(key string) (at store.Revision) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) { at = entries[key].Version })
	return at
}

// Keys are all below a prefix, sorted.
func (m *MemStore) Keys(prefix string) (out []string) {
	m.db.Tamper(func(entries map[string]store.Entry, _ *store.Revision) {
		for key := range entries {
			if strings.HasPrefix(key, prefix) {
				out = append(out, key)
			}
		}
	})
	slices.Sort(out)
	return out
}

func (m *MemStore) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := m.enter(ctx); err != nil {
		return store.Entry{}, err
	}
	defer m.Mu.Unlock()
	e, err := m.handle.Get(ctx, key)
	if err == nil {
		m.countLocked(key)
	}
	return e, err
}

func (m *MemStore) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision,
	error) {
	return m.Commit(ctx, store.SwapTx(key, old, value))
}

func (m *MemStore) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := m.enter(ctx); err != nil {
		return store.Listing{}, err
	}
	defer m.Mu.Unlock()
	if m.unread != "" && prefix == m.unread {
		return store.Listing{}, ErrDown
	}
	l, err := m.handle.List(ctx, prefix)
	for _, e := range l.Entries {
		m.countLocked(e.Key)
	}
	return l, err
}

func (m *MemStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := tx.Validate(); err != nil {
		return 0, err
	}
	m.Mu.Lock()
	before, after := m.before, m.after
	m.Mu.Unlock()
	if before != nil {
		before(tx)
	}
	rev, told, err := m.commit(ctx, tx)
	if told != nil {
		told()
	}
	if err == nil && after != nil {
		after(tx)
	}
	return rev, err
}

func (m *MemStore) commit(ctx context.Context, tx store.Tx) (rev store.Revision, told func(), err error) {
	if err := m.enter(ctx); err != nil {
		return 0, nil, err
	}
	defer m.Mu.Unlock()
	how := Answered
	if len(m.lost) > 0 {
		how, m.lost = m.lost[0], m.lost[1:]
	}
	if how == LostDropped || how == LostForGoodN {
		return 0, nil, store.ErrUnknownOutcome
	}
	known := m.db.Applied(tx.ID)
	if m.refuses != nil && !known {
		if err := tx.Conflict(func(key string) (store.Revision, error) { return m.Version(key), nil }); err != nil {
			return 0, nil, err
		}
		return 0, m.onFull, m.refuses
	}
	rev, err = m.handle.Commit(ctx, tx)
	if err == nil && !known && (how == LostApplied || how == LostForGood) {
		return 0, nil, store.ErrUnknownOutcome
	}
	return rev, nil, err
}

func (m *MemStore) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if err := m.enter(ctx); err != nil {
		return 0, err
	}
	defer m.Mu.Unlock()
	if len(m.lost) > 0 && m.lost[0] == Answered {
		m.lost = m.lost[1:] // stands for a question that is lost too
		return 0, errors.New("no answer")
	}
	if m.refuses != nil && !m.db.Applied(id) {
		return 0, m.refuses // that it never will be has to be written
	}
	return m.handle.Outcome(ctx, id)
}

func (m *MemStore) Watch(ctx context.Context, _ string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		<-ctx.Done()
		yield(store.Entry{}, ctx.Err())
	}
}

func (m *MemStore) Changes(ctx context.Context, prefix string, after store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		if err := m.enter(ctx); err != nil {
			yield(store.Change{}, err)
			return
		}
		alter := m.told
		m.Mu.Unlock()
		for ch, err := range m.handle.Changes(ctx, prefix, after) {
			if alter != nil && err == nil {
				ch = alter(ch)
			}
			m.Mu.Lock()
			for _, e := range ch.Put {
				m.countLocked(e.Key)
			}
			m.Mu.Unlock()
			if !yield(ch, err) {
				return
			}
		}
	}
}

// Tell has changes told as f makes them, from the next call of Changes on; nil: as they are.
func (m *MemStore) Tell(f func(store.Change) store.Change) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.told = f
}

func (m *MemStore) Close() error { return nil }
