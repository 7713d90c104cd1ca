// Package wait waits in tests for what others do, with an end that a loaded machine does not reach.
package wait

import "time"

// TB is what testing.TB and *rapid.T share of what is needed here.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// limit is how long something may take.
const limit = 2 * time.Minute

// Until waits until done returns true, and fails the test after two minutes. It looks often at first and then ever more
// seldom: a look may cost a call, and most of the waiting is for a time that has to pass.
func Until(t TB, what string, done func() bool) {
	t.Helper()
	if !until(done) {
		t.Fatalf("never happened: %s", what)
	}
}

// UntilNil waits until check returns nil, and fails the test with its error after two minutes.
func UntilNil(t TB, what string, check func() error) {
	t.Helper()
	var err error
	if !until(func() bool { err = check(); return err == nil }) {
		t.Fatalf("never happened: %s: %v", what, err)
	}
}

func until(done func() bool) bool {
	for began := time.Now(); !done(); {
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(max(waited/8, time.Millisecond), 50*time.Millisecond))
	}
	return true
}
