package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fealty-io/fealty/internal/store"
)

// pattern returns n bytes that compress badly and differ for each seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

func testLargeValues(t T, e Engine) {
	db := e.New(t, 0)
	s := MustOpen(t, db)
	defer func() { s.Close() }()
	key := strings.Repeat("k", store.MaxKeyBytes)
	value := pattern(store.MaxValueBytes, 1)
	r := MustCommit(t, s, store.Tx{Put: []store.Write{{Key: key, Value: value}}})
	wantEntry(t, s, key, string(value), r)
	if c := Follow(t, s, key, r-1, r); !bytes.Equal(c[0].Put[0].Value, value) {
		t.Fatal("the change of a large value does not hold it")
	}

	_, err := s.CompareAndSwap(Limited(t), key, r, append(value, 0))
	wantLimit(t, "a value one byte too long", err, store.MaxValueBytes)
	wantEntry(t, s, key, string(value), r)

	// As many bytes as fit in one Tx, and one more.
	var tx store.Tx
	for i := range store.MaxTxBytes / store.MaxValueBytes {
		tx.Put = append(tx.Put, store.Write{Key: fmt.Sprintf("full/%d", i), Value: pattern(store.MaxValueBytes, byte(i))})
	}
	last := &tx.Put[len(tx.Put)-1]
	for _, w := range tx.Put {
		last.Value = last.Value[:len(last.Value)-len(w.Key)]
	}
	full := MustCommit(t, s, tx)
	last.Value = last.Value[:len(last.Value)+1]
	_, err = s.Commit(Limited(t), tx)
	wantLimit(t, "a transaction one byte too long", err, store.MaxTxBytes)
	last.Value = last.Value[:len(last.Value)-1]
	check := func() {
		t.Helper()
		l := MustList(t, s, "full/")
		if len(l.Entries) != len(tx.Put) {
			t.Fatalf("%d of %d large values listed", len(l.Entries), len(tx.Put))
		}
		for i, e := range l.Entries {
			if !bytes.Equal(e.Value, tx.Put[i].Value) || e.Version != full {
				t.Fatalf("%s differs from what was written", e.Key)
			}
		}
	}
	check()

	// As many operations as fit, and one more.
	var many store.Tx
	for i := range store.MaxTxOps {
		many.Put = append(many.Put, store.Write{Key: fmt.Sprintf("many/%04d", i), Value: fmt.Append(nil, i)})
	}
	at := MustCommit(t, s, many)
	if l := MustList(t, s, "many/"); len(l.Entries) != store.MaxTxOps {
		t.Fatalf("%d of %d puts listed", len(l.Entries), store.MaxTxOps)
	}
	next := MustCommit(t, s, Put("many/next", ""))
	c := Follow(t, s, "many/", at-1, next)
	if len(c) != 2 || c[0].Revision != at || len(c[0].Put) != store.MaxTxOps || len(c[1].Put) != 1 {
		t.Fatalf("%d changes told of a large commit and a small one", len(c))
	}
	for i, e := range c[0].Put {
		if e.Key != many.Put[i].Key || !bytes.Equal(e.Value, many.Put[i].Value) {
			t.Fatalf("put %d of a large commit is told as %s", i, e.Key)
		}
	}
	many.If = []store.Condition{{Key: "absent"}}
	_, err = s.Commit(Limited(t), many)
	wantLimit(t, "one operation too many", err, store.MaxTxOps)

	s = restart(t, db, s)
	wantEntry(t, s, key, string(value), r)
	check()
}

func wantLimit(t T, what string, err error, limit int) {
	t.Helper()
	WantError(t, what, err, store.ErrInvalid)
	if e, ok := errors.AsType[*store.LimitError](err); !ok || e.Max != limit || e.Got != limit+1 {
		t.Fatalf("%s: %v, want a limit of %d passed by one", what, err, limit)
	}
}

func testBadKeys(t T, e Engine) {
	s := open(t, e)
	MustCommit(t, s, Put("good", "1"))
	before := MustList(t, s, "")
	ctx := Limited(t)
	for _, key := range []string{
		"", "\x00", "a\x00", "a\nb", "\x1f", "\x7f", "a\x80", "\xff\xfe", "ключ", "a\u202eb",
		strings.Repeat("k", store.MaxKeyBytes+1), strings.Repeat("k", 1<<20),
	} {
		for name, call := range map[string]func() error{
			"Get":            func() error { _, err := s.Get(ctx, key); return err },
			"CompareAndSwap": func() error { _, err := s.CompareAndSwap(ctx, key, 0, nil); return err },
			"Watch":          func() error { return only(s.Watch(ctx, key)) },
			"put":            func() error { return commitError(s, ctx, store.Tx{Put: []store.Write{{Key: "good"}, {Key: key}}}) },
			"delete":         func() error { return commitError(s, ctx, store.Tx{Delete: []string{"good", key}}) },
			"condition": func() error {
				return commitError(s, ctx, store.Tx{If: []store.Condition{{Key: key}}, Delete: []string{"good"}})
			},
			"Outcome": func() error { _, err := s.Outcome(ctx, key); return err },
			"List":    func() error { _, err := s.List(ctx, key); return err },
			"Changes": func() error { return only(s.Changes(ctx, key, before.Revision)) },
			"ID": func() error {
				return commitError(s, ctx, store.Tx{ID: key, Delete: []string{"good"}})
			},
		} {
			if key == "" && (name == "List" || name == "Changes" || name == "ID") {
				continue // there, it means all or none
			}
			err := call()
			WantError(t, fmt.Sprintf("%s of %.20q", name, key), err, store.ErrInvalid)
			if bad, ok := errors.AsType[*store.KeyError](err); !ok || bad.Key != key {
				t.Fatalf("%s of %.20q: %v, want a KeyError", name, key, err)
			}
			if len(err.Error()) > 512 {
				t.Fatalf("%s of a key of %d bytes answers with %d bytes", name, len(key), len(err.Error()))
			}
		}
	}
	if after := MustList(t, s, ""); after.Revision != before.Revision || len(after.Entries) != 1 {
		t.Fatalf("refused keys moved the store from revision %d to %d", before.Revision, after.Revision)
	}
}

// only returns the error of an iterator that should yield nothing else.
func only[V any](seq func(func(V, error) bool)) error {
	for v, err := range seq {
		if err == nil {
			return fmt.Errorf("yields %v", v)
		}
		return err
	}
	return errors.New("yields nothing at all, not even an error")
}

func testOwnership(t T, e Engine) {
	s := open(t, e)
	value := []byte("value")
	tx := store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: "k", Value: value}}, If: []store.Condition{{Key: "k"}}}
	r := MustCommit(t, s, tx)
	copy(value, "XXXXX")
	tx.Put[0].Key = "other"
	for range 2 {
		wantEntry(t, s, "k", "value", r)
		// A caller may change returned bytes, too.
		e, _ := s.Get(Limited(t), "k")
		copy(e.Value, "YYYYY")
		l := MustList(t, s, "k")
		copy(l.Entries[0].Value, "YYYYY")
		c := Follow(t, s, "k", r-1, r)
		if string(c[0].Put[0].Value) != "value" {
			t.Fatalf("change holds %q", c[0].Put[0].Value)
		}
		copy(c[0].Put[0].Value, "YYYYY")
		for e, err := range s.Watch(Limited(t), "k") {
			if err != nil || string(e.Value) != "value" {
				t.Fatalf("Watch: %q, %v", e.Value, err)
			}
			copy(e.Value, "YYYYY")
			break
		}
	}

	// After a call that was given up, the bytes are the caller's all the same; the
	// race detector watches.
	for i := range 200 {
		ctx, cancel := context.WithCancel(Limited(t))
		value := fmt.Appendf(nil, "value %d", i)
		tx := store.Tx{Put: []store.Write{{Key: fmt.Sprintf("given-up/%d", i), Value: value}}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := s.Commit(ctx, tx)
			if err == nil || errors.Is(err, context.Canceled) {
				clear(value)
				clear(tx.Put)
				return
			}
			t.Errorf("Commit: %v", err)
		}()
		if i%2 == 0 {
			s.Get(Limited(t), "k") // some time, so that the commit gets further
		}
		cancel()
		<-done
	}
	for _, e := range MustList(t, s, "given-up/").Entries {
		if want := "value " + strings.TrimPrefix(e.Key, "given-up/"); string(e.Value) != want {
			t.Fatalf("%s holds %q, want %q", e.Key, e.Value, want)
		}
	}
}
