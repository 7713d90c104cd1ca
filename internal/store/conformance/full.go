package conformance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
)

// maxFill bounds the writes, of fillBytes each, after which a database is full that has
// little space.
const (
	maxFill   = 400
	fillBytes = 200 << 10
)

func testFull(t T, e Engine) {
	db := e.New(t, 0)
	if db.Full == nil {
		t.Log("left to the engine's own tests: its space cannot be used up from here")
		return
	}
	s := MustOpen(t, db)
	acked := map[string]store.Revision{"k": MustCommit(t, s, Put("k", "1"))}
	s, err := db.Full(s, true)
	if err != nil {
		t.Fatalf("Full: %v", err)
	}
	refused := func(i int) store.Tx {
		tx := Put(fmt.Sprintf("fill/%d", i), strings.Repeat("x", fillBytes))
		tx.ID = store.NewTxID()
		// It would change another key too.
		tx.Put = append(tx.Put, store.Write{Key: "k", Value: []byte("2")})
		tx.If = append(tx.If, store.Condition{Key: "k", Version: acked["k"]})
		return tx
	}
	var tx store.Tx
	for i := 0; ; i++ {
		if i == maxFill {
			t.Fatalf("it is not full after %d writes of %d bytes", i, fillBytes)
		}
		tx = refused(i)
		r, err := s.Commit(Limited(t), tx)
		if err == nil {
			acked[tx.Put[0].Key], acked["k"] = r, r
			continue
		}
		wantFull(t, "Commit", err)
		break
	}
	check := func(when string) {
		t.Helper()
		l, err := s.List(Limited(t), "")
		if err != nil {
			t.Fatalf("List %s: %v", when, err)
		}
		if len(l.Entries) != len(acked) {
			t.Errorf("%s there are %d entries, %d were acknowledged", when, len(l.Entries), len(acked))
		}
		for _, e := range l.Entries {
			if acked[e.Key] != e.Version {
				t.Errorf("%s %s is at %d, acknowledged at %d", when, e.Key, e.Version, acked[e.Key])
			}
		}
		if e, err := s.Get(Limited(t), "k"); err != nil || e.Version != acked["k"] {
			t.Errorf("Get %s: version %d, %v, acknowledged %d", when, e.Version, err, acked["k"])
		}
		_, err = s.Get(Limited(t), tx.Put[0].Key)
		WantError(t, "Get of what was refused, "+when, err, store.ErrNotFound)
	}
	check("while it is full")
	for range 3 {
		_, err := s.Commit(Limited(t), refused(maxFill))
		wantFull(t, "another Commit", err)
		_, err = s.CompareAndSwap(Limited(t), tx.Put[0].Key, 0, []byte(strings.Repeat("y", fillBytes)))
		wantFull(t, "CompareAndSwap", err)
	}
	// That it never will be applied may have to be written too.
	if _, err := s.Outcome(Limited(t), tx.ID); !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrFull) {
		t.Errorf("Outcome of what was refused: %v", err)
	}
	for e, err := range s.Watch(Limited(t), "k") {
		if err != nil || e.Version != acked["k"] {
			t.Errorf("Watch begins with version %d, %v, acknowledged %d", e.Version, err, acked["k"])
		}
		break
	}
	check("after more was refused")

	if s, err = db.Full(s, false); err != nil {
		t.Fatalf("Full, with space again: %v", err)
	}
	check("with space again")
	WaitFor(t, func() bool {
		r, err := s.CompareAndSwap(Limited(t), "k", acked["k"], []byte("3"))
		if err == nil {
			acked["k"] = r
		}
		return err == nil
	})
	check("after a write")
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

// wantFull fails unless err says that nothing was written for want of space.
func wantFull(t T, what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) || errors.Is(err, store.ErrConflict) {
		t.Fatalf("%s: %v, want ErrFull", what, err)
	}
}
