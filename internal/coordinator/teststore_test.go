package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// memStore is a store in memory with fault switches: it can be down, and it can
// lose the answers of writes that happened, or of writes that did not. It keeps
// the promises of package store but durability, and follows no changes.
type memStore struct {
	mu      sync.Mutex
	entries map[string]store.Entry    // guarded by mu
	done    map[string]store.Revision // by Tx ID; 0: void; guarded by mu
	rev     store.Revision            // guarded by mu
	down    error                     // what every call returns; guarded by mu
	unread  string                    // the family that cannot be listed; "": every one can; guarded by mu
	lost    []lostAnswer              // of the next commits; guarded by mu
	before  func(store.Tx)            // called before each commit, without the lock; guarded by mu
	after   func(store.Tx)            // called after each commit that was applied, without the lock; guarded by mu
	answers int                       // how many more calls are answered before it is down with errDown; -1: all; guarded by mu
	hangs   bool                      // what is down answers nobody, instead of failing; guarded by mu
	refuses error                     // what every write returns while reads go on; guarded by mu
	counted string                    // what of it is read is counted; guarded by mu
	read    int                       // entries below counted that were read; guarded by mu
	called  int                       // how many calls there were; guarded by mu
	onFull  func()                    // called after each write that was refused, without the lock; guarded by mu
}

// errFull is how a store refuses a write for which it has no space.
var errFull = fmt.Errorf("no room in /secret/path: %w", store.ErrFull)

// setFull lets no write find space, or every one.
func (m *memStore) setFull(full bool) {
	var err error
	if full {
		err = errFull
	}
	m.setRefusing(err)
}

// setRefusing has every write refused with err, or none.
func (m *memStore) setRefusing(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuses = err
}

// refusedFor is how a store refuses a write for a reason.
func refusedFor(r store.Reason) error {
	return &store.RefusedError{Reason: r, Err: errors.New("of /secret/path")}
}

// countReads counts the entries below prefix that are read from now on.
func (m *memStore) countReads(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counted, m.read = prefix, 0
}

// readSince returns how many were read since it was asked last.
func (m *memStore) readSince() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.read
	m.read = 0
	return n
}

// calls returns how many calls there were: each is a round trip.
func (m *memStore) calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.called
}

// setUnread has nobody list a family from now on; with "" everybody can.
func (m *memStore) setUnread(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread = prefix
}

func (m *memStore) countLocked(key string) {
	if m.counted != "" && strings.HasPrefix(key, m.counted) {
		m.read++
	}
}

// whenFull has f called after each write that finds no space.
func (m *memStore) whenFull(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onFull = f
}

// hangFor is how long an engine waits for a server that does not answer.
const hangFor = 20 * time.Second

// errDown is how a store fails after its answers are used up.
var errDown = errors.New("the store is down")

// lostAnswer is what happens to one commit.
type lostAnswer int

const (
	answered     lostAnswer = iota
	lostApplied             // it happened, and nobody hears of it at once
	lostDropped             // it did not happen
	lostForGood             // it happened, and the next answered stands for Outcome failing
	lostForGoodN            // the same, of one that did not happen
)

// losses returns the ways in which the answer of the nth commit of something is lost:
// all of them, or one in its turn of every other commit under the race detector.
func losses(n int) []lostAnswer {
	if n%everyNth(2) != 0 {
		return nil
	}
	return inTurn(n/everyNth(2), lostApplied, lostDropped, lostForGood, lostForGoodN)
}

// inTurn returns in how many ways the nth row of a table is done: in all of them, or in
// one in its turn under the race detector. Each is a cluster that is made anew. The test is
// among the rounds of tools/test.sh, which does all of them.
func inTurn[T any](n int, all ...T) []T {
	if raceDetector {
		return all[n%len(all):][:1]
	}
	return all
}

// everyNth returns by how much to go on with what is counted up, call by call: by one, or
// by n under the race detector, as with inTurn.
func everyNth(n int) int {
	if raceDetector {
		return n
	}
	return 1
}

// notUnderDetector skips a test of one goroutine that has much to do: the detector makes it
// six times as long, and has nothing to find. The test is among the rounds of tools/test.sh,
// which does it without.
func notUnderDetector(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("one goroutine: make test runs it without the race detector")
	}
}

func newMemStore() *memStore {
	return &memStore{entries: make(map[string]store.Entry), done: make(map[string]store.Revision), answers: -1}
}

// failAfter lets n more calls be answered.
func (m *memStore) failAfter(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = n
}

// isDown reports whether a call was not answered.
func (m *memStore) isDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down != nil
}

// setHanging makes the store a black hole, or one that fails, while it is down.
func (m *memStore) setHanging(hangs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = hangs
}

// enter takes the lock for one call, unless the store is down.
func (m *memStore) enter(ctx context.Context) error {
	m.mu.Lock()
	m.called++
	switch {
	case m.answers == 0 && m.down == nil:
		m.down = errDown
	case m.answers > 0:
		m.answers--
	}
	err := errors.Join(m.down, ctx.Err())
	if err == nil {
		return nil
	}
	hangs := m.hangs && m.down != nil
	m.mu.Unlock()
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

func (m *memStore) setDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down, m.answers = err, -1
}

func (m *memStore) lose(how ...lostAnswer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = how
}

// intercept calls f before each commit, until it is given nil.
func (m *memStore) intercept(f func(store.Tx)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

// follow calls f after each commit that was applied, before its answer, until it is
// given nil.
func (m *memStore) follow(f func(store.Tx)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after = f
}

// snapshot returns a copy of all entries.
func (m *memStore) snapshot() map[string]store.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.entries)
}

// revert puts entries back as they were, as a restored backup does.
func (m *memStore) revert(entries map[string]store.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries = maps.Clone(entries)
}

// alter changes the value of key behind everybody's back, keeping its version.
func (m *memStore) alter(key string, f func([]byte) []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok {
		return false
	}
	if e.Value = f(slices.Clone(e.Value)); e.Value == nil {
		delete(m.entries, key)
		return true
	}
	m.entries[key] = e
	return true
}

// write writes key, whatever the switches say.
func (m *memStore) write(key string, value []byte) store.Revision {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	m.entries[key] = store.Entry{Key: key, Value: value, Version: m.rev}
	return m.rev
}

// forgetLost has all answers heard again.
func (m *memStore) forgetLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = nil
}

// remove deletes an entry, as somebody does who has the database.
func (m *memStore) remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rev++
	delete(m.entries, key)
}

func (m *memStore) version(key string) store.Revision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[key].Version
}

func (m *memStore) keys(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for k := range m.entries {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func (m *memStore) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := m.enter(ctx); err != nil {
		return store.Entry{}, err
	}
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok {
		return e, store.ErrNotFound
	}
	e.Value = slices.Clone(e.Value)
	m.countLocked(key)
	return e, nil
}

func (m *memStore) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision,
	error) {
	return m.Commit(ctx, store.SwapTx(key, old, value))
}

func (m *memStore) List(ctx context.Context, prefix string) (store.Listing, error) {
	if err := m.enter(ctx); err != nil {
		return store.Listing{}, err
	}
	defer m.mu.Unlock()
	if m.unread != "" && prefix == m.unread {
		return store.Listing{}, errDown
	}
	l := store.Listing{Revision: m.rev}
	for k, e := range m.entries {
		if strings.HasPrefix(k, prefix) {
			e.Value = slices.Clone(e.Value)
			m.countLocked(k)
			l.Entries = append(l.Entries, e)
		}
	}
	slices.SortFunc(l.Entries, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) })
	return l, nil
}

func (m *memStore) Commit(ctx context.Context, tx store.Tx) (store.Revision, error) {
	if err := tx.Validate(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	before, after := m.before, m.after
	m.mu.Unlock()
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

func (m *memStore) commit(ctx context.Context, tx store.Tx) (rev store.Revision, told func(), err error) {
	if err := m.enter(ctx); err != nil {
		return 0, nil, err
	}
	defer m.mu.Unlock()
	how := answered
	if len(m.lost) > 0 {
		how, m.lost = m.lost[0], m.lost[1:]
	}
	if how == lostDropped || how == lostForGoodN {
		return 0, nil, store.ErrUnknownOutcome
	}
	if rev, ok := m.done[tx.ID]; ok && tx.ID != "" {
		if rev == 0 {
			return 0, nil, store.ErrVoided
		}
		return rev, nil, nil
	}
	if err := tx.Conflict(func(key string) (store.Revision, error) { return m.entries[key].Version, nil }); err != nil {
		return 0, nil, err
	}
	if m.refuses != nil {
		return 0, m.onFull, m.refuses
	}
	m.rev++
	for _, w := range tx.Put {
		m.entries[w.Key] = store.Entry{Key: w.Key, Value: slices.Clone(w.Value), Version: m.rev}
	}
	for _, k := range tx.Delete {
		delete(m.entries, k)
	}
	if tx.ID != "" {
		m.done[tx.ID] = m.rev
	}
	if how == lostApplied || how == lostForGood {
		return 0, nil, store.ErrUnknownOutcome
	}
	return m.rev, nil, nil
}

func (m *memStore) Outcome(ctx context.Context, id string) (store.Revision, error) {
	if err := m.enter(ctx); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	if len(m.lost) > 0 && m.lost[0] == answered {
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

func (m *memStore) Watch(ctx context.Context, _ string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		<-ctx.Done()
		yield(store.Entry{}, ctx.Err())
	}
}

func (m *memStore) Changes(ctx context.Context, _ string, _ store.Revision) iter.Seq2[store.Change, error] {
	return func(yield func(store.Change, error) bool) {
		<-ctx.Done()
		yield(store.Change{}, ctx.Err())
	}
}

func (m *memStore) Close() error { return nil }
