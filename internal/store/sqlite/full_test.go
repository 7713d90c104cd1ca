package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
)

// TestFull: what finds no space was not written and says so, reads go on, and so
// do writes when there is space.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := Open(t.Context(), path, Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	value := make([]byte, 60<<10)
	var last store.Revision
	for i := 0; ; i++ {
		key := fmt.Sprintf("k%d", i)
		r, err := s.CompareAndSwap(t.Context(), key, 0, value)
		if err == nil && i < 100 {
			last = r
			continue
		}
		if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatalf("write %d: %v, want %v", i, err, store.ErrFull)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("what was refused was written: %v", err)
		}
		break
	}
	if last == 0 {
		t.Fatal("nothing fits")
	}
	if e, err := s.Get(t.Context(), "k0"); err != nil || len(e.Value) != len(value) {
		t.Errorf("read while it is full: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, err := s.CompareAndSwap(t.Context(), "more", 0, value); err != nil || r != last+1 {
		t.Errorf("with space again: revision %d after %d, %v", r, last, err)
	}
}

// TestLeftNothing shows it errors of SQLite itself: only of a full disk and of a
// lock is it known that a failed commit is not complete in the log.
func TestLeftNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some.db")
	open := func(pragmas string) *sql.DB {
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate"+pragmas)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return db
	}
	db := open("")
	if _, err := db.Exec("create table t (x unique); insert into t values (1)"); err != nil {
		t.Fatal(err)
	}
	_, constraint := db.Exec("insert into t values (1)")
	_, full := open("&_pragma=max_page_count(4)").Exec("insert into t values (zeroblob(100000))")
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	_, busy := open("&_pragma=busy_timeout(1)").Begin()
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"full", full, true},
		{"full, wrapped", fmt.Errorf("commit: %w", full), true},
		{"busy", busy, true},
		{"constraint", constraint, false},
		{"not SQLite's", errors.New("driver: bad connection"), false},
	} {
		if c.err == nil {
			t.Fatalf("%s: no error to look at", c.name)
		}
		if got := leftNothing(c.err); got != c.want {
			t.Errorf("leftNothing(%s: %v) = %v, want %v", c.name, c.err, got, c.want)
		}
	}
}
