package cli

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
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
			"error FE-S108: postgres://" + server.Addr() + "/postgres was not opened: the login was refused", "password authentication failed", "PGPASSFILE"}},
		{"no such user", with("nobody-here", secret, server.Addr(), "postgres"), 5, []string{"error FE-S108"}},
		{"no such database", with(pgtest.User, server.Password(), server.Addr(), "nowhere"), 3, []string{
			"error FE-S109", `the server has no database "nowhere"`, "do:  create it"}},
		{"another program's tables", server.URL(theirs), 3, []string{"error FE-S109", "not a store's", "name an empty database"}},
		{"read-only", server.URL(locked), 3, []string{"error FE-S109", "read-only"}},
		{"no privilege", with("guest", secret, server.Addr(), "postgres"), 3, []string{"error FE-S109", `schema "public"`, "do:  grant create"}},
		{"newer schema", server.URL(newer), 3, []string{
			"error FE-S106: store postgres://" + server.Addr() + "/" + newer + " cannot be opened", "version 0099_from_the_future", "up to 0001_entries", "do:  run the newer release"}},
		{"file that is missing", "postgres://fealty:" + secret + "@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/nowhere/root.pem", 3, []string{
			"error FE-U113: FEALTY_STORE sets store", "/nowhere/root.pem"}},

		{"keywords", "host=127.0.0.1 password=" + secret, 3, []string{"error FE-U113: FEALTY_STORE sets store", "named by a URL", "postgres://USER@HOST"}},
		{"another database", "mysql://fealty:" + secret + "@db/x", 3, []string{"error FE-U113", "knows the stores sqlite and postgres"}},
		{"a password with an @", "postgres://fealty:p@" + secret + "@db/x", 3, []string{"error FE-U113", "has an @"}},
		{"a password with a slash", "postgres://fealty:1/" + secret + "@db/x", 3, []string{"error FE-U113"}},
		{"a password with a percent sign", "postgres://fealty:" + secret + "%zz@db/x", 3, []string{"error FE-U113", "cannot be read"}},
		{"no host", "postgres:" + secret, 3, []string{"error FE-U113"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got := fixture{env: []string{"FEALTY_STORE=" + tt.store}, dir: dir}.run(ctx, "coordinator", "--data", "c", "--listen", "127.0.0.1:0")
			got.want(t, tt.exit, append(tt.says, "fealty:   why: ", "fealty:   do:  ")...)
			for _, password := range []string{secret, server.Password()} {
				if shown := got.stderr + got.stdout; strings.Contains(shown, password) {
					t.Errorf("the password is shown:\n%s", shown)
				}
			}
			if files, err := filepath.Glob(filepath.Join(dir, "c", "*")); err != nil || len(files) > 0 {
				t.Errorf("it left %v, %v", files, err)
			}
			// As a flag, a bad form is a mistake in the command.
			if tt.exit != 3 || !strings.Contains(got.stderr, ": it takes") {
				return
			}
			flag := fixture{dir: dir}.run(ctx, "coordinator", "--data", "c", "--store", tt.store)
			flag.want(t, 2, "error "+string(explain.BadValue)+": --store cannot be …", "sqlite:PATH or postgres://")
			if strings.Contains(flag.stderr+flag.stdout, secret) {
				t.Errorf("the password is shown:\n%s", flag.stderr)
			}
		})
	}
}
