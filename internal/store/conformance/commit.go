package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

func testReadWrite(t T, e Engine) {
	s := open(t, e)
	if l := MustList(t, s, ""); len(l.Entries) != 0 {
		t.Fatalf("a new store lists %d entries", len(l.Entries))
	}
	wantEntry(t, s, "a", "", 0)
	a := MustCommit(t, s, Put("a", "1"))
	wantEntry(t, s, "a", "1", a)
	b, err := s.CompareAndSwap(Limited(t), "b/x", 0, []byte("2"))
	if err != nil || b <= a {
		t.Fatalf("CompareAndSwap = %d, %v, want a revision above %d", b, err, a)
	}
	wantEntry(t, s, "b/x", "2", b)
	wantEntry(t, s, "a", "1", a)

	// Neighbours of the prefix b/ in byte order.
	for _, k := range []string{"b", "b.", "b0", "c", "b/~", "b/ "} {
		MustCommit(t, s, Put(k, k))
	}
	l := MustList(t, s, "b/")
	var got []string
	for _, e := range l.Entries {
		got = append(got, e.Key)
	}
	if want := fmt.Sprint([]string{"b/ ", "b/x", "b/~"}); fmt.Sprint(got) != want {
		t.Fatalf("List(b/) = %q, want %q", got, want)
	}
	if all := MustList(t, s, ""); len(all.Entries) != 8 || all.Revision != l.Revision {
		t.Fatalf("List of all: %d entries at %d, want 8 at %d", len(all.Entries), all.Revision, l.Revision)
	}

	// No value is an empty value, and an empty value exists.
	for _, value := range [][]byte{nil, {}} {
		r := MustCommit(t, s, store.Tx{Put: []store.Write{{Key: "empty", Value: value}}})
		wantEntry(t, s, "empty", "", r)
		if c := Follow(t, s, "empty", r-1, r); len(c) != 1 || len(c[0].Put) != 1 || len(c[0].Delete) != 0 {
			t.Fatalf("an empty value is told as %+v, want one put", c)
		}
	}
	// A value is bytes, whatever they are.
	var every []byte
	for b := range 256 {
		every = append(every, byte(b))
	}
	r := MustCommit(t, s, Put("every", string(every)))
	wantEntry(t, s, "every", string(every), r)

	MustCommit(t, s, store.Tx{Delete: []string{"a"}})
	wantEntry(t, s, "a", "", 0)
	before := MustList(t, s, "")
	gone := MustCommit(t, s, store.Tx{Delete: []string{"a", "never"}})
	if after := MustList(t, s, ""); len(after.Entries) != len(before.Entries) {
		t.Fatalf("deleting what is not there changed %d entries to %d", len(before.Entries), len(after.Entries))
	}
	last := MustCommit(t, s, Put("a", "again"))
	if c := Follow(t, s, "", before.Revision, last); len(c) != 1 || c[0].Revision != last || last <= gone {
		t.Fatalf("deleting what is not there was told as a change: %+v", c)
	}
	wantEntry(t, s, "a", "again", last)

	WantError(t, "Commit of nothing", commitError(s, Limited(t), store.Tx{ID: "x"}), store.ErrInvalid)
	WantError(t, "Commit of conditions alone", commitError(s, Limited(t), store.Tx{If: []store.Condition{{Key: "a"}}}), store.ErrInvalid)
	WantError(t, "two puts of a key", commitError(s, Limited(t), store.Tx{Put: []store.Write{{Key: "a"}, {Key: "b"}, {Key: "a"}}}), store.ErrInvalid)
	WantError(t, "put and delete of a key", commitError(s, Limited(t), store.Tx{Put: []store.Write{{Key: "a"}}, Delete: []string{"a"}}), store.ErrInvalid)
	WantError(t, "two conditions on a key", commitError(s, Limited(t),
		store.Tx{If: []store.Condition{{Key: "a"}, {Key: "a"}}, Delete: []string{"a"}}), store.ErrInvalid)
}

func commitError(s store.Store, ctx context.Context, tx store.Tx) error {
	_, err := s.Commit(ctx, tx)
	return err
}

// testAtomic commits to two keys at once while others look, and again with a
// last condition that fails.
func testAtomic(t T, e Engine) {
	db := e.New(t, 0)
	all := Handles(t, db, 3)
	writer := all[0]
	pair := func(v string) store.Tx {
		return store.Tx{Put: []store.Write{{Key: "pair/a", Value: []byte(v)}, {Key: "pair/z", Value: []byte(v)}}}
	}
	first := MustCommit(t, writer, pair("start"))

	readers := newTeam(t)
	for _, s := range all[1:] {
		readers.run(func(ctx context.Context) {
			for ctx.Err() == nil {
				l, err := s.List(Limited(t), "pair/")
				if err != nil {
					t.Errorf("List: %v", err)
					return
				}
				a, z := l.Entries[0], l.Entries[len(l.Entries)-1]
				if len(l.Entries) != 2 || string(a.Value) != string(z.Value) || a.Version != z.Version || a.Version > l.Revision {
					t.Errorf("List at %d sees half a commit: %q at %d, %q at %d", l.Revision, a.Value, a.Version, z.Value, z.Version)
					return
				}
			}
		})
	}
	const commits = 100
	last := first
	for i := range commits {
		last = MustCommit(t, writer, pair(fmt.Sprint(i)))
		bad := pair("never")
		bad.Put = append(bad.Put, store.Write{Key: "pair/never"})
		bad.Delete = []string{"pair/gone"}
		bad.If = []store.Condition{{Key: "pair/a", Version: last}, {Key: "pair/z", Version: first}}
		_, err := writer.Commit(Limited(t), bad)
		WantError(t, "Commit with a failing condition", err, store.ErrConflict)
		conflict, ok := errors.AsType[*store.ConflictError](err)
		if want := (store.ConflictError{Key: "pair/z", Want: first, Got: last}); !ok || *conflict != want {
			t.Fatalf("conflict is %+v, want %+v", conflict, want)
		}
	}
	readers.stop()
	changes := Follow(t, writer, "pair/", first-1, last)
	if len(changes) != commits+1 {
		t.Fatalf("%d changes of %d commits", len(changes), commits+1)
	}
	for _, c := range changes {
		if len(c.Put) != 2 || c.Put[0].Key != "pair/a" || c.Put[1].Key != "pair/z" {
			t.Fatalf("change %d puts %d keys, want pair/a and pair/z in the order of the commit", c.Revision, len(c.Put))
		}
	}
}

func testConditions(t T, e Engine) {
	s := open(t, e)
	v1 := MustCommit(t, s, Put("k", "1"))
	other := MustCommit(t, s, Put("other", "1"))
	deleted := MustCommit(t, s, Put("gone", "1"))
	MustCommit(t, s, store.Tx{Delete: []string{"gone"}})

	for _, c := range []struct {
		name string
		cond store.Condition
		hold bool
	}{
		{"exact version", store.Condition{Key: "k", Version: v1}, true},
		{"must not exist, absent", store.Condition{Key: "absent"}, true},
		{"must not exist, deleted", store.Condition{Key: "gone"}, true},
		{"must not exist, exists", store.Condition{Key: "k"}, false},
		{"lower version", store.Condition{Key: "k", Version: v1 - 1}, false},
		{"higher version", store.Condition{Key: "k", Version: v1 + 1}, false},
		{"newest revision, older version", store.Condition{Key: "k", Version: other}, false},
		{"version of another key", store.Condition{Key: "other", Version: v1}, false},
		{"version of what was deleted", store.Condition{Key: "gone", Version: deleted}, false},
		{"absent at a version", store.Condition{Key: "absent", Version: v1}, false},
		{"huge version", store.Condition{Key: "k", Version: 1<<64 - 1}, false},
	} {
		t.Run(c.name, func(t T) {
			before := MustList(t, s, "")
			// A write to a third key, so that the condition's own stays as it is.
			r, err := s.Commit(Limited(t), store.Tx{If: []store.Condition{c.cond}, Put: []store.Write{{Key: "target", Value: []byte(c.name)}}})
			if !c.hold {
				WantError(t, "Commit", err, store.ErrConflict)
				if r != 0 {
					t.Fatalf("a conflict returned revision %d", r)
				}
				if after := MustList(t, s, ""); after.Revision != before.Revision {
					t.Fatalf("a conflict moved the revision from %d to %d", before.Revision, after.Revision)
				}
				return
			}
			if err != nil {
				t.Fatalf("Commit: %v", err)
			}
			wantEntry(t, s, "target", c.name, r)
		})
	}

	// Conditions look at the state before the Tx's own writes.
	r := MustCommit(t, s, store.Tx{
		If:     []store.Condition{{Key: "k", Version: v1}, {Key: "new"}, {Key: "other", Version: other}},
		Put:    []store.Write{{Key: "k", Value: []byte("2")}, {Key: "new", Value: []byte("2")}},
		Delete: []string{"other"},
	})
	wantEntry(t, s, "k", "2", r)
	wantEntry(t, s, "new", "2", r)
	wantEntry(t, s, "other", "", 0)

	// The same bytes written again are a new version: values come back, versions do not.
	again := MustCommit(t, s, Put("k", "2"))
	_, err := s.CompareAndSwap(Limited(t), "k", r, []byte("3"))
	WantError(t, "CompareAndSwap on a value that came back", err, store.ErrConflict)
	wantEntry(t, s, "k", "2", again)
}

// testRace lets many swap the same version, round after round.
func testRace(t T, e Engine) {
	const racers, rounds = 16, 20
	all := Handles(t, e.New(t, 0), racers)
	version := store.Revision(0)
	for round := range rounds {
		type answer struct {
			revision store.Revision
			err      error
		}
		answers := make([]answer, racers)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() {
				<-start
				value := fmt.Appendf(nil, "round %d racer %d", round, i)
				answers[i].revision, answers[i].err = s.CompareAndSwap(Limited(t), "prize", version, value)
			})
		}
		close(start)
		wg.Wait()
		winner := -1
		for i, a := range answers {
			if a.err != nil {
				continue
			}
			if winner >= 0 {
				t.Fatalf("round %d: racers %d and %d both won version %d", round, winner, i, version)
			}
			winner = i
		}
		if winner < 0 {
			t.Fatalf("round %d: nobody won: %v", round, answers[0].err)
		}
		won := answers[winner].revision
		for i, a := range answers {
			if i == winner {
				continue
			}
			conflict, ok := errors.AsType[*store.ConflictError](a.err)
			if want := (store.ConflictError{Key: "prize", Want: version, Got: won}); !ok || *conflict != want {
				t.Fatalf("round %d: racer %d lost with %v, want %+v", round, i, a.err, want)
			}
		}
		wantEntry(t, all[0], "prize", fmt.Sprintf("round %d racer %d", round, winner), won)
		if won <= version {
			t.Fatalf("round %d: version went from %d to %d", round, version, won)
		}
		version = won
	}
}

func testTxID(t T, e Engine) {
	db := e.New(t, 0)
	all := Handles(t, db, 8)
	s := all[0]
	tx := Put("k", "1")
	tx.ID = store.NewTxID()
	tx.If = []store.Condition{{Key: "k"}}
	r := MustCommit(t, s, tx)

	// Its own conditions do not hold any more, and still it is the same Tx.
	if again := MustCommit(t, s, tx); again != r {
		t.Fatalf("committed again at %d, first at %d", again, r)
	}
	if got, err := s.Outcome(Limited(t), tx.ID); err != nil || got != r {
		t.Fatalf("Outcome = %d, %v, want %d", got, err, r)
	}
	wantEntry(t, s, "k", "1", r)

	// Each of these differs from tx in one place.
	for name, change := range map[string]func(*store.Tx){
		"value":      func(tx *store.Tx) { tx.Put = []store.Write{{Key: "k", Value: []byte("2")}} },
		"key":        func(tx *store.Tx) { tx.Put = []store.Write{{Key: "l", Value: []byte("1")}} },
		"more puts":  func(tx *store.Tx) { tx.Put = append(tx.Put[:1:1], store.Write{Key: "l"}) },
		"deletes":    func(tx *store.Tx) { tx.Delete = []string{"l"} },
		"conditions": func(tx *store.Tx) { tx.If = nil },
	} {
		other := tx
		change(&other)
		_, err := s.Commit(Limited(t), other)
		WantError(t, "reused ID with another "+name, err, store.ErrInvalid)
		if reused, ok := errors.AsType[*store.ReusedError](err); !ok || reused.ID != tx.ID || reused.Applied != r {
			t.Fatalf("reused ID with another %s: %v", name, err)
		}
	}
	wantEntry(t, s, "k", "1", r)

	// A conflict leaves the ID free: nothing was applied under it.
	late := Put("k", "3")
	late.ID = store.NewTxID()
	late.If = []store.Condition{{Key: "gate"}, {Key: "k", Version: r}}
	gate := MustCommit(t, s, Put("gate", ""))
	WantError(t, "Commit", commitError(s, Limited(t), late), store.ErrConflict)
	MustCommit(t, s, store.Tx{If: []store.Condition{{Key: "gate", Version: gate}}, Delete: []string{"gate"}})
	lateAt := MustCommit(t, s, late)
	wantEntry(t, s, "k", "3", lateAt)

	// Not found is final, however often it is asked.
	void := Put("k", "4")
	void.ID = store.NewTxID()
	for range 2 {
		_, err := s.Outcome(Limited(t), void.ID)
		WantError(t, "Outcome of an unknown ID", err, store.ErrNotFound)
	}
	for range 2 {
		WantError(t, "Commit under a voided ID", commitError(s, Limited(t), void), store.ErrVoided)
	}
	_, err := s.Outcome(Limited(t), void.ID)
	WantError(t, "Outcome of a voided ID", err, store.ErrNotFound)
	wantEntry(t, s, "k", "3", lateAt)
	void.ID = store.NewTxID()
	MustCommit(t, s, void)

	// Many commit the same Tx while others ask: one decision, and all hear it.
	for round := range 20 {
		tx := Put(fmt.Sprintf("once/%d", round), "x")
		tx.ID = store.NewTxID()
		revisions := make([]store.Revision, len(all))
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() {
				if i == len(all)-1 {
					revisions[i], errs[i] = s.Outcome(Limited(t), tx.ID)
					return
				}
				revisions[i], errs[i] = s.Commit(Limited(t), tx)
			})
		}
		wg.Wait()
		want := revisions[0]
		for i := range all {
			switch {
			case want == 0 && i == len(all)-1:
				WantError(t, "Outcome that came first", errs[i], store.ErrNotFound)
			case want == 0:
				WantError(t, "Commit after its Outcome", errs[i], store.ErrVoided)
			case errs[i] != nil || revisions[i] != want:
				t.Fatalf("round %d: call %d answered %d, %v and call 0 answered %d", round, i, revisions[i], errs[i], want)
			}
		}
		wantEntry(t, s, tx.Put[0].Key, "x", want)
	}

	// Outcomes outlive the process.
	s = restart(t, db, s)
	closeLater(t, s)
	if got, err := s.Outcome(Limited(t), tx.ID); err != nil || got != r {
		t.Fatalf("Outcome after a restart = %d, %v, want %d", got, err, r)
	}
}
