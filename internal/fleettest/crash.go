package fleettest

import (
	"flag"
	"testing"

	"github.com/fealty-io/fealty/internal/durable/durabletest"
)

// Flatten returns all errors in the tree of err.
func Flatten(err error) []error {
	if err == nil {
		return nil
	}
	out := []error{err}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		out = append(out, Flatten(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			out = append(out, Flatten(sub)...)
		}
	}
	return out
}

// Crash runs op on a disk whose power is cut at its nth mutating call, for every n,
// and calls check on what the disk comes back with. Under the race detector n is every
// fourth, and the disk comes back in the last of these ways alone.
func Crash(t *testing.T, afters []durabletest.After, prepare func() (disk *durabletest.Disk, op func() error),
	check func(t *testing.T, done bool)) {
	t.Helper()
	if RaceDetector {
		afters = afters[len(afters)-1:]
	}
	for _, after := range afters {
		for n := 1; ; n += EveryNth(4) {
			disk, op := prepare()
			disk.FailAt(n, durabletest.ErrPowerCut)
			err := op()
			cut := disk.Failed()
			disk.Restart(after)
			if !cut && err != nil {
				t.Fatalf("%v, call %d: %v without a failure", after, n, err)
			}
			check(t, !cut)
			if t.Failed() {
				t.Fatalf("power cut at call %d, disk comes back as %v; the operation said: %v", n, after, err)
			}
			if !cut {
				t.Logf("%v: %d calls", after, n-1)
				break
			}
		}
	}
}

// EveryNth returns by how much to go on with what is counted up, call by call: by one, or
// by n under the race detector. The test is among the rounds of tools/test.sh, which does
// each call.
func EveryNth(n int) int {
	if RaceDetector {
		return n
	}
	return 1
}

// FewerChecks has rapid check only so often in this test, unless -rapid.checks says how
// often. The flag is the process's: a test that calls this is not in parallel.
func FewerChecks(t *testing.T, checks string) {
	t.Helper()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
		if err := f.Value.Set(checks); err != nil {
			t.Fatal(err)
		}
	}
}
