package nodetest

import (
	"testing"

	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/test/testlane"
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
// and calls check on what the disk comes back with. In the quick lane n is every
// fourth, and the disk comes back in the last of these ways alone.
func Crash(t *testing.T, afters []durabletest.After, prepare func() (disk *durabletest.Disk, op func() error),
	check func(t *testing.T, done bool)) {
	t.Helper()
	for _, after := range testlane.Rounds(afters[len(afters)-1:], afters) {
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

// EveryNth returns by how much to go on with what is counted up, call by call: by n in the quick lane,
// and by one in the nightly one.
func EveryNth(n int) int { return testlane.Rounds(n, 1) }
