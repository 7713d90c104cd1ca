package server_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/doctor"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/cli/server"
	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/wait"
)

// Every way in which a database cannot be opened has its code, its exit status and
// its remedy, and none of them shows the password.
func TestStoreNotOpened(t *testing.T) {
	server := pgtest.New(t)
	const secret = "hunter2"
	with := func(user, password, addr, database string) string {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable"}
		return u.String()
	}
	newer := server.Database(t)
	st, err := postgres.Open(t.Context(), server.URL(newer), postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	theirs, locked := server.Database(t), server.Database(t)
	server.Exec(t, newer, "insert into fealty_migration values (1000, '0099_from_the_future')")
	server.Exec(t, theirs, "create table fealty_kv (theirs int)")
	server.Exec(t, locked, "alter database "+locked+" set default_transaction_read_only = on")
	server.Exec(t, "postgres", "create role guest login password '"+secret+"'")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, in the kernel, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, tt := range []struct {
		name  string
		store string
		exit  int
		says  []string
	}{
		{"nobody listens", with("fealty", secret, "127.0.0.1:1", "db"), 4, []string{
			"error FE-S103: opening postgres://127.0.0.1:1/db failed", "why: nothing listens there"}},
		{"no such host", with("fealty", secret, "db.invalid:5432", "db"), 4, []string{
			"error FE-S103: opening postgres://db.invalid:5432/db failed", "the name db.invalid has no address"}},
		{"a server that says nothing", with("fealty", secret, silent.Addr().String(), "db") + "&connect_timeout=1", 4, []string{
			"error FE-S103", "it did not answer in time"}},
		{"TLS that is not offered", strings.Replace(with(pgtest.User, server.Password(), server.Addr(), "db"), "=disable", "=require", 1), 4, []string{
			"error FE-S103", "TLS"}},
		{"wrong password", with(pgtest.User, secret, server.Addr(), "postgres"), 5, []string{
			"error FE-S108: opening postgres://" + server.Addr() + "/postgres failed: the database server refused the login", "password authentication failed", "PGPASSFILE"}},
		{"no such user", with("nobody-here", secret, server.Addr(), "postgres"), 5, []string{"error FE-S108"}},
		{"no such database", with(pgtest.User, server.Password(), server.Addr(), "nowhere"), 3, []string{
			"error FE-S109", `the server has no database "nowhere"`, "do:  create it"}},
		{"another program's tables", server.URL(theirs), 3, []string{"error FE-S109", "not a store's", "name an empty database"}},
		{"read-only", server.URL(locked), 3, []string{"error FE-S109", "read-only"}},
		{"no privilege", with("guest", secret, server.Addr(), "postgres"), 3, []string{"error FE-S109", `schema "public"`, "do:  grant create"}},
		{"newer schema", server.URL(newer), 3, []string{
			"error FE-S106: store postgres://" + server.Addr() + "/" + newer + " cannot be opened", "version 0099_from_the_future", "up to 0002_views", "do:  run the newer release"}},
		{"file that is missing", "postgres://fealty:" + secret + "@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nowhere/root.pem", 3, []string{
			"error FE-U113: FEALTY_STORE sets store", "/nowhere/root.pem"}},

		{"keywords", "host=127.0.0.1 password=" + secret, 3, []string{"error FE-U113: FEALTY_STORE sets store", "named by a URL", "postgres://USER@HOST"}},
		{"another database", "mysql://fealty:" + secret + "@db/x", 3, []string{"error FE-U113", "knows the stores sqlite, postgres, etcd and embedded"}},
		{"a password with an @", "postgres://fealty:p@" + secret + "@db/x", 3, []string{"error FE-U113", "has an @"}},
		{"a password with a slash", "postgres://fealty:1/" + secret + "@db/x", 3, []string{"error FE-U113"}},
		{"a password with a percent sign", "postgres://fealty:" + secret + "%zz@db/x", 3, []string{"error FE-U113", "cannot be read"}},
		{"no host", "postgres:" + secret, 3, []string{"error FE-U113"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got := clitest.Fixture{Env: []string{"FEALTY_STORE=" + tt.store}, Dir: dir}.Run(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0")
			got.Want(t, tt.exit, append(tt.says, "fealty:   why: ", "fealty:   do:  ")...)
			for _, password := range []string{secret, server.Password()} {
				if shown := got.Stderr + got.Stdout; strings.Contains(shown, password) {
					t.Errorf("the password is shown:\n%s", shown)
				}
			}
			if files, err := filepath.Glob(filepath.Join(dir, "c", "*")); err != nil || len(files) > 0 {
				t.Errorf("it left %v, %v", files, err)
			}
			// As a flag, a bad form is a mistake in the command.
			if tt.exit != 3 || !strings.Contains(got.Stderr, ": it takes") {
				return
			}
			flag := clitest.Fixture{Dir: dir}.Run(ctx, "coordinator", "--data", "c", "--store", tt.store)
			flag.Want(t, 2, "error "+string(errcode.BadValue)+": --store cannot be ", "sqlite:PATH, postgres://")
			if strings.Contains(flag.Stderr+flag.Stdout, secret) {
				t.Errorf("the password is shown:\n%s", flag.Stderr)
			}
		})
	}
}

// TestStoreAway: a coordinator whose database is gone stays, says so, is not ready
// any more after an hour without a confirmed head, and is back by itself.
func TestStoreAway(t *testing.T) {
	server := pgtest.New(t)
	dir := t.TempDir()
	var ahead atomic.Int64 // of its clock
	metrics, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	fealty := func(ctx context.Context, args ...string) (int, string) {
		var out bytes.Buffer
		exit := cli.Run(ctx, program.Env{
			Stdout: &out, Stderr: io.Discard, Args: args, Environ: []string{"FEALTY_STORE=" + server.URL("postgres")}, Dir: dir,
			Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, Release: "1.2.3",
			Width: func() int { return 0 }, IsTerminal: func(any) bool { return false },
		})
		return exit, out.String()
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		exit, _ := fealty(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0", "--metrics", metrics)
		ended <- exit
	}()
	defer func() {
		cancel()
		if exit := <-ended; exit != 0 {
			t.Errorf("the coordinator ended with %d", exit)
		}
	}()
	probe := func(name string, status int, holds string) {
		t.Helper()
		wait.UntilNil(t, fmt.Sprintf("%s is %d with %s", name, status, holds), func() error {
			resp, err := http.Get("http://" + metrics + "/probe/" + name)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != status || !strings.Contains(string(body), holds) {
				return fmt.Errorf("%d %s, %v", resp.StatusCode, body, err)
			}
			return nil
		})
	}
	probe("startup", 200, `"uninitialized"`)
	socket := filepath.Join("c", "admin.sock")
	exit, text := fealty(ctx, "manifest", "init", "--cluster", "prod.example", "--keeper", "file:"+filepath.Join(dir, "seed.key"), "--signer-key-out", "alice.key", "--socket", socket)
	if exit != 0 {
		t.Fatalf("manifest init ended with %d", exit)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if exit, _ := fealty(ctx, "manifest", "set", "m.yaml", "--socket", socket); exit != 0 {
		t.Fatalf("manifest set ended with %d", exit)
	}
	probe("readiness", 200, `"store":"ok"`)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(time.Minute))
	probe("readiness", 200, `"store":"degraded"`)
	// For a while the members are those that it knows.
	if exit, _ := fealty(ctx, "member", "list", "--socket", socket); exit != 0 {
		t.Errorf("member list ended with %d while the store is away", exit)
	}
	exit, text = fealty(ctx, "status", "--socket", socket)
	if exit != 0 || !strings.Contains(text, "FE-S103") || !strings.Contains(text, "baseline") {
		t.Errorf("status ended with %d:\n%s", exit, text)
	}
	ahead.Add(int64(time.Hour))
	probe("readiness", 503, `"store":"degraded"`)
	probe("liveness", 200, `"ready"`) // it keeps the seed
	if exit, _ := fealty(ctx, "member", "list", "--socket", socket); exit != 4 {
		t.Errorf("member list ended with %d while the store is away for long", exit)
	}
	// Status says what it knows, and what it does not.
	exit, text = fealty(ctx, "status", "--socket", socket)
	if exit != 0 || !strings.Contains(text, "FE-S103") || !strings.Contains(text, "not known now") || strings.Contains(text, "baseline") {
		t.Errorf("status ended with %d:\n%s", exit, text)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	probe("readiness", 200, `"ok":true`)
	// A call that failed while the server started is told of for a while.
	ahead.Add(int64(time.Minute))
	probe("readiness", 200, `"store":"ok"`)
	if exit, _ := fealty(ctx, "member", "list", "--socket", socket); exit != 0 {
		t.Errorf("member list ended with %d", exit)
	}
}

// TestEtcdNotOpened: what is wrong with an etcd store has its code, and its password
// comes from the environment and shows nowhere.
func TestEtcdNotOpened(t *testing.T) {
	server := etcdtest.New(t, etcdtest.Options{})
	const secret = "hunter2"
	for _, tt := range []struct {
		store string
		exit  int
		says  []string
	}{
		{"etcd://fealty@127.0.0.1:1/x?tls=off", 4, []string{"error FE-S103: opening etcd://127.0.0.1:1/x failed", "connection refused"}},
		{"etcd://fealty@" + server.Addrs() + "/x?tls=off", 3, []string{"error FE-S109", "authentication switched off"}},
		{"etcd://" + server.Addrs() + "/x?ca=/nowhere/ca.pem", 3, []string{"error FE-U113", "/nowhere/ca.pem"}},
		{"etcd://fealty:" + secret + "@" + server.Addrs() + "/x", 3, []string{"error FE-U113", "holds a password", "FEALTY_ETCD_PASSWORD"}},
	} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got := clitest.Fixture{Env: []string{"FEALTY_STORE=" + tt.store, etcd.PasswordVariable + "=" + secret}, Dir: dir}.Run(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0")
		got.Want(t, tt.exit, append(tt.says, "fealty:   why: ", "fealty:   do:  ")...)
		if shown := got.Stderr + got.Stdout; strings.Contains(shown, secret) {
			t.Errorf("the password is shown:\n%s", shown)
		}
	}
}

// TestForeignFile: an SQLite file of another program is no store of a newer release.
func TestForeignFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "theirs.db")
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("create table theirs (x)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	clitest.Fixture{Env: []string{"FEALTY_STORE=sqlite:" + file}, Dir: dir}.Run(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0").
		Want(t, 3, "error FE-U113", "theirs.db is a database of another program: name another file")
}

// TestNewerSchema: a store that a newer release wrote is refused by the same code on
// every engine, and stays as it is.
func TestNewerSchema(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "fealty.db")
	c := program.New(program.Env{Stdout: io.Discard, Stderr: io.Discard, Now: time.Now})
	st, _, err := server.OpenStoreAt(ctx, c, nil, settings.Value{Text: settings.SqliteScheme + file}, server.Running{Log: slog.New(slog.DiscardHandler)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(raw, []byte("0001_"), []byte("9001_"), 1)
	if err := os.WriteFile(file, newer, 0o600); err != nil || bytes.Equal(raw, newer) {
		t.Fatalf("the name of its schema is not in the file, %v", err)
	}
	clitest.Fixture{Env: []string{"FEALTY_STORE=sqlite:" + file}, Dir: dir}.Run(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0").
		Want(t, 3, "error FE-S106: store "+file+" cannot be opened", "version 9001_", "up to 0001_", "do:  run the newer release")
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, newer) {
		t.Errorf("it was changed, %v", err)
	}
	err = &engine.OpenError{Name: "etcd://c1/x", Err: &engine.SchemaError{Store: "etcd://c1/x", Found: "9", Known: "1"}}
	if got := doctor.StoreError(settings.Value{}, err); errcode.CodeOf(got) != string(errcode.StoreNewerSchema) || errcode.Of(got).Fields["found"] != "9" {
		t.Errorf("%v", got)
	}
}
