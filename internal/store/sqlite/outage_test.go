package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
)

// TestOutages: why a file does not do what is asked is told apart, and is over by itself where it can be.
func TestOutages(t *testing.T) {
	t.Parallel()
	t.Run("another tool has it locked", func(t *testing.T) {
		t.Parallel() // SQLite waits for ten seconds
		path := filepath.Join(t.TempDir(), "store.db")
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		other, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		conn, err := other.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "begin immediate"); err != nil {
			t.Fatal(err)
		}
		_, err = s.Commit(t.Context(), put("k", "v"))
		out, ok := errors.AsType[*store.OutageError](err)
		if !ok || out.Outage != store.Locked || !strings.Contains(out.Said, "locked") || errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatalf("Commit: %v", err)
		}
		if _, err := s.List(t.Context(), ""); err != nil {
			t.Errorf("List: %v", err)
		}
		if _, err := conn.ExecContext(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), put("k", "v")); err != nil {
			t.Errorf("Commit, when it is over: %v", err)
		}
	})
	t.Run("it is no database any more", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "store.db")
		for range 2 {
			s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Commit(t.Context(), put("k", "v")); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if s.Close(); info.Size() == 0 {
				t.Fatal("there is no file")
			}
		}
		s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat("x", int(info.Size()))), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = s.List(context.Background(), "")
		if store.OutageOf(err) != store.Unreadable {
			t.Errorf("List: %v, outage %v", err, store.OutageOf(err))
		}
	})
}
