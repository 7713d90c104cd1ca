package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/etcd"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// TestKilledCoordinators runs three coordinators as processes on one store, and
// kills the one that leads, with SIGKILL, while members join and people write. Each
// time another leads, the killed one starts again with an empty memory and has the
// secrets from a peer, since no keeper could bring them back, and all that was
// acknowledged is there at the end.
func TestKilledCoordinators(t *testing.T) {
	kills := testlane.Rounds(2, 100)
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.New(t)
		url := server.URL(server.Database(t))
		killCoordinators(t, url, func(ctx context.Context) (store.Store, error) { return postgres.Open(ctx, url, postgres.Options{}) }, kills)
	})
	t.Run("etcd", func(t *testing.T) {
		testlane.Nightly(t)
		c := etcdtest.New(t, etcdtest.Options{Members: 3})
		url := c.URL("/prod")
		killCoordinators(t, url, func(ctx context.Context) (store.Store, error) { return etcd.Open(ctx, url, etcd.Options{}) }, kills)
	})
}

// fleet is coordinators that are processes of this machine.
type fleet struct {
	t       *testing.T
	exe     string
	dir     string
	store   string
	runs    map[string]*exec.Cmd        // by name; nil: killed
	listens map[string]string           // by name
	ways    map[string]*proxytest.Proxy // by name: on which the others and members come, where there is one
	log     string                      // the level; empty: warn
	environ []string                    // more of what its processes have
}

// three are the coordinators that startThree starts.
var three = []string{"coordinator-1", "coordinator-2", "coordinator-3"}

// startThree starts three coordinators that are ready, on the store at url; on stores
// are those that reach it by another one. They end with the test. They have an owner
// and no keeper: with every memory empty, nothing but people would help. With apart each
// is reached by a way that can be cut.
func startThree(t *testing.T, url, log string, stores map[string]string, apart bool) *fleet {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return startThreeOf(t, exe, url, log, stores, apart)
}

// newFleet returns one without coordinators. Processes that it starts end with the test.
func newFleet(t *testing.T, exe, url, log string) *fleet {
	f := &fleet{
		t: t, exe: exe, dir: t.TempDir(), store: url, log: log,
		runs: map[string]*exec.Cmd{}, listens: map[string]string{}, ways: map[string]*proxytest.Proxy{},
	}
	t.Cleanup(func() {
		for name, cmd := range f.runs {
			if cmd != nil {
				f.kill(name)
			}
		}
	})
	return f
}

// startThreeOf is startThree with the program exe.
func startThreeOf(t *testing.T, exe, url, log string, stores map[string]string, apart bool) *fleet {
	t.Helper()
	f := newFleet(t, exe, url, log)
	owner, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	manifest := []string{"manifest", "init", "--cluster", "prod.example", "--owner", "alice=" + owner.Recipient().String(),
		"--signer-key-out", "alice.key", "--out", "m.yaml"}
	key := regexp.MustCompile(`ed25519:[A-Za-z0-9+/=_-]{40,}`)
	for _, name := range three {
		listen, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		if f.listens[name] = listen; apart {
			f.ways[name] = proxytest.New(t, listen)
		}
		f.store = cmp.Or(stores[name], url)
		f.start(name)
		f.store = url
		var found string
		f.until(name+" answers", func(out string) bool { found = key.FindString(out); return found != "" }, "status", "-o", "json", "--socket", f.socket(name))
		manifest = append(manifest, "--coordinator-key", name+"="+found)
	}
	f.must(manifest...)
	f.must("manifest", "set", "m.yaml", "--socket", f.socket(three[0]))
	for _, name := range three {
		f.ready(name)
	}
	return f
}

func (f *fleet) ready(name string) {
	f.t.Helper()
	// It tells of others, too, who may be ready before.
	f.until(name+" is ready", func(out string) bool {
		var status struct {
			Phase string `json:"phase"`
		}
		return json.Unmarshal([]byte(out), &status) == nil && status.Phase == "ready"
	}, "status", "-o", "json", "--socket", f.socket(name))
}

// fealty returns the program, to be run with arguments.
func (f *fleet) fealty(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.exe, args...)
	cmd.Dir = f.dir
	cmd.Env = []string{"HOME=" + f.dir, "TMPDIR=" + f.dir, "PATH=" + os.Getenv("PATH"), "FEALTY_STORE=" + f.store, moreGarbage}
	cmd.Env = append(cmd.Env, f.environ...)
	return cmd
}

// run runs a command to its end. An error is not an *exec.ExitError if it did not end
// by itself.
func (f *fleet) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	var out, said bytes.Buffer
	cmd := f.fealty(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("fealty %s: %w\n%s", strings.Join(args, " "), err, &said)
	}
	return out.String(), nil
}

func (f *fleet) must(args ...string) string {
	f.t.Helper()
	out, err := f.run(args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// until runs a command until it does what is wanted of it.
func (f *fleet) until(what string, wanted func(out string) bool, args ...string) {
	f.t.Helper()
	var out string
	var err error
	for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if out, err = f.run(args...); wanted(out) {
			return
		}
	}
	for name := range f.runs {
		log, _ := os.ReadFile(filepath.Join(f.dir, name+".log"))
		f.t.Logf("%s said:\n%s", name, log[max(0, len(log)-3000):])
	}
	f.t.Fatalf("still waiting until %s: %s, %v", what, out, err)
}

func (f *fleet) socket(name string) string { return filepath.Join(name, "admin.sock") }

func (f *fleet) start(name string) {
	f.t.Helper()
	f.spawn(name, "coordinator", "--data", name, "--listen", f.listens[name], "--advertise", f.reached(name),
		"--metrics", "127.0.0.1:0", "--log-level", cmp.Or(f.log, "warn"))
}

// reached is the address at which a coordinator is reached.
func (f *fleet) reached(name string) string {
	if way := f.ways[name]; way != nil {
		return way.Addr()
	}
	return f.listens[name]
}

// spawn starts a process of the program that goes on until it is killed.
func (f *fleet) spawn(name string, args ...string) {
	f.t.Helper()
	cmd := f.fealty(context.WithoutCancel(f.t.Context()), args...)
	log, err := os.OpenFile(filepath.Join(f.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.runs[name] = cmd
}

func (f *fleet) kill(name string) {
	f.t.Helper()
	cmd := f.runs[name]
	if err := cmd.Process.Kill(); err != nil {
		f.t.Fatal(err)
	}
	_ = cmd.Wait() // that it was killed is known
	f.runs[name] = nil
}

// leads returns who leads, by the store, and the term. Before the record stands a code
// that only coordinators can check; here it is only read.
func leads(t *testing.T, st store.Store) (name string, term store.Revision) {
	t.Helper()
	e, err := st.Get(t.Context(), "leader/term")
	if errors.Is(err, store.ErrNotFound) {
		return "", 0
	}
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Name       string `json:"name"`
		HandedOver bool   `json:"handed_over"`
	}
	if err := json.Unmarshal(e.Value[store.SealBytes:], &r); err != nil {
		t.Fatal(err)
	}
	if r.HandedOver {
		return "", e.Version
	}
	return r.Name, e.Version
}

func killCoordinators(t *testing.T, url string, open func(context.Context) (store.Store, error), kills int) {
	f := startThree(t, url, "", nil, false)
	st, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()

	people := f.load("node")
	progress := people.joined
	var took []time.Duration
	for range kills {
		before := progress()
		wait.Until(t, "a join", func() bool { return progress() > before })
		var leader string
		var term store.Revision
		wait.Until(t, "a leader", func() bool { leader, term = leads(t, st); return leader != "" })
		f.kill(leader)
		killed := time.Now()
		wait.Until(t, "another leader", func() bool { now, at := leads(t, st); return at > term && now != "" && now != leader })
		took = append(took, time.Since(killed).Round(time.Millisecond))
		before = progress()
		wait.Until(t, "a join without the killed one", func() bool { return progress() > before })
		f.start(leader)
		f.ready(leader)
	}
	people.stop()
	t.Logf("another led after %v; %d tokens, %d members", took, len(people.tokens), len(people.members))
	for _, name := range three {
		f.ready(name)
		people.known(name)
	}
}

// load is people who make tokens and members who join with them, at whichever coordinator answers.
type load struct {
	f       fleet // as it was: the program is theirs
	end     context.CancelFunc
	writers sync.WaitGroup

	mu              sync.Mutex
	tokens, members []string // acknowledged; guarded by mu
}

// load begins one, whose members have names that begin with prefix. It ends with the test.
func (f *fleet) load(prefix string) *load {
	var names []string
	for _, name := range three {
		if f.listens[name] != "" {
			names = append(names, name)
		}
	}
	busy, end := context.WithCancel(f.t.Context())
	l := &load{f: *f, end: end}
	f.t.Cleanup(l.stop)
	for w := range 2 {
		l.writers.Go(func() {
			for i := 0; busy.Err() == nil; i++ {
				id := fmt.Sprintf("%s-%d-%d", prefix, w, i)
				token, err := l.f.run("token", "create", "--entry", "nodes", "--name", id, "--socket",
					l.f.socket(names[(w+i)%len(names)]))
				if err != nil {
					continue // it may have happened, and nobody was told so
				}
				l.mu.Lock()
				l.tokens = append(l.tokens, id)
				l.mu.Unlock()
				if _, err := l.f.run("join", strings.TrimSpace(token), "--data", id); err != nil {
					continue
				}
				l.mu.Lock()
				l.members = append(l.members, id)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// joined counts the members that joined.
func (l *load) joined() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.members)
}

// stop returns once nobody writes any more.
func (l *load) stop() {
	l.end()
	l.writers.Wait()
}

// known fails unless a coordinator shows all that was acknowledged.
func (l *load) known(name string) {
	l.f.t.Helper()
	listed := l.f.must("token", "list", "-o", "json", "--socket", l.f.socket(name))
	joined := l.f.must("member", "list", "-o", "json", "--socket", l.f.socket(name))
	for _, id := range l.tokens {
		if !strings.Contains(listed, `"`+id+`"`) {
			l.f.t.Errorf("%s does not know the token of %s", name, id)
		}
	}
	for _, id := range l.members {
		if !strings.Contains(joined, `"`+id+`"`) {
			l.f.t.Errorf("%s does not know %s, which joined", name, id)
		}
	}
}
