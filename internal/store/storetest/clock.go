package storetest

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// testQuietReader: a reader who keeps up is never told that it is late, though
// nothing under its prefix changes and everything else is forgotten.
func testQuietReader(t *testing.T, e Engine) {
	const retain = 32
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, e.New(t, retain))
		defer s.Close()
		early := mustCommit(t, s, put("quiet/then", ""))
		told := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, err := range s.Changes(limited(t), "quiet/", early) {
				told <- err
				return
			}
		})
		for i := range 8 * retain {
			mustCommit(t, s, put("loud", fmt.Sprint(i)))
			if i%(retain/4) == 0 {
				synctest.Wait() // until the reader has read, and waits again
			}
		}
		mustCommit(t, s, put("quiet/now", ""))
		if err := <-told; err != nil {
			t.Errorf("Changes: %v", err)
		}
		wg.Wait()
		// Otherwise this has tested nothing.
		for _, err := range s.Changes(limited(t), "quiet/", early) {
			wantError(t, "Changes from the start", err, store.ErrCompacted)
			break
		}
	})
}

// testClock opens one database by turns at today's date and in a synctest
// bubble, where it is the year 2000 and days pass at once.
func testClock(t *testing.T, e Engine) {
	db := e.New(t, 0)
	last, n := store.Revision(0), 0
	first := store.Revision(0)
	session := func(t *testing.T, passes time.Duration) {
		s := mustOpen(t, db)
		defer func() {
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}()
		for range 3 {
			n++
			tx := put(fmt.Sprintf("clock/%d", n), "x")
			tx.ID = fmt.Sprintf("clock/%d", n)
			r := mustCommit(t, s, tx)
			if r <= last {
				t.Fatalf("revision %d after %d", r, last)
			}
			last = r
			if first == 0 {
				first = r
			}
			time.Sleep(passes / 3)
		}
		if got := follow(t, s, "clock/", first-1, last); len(got) != n {
			t.Fatalf("%d of %d changes told", len(got), n)
		}
		for i := range n {
			if _, err := s.Outcome(limited(t), fmt.Sprintf("clock/%d", i+1)); err != nil {
				t.Fatalf("Outcome of transaction %d: %v", i+1, err)
			}
		}
	}
	for range 3 {
		session(t, 0)
		synctest.Test(t, func(t *testing.T) { session(t, 40*time.Minute) })
	}
}
