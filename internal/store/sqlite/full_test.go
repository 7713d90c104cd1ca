package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
)

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
