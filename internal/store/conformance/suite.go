// Package conformance holds the contract of package store as test cases that run against any open
// store: in the tests of the engines (through package storetest), and in `fealty conformance store`
// against the very servers that are to keep a cluster.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// T is what a case needs of what runs it; a *testing.T has all of it, but for Seed and the type
// in Run. Fatal and Fatalf do not return.
type T interface {
	Helper()
	Log(args ...any)
	Logf(format string, args ...any)
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
	Seed() uint64 // what a random course begins with; it is logged
	Run(name string, f func(t T)) bool
}

// Engine says how the suite gets at databases of one engine.
type Engine struct {
	// New makes an empty database, freed by t.Cleanup. The engine keeps the
	// changes of about retain commits; 0 means its default. Required.
	New func(t T, retain int) Database
}

// Database is one database of an engine. The suite closes every handle that it
// was given; an error fails the case.
type Database struct {
	// Open opens a handle. Required.
	Open func() (store.Store, error)

	// Shared means that several handles may be open at a time.
	Shared bool

	// Restart ends the handle and whatever serves it cleanly, starts it again and
	// opens a new handle. Nil means to close and open.
	Restart func(s store.Store) (store.Store, error)

	// Kill is Restart without warning, as by kill -9, while calls are under way;
	// those may fail or never see their answer, but return. Nil means that only the
	// engine's own tests can do that.
	Kill func(s store.Store) (store.Store, error)

	// Full ends the handle and opens a new one: of the database with little space left,
	// or made read-only, or with space again. Nil means that only the engine's own tests
	// can do that.
	Full func(s store.Store, full bool) (store.Store, error)
}

// Case is one promise of package store, with the test that holds an engine to it.
type Case struct {
	Name    string
	Promise string
	Run     func(t T, e Engine)

	// Kills: it takes a Database that can be killed, and has nothing to say of others.
	Kills bool

	// Fills: it takes a Database whose space can be used up, likewise.
	Fills bool
}

// Cases returns all of them.
func Cases() []Case {
	return []Case{
		{Name: "ReadWrite", Promise: "what was written is read, with the revision that wrote it", Run: testReadWrite},
		{Name: "Atomic", Promise: "all conditions hold and all writes happen, or nothing happens", Run: testAtomic},
		{Name: "Conditions", Promise: "a condition holds at exactly one version", Run: testConditions},
		{Name: "Race", Promise: "of all who swap one version exactly one wins", Run: testRace},
		{Name: "TxID", Promise: "an ID is applied once, and its outcome is known and final", Run: testTxID},
		{Name: "RevisionOrder", Promise: "commits take growing revisions, and readers see them in that order", Run: testRevisionOrder},
		{Name: "NeverBack", Promise: "a key never regains a version it had", Run: testNeverBack},
		{Name: "Changes", Promise: "no change is lost or told twice, across reconnects", Run: testChanges},
		{Name: "Compaction", Promise: "a reader who is too late is told so, and can go on from a listing", Run: testCompaction},
		{Name: "Watch", Promise: "a watch begins with the current entry and ends up at the last", Run: testWatch},
		{Name: "LargeValues", Promise: "values and transactions up to the limits are kept whole, above them refused", Run: testLargeValues},
		{Name: "BadKeys", Promise: "keys that are not printable ASCII are refused by every call", Run: testBadKeys},
		{Name: "Ownership", Promise: "bytes are the caller's before and after a call", Run: testOwnership},
		{Name: "Cancel", Promise: "an error without ErrUnknownOutcome means that nothing was written", Run: testCancel},
		{Name: "Restart", Promise: "what was acknowledged survives a restart", Run: testRestart},
		{Name: "Kill", Promise: "what was acknowledged survives a kill while writing", Run: testKill, Kills: true},
		{Name: "Full", Promise: "what finds no space is refused by name and not written, and reads go on", Run: testFull, Fills: true},
		{Name: "LostAnswers", Promise: "a call whose answer was lost can be resolved", Run: testLostAnswers},
		{Name: "Close", Promise: "a closed store answers ErrClosed, and closes after calls under way", Run: testClose},
		{Name: "Raise", Promise: "an empty store can be raised above a floor", Run: testRaise},
		{Name: "Lift", Promise: "a store that holds entries can be raised above a floor, and keeps them", Run: testLift},
		{Name: "RaisedForgets", Promise: "a raised store forgets old changes as any other", Run: testRaisedForgets},
	}
}

// Patience is how long a case waits for what must happen.
const Patience = time.Minute

// open returns a handle of a new database.
func open(t T, e Engine) store.Store {
	t.Helper()
	s := MustOpen(t, e.New(t, 0))
	closeLater(t, s)
	return s
}

func closeLater(t T, s store.Store) {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// MustOpen opens a handle of db, or fails.
func MustOpen(t T, db Database) store.Store {
	t.Helper()
	s, err := db.Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

// Handles returns n handles of db, which may be one and the same.
func Handles(t T, db Database, n int) []store.Store {
	t.Helper()
	var all []store.Store
	for range n {
		if len(all) > 0 && !db.Shared {
			all = append(all, all[0])
			continue
		}
		s := MustOpen(t, db)
		closeLater(t, s)
		all = append(all, s)
	}
	return all
}

func restart(t T, db Database, s store.Store) store.Store {
	t.Helper()
	if db.Restart != nil {
		s, err := db.Restart(s)
		if err != nil {
			t.Fatalf("Restart: %v", err)
		}
		return s
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return MustOpen(t, db)
}

// Limited returns a context that fails the test rather than let it hang.
func Limited(t T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// random returns a generator that begins with the seed of what runs the case.
func random(t T) *rand.Rand { return rand.New(rand.NewPCG(t.Seed(), 0)) }

// team is goroutines that work beside a test. They end before it does, however
// it ends: a failing engine must not leave any behind.
type team struct {
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newTeam(t T) *team {
	tm := new(team)
	tm.ctx, tm.cancel = context.WithTimeout(context.Background(), Patience)
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

// Put returns a Tx that puts one key.
func Put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

// MustCommit commits tx, or fails.
func MustCommit(t T, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	r, err := s.Commit(Limited(t), tx)
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

// MustList lists prefix, or fails.
func MustList(t T, s store.Store, prefix string) store.Listing {
	t.Helper()
	l, err := s.List(Limited(t), prefix)
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
func wantEntry(t T, s store.Store, key, value string, version store.Revision) {
	t.Helper()
	e, err := s.Get(Limited(t), key)
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

// WantError fails unless err is the one that is wanted, and says of an unknown outcome
// only what that says.
func WantError(t T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: error %v, want %v", what, err, want)
	}
	// The one distinction that every caller lives by.
	if unknown := errors.Is(err, store.ErrUnknownOutcome); unknown != (want == store.ErrUnknownOutcome) {
		t.Fatalf("%s: error %v matches ErrUnknownOutcome: %v", what, err, unknown)
	}
}

// Follow reads changes until one of revision until or later, and returns them.
func Follow(t T, s store.Store, prefix string, after, until store.Revision) []store.Change {
	t.Helper()
	var all []store.Change
	if after >= until {
		return nil
	}
	for c, err := range s.Changes(Limited(t), prefix, after) {
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
func (r replica) apply(t T, c store.Change) {
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
func (r replica) wantEqual(t T, l store.Listing) {
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
