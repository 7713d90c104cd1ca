//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/logs"
	"github.com/fealty-io/fealty/test/wait"
)

// users makes the user fealty, who may do everything under prefix, with a password, and switches authentication on. change
// replaces that password.
func users(t testing.TB, c *etcdtest.Cluster, prefix, password string) (change func(password string)) {
	t.Helper()
	conn := c.Conn(t)
	auth := pb.NewAuthClient(conn)
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"root", "fealty"} {
		do(auth.UserAdd(t.Context(), &pb.AuthUserAddRequest{Name: user, Password: password}))
		do(auth.RoleAdd(t.Context(), &pb.AuthRoleAddRequest{Name: user}))
		do(auth.UserGrantRole(t.Context(), &pb.AuthUserGrantRoleRequest{User: user, Role: user}))
	}
	do(auth.RoleGrantPermission(t.Context(), &pb.AuthRoleGrantPermissionRequest{Name: "fealty", Perm: permission(prefix)}))
	do(auth.AuthEnable(t.Context(), &pb.AuthEnableRequest{}))
	root := password
	return func(password string) {
		t.Helper()
		auth := pb.NewAuthClient(c.Conn(t)) // the one of before may wait, if its server was down meanwhile
		in, err := auth.Authenticate(t.Context(), &pb.AuthenticateRequest{Name: "root", Password: root})
		do(in, err)
		ctx := metadata.AppendToOutgoingContext(t.Context(), rpctypes.TokenFieldNameGRPC, in.Token)
		do(auth.UserChangePassword(ctx, &pb.AuthUserChangePasswordRequest{Name: "fealty", Password: password}))
	}
}

// replace puts text into a file in one step.
func replace(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestCredentialsRotate: password, certificate with its key, and root are replaced under a store that is open and under
// load, and so is what the servers take and show. Every connection is ended several times, and no call fails: not while
// server and file differ either, or while a file is gone or does not fit another one. What was replaced is refused.
func TestCredentialsRotate(t *testing.T) {
	c := etcdtest.New(t, etcdtest.Options{Members: 3, TLS: true})
	const one, two = "the-first-one", "the-second-one"
	change := users(t, c, "/mine/", one)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	copied := func(from, name string) (path string, text []byte) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		replace(t, file(name), text)
		return file(name), text
	}
	ca, oldRoot := copied(c.RootFile, "ca.pem")
	cert, oldCert := copied(c.CertFile, "client.pem")
	key, _ := copied(c.KeyFile, "client.key")
	password := file("password")
	replace(t, password, []byte(one+"\n"))
	url := func(ca, cert, key, password string) string {
		return "etcd://fealty@" + c.Addrs() + "/mine/a?ca=" + ca + "&cert=" + cert + "&key=" + key + "&password-file=" + password
	}
	var between []*proxytest.Proxy
	var addrs []string
	for _, m := range c.Members {
		p := proxytest.New(t, m.Addr())
		between, addrs = append(between, p), append(addrs, p.Addr())
	}
	var log logs.Text
	patient := etcd.Options{Log: log.Logger(slog.LevelInfo)}
	s := openAt(t, strings.Replace(url(ca, cert, key, password), c.Addrs(), strings.Join(addrs, ","), 1), patient)

	ctx, stop := context.WithCancel(t.Context())
	var restarting atomic.Bool
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	for i := range 3 {
		load.Go(func() {
			for key := fmt.Sprintf("load/%d", i); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				_, err := s.Commit(ctx, put(key, "x"))
				_, read := s.Get(ctx, key)
				for _, err := range []error{err, read} {
					restarted := restarting.Load() && store.OutageOf(err) == store.Unreachable
					if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrUnknownOutcome) && !restarted {
						t.Errorf("under load: %v", err)
					}
				}
			}
		})
	}
	working := func() {
		t.Helper()
		at := mustCommit(t, s, put("k", "v"))
		if e, err := s.Get(t.Context(), "k"); err != nil || e.Version != at {
			t.Fatalf("Get: %+v, %v", e, err)
		}
		heard, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for c, err := range s.Changes(heard, "k", at-1) {
			if err != nil {
				t.Fatalf("Changes: %+v, %v", c, err)
			}
			break
		}
	}
	end := func() { // every connection, and with it every login
		t.Helper()
		for _, p := range between {
			p.CutAll()
		}
		working()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	working()

	// The password: the servers take the old one alone yet; somebody is just writing it; they take the new one.
	replace(t, password, []byte(two+"\n"))
	end()
	must(os.Remove(password))
	end()
	replace(t, password, []byte(two+"\n"))
	end()
	change(two)
	end()
	wrong := patient
	wrong.Password, wrong.Log = one, slog.New(slog.DiscardHandler)
	old := strings.TrimSuffix(url(ca, cert, key, ""), "&password-file=")
	if _, ok := errors.AsType[*engine.LoginError](refusedWith(t, old, wrong)); !ok {
		t.Error("the old password: want a LoginError")
	}

	// The certificate: its key is not there yet; the servers do not know its root yet; they know that one alone.
	next, err := c.Issue()
	must(err)
	replace(t, cert, next.Client)
	end()
	replace(t, file("old.pem"), oldCert)
	copied(key, "old.key")
	replace(t, key, next.ClientKey)
	end()
	must(c.Trust(next)) // which servers read when they start
	restarting.Store(true)
	for _, m := range c.Members {
		must(errors.Join(m.Stop(), m.Start()))
	}
	wait.Until(t, "the servers", func() bool { _, err := s.Commit(t.Context(), put("k", "v")); return err == nil })
	restarting.Store(false)
	end()
	refusedWith(t, url(ca, file("old.pem"), file("old.key"), password), wrong) // why may be lost with the connection

	// The root: both, then the servers show a certificate of the new one, then that one alone.
	replace(t, ca, append(oldRoot, next.Root...))
	must(c.Serve(next))
	end()
	replace(t, ca, next.Root)
	end()
	replace(t, file("old-root.pem"), oldRoot)
	refusedWith(t, url(file("old-root.pem"), cert, key, password), wrong)
	stop()
	load.Wait()

	text := log.String()
	if n := strings.Count(text, "the login of the store was replaced"); n != 2 {
		t.Errorf("the log says %d times that the login was replaced, want 2:\n%s", n, text)
	}
	if n := strings.Count(text, "cannot be used as it is now"); n != 2 {
		t.Errorf("the log says %d times that a file cannot be used, want 2:\n%s", n, text)
	}
	if strings.Contains(text, one) || strings.Contains(text, two) {
		t.Errorf("the log has a password:\n%s", text)
	}

	// A root that is gone from the file is not believed any more, whatever worked before. A file that is damaged is
	// no file without that root.
	foreign, err := c.Issue()
	must(err)
	replace(t, ca, []byte("-----BEGIN CERTIFICATE-----\nMII"))
	end()
	replace(t, ca, foreign.Root)
	for _, p := range between {
		p.CutAll()
	}
	if _, err := s.Get(t.Context(), "k"); store.OutageOf(err) != store.Unreachable {
		t.Errorf("servers of a root that is gone: %v", err)
	}
	replace(t, ca, next.Root)
	wait.Until(t, "the servers whose root is back", func() bool { _, err := s.Get(t.Context(), "k"); return err == nil })
}
