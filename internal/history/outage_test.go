package history_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// failingReads fails the read that is left reads away.
type failingReads struct {
	store.KV
	left int
}

var errOutage = errors.New("the store does not answer")

func (f *failingReads) Get(ctx context.Context, key string) (store.Entry, error) {
	if f.left--; f.left == -1 {
		return store.Entry{}, errOutage
	}
	return f.KV.Get(ctx, key)
}

// Whichever read fails, who reads is told, with the reason, and gets nothing: a history
// that is cut short at a read is none.
func TestEachReadThatFails(t *testing.T) {
	t.Parallel()
	kv := storetest.NewMemory(0).Open()
	k := newTesters(t)
	l, first := founded(t, kv, k)
	newest := first
	for _, reason := range []string{"one", "two", "three"} {
		tr, m := candidate(t, k, newest, history.KindRekey, base, reason)
		var err error
		if newest, err = l.Append(t.Context(), newest, tr, m, k.transaction); err != nil {
			t.Fatal(err)
		}
	}
	for name, read := range map[string]func(*history.Log) (nothing bool, err error){
		"head": func(l *history.Log) (bool, error) {
			r, _, err := l.Head(t.Context())
			return r == history.Record{}, err
		},
		"load": func(l *history.Log) (bool, error) {
			h, err := l.Load(t.Context())
			return h == nil, err
		},
		"follow": func(l *history.Log) (bool, error) {
			v, err := l.Follow(t.Context(), first, k.public())
			return v == nil, err
		},
		"follow from nothing": func(l *history.Log) (bool, error) {
			v, err := l.Follow(t.Context(), nil, k.public())
			return v == nil, err
		},
	} {
		for n := 0; ; n++ {
			failing := &failingReads{kv, n}
			nothing, err := read(history.New(failing))
			if failing.left >= 0 { // it read less often than that
				if err != nil || nothing || n == 0 {
					t.Errorf("%s without a failure: %v, and nothing %v", name, err, nothing)
				}
				break
			}
			if !errors.Is(err, errOutage) || !nothing {
				t.Errorf("%s, read %d fails: %v, and nothing %v", name, n, err, nothing)
			}
		}
	}
}

// A head that does not read, or that another key signed, is no head: for who asks for it
// alone, and for who follows it from what is known.
func TestSpoiledHeadIsTold(t *testing.T) {
	t.Parallel()
	kv := storetest.NewMemory(0).Open()
	k := newTesters(t)
	l, first := founded(t, kv, k)
	tr, m := candidate(t, k, first, history.KindRekey, base, "next")
	next, err := l.Append(t.Context(), first, tr, m, k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := tr.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put := func(value []byte) {
		t.Helper()
		e, err := kv.Get(t.Context(), history.HeadKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.CompareAndSwap(t.Context(), history.HeadKey, e.Version, value); err != nil {
			t.Fatal(err)
		}
	}
	put(append(next.Head().Encode(), '}'))
	if _, _, err := l.Head(t.Context()); !errors.Is(err, history.ErrEncoding) {
		t.Errorf("the head: %v", err)
	}
	for name, known := range map[string]*history.Verified{"nothing": nil, "the first link": first} {
		if v, err := l.Follow(t.Context(), known, k.public()); v != nil || !errors.Is(err, history.ErrEncoding) {
			t.Errorf("followed from %s: %v, %v", name, v, err)
		}
	}
	put(headBy(k.seedKey("another", 9), tr, raw))
	if v, err := l.Follow(t.Context(), first, k.public()); v != nil || !errors.Is(err, history.ErrUnverified) {
		t.Errorf("a head that another key signed: %v, %v", v, err)
	}
}

// A file that has all the right fields and one thing more was written by somebody else: it is
// refused, as a request and as a signature.
func TestWhatIsNoSignatureFile(t *testing.T) {
	t.Parallel()
	k := newTesters(t)
	_, v := founded(t, storetest.NewMemory(0).Open(), k)
	request := history.RestoreRequest{Cluster: v.Manifest().Cluster, Manifest: v.Manifest().Hash(), Current: v.Current().Hash, Index: 7, AuthorityEpoch: 7, Backup: history.Hash{1}}
	signed, err := request.Sign(k.transaction)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := history.DecodeRestoreRequest(request.Encode()); err != nil {
		t.Error(err)
	}
	if _, err := history.DecodeSignatureFile(signed.Encode()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"a field more":      func(b []byte) []byte { return bytes.Replace(b, []byte("{"), []byte(`{"more":1,`), 1) },
		"something follows": func(b []byte) []byte { return append(b, "{}"...) },
	} {
		if r, err := history.DecodeRestoreRequest(spoil(request.Encode())); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("a request, %s: %+v, %v", name, r, err)
		}
		if f, err := history.DecodeSignatureFile(spoil(signed.Encode())); !errors.Is(err, history.ErrEncoding) {
			t.Errorf("a signature, %s: %+v, %v", name, f, err)
		}
	}
}

// A transition was overtaken only if the history from the head back says so. Where that
// does not read, nothing is known of it: the caller keeps what the transition needs.
func TestOvertakenIsReadFromTheHistory(t *testing.T) {
	t.Parallel()
	k := newTesters(t)
	// world returns a history of three links, and a transition that stands on the first.
	world := func() (kv store.KV, first *history.Verified, try func(store.KV) error) {
		kv = storetest.NewMemory(0).Open()
		l, first := founded(t, kv, k)
		last := first
		for _, reason := range []string{"one", "two"} {
			tr, m := candidate(t, k, last, history.KindRekey, base, reason)
			var err error
			if last, err = l.Append(t.Context(), last, tr, m, k.transaction); err != nil {
				t.Fatal(err)
			}
		}
		tr, m := candidate(t, k, first, history.KindRekey, base, "late")
		return kv, first, func(kv store.KV) error {
			_, err := history.New(kv).Append(t.Context(), first, tr, m, k.transaction)
			return err
		}
	}
	conflict := func(err error) bool {
		_, ok := errors.AsType[*history.ConflictError](err)
		return ok
	}
	for n := 0; ; n++ {
		kv, _, try := world()
		failing := &failingReads{kv, n}
		err := try(failing)
		if failing.left >= 0 {
			if !conflict(err) || n < 2 {
				t.Errorf("all of %d reads succeed: %v", n, err)
			}
			break
		}
		if err == nil || conflict(err) {
			t.Errorf("read %d fails: %v", n, err)
		}
	}

	kv, first, try := world()
	put := func(key string, value []byte) {
		t.Helper()
		e, err := kv.Get(t.Context(), key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		if _, err := kv.CompareAndSwap(t.Context(), key, e.Version, value); err != nil {
			t.Fatal(err)
		}
	}
	put(history.HeadKey, []byte("no head"))
	if err := try(kv); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("the head does not decode: %v", err)
	}
	junk := []byte("no transition")
	put(history.BlobKey(history.HashOf(junk)), junk)
	put(history.HeadKey, headBy(k.transaction, &history.Transition{Index: 9, AuthorityEpoch: 9}, junk))
	if err := try(kv); !errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("the head names what is no transition: %v", err)
	}
	if h, err := history.New(kv).Load(t.Context()); h != nil || !errors.Is(err, history.ErrEncoding) {
		t.Errorf("a history that ends in what is no transition: %v, %v", h, err)
	}
	if v, err := history.New(kv).Follow(t.Context(), first, k.public()); v != nil || !errors.Is(err, history.ErrEncoding) {
		t.Errorf("followed to what is no transition: %v, %v", v, err)
	}
}

// A history whose version in the store is not known, since it was verified elsewhere, is
// extended by the version of its head, which has to read.
func TestAppendToWhatWasVerifiedElsewhere(t *testing.T) {
	t.Parallel()
	k := newTesters(t)
	kv := storetest.NewMemory(0).Open()
	l, first := founded(t, kv, k)
	h, err := l.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.Version = 0
	elsewhere, err := history.Verify(h, k.public())
	if err != nil {
		t.Fatal(err)
	}
	tr, m := candidate(t, k, first, history.KindRekey, base, "next")
	for n := 0; ; n++ {
		failing := &failingReads{kv, n}
		next, err := history.New(failing).Append(t.Context(), elsewhere, tr, m, k.transaction)
		if failing.left >= 0 {
			if err != nil || next.Version() == 0 || n == 0 {
				t.Errorf("all of %d reads succeed: %v", n, err)
			}
			break
		}
		if !errors.Is(err, errOutage) {
			t.Errorf("read %d fails: %v", n, err)
		}
	}
	tr.Reason = "a line\nand another"
	if _, err := l.Append(t.Context(), load(t, l, k), tr, m, k.transaction); err == nil || !bytes.Contains([]byte(err.Error()), []byte("reason")) {
		t.Errorf("a transition that has no bytes: %v", err)
	}
}
