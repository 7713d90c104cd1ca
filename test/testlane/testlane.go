// Package testlane lets a test say in which of two lanes it runs.
//
// The quick lane is what everybody waits for (make test). The nightly lane is everything that
// exists (make nightly): each store, real processes that are killed, and random courses that go on
// for minutes. A test is in both lanes unless it says otherwise:
//
//	testlane.Nightly(t)                         // the whole test waits for the night
//	rounds := testlane.Rounds(100, 100_000)     // less of the same in the quick lane
//	random := rand.New(rand.NewPCG(testlane.Seed(t), 1))
//
// So no script names a test. What the quick lane leaves out has to be held there by something
// cheaper, and says by what in a comment.
//
// Three variables of the environment decide, and tools/test.sh sets them:
//
//	FEALTY_LANE  nightly; anything else is the quick lane
//	FEALTY_SEED  what random courses begin with
//	FEALTY_HELD  a file to which a test that waits for the night adds its name
package testlane

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// usual is what random courses of the quick lane begin with.
const usual = 1

// Full reports whether this is the nightly lane.
func Full() bool { return os.Getenv("FEALTY_LANE") == "nightly" }

// Nightly ends the test as skipped, unless this is the nightly lane. The line that it leaves says
// how to run the test.
func Nightly(t testing.TB) {
	t.Helper()
	if Full() {
		return
	}
	if err := hold(t.Name()); err != nil {
		t.Fatal(err)
	}
	t.Skipf("this waits for the nightly lane; to run it: %s", again(t))
}

// Rounds returns short in the quick lane and full in the nightly one, for what a test does again
// and again, or how long. Under the race detector it returns short in both: the detector finds in
// a few rounds what it finds in all of them, and makes each up to six times as long.
func Rounds[T any](short, full T) T {
	if Full() && !raceDetector {
		return full
	}
	return short
}

// Enough reports whether what a random course came by is enough to ask that it came by everything which may happen: it
// does in all rounds, and in the few of the quick lane, which begin with a seed that is the same each time. The few that
// the race detector has at night, or that somebody begins with another seed, may miss what comes seldom.
func Enough(t testing.TB) bool {
	t.Helper()
	return Full() && !raceDetector || Seed(t) == usual
}

// Checks has rapid check a property so often in this test, short in the quick lane and full in the
// nightly one, unless -rapid.checks says how often. The flag is of the whole process: a test that calls
// this is not in parallel.
func Checks(t testing.TB, short, full int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f == nil {
		t.Fatal("nothing in this test imports rapid")
	}
	if f.Value.String() != f.DefValue {
		return
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	if err := f.Value.Set(strconv.Itoa(Rounds(short, full))); err != nil {
		t.Fatal(err)
	}
}

// Seed returns what a random course begins with, and logs it: FEALTY_SEED if that is set. Else
// it is the same each time in the quick lane, so that what passes there passes again, and
// another one each time in the nightly lane.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := chosen()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d; to run this again: %s SEED=%d", seed, again(t), seed)
	return seed
}

// chosen is one seed for the whole process: all tests of a run that failed are then run again by one line.
var chosen = sync.OnceValues(func() (uint64, error) {
	if text := os.Getenv("FEALTY_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("FEALTY_SEED is %q, want a whole number", text)
		}
		return seed, nil
	}
	if Full() {
		return rand.Uint64N(1_000_000_000), nil
	}
	return usual, nil
})

// again returns the command that runs the test, in the folder of the module.
func again(t testing.TB) string {
	return fmt.Sprintf("make nightly IN=%s TEST='%s'", place(), t.Name())
}

// place returns the package that is tested, as go test takes it: go test runs its tests in its folder.
func place() string {
	dir, err := os.Getwd()
	if err != nil {
		return "./..."
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			below, err := filepath.Rel(root, dir)
			if err != nil {
				return "./..."
			}
			return "./" + filepath.ToSlash(below)
		}
		if root == filepath.Dir(root) {
			return "./..." // the test is somewhere else by now
		}
	}
}

// hold writes down that a test waits for the night. Packages are tested at once: each line is
// one write, at the end of the file.
func hold(name string) error {
	file := os.Getenv("FEALTY_HELD")
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note that %s waits for the nightly lane: %w", name, err)
	}
	_, err = fmt.Fprintf(f, "%s %s\n", place(), name)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
