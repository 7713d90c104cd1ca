// Package storetest holds the one conformance suite that every engine of
// package store passes, and two stores for tests: [Memory], a store without a
// disk, and [Lossy], a wrapper that loses requests and answers.
//
// An engine's own test calls [Run] and adds what only that engine can break.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// Engine says how the suite gets at databases of one engine.
type Engine struct {
	// New makes an empty database, freed by t.Cleanup. The engine keeps the
	// changes of about retain commits; 0 means its default. Required.
	New func(t testing.TB, retain int) Database

	// OutsideClock means that opening a store starts work outside this process or
	// waits on a network, so that it cannot be opened in a synctest bubble. The
	// engine then tests itself that a stepped clock changes nothing.
	OutsideClock bool
}

// Database is one database of an engine. The suite closes every handle that it
// was given.
type Database struct {
	// Open opens a handle. Required.
	Open func(t testing.TB) store.Store

	// Shared means that several handles may be open at a time.
	Shared bool

	// Restart ends the handle and whatever serves it cleanly, starts it again and
	// opens a new handle. Nil means to close and open.
	Restart func(t testing.TB, s store.Store) store.Store

	// Kill is Restart without warning, as by kill -9, while calls are under way;
	// those may fail or never see their answer, but return. Nil means that only the
	// engine's own tests can do that.
	Kill func(t testing.TB, s store.Store) store.Store

	// Lossy opens a handle whose connection can lose requests and answers for
	// real, through a proxy. Nil means to wrap a handle with NewLossy.
	Lossy func(t testing.TB) Lossy
}

// cases are the promises of package store, each with the test that holds an
// engine to it.
var cases = []struct {
	name    string
	promise string
	run     func(t *testing.T, e Engine)
}{
	{"ReadWrite", "what was written is read, with the revision that wrote it", testReadWrite},
	{"Atomic", "all conditions hold and all writes happen, or nothing happens", testAtomic},
	{"Conditions", "a condition holds at exactly one version", testConditions},
	{"Race", "of all who swap one version exactly one wins", testRace},
	{"TxID", "an ID is applied once, and its outcome is known and final", testTxID},
	{"RevisionOrder", "commits take growing revisions, and readers see them in that order", testRevisionOrder},
	{"NeverBack", "a key never regains a version it had", testNeverBack},
	{"Changes", "no change is lost or told twice, across reconnects", testChanges},
	{"Compaction", "a reader who is too late is told so, and can go on from a listing", testCompaction},
	{"QuietReader", "a reader who keeps up is never told that it is late", inProcess(testQuietReader)},
	{"Watch", "a watch begins with the current entry and ends up at the last", testWatch},
	{"LargeValues", "values and transactions up to the limits are kept whole, above them refused", testLargeValues},
	{"BadKeys", "keys that are not printable ASCII are refused by every call", testBadKeys},
	{"Ownership", "bytes are the caller's before and after a call", testOwnership},
	{"Cancel", "an error without ErrUnknownOutcome means that nothing was written", testCancel},
	{"Restart", "what was acknowledged survives a restart", testRestart},
	{"Kill", "what was acknowledged survives a kill while writing", testKill},
	{"Clock", "a stepped clock changes nothing", inProcess(testClock)},
	{"LostAnswers", "a call whose answer was lost can be resolved", testLostAnswers},
	{"Linearizable", "there is one order of all calls that explains all answers", testLinearizable},
	{"Close", "a closed store answers ErrClosed, and closes after calls under way", testClose},
	{"Raise", "an empty store can be raised above a floor", testRaise},
}

// Run holds the engine to every promise of package store, one subtest for each.
func Run(t *testing.T, e Engine) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("promise: %s", c.promise)
			c.run(t, e)
		})
	}
}

// inProcess leaves an engine out that cannot be opened in a synctest bubble.
func inProcess(run func(*testing.T, Engine)) func(*testing.T, Engine) {
	return func(t *testing.T, e Engine) {
		if e.OutsideClock {
			t.Log("left to the engine's own tests: it works outside this process")
			return
		}
		run(t, e)
	}
}

// patience is how long the suite waits for what must happen.
const patience = time.Minute

// open returns a handle of a new database.
func open(t testing.TB, e Engine) store.Store {
	t.Helper()
	s := e.New(t, 0).Open(t)
	closeLater(t, s)
	return s
}

func closeLater(t testing.TB, s store.Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// handles returns n handles of db, which may be one and the same.
func handles(t testing.TB, db Database, n int) []store.Store {
	t.Helper()
	var all []store.Store
	for range n {
		if len(all) > 0 && !db.Shared {
			all = append(all, all[0])
			continue
		}
		s := db.Open(t)
		closeLater(t, s)
		all = append(all, s)
	}
	return all
}

func restart(t testing.TB, db Database, s store.Store) store.Store {
	t.Helper()
	if db.Restart != nil {
		return db.Restart(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return db.Open(t)
}

// limited returns a context that fails the test rather than let it hang.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// random returns a generator whose seed is in the test's log.
func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// team is goroutines that work beside a test. They end before it does, however
// it ends: a failing engine must not leave any behind.
type team struct {
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newTeam(t testing.TB) *team {
	tm := new(team)
	tm.ctx, tm.cancel = context.WithTimeout(context.Background(), patience)
	t.Cleanup(tm.stop)
	return tm
}

func (tm *team) run(f func(ctx context.Context)) { tm.wg.Go(func() { f(tm.ctx) }) }

// wait waits until all are done.
func (tm *team) wait() { tm.wg.Wait() }

// stop tells them to end, and waits.
func (tm *team) stop() {
	tm.cancel()
	tm.wg.Wait()
}

func put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

func mustCommit(t testing.TB, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	r, err := s.Commit(limited(t), tx)
	if err != nil {
		t.Fatalf("Commit(%v): %v", describe(tx), err)
	}
	if r == 0 {
		t.Fatalf("Commit(%v) = revision 0", describe(tx))
	}
	return r
}

func describe(tx store.Tx) string {
	s := fmt.Sprintf("id %q if %v delete %v put", tx.ID, tx.If, tx.Delete)
	for _, w := range tx.Put {
		s += fmt.Sprintf(" %s (%d bytes)", w.Key, len(w.Value))
	}
	return s
}

func mustList(t testing.TB, s store.Store, prefix string) store.Listing {
	t.Helper()
	l, err := s.List(limited(t), prefix)
	if err != nil {
		t.Fatalf("List(%q): %v", prefix, err)
	}
	if !slices.IsSortedFunc(l.Entries, func(a, b store.Entry) int { return compare(a.Key, b.Key) }) {
		t.Fatalf("List(%q) is not sorted", prefix)
	}
	return l
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// wantEntry fails unless key holds value at version; version 0 means that it
// must not exist.
func wantEntry(t testing.TB, s store.Store, key, value string, version store.Revision) {
	t.Helper()
	e, err := s.Get(limited(t), key)
	if version == 0 {
		if !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("Get(%q) = %q at %d, %v, want ErrNotFound", key, e.Value, e.Version, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Get(%q): %v", key, err)
	}
	if e.Key != key || string(e.Value) != value || e.Version != version {
		t.Fatalf("Get(%q) = %q at %d (key %q), want %q at %d", key, e.Value, e.Version, e.Key, value, version)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
	// The one distinction that every caller lives by.
	if unknown := errors.Is(err, store.ErrUnknownOutcome); unknown != (want == store.ErrUnknownOutcome) {
		t.Fatalf("%s: error %v matches ErrUnknownOutcome: %v", what, err, unknown)
	}
}

// follow reads changes until one of revision until or later, and returns them.
func follow(t testing.TB, s store.Store, prefix string, after, until store.Revision) []store.Change {
	t.Helper()
	var all []store.Change
	if after >= until {
		return nil
	}
	for c, err := range s.Changes(limited(t), prefix, after) {
		if err != nil {
			t.Fatalf("Changes(%q, %d): %v, after %d changes; waiting for revision %d", prefix, after, err, len(all), until)
		}
		all = append(all, c)
		if c.Revision >= until {
			break
		}
	}
	return all
}

// replica is what someone knows who follows changes.
type replica map[string]store.Entry

func (r replica) reset(l store.Listing) {
	clear(r)
	for _, e := range l.Entries {
		r[e.Key] = e
	}
}

// apply fails if c cannot follow what the replica knows.
func (r replica) apply(t testing.TB, c store.Change) {
	t.Helper()
	if len(c.Put)+len(c.Delete) == 0 {
		t.Fatalf("change %d changes nothing", c.Revision)
	}
	for _, e := range c.Put {
		if e.Version != c.Revision {
			t.Fatalf("change %d puts %q at version %d", c.Revision, e.Key, e.Version)
		}
		if old := r[e.Key].Version; old >= e.Version {
			t.Fatalf("change %d puts %q, which was at version %d before", c.Revision, e.Key, old)
		}
		r[e.Key] = e
	}
	for _, k := range c.Delete {
		if _, exists := r[k]; !exists {
			t.Fatalf("change %d deletes %q, which did not exist", c.Revision, k)
		}
		delete(r, k)
	}
}

// wantEqual fails unless the replica equals the listing.
func (r replica) wantEqual(t testing.TB, l store.Listing) {
	t.Helper()
	for _, e := range l.Entries {
		if got := r[e.Key]; got.Version != e.Version || string(got.Value) != string(e.Value) {
			t.Fatalf("%q is %q at %d by its changes, %q at %d by List", e.Key, short(got.Value), got.Version, short(e.Value), e.Version)
		}
	}
	if len(r) != len(l.Entries) {
		t.Fatalf("%d keys by their changes, %d by List", len(r), len(l.Entries))
	}
}

func short(b []byte) []byte { return b[:min(len(b), 32)] }
