//go:build unix

package sqlite_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/test/testlane"
)

// peak writes n values of 64 KiB and deletes those from keep on, so that nothing of them is kept among the changes.
func peak(t *testing.T, s store.Store, n, keep int) {
	t.Helper()
	for i := range n {
		mustCommit(t, s, put(fmt.Sprintf("peak/%04d", i), string(filled(i))))
	}
	for i := keep; i < n; i++ {
		mustCommit(t, s, store.Tx{ID: store.NewTxID(), Delete: []string{fmt.Sprintf("peak/%04d", i)}})
	}
	for i := range 2 * fewChanges.RetainCommits {
		mustCommit(t, s, put("small", fmt.Sprint(i)))
	}
}

// filled is the value of key i.
func filled(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 32<<10) }

// fewChanges has what is deleted stay among the changes for a few commits only.
var fewChanges = sqlite.Options{RetainCommits: 8, Log: slog.New(slog.DiscardHandler)}

// wantPeak looks at what peak kept.
func wantPeak(t *testing.T, s store.Store, keep int) {
	t.Helper()
	l, err := s.List(t.Context(), "peak/")
	must(t, err)
	if len(l.Entries) != keep {
		t.Fatalf("%d entries are there, want %d", len(l.Entries), keep)
	}
	for i, e := range l.Entries {
		if !bytes.Equal(e.Value, filled(i)) {
			t.Fatalf("%s has another value", e.Key)
		}
	}
}

// pragma asks a database that nobody has open.
func pragma(t *testing.T, path, name string) (answer string) {
	t.Helper()
	db := raw(t, path)
	defer db.Close()
	must(t, db.QueryRow("pragma "+name).Scan(&answer))
	return answer
}

// What was deleted after a peak goes back to the disk while the store is open.
func TestFileShrinksAfterAPeak(t *testing.T) {
	path, keep := filepath.Join(t.TempDir(), "store.db"), 8
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), path, fewChanges)
		must(t, err)
		peak(t, s, testlane.Rounds(400, 2000), keep)
		time.Sleep(2 * time.Minute) // it looks once in a minute, and has finished by then
		if size := fileSize(path); size > 6<<20 {
			t.Errorf("the file has %d bytes", size)
		}
		wantPeak(t, s, keep)
		must(t, s.Close())
	})
	if got := pragma(t, path, "integrity_check"); got != "ok" {
		t.Errorf("the database: %s", got)
	}
	s, err := sqlite.Open(t.Context(), path, fewChanges)
	must(t, err)
	defer s.Close()
	wantPeak(t, s, keep)
}

// A database of an earlier release is written anew when it is opened if much of it is free. Otherwise it is used as it is.
func TestDatabaseOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n, keep int // values that there were, and are
		anew    bool
	}{
		"much is free":                {n: 200, keep: 40, anew: true},
		"less than a quarter is free": {n: 400, keep: 320},
		"less than 4 MiB is free":     {n: 50, keep: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "store.db")
			revision := old(t, path, c.n, c.keep)
			size := fileSize(path)
			if size < int64(c.n)*64<<10 {
				t.Fatalf("it has %d bytes after a peak", size)
			}
			s, err := sqlite.Open(t.Context(), path, fewChanges)
			must(t, err)
			wantPeak(t, s, c.keep)
			if next := mustCommit(t, s, put("small", "next")); next != revision+1 {
				t.Errorf("the next revision is %d, after %d", next, revision)
			}
			must(t, s.Close())
			if got, want := pragma(t, path, "auto_vacuum"), map[bool]string{true: "2", false: "0"}[c.anew]; got != want {
				t.Errorf("auto_vacuum is %s, want %s", got, want)
			}
			if now := fileSize(path); (now < size/2) != c.anew {
				t.Errorf("the file has %d bytes of %d", now, size)
			}
			if got := pragma(t, path, "integrity_check"); got != "ok" {
				t.Errorf("the database: %s", got)
			}
		})
	}
}

// old makes a database of an earlier release, with n values of which keep are left, and returns its revision.
func old(t *testing.T, path string, n, keep int) store.Revision {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, fewChanges)
	must(t, err)
	must(t, s.Close())
	db := raw(t, path)
	conn, err := db.Conn(t.Context())
	must(t, err)
	for _, do := range []string{"pragma auto_vacuum = none", "vacuum"} {
		_, err := conn.ExecContext(t.Context(), do)
		must(t, err)
	}
	must(t, conn.Close())
	must(t, db.Close())
	s, err = sqlite.Open(t.Context(), path, fewChanges)
	must(t, err)
	peak(t, s, n, keep)
	revision := mustCommit(t, s, put("small", "last"))
	must(t, s.Close())
	return revision
}

// A database that cannot be written anew is opened all the same, as it was.
func TestDatabaseWithoutRoomToBeWrittenAnew(t *testing.T) {
	t.Parallel()
	path, keep := filepath.Join(t.TempDir(), "store.db"), 80 // 5 MiB, which the log has to hold
	old(t, path, 200, keep)
	out, err := child(t, "rewrite-limit", path).Output()
	if err != nil || !strings.Contains(string(out), "could not be written anew") {
		t.Fatalf("%v: %s", err, out)
	}
	if got := pragma(t, path, "auto_vacuum") + pragma(t, path, "integrity_check"); got != "0ok" {
		t.Errorf("the database: %s", got)
	}
	s, err := sqlite.Open(t.Context(), path, fewChanges) // with room again
	must(t, err)
	wantPeak(t, s, keep)
	must(t, s.Close())
	if got := pragma(t, path, "auto_vacuum"); got != "2" {
		t.Errorf("auto_vacuum is %s once there is room", got)
	}
}

// childRewriteLimit opens a database where no file can grow above 4 MiB.
func childRewriteLimit(path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 4 << 20, Max: 4 << 20}); err != nil {
		return err
	}
	opts := fewChanges
	opts.Log = slog.New(slog.NewTextHandler(os.Stdout, nil))
	s, err := sqlite.Open(context.Background(), path, opts)
	if err != nil {
		return err
	}
	if _, err := s.Get(context.Background(), "peak/0000"); err != nil {
		return err
	}
	return s.Close()
}
