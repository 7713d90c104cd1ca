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
	"github.com/fealty-io/fealty/test/testlane"
)

// MemStore is a store in memory with fault switches: it can be down, and it can
// lose the answers of writes that happened, or of writes that did not. It keeps
// the promises of package store but durability, and follows no changes.
type MemStore struct {
	Mu      sync.Mutex
	Entries map[string]store.Entry    // guarded by Mu
	done    map[string]store.Revision // by Tx ID; 0: void; guarded by Mu
	Rev     store.Revision            // guarded by Mu
	down    error                     // what every call returns; guarded by Mu
	unread  string                    // the family that cannot be listed; "": every one can; guarded by Mu
	lost    []LostAnswer              // of the next commits; guarded by Mu
	before  func(store.Tx)            // called before each commit, without the lock; guarded by Mu
	after   func(store.Tx)            // called after each commit that was applied, without the lock; guarded by Mu
	answers int                       // calls until it is down with ErrDown; -1: it stays up; guarded by Mu
	hangs   bool                      // what is down answers nobody, instead of failing; guarded by Mu
	refuses error                     // what every write returns while reads go on; guarded by Mu
	counted string                    // what of it is read is counted; guarded by Mu
	read    int                       // entries below counted that were read; guarded by Mu
	called  int                       // how many calls there were; guarded by Mu
	onFull  func()                    // called after each write that was refused, without the lock; guarded by Mu
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

// NewMemStore returns an empty one.
func NewMemStore() *MemStore {
	return &MemStore{Entries: make(map[string]store.Entry), done: make(map[string]store.Revision), answers: -1}
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
func (m *MemStore) Snapshot() map[string]store.Entry {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return maps.Clone(m.Entries)
}

// Revert puts entries back as they were, as a restored backup does.
func (m *MemStore) Revert(entries map[string]store.Entry) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Entries = maps.Clone(entries)
}

// Alter changes the value of key behind everybody's back, keeping its version.
func (m *MemStore) Alter(key string, f func([]byte) []byte) bool {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	e, ok := m.Entries[key]
	if !ok {
		return false
	}
	if e.Value = f(slices.Clone(e.Value)); e.Value == nil {
		delete(m.Entries, key)
		return true
	}
	m.Entries[key] = e
	return true
}

// Write writes key, whatever the switches say.
func (m *MemStore) Write(key string, value []byte) store.Revision {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Rev++
	m.Entries[key] = store.Entry{Key: key, Value: value, Version: m.Rev}
	return m.Rev
}

// ForgetLost has all answers heard again.
func (m *MemStore) ForgetLost() {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.lost = nil
}

// Remove deletes an entry, as somebody does who has the database.
func (m *MemStore) Remove(key string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Rev++
	delete(m.Entries, key)
}

// Version is that of a key; 0: it is absent.
func (m *MemStore) Version(key string) store.Revision {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	return m.Entries[key].Version
}

// Keys are all below a prefix, sorted.
func (m *MemStore) Keys(prefix string) []string {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	var out []string
	for k := range m.Entries {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func (m *MemStore) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := m.enter(ctx); err != nil {
		return store.Entry{}, err
	}
	defer m.Mu.Unlock()
	e, ok := m.Entries[key]
	if !ok {
		return e, store.ErrNotFound
	}
	e.Value = slices.Clone(e.Value)
	m.countLocked(key)
	return e, nil
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
	l := store.Listing{Revision: m.Rev}
	for k, e := range m.Entries {
		if strings.HasPrefix(k, prefix) {
			e.Value = slices.Clone(e.Value)
			m.countLocked(k)
			l.Entries = append(l.Entries, e)
		}
	}
	slices.SortFunc(l.Entries, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) })
	return l, nil
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
	if rev, ok := m.done[tx.ID]; ok && tx.ID != "" {
		if rev == 0 {
			return 0, nil, store.ErrVoided
		}
		return rev, nil, nil
	}
	if err := tx.Conflict(func(key string) (store.Revision, error) { return m.Entries[key].Version, nil }); err != nil {
		return 0, nil, err
	}
	if m.refuses != nil {
		return 0, m.onFull, m.refuses
	}
	m.Rev++
	for _, w := range tx.Put {
		m.Entries[w.Key] = store.Entry{Key: w.Key, Value: slices.Clone(w.Value), Version: m.Rev}
	}
	for _, k := range tx.Delete {
		delete(m.Entries, k)
	}
	if tx.ID != "" {
		m.done[tx.ID] = m.Rev
	}
	if how == LostApplied || how == LostForGood {
		return 0, nil, store.ErrUnknownOutcome
	}
	return m.Rev, nil, nil
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
	rev, ok := m.done[id]
	if !ok && m.refuses != nil {
		return 0, m.refuses // that it never will be has to be written
	}
	if !ok || rev == 0 {
		m.done[id] = 0
		return 0, store.ErrNotFound
	}
	return rev, nil
}

func (m *MemStore) Watch(ctx context.Context, _ string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		<-ctx.Done()
		yield(store.Entry{}, ctx.Err())
	}
}

func (m *MemStore) Changes(ctx context.Context, _ string, _ store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		<-ctx.Done()
		yield(store.Change{}, ctx.Err())
	}
}

func (m *MemStore) Close() error { return nil }
