package history_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/chunk"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// long is a policy in almost the longest manifest.
var long = policy{cluster: base.cluster, trust: base.trust, keepers: 1, persons: 2, signers: base.signers, threshold: 2, seed: 1,
	comment: 1_000_000}

// wantManifest checks that the history in the store has m in force.
func wantManifest(t *testing.T, l *history.Log, k *testers, from *history.Verified, m *manifest.Manifest) {
	t.Helper()
	if v := load(t, l, k); v.Manifest().Hash() != m.Hash() || !bytes.Equal(v.Manifest().Bytes(), m.Bytes()) {
		t.Error("another manifest is loaded")
	}
	if v, err := l.Follow(t.Context(), from, k.public()); err != nil || !bytes.Equal(v.Manifest().Bytes(), m.Bytes()) {
		t.Errorf("another manifest is followed (%v)", err)
	}
}

// A long manifest is kept in parts of which each is a small value; one that an earlier release kept
// whole is read, and is not written again.
func TestLongManifest(t *testing.T) {
	t.Parallel()
	if manifest.LongBytes > chunk.MaxBytes {
		t.Fatal("one that every release is taken to read is divided")
	}
	if chunk.MaxBytes+store.SealBytes+store.MaxKeyBytes > store.CutBytes/2 {
		t.Fatal("a part is more than half of a transaction")
	}
	k := newTesters(t)
	for name, before := range map[string]func(s store.Store, m *manifest.Manifest){
		"in parts": func(store.Store, *manifest.Manifest) {},
		"whole": func(s store.Store, m *manifest.Manifest) {
			if _, err := s.CompareAndSwap(t.Context(), history.BlobKey(m.Hash()), 0, m.Bytes()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := storetest.NewMemory(0).Open()
		l, v := founded(t, s, k)
		tr, m := candidate(t, k, v, history.KindSet, long, "long")
		before(s, m)
		if _, err := l.Append(t.Context(), v, tr, m, k.transaction); err != nil {
			t.Fatal(err)
		}
		wantManifest(t, l, k, v, m)
		all, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		largest := 0
		for _, e := range all.Entries {
			largest = max(largest, len(e.Value))
		}
		if whole := largest == len(m.Bytes()); whole != (name == "whole") || !whole && largest > chunk.MaxBytes {
			t.Errorf("%s: the largest of %d values has %d bytes", name, len(all.Entries), largest)
		}
	}
}

// A part that is missing or altered is told by its name, and nothing is loaded.
func TestLongManifestIsBroken(t *testing.T) {
	t.Parallel()
	k := newTesters(t)
	s := storetest.NewMemory(0).Open()
	l, v := founded(t, s, k)
	tr, m := candidate(t, k, v, history.KindSet, long, "long")
	if _, err := l.Append(t.Context(), v, tr, m, k.transaction); err != nil {
		t.Fatal(err)
	}
	index, list := chunk.Split(m.Bytes())
	part := history.HashOf(list[1])
	for _, tc := range []struct {
		name  string
		key   string
		value []byte // nil: it is missing
		want  history.BlobError
	}{
		{"a part is missing", history.BlobKey(part), nil, history.BlobError{Hash: part, Missing: true}},
		{"a part is altered", history.BlobKey(part), list[0], history.BlobError{Hash: part}},
		{"a part is left out", history.BlobKey(m.Hash()), index[:len(index)-32], history.BlobError{Hash: history.Hash(m.Hash())}},
		{"the index is none", history.BlobKey(m.Hash()), index[1:], history.BlobError{Hash: history.Hash(m.Hash())}},
		{"the index is missing", history.BlobKey(m.Hash()), nil, history.BlobError{Hash: history.Hash(m.Hash()), Missing: true}},
	} {
		was, err := s.Get(t.Context(), tc.key)
		if err != nil {
			t.Fatal(err)
		}
		tx := store.Tx{Put: []store.Write{{Key: tc.key, Value: tc.value}}}
		if tc.value == nil {
			tx = store.Tx{Delete: []string{tc.key}}
		}
		if _, err := s.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		h, err := l.Load(t.Context())
		if e, ok := errors.AsType[*history.BlobError](err); h != nil || !ok || *e != tc.want {
			t.Errorf("%s: %v", tc.name, err)
		}
		if _, err := s.Commit(t.Context(), store.Tx{Put: []store.Write{{Key: tc.key, Value: was.Value}}}); err != nil {
			t.Fatal(err)
		}
	}
	wantManifest(t, l, k, v, m)
}

// failingWrites fails the write that is left writes away, and all after it, as a process that ends.
type failingWrites struct {
	store.KV
	left int
}

func (f *failingWrites) CompareAndSwap(ctx context.Context, key string, old store.Revision, value []byte) (store.Revision, error) {
	if f.left--; f.left < 0 {
		return 0, errOutage
	}
	return f.KV.CompareAndSwap(ctx, key, old, value)
}

// Wherever an append of a long manifest ends, the head is the one of before, with all that it names, or
// the new one with all of that; and the next try comes to its end.
func TestLongManifestIsCutOff(t *testing.T) {
	t.Parallel()
	k := newTesters(t)
	for n := 0; ; n++ {
		s := storetest.NewMemory(0).Open()
		l, v := founded(t, s, k)
		tr, m := candidate(t, k, v, history.KindSet, long, "long")
		failing := &failingWrites{s, n}
		_, err := history.New(failing).Append(t.Context(), v, tr, m, k.transaction)
		if (err != nil) != (failing.left < 0) {
			t.Fatalf("write %d: %v", n, err)
		}
		if now := load(t, l, k); now.Head() != v.Head() != (err == nil) {
			t.Fatalf("write %d fails, and the head moved: %v", n, now.Head() != v.Head())
		}
		if _, again := l.Append(t.Context(), v, tr, m, k.transaction); again != nil {
			t.Fatalf("write %d failed, and again: %v", n, again)
		}
		wantManifest(t, l, k, v, m)
		if err == nil {
			if n != 5 { // two parts, their index, the link, the head
				t.Errorf("it took %d writes", n)
			}
			return
		}
	}
}
