package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
)

// knocks listens and counts who comes, and tells nobody anything.
func knocks(t *testing.T) (addr string, count *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count = new(atomic.Int64)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			conn.Close()
		}
	}()
	return l.Addr().String(), count
}

// Whatever proxies the environment names, no process of Fealty goes through one: coordinators to their store and to one
// another, machines that join, agents, people, and what reads mirrors.
func TestNoProxyIsUsed(t *testing.T) {
	t.Parallel()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	proxy, through := knocks(t)
	var environ []string
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "GRPC_PROXY"} {
		environ = append(environ, name+"=http://"+proxy, strings.ToLower(name)+"=http://"+proxy)
	}
	// Nobody asks a proxy for a loopback address. This one leads to loopback too, and is none.
	elsewhere := func(addr string) string {
		t.Helper()
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort("0.0.0.0", port)
	}
	key := regexp.MustCompile(`ed25519:[A-Za-z0-9+/=_-]{40,}`)
	begin := func(f *fleet, name string) (enrolment string) {
		t.Helper()
		listen, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		f.listens[name] = listen
		f.spawn(name, "coordinator", "--data", name, "--listen", listen, "--advertise", elsewhere(listen), "--metrics", "127.0.0.1:0")
		f.until(name+" answers", func(out string) bool { enrolment = key.FindString(out); return enrolment != "" },
			"status", "-o", "json", "--socket", f.socket(name))
		return enrolment
	}
	found := func(f *fleet, names ...string) {
		t.Helper()
		manifest := []string{"manifest", "init", "--cluster", "prod.example", "--keeper", "file:" + filepath.Join(f.dir, "keeper.key"),
			"--signer-key-out", "alice.key", "--out", "m.yaml"}
		for _, name := range names {
			manifest = append(manifest, "--coordinator-key", name+"="+begin(f, name))
		}
		f.must(manifest...)
		f.must("manifest", "set", "m.yaml", "--socket", f.socket(names[0]))
		for _, name := range names {
			f.ready(name)
		}
	}

	t.Run("postgres", func(t *testing.T) {
		server := pgtest.New(t)
		f := newFleet(t, exe, server.URLVia(elsewhere(server.Addr()), server.Database(t)), "")
		f.environ = environ
		const first, second = "coordinator-1", "coordinator-2"
		found(f, first, second)
		// What the second one has in memory alone it gets from the first one: its key of the keeper is gone.
		if err := os.Rename(filepath.Join(f.dir, "keeper.key"), filepath.Join(f.dir, "keeper.away")); err != nil {
			t.Fatal(err)
		}
		f.kill(second)
		f.spawn(second, "coordinator", "--data", second, "--listen", f.listens[second], "--advertise", elsewhere(f.listens[second]))
		f.ready(second)

		token := f.must("token", "create", "--entry", "nodes", "--name", "a", "--socket", f.socket(first))
		f.must("join", strings.TrimSpace(token), "--data", "a")
		// What is read from the mirror is nothing: that it is asked is what counts.
		mirror, asked := knocks(t)
		if out, err := f.run("snapshot", "get", "trust_bundle", "--data", "a", "--from", "https://"+elsewhere(mirror)+"/", "--timeout", "5s"); err == nil {
			t.Errorf("from a mirror that says nothing: %s", out)
		}
		if asked.Load() == 0 {
			t.Error("nobody came to the mirror")
		}
		f.spawn("agent", "agent", "--data", "a")
		f.until("the agent is connected", func(out string) bool {
			var node memberStatus
			return json.Unmarshal([]byte(out), &node) == nil && node.Connected
		}, "status", "-o", "json", "--data", "a")
	})
	t.Run("etcd", func(t *testing.T) {
		server := etcdtest.New(t, etcdtest.Options{})
		f := newFleet(t, exe, server.URLVia(elsewhere(server.Members[0].Addr()), "/proxies"), "")
		f.environ = environ
		found(f, "coordinator-1")
	})
	if n := through.Load(); n > 0 {
		t.Errorf("%d connections came to the proxy", n)
	}
}
