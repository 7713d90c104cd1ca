//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fealty-io/fealty/internal/store/engine"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/test/wait"
)

func refused(t testing.TB, url string) error {
	t.Helper()
	o := impatient
	o.Timeout = 5 * time.Second // a server that answers is to be heard, also of a busy machine
	return refusedWith(t, url, o)
}

func refusedWith(t testing.TB, url string, o etcd.Options) error {
	t.Helper()
	s, err := etcd.Open(context.Background(), url, o)
	if err == nil {
		s.Close()
		t.Fatalf("%s was opened", url)
	}
	if _, inspected := etcd.Inspect(context.Background(), url, o); inspected == nil {
		t.Fatalf("%s was opened with %v, and nothing is wrong when it is inspected", url, err)
	}
	return err
}

func TestCheckURL(t *testing.T) {
	for _, ok := range []string{
		"etcd://h:2379", "etcd://h:2379/", "etcd://u@h:2379/a/b/c", "etcd://1.2.3.4:1,[::1]:2,h:3/p?ca=/x&cert=/c&key=/k",
		"etcd://u%40x@h:1/p?tls=off&password-file=/f&compaction=everything", "etcd://h:1?server-name=etcd.example&tls=on",
	} {
		if err := etcd.CheckURL(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	const secret = "hunter2"
	for _, bad := range []string{
		"", "etcd:h:1", "etcds://h:1", "etcd://", "etcd://h", "etcd://h:", "etcd://h:0", "etcd://h:99999", "etcd://h:x", "etcd://:1", "etcd://h:1,", "etcd://h:1,h:1",
		"etcd://u:" + secret + "@h:1/p", "etcd://u:p@" + secret + "@h:1", "etcd://@h:1", "etcd://h:1/a//b", "etcd://h:1/a b", "etcd://h:1/ä", "etcd://h:1/%41",
		"etcd://h:1/p#f", "etcd://h:1/p?password=" + secret, "etcd://h:1/p?ca=", "etcd://h:1/p?ca=a&ca=b", "etcd://h:1/p?cert=c", "etcd://h:1/p?key=k",
		"etcd://h:1/p?tls=off&ca=c", "etcd://h:1/p?tls=maybe", "etcd://h:1/p?password-file=f", "etcd://h:1/p?compaction=some", "etcd://h:1/p?%zz",
		"etcd://h:1/" + strings.Repeat("x", 300), "etcd://" + strings.Repeat("h:1,", 20) + "h:2",
	} {
		err := etcd.CheckURL(bad)
		if _, ok := errors.AsType[*etcd.AddressError](err); !ok {
			t.Errorf("%s: %v, want an AddressError", bad, err)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%v shows the password", err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	kv := pb.NewKVClient(server.Conn(t))
	put := func(t *testing.T, key, value string) {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("newer schema", func(t *testing.T) {
		prefix := server.Prefix()
		openAt(t, server.URL(prefix), etcd.Options{}).Close()
		newer := strings.Replace(readAll(t, prefix)["head"], `"schema":1`, `"schema":2,"revision":"in another form"`, 1)
		put(t, prefix+"/head", newer)
		err := refused(t, server.URL(prefix))
		if e, ok := errors.AsType[*engine.SchemaError](err); !ok || !errors.Is(err, engine.ErrSchema) || e.Found != "2" || e.Known != "1" {
			t.Fatalf("%v, want a SchemaError", err)
		}
		if readAll(t, prefix)["head"] != newer {
			t.Fatal("it was changed")
		}
	})
	wantServerError := func(t *testing.T, err error, says string) {
		t.Helper()
		if e, ok := errors.AsType[*engine.ServerError](err); !ok || !strings.Contains(e.Problem, says) || e.Do == "" {
			t.Fatalf("%v, want a ServerError about %q", err, says)
		}
	}
	t.Run("other keys under the prefix", func(t *testing.T) {
		prefix := server.Prefix()
		put(t, prefix+"/pods/x", "theirs")
		wantServerError(t, refused(t, server.URL(prefix)), "not a store's")
	})
	t.Run("in another store", func(t *testing.T) {
		prefix := server.Prefix()
		openAt(t, server.URL(prefix), etcd.Options{}).Close()
		wantServerError(t, refused(t, server.URL(prefix+"/e/x")), "stands in it")
	})
	t.Run("a head of something else", func(t *testing.T) {
		for _, text := range []string{"theirs", "{}", `{"schema":1}`, `{"schema":1,"store":"A","by":"B","revision":1,"compacted":2}`} {
			prefix := server.Prefix()
			put(t, prefix+"/head", text)
			wantServerError(t, refused(t, server.URL(prefix)), "did not write")
		}
	})
	t.Run("no etcd", func(t *testing.T) {
		err := refused(t, "etcd://127.0.0.1:1/x?tls=off")
		if e, ok := errors.AsType[*engine.OpenError](err); !ok || e.Name != "etcd://127.0.0.1:1/x" {
			t.Fatalf("%v, want an OpenError", err)
		}
	})
	t.Run("no TLS there", func(t *testing.T) {
		refused(t, strings.TrimSuffix(server.URL(server.Prefix()), "?tls=off"))
	})
	t.Run("files that are missing", func(t *testing.T) {
		for _, q := range []string{"ca=/nowhere/ca", "cert=/nowhere/c&key=/nowhere/k"} {
			if _, ok := errors.AsType[*etcd.AddressError](refused(t, "etcd://127.0.0.1:1/x?"+q)); !ok {
				t.Errorf("%s: want an AddressError", q)
			}
		}
		if _, ok := errors.AsType[*etcd.AddressError](refused(t, "etcd://u@127.0.0.1:1/x?tls=off&password-file=/nowhere/p")); !ok {
			t.Error("password-file: want an AddressError")
		}
	})
	t.Run("limits below the defaults", func(t *testing.T) {
		few := etcdtest.New(t, etcdtest.Options{Args: []string{"--max-txn-ops=64"}})
		wantServerError(t, refused(t, few.URL("/x")), "operations")
		small := etcdtest.New(t, etcdtest.Options{Args: []string{"--max-request-bytes=524288"}})
		wantServerError(t, refused(t, small.URL("/x")), "bytes")
	})
}

// TestTLS: both sides show certificates, and neither goes on without the other's.
func TestTLS(t *testing.T) {
	c := etcdtest.New(t, etcdtest.Options{TLS: true})
	s := openAt(t, c.URL("/x"), etcd.Options{})
	mustCommit(t, s, put("k", "1"))
	foreign := etcdtest.New(t, etcdtest.Options{TLS: true})
	for name, url := range map[string]string{
		"no root":               strings.Replace(c.URL("/x"), "ca="+c.RootFile+"&", "", 1),
		"another root":          strings.Replace(c.URL("/x"), c.RootFile, foreign.RootFile, 1),
		"no certificate":        "etcd://" + c.Addrs() + "/x?ca=" + c.RootFile,
		"another's certificate": "etcd://" + c.Addrs() + "/x?ca=" + c.RootFile + "&cert=" + foreign.CertFile + "&key=" + foreign.KeyFile,
		"another name":          c.URL("/x") + "&server-name=elsewhere.example",
		"no TLS":                "etcd://" + c.Addrs() + "/x?tls=off",
	} {
		if err := refused(t, url); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

// TestLogin: a user who may write under one prefix alone. The server forgets who is
// logged in when it starts again.
func TestLogin(t *testing.T) {
	c := etcdtest.New(t, etcdtest.Options{})
	auth := pb.NewAuthClient(c.Conn(t))
	const password = "hunter2"
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	users := map[string]string{"root": "", "fealty": "/mine/", "guest": "/theirs/"}
	for user, prefix := range users {
		_, err := auth.UserAdd(t.Context(), &pb.AuthUserAddRequest{Name: user, Password: password})
		do(err)
		_, err = auth.RoleAdd(t.Context(), &pb.AuthRoleAddRequest{Name: user})
		do(err)
		if prefix != "" {
			_, err = auth.RoleGrantPermission(t.Context(), &pb.AuthRoleGrantPermissionRequest{Name: user, Perm: permission(prefix)})
			do(err)
		}
		_, err = auth.UserGrantRole(t.Context(), &pb.AuthUserGrantRoleRequest{User: user, Role: user})
		do(err)
	}
	_, err := auth.AuthEnable(t.Context(), &pb.AuthEnableRequest{})
	do(err)
	file := filepath.Join(t.TempDir(), "password")
	do(os.WriteFile(file, []byte(password+"\n"), 0o600))
	as := func(user, prefix string) string {
		return fmt.Sprintf("etcd://%s@%s%s?tls=off&password-file=%s", user, c.Addrs(), prefix, file)
	}
	patient := impatient // servers make passwords slow to guess, and a busy machine makes it slower
	patient.Timeout = 3 * time.Second
	s := openAt(t, as("fealty", "/mine/a"), patient)
	mustCommit(t, s, put("k", "1"))
	mustCommit(t, s, put("large", strings.Repeat("x", 3<<20)))

	with := patient
	with.Password = password
	openAt(t, "etcd://fealty@"+c.Addrs()+"/mine/a?tls=off", with).Close()
	with.Password = "wrong"
	for name, url := range map[string]string{
		"wrong password": "etcd://fealty@" + c.Addrs() + "/mine/a?tls=off",
		"no such user":   as("nobody", "/mine/a"),
		"no user":        "etcd://" + c.Addrs() + "/mine/a?tls=off",
		"no permission":  as("guest", "/mine/a"),
	} {
		err := refusedWith(t, url, with)
		if _, ok := errors.AsType[*engine.LoginError](err); !ok || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v, want a LoginError", name, err)
		}
	}
	if _, ok := errors.AsType[*engine.ServerError](refused(t, server.URLVia("fealty@"+server.Addrs(), "/mine")+"&password-file="+file)); !ok {
		t.Error("a user where nobody has to log in: want a ServerError")
	}

	again(t, c, c.Kill)
	wait.Until(t, "another login", func() bool { _, err := s.Commit(t.Context(), put("k", "2")); return err == nil })
	if e, err := s.Get(t.Context(), "k"); err != nil || string(e.Value) != "2" {
		t.Fatalf("Get: %q, %v", e.Value, err)
	}
}

// TestInspect shows what is wrong with servers that can hold a store.
func TestInspect(t *testing.T) {
	c := etcdtest.New(t, etcdtest.Options{Members: 3})
	prefix := c.Prefix()
	r, err := etcd.Inspect(t.Context(), c.URL(prefix), impatient)
	if err != nil || r.Schema != "" || r.Known != "1" || len(r.Problems) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	openAt(t, c.URL(prefix), etcd.Options{}).Close()
	if err := c.Members[1].Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var problems string
	wait.Until(t, "the report", func() bool { r, err = etcd.Inspect(ctx, c.URL(prefix), impatient); return err == nil })
	for _, p := range r.Problems {
		problems += p.What + "\n"
	}
	if r.Schema != "1" || !strings.Contains(problems, c.Members[1].Addr()+" does not answer") {
		t.Fatalf("%+v\n%s", r, problems)
	}
}

func permission(prefix string) *authpb.Permission {
	return &authpb.Permission{PermType: authpb.Permission_READWRITE, Key: []byte(prefix), RangeEnd: []byte(strings.TrimSuffix(prefix, "/") + "0")}
}
