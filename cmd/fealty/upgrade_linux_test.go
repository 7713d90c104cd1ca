package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// previousCommit is of the release that [TestRollingUpgrade] comes from and goes back to: all that it wrote
// and said is understood by this one, and the other way round (docs/how-to/upgrade.md).
const previousCommit = "09cddb53f378b27e1e4c733a76e7fff838f72db9"

// previous returns the path of the program of previousCommit. A clone that has no such commit has this program
// alone: then the test is of rolling restarts.
var previous = sync.OnceValues(func() (string, error) {
	if exec.Command("git", "cat-file", "-e", previousCommit+"^{commit}").Run() != nil {
		return program()
	}
	if _, err := program(); err != nil { // which makes the folder, where it builds
		return "", err
	}
	dir, err := os.MkdirTemp("", "fealty-previous")
	if err != nil {
		return "", err
	}
	removed = append(removed, dir)
	var tree, said bytes.Buffer
	archive := exec.Command("git", "archive", previousCommit)
	archive.Dir = filepath.Join("..", "..")
	archive.Stdout, archive.Stderr = &tree, &said
	if err := archive.Run(); err != nil {
		return "", fmt.Errorf("read commit %s: %w\n%s", previousCommit, err, &said)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = &tree
	if out, err := unpack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack commit %s: %w\n%s", previousCommit, err, out)
	}
	path := filepath.Join(dir, "bin", "fealty")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", path, "./cmd/fealty")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build commit %s: %w\n%s", previousCommit, err, out)
	}
	return path, nil
})

// TestRollingUpgrade runs coordinators of an earlier release, and a member, and replaces one program after
// the other by that of this release, as docs/how-to/upgrade.md says it; and then goes back. Meanwhile
// tokens are made, members join and config is put, by programs of the release of before: nothing that was
// acknowledged is lost, each coordinator has the secrets from one of the other release (there is no
// keeper), and the member goes on. On SQLite there is one coordinator, whose keeper opens the seed.
func TestRollingUpgrade(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	old, err := previous()
	if err != nil {
		t.Fatal(err)
	}
	next, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if old == next {
		t.Logf("commit %s is not in this clone: from this release to this one", previousCommit)
	}
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.New(t)
		upgrade(t, old, next, func() *fleet {
			return startThreeOf(t, old, server.URL(server.Database(t)), "", nil, false)
		})
	})
	t.Run("etcd", func(t *testing.T) {
		server := etcdtest.New(t, etcdtest.Options{})
		upgrade(t, old, next, func() *fleet { return startThreeOf(t, old, server.URL("/prod"), "", nil, false) })
	})
	t.Run("sqlite", func(t *testing.T) {
		upgrade(t, old, next, func() *fleet { return startOne(t, old) })
	})
}

// startOne starts one coordinator of prod.example on SQLite, with a keeper.
func startOne(t *testing.T, exe string) *fleet {
	t.Helper()
	return startOneOf(t, exe, "prod.example")
}

// startOneOf starts one coordinator of a cluster on SQLite, with a keeper and owners of the seed, whose shares are below shares.
func startOneOf(t *testing.T, exe, cluster string, owners ...string) *fleet {
	t.Helper()
	f := newFleet(t, exe, "", "")
	const name = "coordinator-1"
	listen, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	f.listens[name], f.store = listen, "sqlite:"+filepath.Join(f.dir, "fealty.db")
	f.start(name)
	var key string
	f.until(name+" answers", func(out string) bool {
		key = regexp.MustCompile(`ed25519:[A-Za-z0-9+/=_-]{40,}`).FindString(out)
		return key != ""
	}, "status", "-o", "json", "--socket", f.socket(name))
	first := []string{"manifest", "init", "--cluster", cluster, "--coordinator-key", name + "=" + key,
		"--keeper", "file:" + filepath.Join(f.dir, "keeper.key"), "--signer-key-out", "alice.key", "--out", "m.yaml"}
	set := []string{"manifest", "set", "m.yaml", "--socket", f.socket(name)}
	for _, o := range owners {
		first = append(first, "--owner", o)
	}
	if len(owners) > 0 {
		set = append(set, "--shares-out", "shares")
	}
	f.must(first...)
	f.must(set...)
	f.ready(name)
	return f
}

func upgrade(t *testing.T, old, next string, start func() *fleet) {
	f := start()
	var names []string
	for _, name := range three {
		if f.listens[name] != "" {
			names = append(names, name)
		}
	}
	at := func(i int) string { return f.socket(names[i%len(names)]) }
	f.must("join", strings.TrimSpace(f.must("token", "create", "--entry", "nodes", "--name", "member", "--socket", at(0))),
		"--data", "member")
	f.agent("member")

	for _, roll := range []struct{ what, from, to string }{{"up", old, next}, {"back", next, old}} {
		f.exe = roll.from
		people := f.load("node-" + roll.what)
		progress := people.joined
		f.exe = roll.to
		for i, name := range names {
			before := progress()
			wait.Until(t, "a join", func() bool { return progress() > before })
			f.stop(name)
			f.start(name)
			f.ready(name)
			before = progress()
			wait.Until(t, "a join after "+name, func() bool { return progress() > before })
			record := fmt.Sprintf("%s-%d", roll.what, i)
			f.put(record, at(i))
			wait.Until(t, "member to use "+record, func() bool { return f.holds("member", record) })
		}
		people.stop()
		f.stop("member")
		f.agent("member")
		f.put(roll.what+"-over", at(0))
		wait.Until(t, "member to go on", func() bool { return f.holds("member", roll.what+"-over") })
		t.Logf("%s: %d tokens, %d members", roll.what, len(people.tokens), len(people.members))
		for _, name := range names {
			people.known(name)
			f.must("audit", "verify", "--socket", f.socket(name))
		}
	}
}

// stop ends a process in order.
func (f *fleet) stop(name string) {
	f.t.Helper()
	cmd := f.runs[name]
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		log, _ := os.ReadFile(filepath.Join(f.dir, name+".log"))
		f.t.Fatalf("%s did not stop in order: %v\n%s", name, err, log[max(0, len(log)-3000):])
	}
	f.runs[name] = nil
}

// put stores a record of config by way of a socket.
func (f *fleet) put(record, socket string) {
	f.t.Helper()
	text := "kind: qos\nname: " + record + "\npriority: 10\n"
	if err := os.WriteFile(filepath.Join(f.dir, "qos.yaml"), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.must("config", "put", "-f", "qos.yaml", "--socket", socket)
}

// holds reports whether a member uses a record.
func (f *fleet) holds(member, record string) bool {
	content, err := os.ReadFile(filepath.Join(f.dir, member, "current", "qos_policy.json"))
	return err == nil && strings.Contains(string(content), `"`+record+`"`)
}
