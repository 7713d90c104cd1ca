package postgres_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/conformance"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest"
)

// server is the one that all tests share; each has databases of its own. Tests do
// not run in parallel, because some kill it.
var server *pgtest.Server

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// It is its process that is killed, never its machine, so the files need not reach a disk.
	// Each start after a kill would write out those of all databases again, which took
	// most of the time here.
	var err error
	if server, err = pgtest.Start("fsync=off"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.Close()
	return m.Run()
}

func openAt(t testing.TB, url string, o postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func put(key, value string) store.Tx {
	return store.Tx{Put: []store.Write{{Key: key, Value: []byte(value)}}}
}

func mustCommit(t testing.TB, s store.Store, tx store.Tx) store.Revision {
	t.Helper()
	r, err := s.Commit(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// again stops the server in some way, and starts it.
func again(t testing.TB, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Engine{OutsideClock: true, New: func(t testing.TB, retain int) conformance.Database {
		database := server.Database(t)
		url := server.URL(database)
		open := func() (store.Store, error) {
			return postgres.Open(context.Background(), url, postgres.Options{RetainCommits: retain,
				// A slow machine, under the detector, takes seconds to send 16 MiB.
				Timeout: 40 * time.Second})
		}
		return conformance.Database{
			Shared: true,
			Open:   open,
			Restart: func(s store.Store) (store.Store, error) {
				if err := s.Close(); err != nil {
					return nil, err
				}
				again(t, server.Stop)
				return open()
			},
			Kill: func(s store.Store) (store.Store, error) {
				again(t, server.Kill)
				if err := s.Close(); err != nil {
					return nil, err
				}
				return open()
			},
			// As hosted servers do whose disk fills up. Connections of before are ended.
			Full: func(s store.Store, full bool) (store.Store, error) {
				server.Exec(t, database, "set default_transaction_read_only = off",
					fmt.Sprintf("alter database %s set default_transaction_read_only = %v", pgx.Identifier{database}.Sanitize(), full),
					"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
				return s, nil
			},
		}
	}})
}
