package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/wait"
)

// rotation is how one credential of a store is replaced while it is open.
type rotation struct {
	url  string // of the store that logs in with it
	file func() // replaces what the client has
	role func() // replaces what the server takes; the old one is refused then
	old  func() error
}

// rotates opens the store and writes to it all the time, has the credential replaced by replace, and ends
// every connection of before. Every call works then, what others write is heard, and no call of
// the load failed but those whose connection was ended under them.
func rotates(t *testing.T, server *pgtest.Server, database string, r rotation, replace func(working func())) {
	t.Helper()
	s := openAt(t, r.url, postgres.Options{Heartbeat: time.Hour}) // what is heard is heard by notices alone
	user := strings.TrimPrefix(r.url, "postgres://")
	user, _, _ = strings.Cut(user, "@")
	other := openAt(t, server.URL(database)+"&search_path="+user, postgres.Options{})
	working := func() {
		t.Helper()
		tx := put("k", "v")
		tx.ID = store.NewTxID()
		at := mustCommit(t, s, tx)
		if got, err := s.Outcome(t.Context(), tx.ID); got != at || err != nil {
			t.Fatalf("Outcome: %d, %v", got, err)
		}
		if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != at {
			t.Fatalf("Get: %+v, %v", e, err)
		}
		if _, err := s.List(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for c, err := range s.Changes(ctx, "heard", mustCommit(t, s, put("before", "v"))) {
			if err != nil {
				t.Fatalf("Changes: %+v, %v", c, err)
			}
			break
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() { // what others write
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := other.Commit(ctx, put("heard", fmt.Sprint(n))); err != nil && ctx.Err() == nil {
				t.Errorf("another process: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	for range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				_, err := s.Commit(ctx, put("load", "x"))
				_, read := s.Get(ctx, "load")
				for _, err := range []error{err, read} {
					if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "57P01") && !errors.Is(err, store.ErrUnknownOutcome) {
						t.Errorf("under load: %v", err)
					}
				}
			}
		})
	}
	defer func() { stop(); load.Wait() }()
	working()
	replace(working)
	wait.Until(t, "the old credential to be refused", func() bool { return r.old() != nil })
	server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+user+"'")
	working()
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestPasswordRotates: a password that is replaced in the server and in the passfile costs nothing if
// the file is first, and in the other order only what new connections are made in between.
func TestPasswordRotates(t *testing.T) {
	for _, first := range []string{"file", "server"} {
		t.Run(first+" first", func(t *testing.T) {
			database := server.Database(t)
			role := "turns_" + database
			server.Exec(t, database, "create role "+role+" login password 'one'", "create schema authorization "+role)
			host, port, _ := strings.Cut(server.Addr(), ":")
			passfile := filepath.Join(t.TempDir(), "pass")
			file := func(password string) { write(t, passfile, host+":"+port+":*:"+role+":"+password+"\n") }
			file("one")
			r := rotation{
				url:  "postgres://" + role + "@" + server.Addr() + "/" + database + "?sslmode=disable&passfile=" + passfile,
				file: func() { file("two") },
				role: func() { server.Exec(t, database, "alter role "+role+" password 'two'") },
				old: func() error {
					u := url.URL{Scheme: "postgres", User: url.UserPassword(role, "one"), Host: server.Addr(), Path: database}
					return login(t, u.String())
				},
			}
			rotates(t, server, database, r, func(working func()) {
				if first == "server" {
					r.role()
					working() // on the connections that there are
					r.file()
					return
				}
				r.file()
				// The server takes the old one alone yet, and every connection is made anew.
				server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+role+"'")
				working()
				// Somebody is just writing it.
				if err := os.Remove(passfile); err != nil {
					t.Fatal(err)
				}
				server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"+role+"'")
				working()
				r.role()
				r.file()
			})
			server.Exec(t, database, "drop owned by "+role, "drop role "+role)
		})
	}
}

// login opens one connection, as a client does that has this URL. A server that refuses a client's
// certificate may hang up before its alert is read.
func login(t testing.TB, url string) error {
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		return conn.Close(t.Context())
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); !ok && !strings.Contains(err.Error(), "tls: ") && !store.HungUp(err) {
		t.Fatal(err)
	}
	return err
}

// TestCertificatesRotate: certificate, key and root of a client, and those of the server, are replaced under
// a store that is open. Files that do not fit together yet cost nothing.
func TestCertificatesRotate(t *testing.T) {
	server := pgtest.New(t, "fsync=off")
	write(t, filepath.Join(server.Data(), "pg_hba.conf"), "local all all trust\nhostssl all server 127.0.0.1/32 cert\nhost all all 127.0.0.1/32 scram-sha-256\n")
	if err := os.Chmod(filepath.Join(server.Data(), "pg_hba.conf"), 0o644); err != nil {
		t.Fatal(err)
	}
	database := server.Database(t)
	dir := t.TempDir()
	root, cert, key := filepath.Join(dir, "root.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	write(t, root, string(server.ServeTLS(t)))
	// Its common name, which names the role, is "server", and it is its own root.
	oldCert, oldKey := pgtest.Certificate(t)
	trust := func(cert []byte) {
		server.Exec(t, database, "alter system set ssl_ca_file = '"+server.WriteFile(t, "clients.pem", cert)+"'", "select pg_reload_conf()")
	}
	trust(oldCert)
	write(t, cert, string(oldCert))
	write(t, key, string(oldKey))
	server.Exec(t, database, "create role server login", "create schema authorization server")
	at := func(cert, key, root string) string {
		return "postgres://server@" + server.Addr() + "/" + database + "?" +
			url.Values{"sslmode": {"verify-full"}, "sslcert": {cert}, "sslkey": {key}, "sslrootcert": {root}}.Encode()
	}
	wait.Until(t, "the server to know the client's root", func() bool { return login(t, at(cert, key, root)) == nil })
	newCert, newKey := pgtest.Certificate(t)
	before := filepath.Join(dir, "before.pem")
	write(t, before, string(oldCert))
	write(t, before+".key", string(oldKey))
	r := rotation{url: at(cert, key, root), old: func() error { return login(t, at(before, before+".key", root)) }}
	rotates(t, server, database, r, func(working func()) {
		end := func() {
			server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'server'")
		}
		write(t, cert, string(newCert)) // and not its key yet
		end()
		working()
		write(t, key, string(newKey)) // which the server does not know yet
		end()
		working()
		trust(newCert)
		// Another certificate of the server: the client is given both roots first.
		served, private := pgtest.Certificate(t)
		old, err := os.ReadFile(root)
		if err != nil {
			t.Fatal(err)
		}
		write(t, root, string(old)+string(served))
		end()
		server.WriteFile(t, "server.pem", served)
		server.WriteFile(t, "server.key", private)
		server.Exec(t, database, "select pg_reload_conf()")
		only := filepath.Join(dir, "only.pem")
		write(t, only, string(old))
		wait.Until(t, "the server to show its new certificate", func() bool { return login(t, at(cert, key, only)) != nil })
		write(t, root, string(served))
		end()
		working()
	})
	// A root that is gone from the file is not believed any more, whatever worked before.
	foreign, _ := pgtest.Certificate(t)
	s := openAt(t, r.url, impatient)
	write(t, root, string(foreign))
	server.Exec(t, database, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'server'")
	if _, err := s.Get(t.Context(), "k"); err == nil {
		t.Fatal("a server is believed whose root is gone")
	}
}
