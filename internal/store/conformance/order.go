package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/fealty-io/fealty/internal/store"
)

// testRevisionOrder commits from many sides while one follows, then compares
// what was acknowledged with what was told.
func testRevisionOrder(t T, e Engine) {
	const writers, commits = 8, 40
	all := Handles(t, e.New(t, 0), writers+1)
	follower := all[writers]
	start := MustList(t, follower, "").Revision

	var mu sync.Mutex
	acked := map[store.Revision]string{} // revision → value; guarded by mu
	team := newTeam(t)
	for w, s := range all[:writers] {
		team.run(func(ctx context.Context) {
			before := store.Revision(0)
			for i := range commits {
				value := fmt.Sprintf("%d/%d", w, i)
				// Half of them on one key, so that order shows.
				key := "order/shared"
				if i%2 == 0 {
					key = fmt.Sprintf("order/%d", w)
				}
				r, err := s.Commit(ctx, Put(key, value))
				if err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				// Acknowledged means visible, to everyone, from now on.
				l, err := s.List(ctx, "order/shared")
				if err != nil || l.Revision < r {
					t.Errorf("List at %d, %v, after the commit of %d was acknowledged", l.Revision, err, r)
					return
				}
				mu.Lock()
				if other, twice := acked[r]; twice {
					t.Errorf("revision %d given to %s and %s", r, other, value)
				}
				acked[r] = value
				mu.Unlock()
				if r <= before {
					t.Errorf("revision %d after %d", r, before)
				}
				before = r
			}
		})
	}
	// Following while they write: by now nobody knows the last revision, so the
	// follower counts.
	told := map[store.Revision]string{}
	last := store.Revision(0)
	r := replica{}
	for c, err := range follower.Changes(Limited(t), "order/", start) {
		if err != nil {
			t.Errorf("Changes: %v", err)
			break
		}
		if c.Revision <= last {
			t.Errorf("change %d told after %d", c.Revision, last)
		}
		last = c.Revision
		r.apply(t, c)
		told[c.Revision] = string(c.Put[0].Value)
		if len(told) == writers*commits {
			break
		}
	}
	team.wait()
	if !maps.Equal(acked, told) {
		t.Fatalf("%d commits acknowledged, %d told, and they differ", len(acked), len(told))
	}
	r.wantEqual(t, MustList(t, follower, "order/"))
}

func testNeverBack(t T, e Engine) {
	db := e.New(t, 4)
	s := MustOpen(t, db)
	defer func() { s.Close() }()
	seen := map[store.Revision]bool{}
	var stale []store.Revision
	for round := range 30 {
		r := MustCommit(t, s, Put("k", "same"))
		if seen[r] {
			t.Fatalf("round %d: version %d again", round, r)
		}
		seen[r] = true
		for _, old := range stale {
			_, err := s.CompareAndSwap(Limited(t), "k", old, []byte("stale"))
			WantError(t, fmt.Sprintf("swap of version %d in round %d", old, round), err, store.ErrConflict)
		}
		stale = append(stale, r)
		if round%2 == 0 {
			MustCommit(t, s, store.Tx{If: []store.Condition{{Key: "k", Version: r}}, Delete: []string{"k"}})
			wantEntry(t, s, "k", "", 0)
		}
		if round%10 == 9 {
			s = restart(t, db, s)
		}
	}
}

// testChanges follows with interruptions: each time the reader stops somewhere,
// and goes on after the last revision it saw.
func testChanges(t T, e Engine) {
	rng := random(t)
	db := e.New(t, 0)
	all := Handles(t, db, 2)
	s, reader := all[0], all[1]
	start := MustList(t, s, "").Revision
	var expect []store.Revision // of changes under a/
	write := func(n int) {
		for range n {
			tx := store.Tx{}
			inside := false
			for k := range rng.IntN(4) + 1 {
				key := fmt.Sprintf("%c/%d", 'a'+rune(rng.IntN(2)), k)
				if rng.IntN(3) == 0 {
					tx.Delete = append(tx.Delete, key)
					e, err := s.Get(Limited(t), key)
					inside = inside || key[0] == 'a' && e.Version != 0
					if err != nil && !errors.Is(err, store.ErrNotFound) {
						t.Fatal(err)
					}
				} else {
					tx.Put = append(tx.Put, store.Write{Key: key, Value: fmt.Appendf(nil, "%d", rng.Uint64())})
					inside = inside || key[0] == 'a'
				}
			}
			r := MustCommit(t, s, tx)
			if inside {
				expect = append(expect, r)
			}
		}
	}
	write(50)
	var told []store.Revision
	r := replica{}
	after := start
	for len(told) < len(expect) || len(expect) < 200 {
		if len(told) == len(expect) {
			write(20)
			continue
		}
		stop := rng.IntN(40) + 1
		for c, err := range reader.Changes(Limited(t), "a/", after) {
			if err != nil {
				t.Fatalf("Changes(a/, %d): %v", after, err)
			}
			for _, e := range c.Put {
				if e.Key[0] != 'a' {
					t.Fatalf("change under a/ puts %q", e.Key)
				}
			}
			r.apply(t, c)
			told = append(told, c.Revision)
			after = c.Revision
			if stop--; stop == 0 || len(told) >= len(expect) {
				break
			}
		}
	}
	if !slices.Equal(told, expect) {
		t.Fatalf("told %d changes, want %d: %v, %v", len(told), len(expect), told, expect)
	}
	r.wantEqual(t, MustList(t, s, "a/"))

	// A listing joins its changes without gap or overlap, while others write.
	writer := newTeam(t)
	writer.run(func(ctx context.Context) {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := s.Commit(context.WithoutCancel(ctx), Put(fmt.Sprintf("a/%d", i%10), fmt.Sprint(i))); err != nil {
				t.Errorf("Commit: %v", err)
				return
			}
		}
	})
	for range 10 {
		l := MustList(t, reader, "a/")
		r := replica{}
		r.reset(l)
		n, last := 0, l.Revision
		for c, err := range reader.Changes(Limited(t), "a/", l.Revision) {
			if err != nil {
				t.Fatalf("Changes: %v", err)
			}
			if c.Revision <= last {
				t.Fatalf("change %d after %d", c.Revision, last)
			}
			last = c.Revision
			r.apply(t, c)
			// Once as far as a later listing, they must agree.
			if n++; n < 20 {
				continue
			}
			l := MustList(t, reader, "a/")
			for _, c := range Follow(t, reader, "a/", last, newest(l)) {
				r.apply(t, c)
			}
			r.wantEqual(t, l)
			break
		}
	}
	writer.stop()
}

// newest returns the highest version in l.
func newest(l store.Listing) store.Revision {
	v := store.Revision(0)
	for _, e := range l.Entries {
		v = max(v, e.Version)
	}
	return v
}

func testCompaction(t T, e Engine) {
	const retain = 32
	db := e.New(t, retain)
	s := MustOpen(t, db)
	defer func() { s.Close() }()

	r := replica{}
	early := MustCommit(t, s, Put("k/0", "0"))
	told := []store.Revision{early} // what changes should tell, from the first on
	// Write until the first changes are gone; how lazy an engine is, it decides.
	var compacted *store.CompactedError
	for i := 1; compacted == nil; i++ {
		if i > 1_000_000 {
			t.Fatalf("%d commits, and changes after %d are still kept", i, early)
		}
		tx := Put(fmt.Sprintf("k/%d", i%4), fmt.Sprint(i))
		if i%4 == 1 {
			tx = store.Tx{Delete: []string{"k/0"}} // which the one before wrote
		}
		last := MustCommit(t, s, tx)
		told = append(told, last)
		for _, err := range s.Changes(Limited(t), "k/", early) {
			if err == nil {
				break
			}
			var ok bool
			if compacted, ok = errors.AsType[*store.CompactedError](err); !ok || !errors.Is(err, store.ErrCompacted) {
				t.Fatalf("Changes: %v", err)
			}
			if compacted.After != early || compacted.Oldest <= early || compacted.Oldest > last || compacted.Current != last {
				t.Fatalf("after %d of %d: %+v", early, last, compacted)
			}
			if kept := last - compacted.Oldest; kept < retain/2 {
				t.Fatalf("only %d of %d commits kept", kept, retain)
			}
		}
	}
	// The error's advice works: list, and follow from there.
	l := MustList(t, s, "k/")
	r.reset(l)
	last := MustCommit(t, s, Put("k/more", "x"))
	told = append(told, last)
	for _, c := range Follow(t, s, "k/", l.Revision, last) {
		r.apply(t, c)
	}
	r.wantEqual(t, MustList(t, s, "k/"))
	// The oldest that it names can be followed from, without a gap, and nothing
	// before it. An engine that prunes meanwhile names another.
	for oldest := compacted.Oldest; ; {
		var got []store.Revision
		var moved *store.CompactedError
		for c, err := range s.Changes(Limited(t), "k/", oldest) {
			if err != nil {
				moved, _ = errors.AsType[*store.CompactedError](err)
				if moved == nil || moved.Oldest <= oldest {
					t.Fatalf("Changes after the oldest, %d: %v", oldest, err)
				}
				break
			}
			if got = append(got, c.Revision); c.Revision == last {
				break
			}
		}
		if moved != nil {
			oldest = moved.Oldest
			continue
		}
		first, _ := slices.BinarySearch(told, oldest+1)
		if !slices.Equal(got, told[first:]) {
			t.Fatalf("changes after %d are %v, want %v", oldest, got, told[first:])
		}
		err := only(s.Changes(Limited(t), "k/", oldest-1))
		WantError(t, fmt.Sprintf("Changes after %d, one before the oldest", oldest-1), err, store.ErrCompacted)
		break
	}

	// Compaction outlives a restart, and the future is no place to follow from:
	// the database was restored, and waiting there would be silence.
	s = restart(t, db, s)
	for _, after := range []store.Revision{early, MustList(t, s, "").Revision + 1, 1 << 60, 1<<64 - 1} {
		for _, err := range s.Changes(Limited(t), "", after) {
			WantError(t, fmt.Sprintf("Changes after %d", after), err, store.ErrCompacted)
		}
	}
}

func testWatch(t T, e Engine) {
	all := Handles(t, e.New(t, 0), 2)
	s, watcher := all[0], all[1]
	watch := newTeam(t)
	type seen struct {
		e   store.Entry
		err error
	}
	entries := make(chan seen, 1)
	done := make(chan struct{}) // nobody reads entries any more
	t.Cleanup(func() { close(done) })
	watch.run(func(ctx context.Context) {
		defer close(entries)
		for e, err := range watcher.Watch(ctx, "w") {
			select {
			case entries <- seen{e, err}:
			case <-done:
			}
		}
	})
	// until reads entries up to the given version, which may not go back.
	last := store.Revision(0)
	until := func(version store.Revision, value string) {
		t.Helper()
		for x := range entries {
			if x.err != nil {
				t.Fatalf("Watch: %v", x.err)
			}
			if x.e.Key != "w" {
				t.Fatalf("Watch(w) tells of %q", x.e.Key)
			}
			if x.e.Version != 0 && x.e.Version < last {
				t.Fatalf("Watch went back from version %d to %d", last, x.e.Version)
			}
			last = max(last, x.e.Version)
			if x.e.Version == version {
				if string(x.e.Value) != value {
					t.Fatalf("Watch: %q at %d, want %q", x.e.Value, version, value)
				}
				return
			}
		}
		t.Fatalf("Watch ended")
	}
	until(0, "") // absent is a state, and the first to be told
	MustCommit(t, s, Put("other", "x"))
	until(MustCommit(t, s, Put("w", "1")), "1")

	// A burst may be told as one, but its end is told.
	for i := range 100 {
		last := MustCommit(t, s, Put("w", fmt.Sprint(i)))
		if i == 99 {
			until(last, "99")
		}
	}
	MustCommit(t, s, store.Tx{Delete: []string{"w"}})
	until(0, "")
	r := MustCommit(t, s, Put("w", "back"))
	until(r, "back")

	// The current entry comes first.
	for e, err := range watcher.Watch(Limited(t), "w") {
		if err != nil || e.Version != r || string(e.Value) != "back" {
			t.Fatalf("Watch begins with %q at %d, %v, want the current entry at %d", e.Value, e.Version, err, r)
		}
		break
	}
	// It ends with its context, and says so.
	watch.cancel()
	var end error
	for x := range entries {
		end = x.err
	}
	watch.wait()
	WantError(t, "end of Watch", end, context.Canceled)

	// Many watch many keys, and each hears of its own.
	const watchers, keys = 24, 4
	crowd := newTeam(t)
	final := map[string]store.Revision{}
	var mu sync.Mutex // guards final
	ready := make(chan struct{}, watchers)
	for i := range watchers {
		key := fmt.Sprintf("many/%d", i%keys)
		crowd.run(func(ctx context.Context) {
			first := true
			for e, err := range all[i%2].Watch(ctx, key) {
				if err != nil {
					t.Errorf("Watch(%q): %v", key, err)
					return
				}
				if first {
					ready <- struct{}{}
					first = false
				}
				if string(e.Value) == "final" {
					mu.Lock()
					defer mu.Unlock()
					final[key] = max(final[key], e.Version)
					return
				}
			}
		})
	}
	for range watchers {
		<-ready
	}
	for i := range 40 {
		MustCommit(t, s, Put(fmt.Sprintf("many/%d", i%keys), fmt.Sprint(i)))
	}
	for k := range keys {
		MustCommit(t, s, Put(fmt.Sprintf("many/%d", k), "final"))
	}
	crowd.wait()
	if len(final) != keys {
		t.Fatalf("%d of %d keys seen to the end", len(final), keys)
	}
}
