package postgres_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// TestOutages: why a server does not do what is asked is told apart, with its own words, and is over by itself.
func TestOutages(t *testing.T) {
	const role, secret = "tired", "a-secret-of-this-role"
	for _, c := range []struct {
		name       string
		begin, end string       // statements; "…" stands for the database
		held       string       // a statement of a transaction that is open meanwhile
		read       store.Outage // of reads; 0: they go on
		write      store.Outage
		refused    store.Reason // of writes, where reads go on
		says       string
	}{
		{name: "somebody has the table", held: "lock table fealty_revision, fealty_kv in access exclusive mode",
			read: store.Locked, write: store.Locked, says: "lock timeout (SQLSTATE 55P03)"},
		{name: "somebody has the row of all commits", held: "select from fealty_revision for update",
			write: store.Locked, says: "lock timeout (SQLSTATE 55P03)"},
		{name: "another password", begin: "alter role tired password 'other'", end: "alter role tired password '" + secret + "'",
			read: store.LoginRefused, write: store.LoginRefused, says: `password authentication failed for user "tired" (SQLSTATE 28P01)`},
		{name: "no login", begin: "alter role tired nologin", end: "alter role tired login",
			read: store.LoginRefused, write: store.LoginRefused, says: `role "tired" is not permitted to log in (SQLSTATE 28000)`},
		{name: "no connection left", begin: "alter role tired connection limit 0", end: "alter role tired connection limit -1",
			read: store.Overloaded, write: store.Overloaded, says: `too many connections for role "tired" (SQLSTATE 53300)`},
		{name: "read-only", begin: "alter role tired set default_transaction_read_only = on", end: "alter role tired reset default_transaction_read_only",
			refused: store.ReadOnly, says: "read-only"},
		{name: "a database of others", begin: "revoke connect on database … from public", end: "grant connect on database … to public",
			read: store.LoginRefused, write: store.LoginRefused, says: `permission denied for database`},
	} {
		t.Run(c.name, func(t *testing.T) {
			database := server.Database(t)
			run := func(statement string) {
				if statement != "" {
					server.Exec(t, "postgres", strings.ReplaceAll(statement, "…", database))
				}
			}
			server.Exec(t, database, "create role "+role+" login password '"+secret+"'", "create schema authorization "+role)
			opts := impatient
			opts.Log = slog.New(slog.DiscardHandler)
			s := openAt(t, "postgres://"+role+":"+secret+"@"+server.Addr()+"/"+database+"?sslmode=disable", opts)
			at := mustCommit(t, s, put("k", "v"))
			cut := func() {
				server.Exec(t, "postgres", "select pg_terminate_backend(pid) from pg_stat_activity where datname = '"+database+"'")
			}
			release := func() {}
			if c.held != "" {
				end, err := server.Hold(database, "set search_path = "+role, c.held)
				if err != nil {
					t.Fatal(err)
				}
				release = func() { end() }
			} else {
				cut()
			}
			run(c.begin)
			if c.begin != "" {
				cut() // what was connected again in between
			}
			_, read := s.Get(t.Context(), "k")
			wantOutage(t, "Get", read, c.read, 0, c.says, secret)
			_, read = s.List(t.Context(), "")
			wantOutage(t, "List", read, c.read, 0, c.says, secret)
			_, write := s.Commit(t.Context(), put("k", "w"))
			wantOutage(t, "Commit", write, c.write, c.refused, c.says, secret)
			run(c.end)
			release()
			if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != at {
				t.Errorf("Get, when it is over: %+v, %v", e, err)
			}
			mustCommit(t, s, put("k", "w"))
			s.Close()
			server.Exec(t, database, "drop owned by "+role, "drop role "+role)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		way := pgtest.NewProxy(t, server.Addr())
		s := openAt(t, server.URLVia(way.Addr(), server.Database(t)), postgres.Options{Timeout: impatient.Timeout, Log: slog.New(slog.DiscardHandler)})
		for name, end := range map[string]func(){"refused": way.Refuse, "silent": way.BlackHole} {
			end()
			_, read := s.Get(t.Context(), "k")
			wantOutage(t, name+": Get", read, store.Unreachable, 0, "", server.Password())
			_, write := s.Commit(t.Context(), put("k", "w"))
			wantOutage(t, name+": Commit", write, store.Unreachable, 0, "", server.Password())
			way.Heal()
			mustCommit(t, s, put("k", "v"))
		}
	})
	t.Run("no space", func(t *testing.T) {
		database := server.Database(t)
		s := openAt(t, server.URL(database), postgres.Options{Log: slog.New(slog.DiscardHandler)})
		mustCommit(t, s, put("k", "v"))
		fail(t, database, "53100", 100)
		_, write := s.Commit(t.Context(), put("k", "w"))
		wantOutage(t, "Commit", write, 0, store.NoSpace, "made to fail", server.Password())
	})
}

// wantOutage looks at how a call ended: by an outage or a refusal with these words, or, without either, well.
func wantOutage(t *testing.T, what string, err error, want store.Outage, refused store.Reason, says, secret string) {
	t.Helper()
	if want == 0 && refused == 0 {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return
	}
	if store.OutageOf(err) != want || store.ReasonOf(err) != refused || errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("%s: %v: outage %d, reason %d; want %d, %d", what, err, store.OutageOf(err), store.ReasonOf(err), want, refused)
	}
	said := ""
	if out, ok := errors.AsType[*store.OutageError](err); ok {
		said = out.Said
	} else if ref, ok := errors.AsType[*store.RefusedError](err); ok {
		said = ref.Said()
	}
	if !strings.Contains(said, says) || said == "" || len(said) > store.MaxSaidBytes || strings.Contains(said, secret) {
		t.Errorf("%s: says %q, want %q in it", what, said, says)
	}
}
