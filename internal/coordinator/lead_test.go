package coordinator

import (
	"testing"
	"time"
)

// awaitLeader waits until one of these leads, and returns it.
func awaitLeader(t testing.TB, cs ...*Coordinator) *Coordinator {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		for _, c := range cs {
			if _, _, ok := c.leading(); ok {
				return c
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatal("nobody leads")
	return nil
}

func TestFirstStartLeadsAtOnce(t *testing.T) {
	f := readyFleet(t, nil)
	started := time.Now()
	awaitLeader(t, f.c)
	if took := time.Since(started); took > DefaultLease/2 {
		t.Errorf("it led after %v", took)
	}
	first, _, _ := f.c.leading()
	f.restart()
	started = time.Now()
	awaitLeader(t, f.c)
	if took := time.Since(started); took > DefaultLease/2 {
		t.Errorf("after a restart it led after %v", took)
	}
	if term, _, _ := f.c.leading(); term <= first {
		t.Errorf("term %d comes after %d", term, first)
	}
}
