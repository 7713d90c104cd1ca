package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// Inspect tells of settings that lose commits and of the schema, and makes nothing.
func TestInspect(t *testing.T) {
	s := pgtest.New(t, "fsync=off", "full_page_writes=off")
	database := s.Database(t)
	look := func() engine.Report {
		t.Helper()
		r, err := postgres.Inspect(t.Context(), s.URL(database), postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := look()
	if r.Schema != "" || r.Known == "" || r.Name == "" || look().Schema != "" {
		t.Errorf("before there is a store: %+v", r)
	}
	for i, want := range []string{"fsync is off", "full_page_writes is off"} {
		if len(r.Problems) != 2 || !r.Problems[i].Loses || !strings.HasPrefix(r.Problems[i].What, want) || r.Problems[i].Do == "" {
			t.Fatalf("problems: %+v", r.Problems)
		}
	}
	for _, value := range []string{"off", "local"} {
		s.Exec(t, database, "alter database "+database+" set synchronous_commit = "+value)
		p := look().Problems
		if len(p) != 3 || p[2].Loses || !strings.HasPrefix(p[2].What, "synchronous_commit is "+value) {
			t.Errorf("problems with synchronous_commit %s: %+v", value, p)
		}
	}
	openAt(t, s.URL(database), postgres.Options{}).Close()
	if r := look(); r.Schema != r.Known {
		t.Errorf("with a store: %+v", r)
	}
	s.Exec(t, database, "insert into fealty_migration values (1000, '0099_from_the_future')")
	if _, err := postgres.Inspect(t.Context(), s.URL(database), postgres.Options{}); !errors.Is(err, engine.ErrSchema) {
		t.Errorf("a schema of the future: %v", err)
	}
	s.Exec(t, database, "alter database "+database+" set default_transaction_read_only = on")
	if _, err := postgres.Inspect(t.Context(), s.URL(database), postgres.Options{}); !cannotHold(err) {
		t.Errorf("a read-only server: %v", err)
	}
}
