package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/wait"
)

// refused opens what must not open.
func refused(t *testing.T, url string) error {
	t.Helper()
	s, err := postgres.Open(t.Context(), url, impatient)
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	if strings.Contains(err.Error(), server.Password()) {
		t.Fatalf("the error shows the password: %v", err)
	}
	return err
}

// cannotHold reports whether err is a ServerError.
func cannotHold(err error) bool {
	_, ok := errors.AsType[*engine.ServerError](err)
	return ok
}

func wantServerError(t *testing.T, err error, word string) {
	t.Helper()
	e, ok := errors.AsType[*engine.ServerError](err)
	if !ok || !strings.Contains(e.Problem, word) || e.Do == "" {
		t.Fatalf("Open: %v, want a ServerError about %q", err, word)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Run("newer schema", func(t *testing.T) {
		database := server.Database(t)
		s := openAt(t, server.URL(database), postgres.Options{})
		r := mustCommit(t, s, put("k", "v"))
		s.Close()
		server.Exec(t, database, "insert into fealty_migration values (1000, '0099_from_the_future')")
		err := refused(t, server.URL(database))
		schema, ok := errors.AsType[*engine.SchemaError](err)
		if !ok || !errors.Is(err, engine.ErrSchema) || schema.Found != "0099_from_the_future" || !strings.Contains(err.Error(), schema.Found) {
			t.Fatalf("Open = %v, want a SchemaError that names the schema", err)
		}
		server.Exec(t, database, "delete from fealty_migration where n = 1000")
		if e, err := openAt(t, server.URL(database), postgres.Options{}).Get(t.Context(), "k"); err != nil || e.Version != r {
			t.Fatalf("Get = %+v, %v", e, err)
		}
	})
	t.Run("another program's tables", func(t *testing.T) {
		database := server.Database(t)
		server.Exec(t, database, "create table fealty_kv (theirs int)")
		wantServerError(t, refused(t, server.URL(database)), "not a store's")
		var tables int
		conn := server.Connect(t, database)
		if err := conn.QueryRow(t.Context(), "select count(*) from pg_class where relname like 'fealty%'").Scan(&tables); err != nil || tables != 1 {
			t.Fatalf("%d tables after a refusal, %v", tables, err)
		}
	})
	t.Run("replica", func(t *testing.T) {
		database := server.Database(t)
		openAt(t, server.URL(database), postgres.Options{}).Close()
		name := server.WriteFile(t, "data/standby.signal", nil)
		again(t, server.Stop)
		err := refused(t, server.URL(database))
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		again(t, server.Stop)
		wantServerError(t, err, "replica")
	})
	t.Run("read-only", func(t *testing.T) {
		database := server.Database(t)
		server.Exec(t, database, "alter database "+database+" set default_transaction_read_only = on")
		wantServerError(t, refused(t, server.URL(database)), "read-only")
	})
	t.Run("pooler that drops LISTEN", func(t *testing.T) {
		p := pgtest.NewProxy(t, server.Addr())
		p.Deafen()
		wantServerError(t, refused(t, server.URLVia(p.Addr(), server.Database(t))), "LISTEN")
	})
	t.Run("missing privilege", func(t *testing.T) {
		database := server.Database(t)
		server.Exec(t, database, "drop role if exists guest", "create role guest login password 'guest'")
		u, _ := url.Parse(server.URL(database))
		u.User = url.UserPassword("guest", "guest")
		err := refused(t, u.String())
		server.Exec(t, database, "create schema authorization guest")
		openAt(t, u.String(), postgres.Options{}).Close() // "$user" comes first
		server.Exec(t, database, "drop owned by guest", "drop role guest")
		wantServerError(t, err, "what a store needs")
	})
	t.Run("no schema", func(t *testing.T) {
		wantServerError(t, refused(t, server.URL(server.Database(t))+"&search_path=nowhere"), "search_path")
	})
	t.Run("no database", func(t *testing.T) {
		wantServerError(t, refused(t, server.URL("nowhere")), `no database "nowhere"`)
	})
	t.Run("database of others", func(t *testing.T) {
		database := server.Database(t)
		server.Exec(t, database, "drop role if exists guest", "create role guest login password 'guest'", "revoke connect on database "+database+" from public")
		u, _ := url.Parse(server.URL(database))
		u.User = url.UserPassword("guest", "guest")
		err := refused(t, u.String())
		server.Exec(t, database, "drop role guest")
		wantServerError(t, err, "use the database")
	})
	t.Run("wrong password", func(t *testing.T) {
		u, _ := url.Parse(server.URL("postgres"))
		u.User = url.UserPassword(pgtest.User, "wrong-and-secret")
		err := refused(t, u.String())
		if _, ok := errors.AsType[*engine.LoginError](err); !ok || strings.Contains(err.Error(), "wrong-and-secret") {
			t.Fatalf("Open: %v", err)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		err := refused(t, server.URLVia("127.0.0.1:1", "postgres"))
		open, ok := errors.AsType[*engine.OpenError](err)
		if !ok || open.Name != "postgres://127.0.0.1:1/postgres" || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("Open: %v", err)
		}
	})
	t.Run("negative option", func(t *testing.T) {
		if s, err := postgres.Open(t.Context(), server.URL("postgres"), postgres.Options{Queue: -1}); err == nil {
			s.Close()
			t.Fatal("opened")
		}
	})
	t.Run("ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := postgres.Open(ctx, server.URL("postgres"), postgres.Options{}); !errors.Is(err, context.Canceled) {
			s.Close()
			t.Fatalf("Open = %v", err)
		}
	})
}

// TestPasswordIsHidden: no error shows what could be a password, however the URL
// is wrong.
func TestPasswordIsHidden(t *testing.T) {
	const secret = "hunter2%zz"
	for _, raw := range []string{
		"postgres://u:" + secret + "@127.0.0.1:1/db",
		"postgres://u:hunter2@127.0.0.1:1/db",
		"postgres://u:hunter2@127.0.0.1:port/db",
		"postgres://u:hunter2@[::1/db",
		"postgres://u:hunter2/@127.0.0.1:1/db",
		"postgres://u:hunter2#@127.0.0.1:1/db",
		"postgres://u:p@hunter2@127.0.0.1:1/db",
		"postgres://u:1/hunter2@127.0.0.1:1/db",
		"postgres://u:1?hunter2@127.0.0.1:1/db",
		"postgres://u:1#hunter2@127.0.0.1:1/db",
		"postgres://u:hunter2@127.0.0.1:1/db?sslmode=hunter2",
		"postgres://u:hunter2@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nowhere",
		"postgres://127.0.0.1:1/db?user=u&password=hunter2&sslmode=disable",
		"postgres://127.0.0.1:1/db?user=u&password=hunter2&sslmode=bad",
		"postgres://127.0.0.1:1/db?sslkey=/nowhere&sslpassword=hunter2&sslcert=/nowhere",
		"postgres://127.0.0.1:1/db?password=hunter2%",
		"postgres://u:hunter2@host1,host2:x/db",
		"mysql://u:hunter2@127.0.0.1/db",
		"u:hunter2@127.0.0.1/db",
		"host=127.0.0.1 password=hunter2",
		"postgres:u:hunter2@127.0.0.1",
		"hunter2",
	} {
		var log logs.Text
		s, err := postgres.Open(t.Context(), raw, postgres.Options{Timeout: time.Second, Log: log.Logger(slog.LevelInfo)})
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", raw)
			continue
		}
		shown := fmt.Sprintf("%v %+v %q %s", err, err, err, log.String())
		for e := err; e != nil; e = errors.Unwrap(e) {
			shown += fmt.Sprintf("%v %#v", e, e)
		}
		if strings.Contains(shown, "hunter2") {
			t.Errorf("%s: the error shows the password: %s", raw, shown)
		}
		if !strings.Contains(err.Error(), "127.0.0.1") && !strings.Contains(err.Error(), "postgres://USER") {
			t.Errorf("%s: the error does not help: %v", raw, err)
		}
		if hidden := postgres.HidePassword(raw); strings.Contains(hidden, "hunter2") && raw != "postgres://u:hunter2@127.0.0.1:1/db?sslmode=hunter2" {
			t.Errorf("%s is shown as %s", raw, hidden)
		}
	}
	s := openAt(t, server.URL(server.Database(t)), postgres.Options{})
	if name := s.Name(); strings.Contains(name, server.Password()) || !strings.Contains(name, server.Addr()) {
		t.Errorf("Name() = %q", name)
	}
}

// TestAddresses: which texts are URLs, and how they are shown.
func TestAddresses(t *testing.T) {
	for raw, shown := range map[string]string{
		"postgres://db.example/fealty":                                 "",
		"postgresql://fealty@db.example:5432/fealty?sslmode=require":   "",
		"postgres://a:1,b:2/fealty":                                    "",
		"postgres://[::1]:5432/fealty":                                 "",
		"postgres:///fealty?host=/run/postgresql":                      "",
		"postgres://db/fealty?passfile=/etc/fealty/pgpass":             "",
		"postgres://f:secret@db/fealty":                                "postgres://f:…@db/fealty",
		"postgres://:secret@db/fealty":                                 "postgres://:…@db/fealty",
		"postgres://f%40x:s%40x@a,b:2/fealty?sslmode=disable":          "postgres://f%40x:…@a,b:2/fealty?sslmode=disable",
		"postgres:///fealty?password=secret&host=db&sslpassword=other": "postgres:///fealty?password=…&host=db&sslpassword=…",
		"postgres:///fealty?PASSWORD=secret&p%61ssword=secret":         "postgres:///fealty?PASSWORD=…&p%61ssword=…",
	} {
		if shown == "" {
			shown = raw
		}
		if err := postgres.CheckURL(raw); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if got := postgres.HidePassword(raw); got != shown || postgres.HasPassword(raw) != (shown != raw) {
			t.Errorf("%s is shown as %s, has a password: %v", raw, got, postgres.HasPassword(raw))
		}
	}
	for _, raw := range []string{
		"", "postgres", "postgres:", "postgres:db", "mysql://db/x", "host=db password=secret", "postgres://u:p@ss@db/x", "postgres://u:p#s@db/x",
		"postgres://u:1/s@db/x", "postgres://u:1?s@db/x", "postgres://u:p/s@db/x", "postgres://u:%zz@db/x", "postgres://db:port/x", "postgres://db/x?a=%",
		"postgres://db/x?a;b", "postgres://db/\x7f", "postgres://u%3As@db/x",
	} {
		err := postgres.CheckURL(raw)
		if _, ok := errors.AsType[*postgres.AddressError](err); !ok || postgres.HidePassword(raw) != "…" {
			t.Errorf("%q: %v, shown as %s", raw, err, postgres.HidePassword(raw))
		}
	}
}

// TestOpenTogether opens a new database from many sides at once.
func TestOpenTogether(t *testing.T) {
	u := server.URL(server.Database(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := postgres.Open(t.Context(), u, postgres.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if _, err := s.Commit(t.Context(), put("k", "v")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if l, err := openAt(t, server.SocketURL(strings.TrimPrefix(path(u), "/")), postgres.Options{}).List(t.Context(), ""); err != nil || l.Revision != 8 {
		t.Fatalf("revision %d after 8 commits, %v", l.Revision, err)
	}
}

func path(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Path
}

// TestSeveralHosts finds the primary among hosts that are down.
func TestSeveralHosts(t *testing.T) {
	down, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	s := openAt(t, server.URLVia(down+","+server.Addr(), server.Database(t)), postgres.Options{})
	mustCommit(t, s, put("k", "v"))
}

// TestSchemas keeps two stores in one database apart, and in theirs whatever the
// search_path becomes.
func TestSchemas(t *testing.T) {
	database := server.Database(t)
	server.Exec(t, database, `create schema "one's"`, "create schema two")
	one := openAt(t, server.URL(database)+"&search_path="+url.QueryEscape(`"one's"`), postgres.Options{})
	two := openAt(t, server.URL(database)+"&search_path=two,public", postgres.Options{})
	mustCommit(t, one, put("k", "1"))
	if l, err := two.List(t.Context(), ""); err != nil || l.Revision != 0 {
		t.Fatalf("the other one: %+v, %v", l, err)
	}
	if one.Channel() == two.Channel() {
		t.Error("they share a channel")
	}
	var log logs.Text
	server.Exec(t, database, "alter database "+database+" set search_path = nowhere", "alter database "+database+" set synchronous_commit = off",
		"alter database "+database+" set default_transaction_isolation = serializable")
	s := openAt(t, server.URL(database)+"&search_path=two", postgres.Options{Log: log.Logger(slog.LevelInfo)})
	mustCommit(t, s, put("k", "2"))
	if e, err := two.Get(t.Context(), "k"); err != nil || string(e.Value) != "2" {
		t.Fatalf("Get: %+v, %v", e, err)
	}
}

// TestTLS: what the URL says of TLS holds.
func TestTLS(t *testing.T) {
	cert := server.ServeTLS(t)
	files := t.TempDir()
	root := filepath.Join(files, "root.pem")
	if err := os.WriteFile(root, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign, _ := pgtest.Certificate(t)
	wrong := filepath.Join(files, "wrong.pem")
	if err := os.WriteFile(wrong, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		server.Exec(t, "postgres", "alter system reset all")
		again(t, server.Stop)
	}()
	database := server.Database(t)
	with := func(host, mode, root string) string {
		u, _ := url.Parse(server.URL(database))
		u.Host = net.JoinHostPort(host, u.Port())
		u.RawQuery = url.Values{"sslmode": {mode}, "sslrootcert": {root}}.Encode()
		return u.String()
	}
	s := openAt(t, with("127.0.0.1", "verify-full", root), postgres.Options{})
	mustCommit(t, s, put("k", "v"))
	var encrypted int
	conn := server.Connect(t, database)
	if err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where ssl and datname = current_database()").Scan(&encrypted); err != nil || encrypted < 2 {
		t.Fatalf("%d encrypted connections, %v", encrypted, err)
	}
	refused(t, with("127.0.0.1", "verify-full", wrong))
	refused(t, with("localhost", "verify-full", root)) // not its name
}

// TestMigrates opens a store that an earlier release left.
func TestMigrates(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	r := mustCommit(t, s, put("k", "v"))
	s.Close()
	server.Exec(t, database, "drop view fealty_audit, fealty_manifest, fealty_history", "drop function fealty_number", "delete from fealty_migration where n > 1")
	if e, err := openAt(t, server.URL(database), postgres.Options{}).Get(t.Context(), "k"); err != nil || e.Version != r {
		t.Fatalf("Get: %+v, %v", e, err)
	}
	var n int
	if err := server.Connect(t, database).QueryRow(t.Context(), "select count(*) from fealty_audit").Scan(&n); err != nil {
		t.Fatal(err)
	}
}

// TestViews reads the store with SQL, records that are no good included.
func TestViews(t *testing.T) {
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{})
	key := make([]byte, 32)
	rand.Read(key)
	seal, err := store.NewAuthenticator(key)
	if err != nil {
		t.Fatal(err)
	}
	const member = `{"kind":"data","name":"a","state":"active","entry":"nodes","roles":["db"],"organizations":["acme"],"joined_at":"2026-01-02T03:04:05Z","not_after":"2026-01-02T04:04:05Z","proof_type":"token","key":"ab"}`
	mustCommit(t, s, store.Tx{Put: []store.Write{
		{Key: "text", Value: []byte("grüße")},
		{Key: "empty"},
		{Key: "binary", Value: []byte{0, 0xff, 1}},
		{Key: "sealed", Value: seal.Seal("sealed", []byte("inside"))},
		{Key: "sealed binary", Value: seal.Seal("sealed binary", []byte{0xff, 0})},
		{Key: "member/data/a", Value: seal.Seal("member/data/a", []byte(member))},
		{Key: "member/data/no-json", Value: seal.Seal("member/data/no-json", []byte("{"))},
		{Key: "member/data/short", Value: []byte{1}},
		{Key: "member/data/odd", Value: seal.Seal("member/data/odd", []byte(`{"name":7,"joined_at":"yesterday?","roles":{}}`))},
		{Key: "members", Value: []byte("another family")},
	}})
	conn := server.Connect(t, database)
	for key, want := range map[string]string{
		"text": "grüße false 7", "empty": " false 0", "binary": "<null> false 3", "sealed": "inside true 39", "sealed binary": "<null> false 35",
	} {
		var got string
		err := conn.QueryRow(t.Context(), "select coalesce(value, '<null>') || ' ' || sealed || ' ' || bytes from fealty_entries where key = $1 and version = 1", key).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", key, got, err, want)
		}
	}
	var n int
	if err := conn.QueryRow(t.Context(), "select count(*) from fealty_members").Scan(&n); err != nil || n != 4 {
		t.Fatalf("%d rows of members, %v", n, err)
	}
	var kind, name, state, entry, roles, organizations, proof string
	var joined, ends time.Time
	err = conn.QueryRow(t.Context(), "select kind, name, state, entry, roles::text, organizations ->> 0, joined_at, not_after, proof_type from fealty_members where key = 'member/data/a'").
		Scan(&kind, &name, &state, &entry, &roles, &organizations, &joined, &ends, &proof)
	if err != nil || kind != "data" || name != "a" || state != "active" || entry != "nodes" || roles != `["db"]` || organizations != "acme" || ends.Sub(joined) != time.Hour || proof != "token" {
		t.Fatalf("member: %v %v %v %v %v %v %v %v %v, %v", kind, name, state, entry, roles, organizations, joined, ends, proof, err)
	}
	// A history: of two links, none, with a gap, and a circle.
	link := func(n int, previous string) []byte {
		return fmt.Appendf(nil, `{"authority_epoch":"%d","index":"%d","kind":"set","manifest":"m%d","previous":"%s","reason":"because","schema":"fealty.transition/v1"}`, n, n, n, previous)
	}
	mustCommit(t, s, store.Tx{Put: []store.Write{
		{Key: "history/latest", Value: []byte(`{"hash":"two"}`)},
		{Key: "history/blob/two", Value: link(2, "one")}, {Key: "history/blob/one", Value: link(1, "none")},
		{Key: "history/blob/orphan", Value: link(2, "one")},
		{Key: "history/blob/m1", Value: []byte("first")}, {Key: "history/blob/m2", Value: []byte("cluster: x\n")},
		{Key: "audit/1-a", Value: []byte(`{"at":"2026-01-02T03:04:05Z","actor":"alice","action":"member.ban","target":"data/a","reason":"stolen"}`)},
		{Key: "audit/2-b", Value: []byte("no JSON")},
	}})
	one := func(query, want string) {
		t.Helper()
		var got string
		if err := conn.QueryRow(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", query, got, err, want)
		}
	}
	const chain = "select coalesce(string_agg(concat_ws(' ', index, kind, authority_epoch, reason, transition, manifest), '; ' order by index), 'none') from fealty_history"
	const inForce = "select coalesce(string_agg(concat_ws(' ', index, authority_epoch, transition, hash, manifest), '; '), 'none') from fealty_manifest"
	one(chain, "1 set 1 because one m1; 2 set 2 because two m2")
	one(inForce, "2 2 two m2 cluster: x\n")
	one("select concat_ws(' ', at at time zone 'UTC', actor, action, target, reason, key) from fealty_audit where at is not null", "2026-01-02 03:04:05 alice member.ban data/a stolen audit/1-a")
	one("select count(*)::text from fealty_audit", "2")
	mustCommit(t, s, put("history/blob/one", string(link(1, "two"))))
	one(chain, "1 set 1 because one m1; 2 set 2 because two m2")
	mustCommit(t, s, put("history/blob/one", "no JSON"))
	one("select count(*)::text from fealty_history where kind = 'set'", "1")
	mustCommit(t, s, put("history/latest", "no JSON"))
	one(chain, "none")
	one(inForce, "none")
	// A role that may read the views alone.
	server.Exec(t, database, "drop role if exists reporter", "create role reporter", "grant select on fealty_entries, fealty_members, fealty_history, fealty_manifest, fealty_audit to reporter")
	for text, allowed := range map[string]bool{
		"select count(*) from fealty_members": true, "select count(value) from fealty_entries": true,
		"select count(*) from fealty_history, fealty_manifest, fealty_audit": true,
		"select count(*) from fealty_kv":                                     false, "update fealty_entries set version = 1": false,
	} {
		if _, err := conn.Exec(t.Context(), "set role reporter"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), text); (err == nil) != allowed {
			t.Errorf("%s as a reporter: %v", text, err)
		}
		if _, err := conn.Exec(t.Context(), "reset role"); err != nil {
			t.Fatal(err)
		}
	}
	server.Exec(t, database, "drop owned by reporter", "drop role reporter")
}

// TestRetentionByAge has changes grow old in two processes' eyes.
func TestRetentionByAge(t *testing.T) {
	database := server.Database(t)
	o := postgres.Options{Retention: 640 * time.Millisecond, Heartbeat: 20 * time.Millisecond}
	s, idle := openAt(t, server.URL(database), o), openAt(t, server.URL(database), o)
	tx := put("k", "1")
	tx.ID = "old"
	begun := time.Now()
	first := mustCommit(t, s, tx)
	last := mustCommit(t, s, put("k", "2"))
	s.Close() // who wrote is gone, and the other one cleans up
	follow := func() error {
		for _, err := range idle.Changes(t.Context(), "", first-1) {
			return err
		}
		return nil
	}
	var compacted *store.CompactedError
	wait.Until(t, "compaction", func() bool {
		var ok bool
		compacted, ok = errors.AsType[*store.CompactedError](follow())
		return ok && compacted.Oldest == last
	})
	if kept := time.Since(begun); kept < o.Retention {
		t.Errorf("changes were kept for %v, want %v", kept, o.Retention)
	}
	if e, err := idle.Get(t.Context(), "k"); err != nil || e.Version != last {
		t.Fatalf("Get: %+v, %v", e, err)
	}
	at := mustCommit(t, idle, put("k", "3"))
	for c, err := range idle.Changes(t.Context(), "", last) {
		if err != nil || c.Revision != at {
			t.Fatalf("%+v, %v", c, err)
		}
		break
	}
}

// TestPruning overwrites one key for long, from two sides: the log stays short.
func TestPruning(t *testing.T) {
	for name, o := range map[string]postgres.Options{"by commits": {RetainCommits: 8}, "by bytes": {RetainBytes: 2 << 20}} {
		t.Run(name, func(t *testing.T) {
			database := server.Database(t)
			all := []*postgres.Store{openAt(t, server.URL(database), o), openAt(t, server.URL(database), o)}
			value := make([]byte, 256<<10)
			for i := range 60 {
				if i == 40 {
					all[0].Close()
					all[0] = openAt(t, server.URL(database), o)
				}
				mustCommit(t, all[i%2], store.Tx{ID: store.NewTxID(), Put: []store.Write{{Key: "k", Value: value}}})
			}
			var changes, outcomes int
			conn := server.Connect(t, database)
			count := func() bool {
				if err := conn.QueryRow(t.Context(), "select (select count(*) from fealty_log), (select count(*) from fealty_outcome)").Scan(&changes, &outcomes); err != nil {
					t.Fatal(err)
				}
				return changes <= 16
			}
			wait.Until(t, "pruning", count)
			if changes < 6 || outcomes != changes {
				t.Fatalf("%d changes and %d outcomes kept", changes, outcomes)
			}
		})
	}
}

// TestQuietReader: a reader who keeps up is never told that it is late, though
// nothing under its prefix changes and everything else is forgotten.
func TestQuietReader(t *testing.T) {
	const retain = 256
	database := server.Database(t)
	s := openAt(t, server.URL(database), postgres.Options{RetainCommits: retain})
	reader := openAt(t, server.URL(database), postgres.Options{RetainCommits: retain})
	early := mustCommit(t, s, put("quiet/then", ""))
	told := make(chan error, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wg.Go(func() {
		heard := 0
		for _, err := range reader.Changes(ctx, "quiet/", early) {
			told <- err
			if heard++; heard == 2 || err != nil {
				return
			}
		}
	})
	// It reads before the first change is dropped that it would have to read.
	mustCommit(t, s, put("quiet/begins", ""))
	if err := <-told; err != nil {
		t.Fatalf("Changes: %v", err)
	}
	// Beside it, one who says that it has read.
	seen := make(chan store.Revision, 4*retain)
	wg.Go(func() {
		for c, err := range reader.Changes(ctx, "loud", early) {
			if err != nil {
				return
			}
			seen <- c.Revision
		}
	})
	for range 4 * 8 {
		var last store.Revision
		for i := range retain / 8 {
			last = mustCommit(t, s, put("loud", fmt.Sprint(i)))
		}
		for r := range seen {
			if r >= last {
				break
			}
		}
	}
	mustCommit(t, s, put("quiet/now", ""))
	if err := <-told; err != nil {
		t.Errorf("Changes: %v", err)
	}
	cancel()
	for _, err := range s.Changes(t.Context(), "quiet/", early) {
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("Changes from the start: %v; this has tested nothing", err)
		}
		break
	}
}

// TestManyChanges reads a log that is longer than one read, in rows and in bytes.
func TestManyChanges(t *testing.T) {
	s := openAt(t, server.URL(server.Database(t)), postgres.Options{})
	var want []store.Revision
	for i := range 12 {
		tx := put(fmt.Sprint("large/", i), string(bytes.Repeat([]byte{'x'}, 300<<10)))
		if i%3 == 0 {
			tx = store.Tx{}
			for n := range store.MaxTxOps - i {
				tx.Put = append(tx.Put, store.Write{Key: fmt.Sprintf("many/%04d", n)})
			}
		}
		want = append(want, mustCommit(t, s, tx))
	}
	for c, err := range s.Changes(t.Context(), "", 0) {
		if err != nil || c.Revision != want[0] {
			t.Fatalf("change %d, %v, want %d", c.Revision, err, want[0])
		}
		if n := len(c.Put); n != 1 && (n < store.MaxTxOps-12 || c.Put[0].Key != "many/0000" || c.Put[n-1].Key != fmt.Sprintf("many/%04d", n-1)) {
			t.Fatalf("change %d has %d puts", c.Revision, n)
		}
		if want = want[1:]; len(want) == 0 {
			break
		}
	}
}
