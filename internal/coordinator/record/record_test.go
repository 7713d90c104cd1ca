package record_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

type value struct {
	Text string `json:"text"`
}

// newRecords are records in a store of their own, whose head is at the revision.
func newRecords(t *testing.T) (record.Records, store.Revision) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	head, err := s.CompareAndSwap(t.Context(), history.HeadKey, 0, []byte("head"))
	if err != nil {
		t.Fatal(err)
	}
	auth, err := store.NewAuthenticator(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return record.Records{Store: s, Auth: auth}, head
}

func commit(t *testing.T, c *record.Change) store.Revision {
	t.Helper()
	rev, err := c.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// A record that was written is read, with its version; what nobody wrote is no error.
func TestRead(t *testing.T) {
	r, head := newRecords(t)
	c := r.NewChange(head)
	c.Put("a/1", 0, value{"one"})
	c.Write("a/2", value{"two"})
	c.WriteRaw("a/3", []byte(`{"text":"three"}`))
	rev := commit(t, c)
	got, err := record.Get[value](t.Context(), r, "a/1")
	if err != nil || !got.Exists() || got.Value.Text != "one" || got.Version != rev {
		t.Errorf("a/1 is %+v, %v", got, err)
	}
	if none, err := record.Get[value](t.Context(), r, "a/none"); err != nil || none.Exists() {
		t.Errorf("what nobody wrote is %+v, %v", none, err)
	}
	all, err := record.List[value](t.Context(), r, "a/")
	if err != nil || len(all) != 3 || all[0].Value.Text != "one" || all[2].Value.Text != "three" {
		t.Errorf("the list is %+v, %v", all, err)
	}
}

// A writer to the store without the key makes no record: not a new one, not by moving
// one to another key, and not by altering it.
func TestForged(t *testing.T) {
	r, head := newRecords(t)
	c := r.NewChange(head)
	c.Put("a/1", 0, value{"one"})
	commit(t, c)
	e, err := r.Store.Get(t.Context(), "a/1")
	if err != nil {
		t.Fatal(err)
	}
	altered := append([]byte(nil), e.Value...)
	altered[len(altered)-2] ^= 1
	for what, forged := range map[string][]byte{"plain": []byte(`{"text":"x"}`), "moved": e.Value, "altered": altered, "empty": nil} {
		key := "b/" + what
		if what == "altered" {
			key = "a/1"
		}
		was := store.Revision(0)
		if key == "a/1" {
			was = e.Version
		}
		if _, err := r.Store.CompareAndSwap(t.Context(), key, was, forged); err != nil {
			t.Fatal(err)
		}
		if _, err := record.Get[value](t.Context(), r, key); !errors.Is(err, store.ErrForged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := record.List[value](t.Context(), r, "b/"); !errors.Is(err, store.ErrForged) {
		t.Errorf("a list with a forged record: %v", err)
	}
}

// A change holds under the head that it was decided under, while nothing is locked, and at
// the versions that it was decided by; otherwise nothing of it is written.
func TestChangeHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile string // the key that somebody else writes before the commit
		change    func(c *record.Change)
		on        string // the key of the conflict; empty: it holds
	}{
		"as decided":      {"", func(c *record.Change) {}, ""},
		"another head":    {history.HeadKey, func(c *record.Change) {}, history.HeadKey},
		"locked":          {record.LockKey, func(c *record.Change) {}, record.LockKey},
		"required absent": {"x", func(c *record.Change) { c.Require("x", 0) }, "x"},
		"put as new":      {"x", func(c *record.Change) { c.Put("x", 0, value{}) }, "x"},
		"deleted":         {"x", func(c *record.Change) { c.Delete("x", 1<<20) }, "x"},
		"whatever it was": {"x", func(c *record.Change) { c.Write("x", value{}); c.Drop("y") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, head := newRecords(t)
			c := r.NewChange(head)
			c.Put("mine", 0, value{"mine"})
			tc.change(c)
			if tc.meanwhile != "" {
				was := store.Revision(0)
				if tc.meanwhile == history.HeadKey {
					was = head
				}
				if _, err := r.Store.CompareAndSwap(t.Context(), tc.meanwhile, was, []byte("other")); err != nil {
					t.Fatal(err)
				}
			}
			_, err := c.Commit(t.Context())
			conflict, _ := errors.AsType[*store.ConflictError](err)
			switch {
			case tc.on == "" && err != nil, tc.on != "" && (conflict == nil || conflict.Key != tc.on):
				t.Errorf("Commit: %v, want a conflict on %q", err, tc.on)
			}
			if mine, err := record.Get[value](t.Context(), r, "mine"); err != nil || mine.Exists() != (tc.on == "") {
				t.Errorf("written: %v, %v", mine.Exists(), err)
			}
		})
	}
}

// A value that does not encode is no change, however much of it does.
func TestFirstErrorSticks(t *testing.T) {
	r, head := newRecords(t)
	c := r.NewChange(head)
	c.Put("bad", 0, func() {})
	c.Put("good", 0, value{})
	if _, err := c.Commit(t.Context()); err == nil {
		t.Error("committed")
	}
	if good, err := record.Get[value](t.Context(), r, "good"); err != nil || good.Exists() {
		t.Errorf("half of it is written: %v", err)
	}
}

// An old key is told from the one before and from a foreign one.
func TestAge(t *testing.T) {
	id := func(b byte) identity.KeyID { return identity.KeyID{b} }
	m := record.Member{Key: id(4), Older: []record.OlderKey{{Key: id(3)}, {Key: id(2)}, {Key: id(1)}}}
	for key, want := range map[byte]record.KeyAge{4: record.KeyRecorded, 3: record.KeyBefore, 2: record.KeyOlder, 1: record.KeyOlder, 9: record.KeyUnknown} {
		if got := m.Age(id(key)); got != want {
			t.Errorf("key %d is %d, want %d", key, got, want)
		}
	}
}

// The last certificate may be over an earlier key.
func TestCertifiedUntil(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := record.Member{NotAfter: now, Older: []record.OlderKey{{NotAfter: now.Add(time.Hour)}, {NotAfter: now.Add(-time.Hour)}}}
	if got := m.CertifiedUntil(); !got.Equal(now.Add(time.Hour)) {
		t.Errorf("certified until %v", got)
	}
}
