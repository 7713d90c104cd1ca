// Package storetest runs the contract of package conformance, and cases that only a test can run,
// against every engine. It also has two stores for tests: [Memory], which has no disk, and
// [Wrapper], which loses requests and answers.
//
// The test of an engine calls [Run] and adds what only that engine can break.
package storetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/test/testlane"
)

// Engine says how the suite gets at databases of one engine.
type Engine struct {
	// New makes an empty database, freed by t.Cleanup. The engine keeps the
	// changes of about retain commits; 0 means its default. Required.
	New func(t testing.TB, retain int) conformance.Database

	// OutsideClock means that opening a store starts work outside this process or
	// waits on a network, so that it cannot be opened in a synctest bubble. The
	// engine then tests itself that a stepped clock changes nothing.
	OutsideClock bool
}

// The parts of package conformance that tests of others use.
type (
	Fate    = conformance.Fate
	Wrapper = conformance.Wrapper
)

// The fates of a call.
const (
	Pass        = conformance.Pass
	LoseAnswer  = conformance.LoseAnswer
	LoseRequest = conformance.LoseRequest
	Delay       = conformance.Delay
)

// NewLossy returns a Wrapper around s that loses nothing yet.
func NewLossy(s store.Store) *Wrapper { return conformance.NewLossy(s) }

// tester runs a case as a test.
type tester struct{ *testing.T }

func (t tester) Run(name string, f func(t conformance.T)) bool {
	return t.T.Run(name, func(t *testing.T) { f(tester{t}) })
}

// Seed begins the random courses of cases as the lane says.
func (t tester) Seed() uint64 { return testlane.Seed(t.T) }

// inner returns e as package conformance knows it.
func (e Engine) inner() conformance.Engine {
	return conformance.Engine{New: func(t conformance.T, retain int) conformance.Database {
		return e.New(t.(tester).T, retain)
	}}
}

// testCase is one promise, with its test.
type testCase struct {
	name, promise string
	run           func(t *testing.T, e Engine)
}

// cases are those of package conformance, and those that take a test.
func cases() []testCase {
	var all []testCase
	for _, c := range conformance.Cases() {
		all = append(all, testCase{c.Name, c.Promise, func(t *testing.T, e Engine) { c.Run(tester{t}, e.inner()) }})
	}
	return append(all,
		testCase{"QuietReader", "a reader who keeps up is never told that it is late", inProcess(testQuietReader)},
		testCase{"Clock", "a stepped clock changes nothing", inProcess(testClock)},
		testCase{"Linearizable", "there is one order of all calls that explains all answers", testLinearizable})
}

// hurtServers are the cases that kill a server that others use meanwhile, fill it, or send it all that
// it takes. For an engine that is in servers they wait for the nightly lane: the quick one has them for
// [Memory] and for SQLite, and what becomes of a commit whose answer is lost for each engine.
var hurtServers = []string{"Kill", "Full", "LargeValues", "Linearizable"}

// Run holds the engine to every promise of package store, one subtest for each.
func Run(t *testing.T, e Engine) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			t.Logf("promise: %s", c.promise)
			if e.OutsideClock && slices.Contains(hurtServers, c.name) {
				testlane.Nightly(t)
			}
			c.run(t, e)
		})
	}
}

// RunCase holds the engine to one promise, by the name of its case.
func RunCase(t *testing.T, e Engine, name string) {
	for _, c := range cases() {
		if c.name == name {
			t.Logf("promise: %s", c.promise)
			c.run(t, e)
			return
		}
	}
	t.Fatalf("there is no case %s", name)
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
const patience = conformance.Patience

func mustOpen(t *testing.T, db conformance.Database) store.Store {
	t.Helper()
	return conformance.MustOpen(tester{t}, db)
}

func put(key, value string) store.Tx { return conformance.Put(key, value) }

func limited(t *testing.T) context.Context { return conformance.Limited(tester{t}) }

func random(t *testing.T) *rand.Rand { return rand.New(rand.NewPCG(testlane.Seed(t), 0)) }

func handles(t *testing.T, e Engine, n int) []store.Store {
	return conformance.Handles(tester{t}, e.New(t, 0), n)
}

func mustCommit(t *testing.T, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	return conformance.MustCommit(tester{t}, s, tx)
}

func follow(t *testing.T, s store.Store, prefix string, after, until store.Revision) []store.Change {
	t.Helper()
	return conformance.Follow(tester{t}, s, prefix, after, until)
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	conformance.WantError(tester{t}, what, err, want)
}
