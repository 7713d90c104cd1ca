package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/chaos"
)

// patience is how long anything may take that has to come by itself, on a busy machine.
const patience = 90 * time.Second

// svidTTL is the shortest that a manifest may say: members renew twice in it.
const svidTTL = time.Minute

// A fleet is coordinators and agents, each a process on a machine of its own, and a store.
type fleet struct {
	t       *testing.T
	dir     string
	exe     string
	store   *storage
	coords  []*process
	nodes   []*process
	listens []string
	began   time.Time
	watches sync.WaitGroup
	unwatch context.CancelFunc

	setting sync.Mutex  // held while a manifest is set
	banLast atomic.Bool // a writer bans the last machine, too, that it had join

	mu     sync.Mutex
	downs  map[string][]chaos.Span // when something was not as it should be; guarded by mu
	writes []chaos.Write           // guarded by mu
	looks  map[string][]chaos.Look // at nodes; guarded by mu
	sights []chaos.Sight           // guarded by mu
	back   time.Time               // when the store was put back, if it was; guarded by mu
}

// newFleet starts a fleet on a store, of which everybody is certified for [svidTTL]. It
// ends with the test.
func newFleet(t *testing.T, s *storage, coordinators, nodes int) *fleet {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, dir: dir, exe: exe, store: s, began: time.Now(), downs: map[string][]chaos.Span{}, looks: map[string][]chaos.Look{}}
	f.watch()
	disk := filepath.Join(dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	add := func(name string, args ...string) *process {
		m, err := newMachine(name, disk, filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.close)
		p := &process{m: m, log: filepath.Join(dir, name+".log")}
		if s.readers {
			p.reader = new(reader)
		}
		p.args = append([]string{exe, args[0], "--data", filepath.Join(m.dir, "data")}, args[1:]...)
		t.Cleanup(p.kill)
		return p
	}
	var entries strings.Builder
	for i := range coordinators {
		name := fmt.Sprintf("coordinator-%d", i+1)
		listen, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		p := add(name, "coordinator", "--listen", listen, "--advertise", listen, "--metrics", "127.0.0.1:0", "--self-heal-after", "2s",
			"--log-level", s.level("warn"))
		p.args = append(p.args, "--store", s.url(p.m, i))
		if s.more != nil {
			web, err := freeport.Addr()
			if err != nil {
				t.Fatal(err)
			}
			p.args, p.web = append(p.args, s.more(p.m, web)...), web
		}
		f.coords, f.listens = append(f.coords, p), append(f.listens, listen)
		f.start(p)
		var key string
		f.await(name+" to answer", func() error {
			st, err := f.status(p)
			key = st.GetEnrolmentKey()
			return err
		})
		fmt.Fprintf(&entries, "  - {name: %s, kind: coordinator, match: [%q], svid_ttl: 1m}\n", name, "key:"+key)
	}
	f.found(entries.String())
	for i := range nodes {
		p := add(fmt.Sprintf("node-%d", i+1), "agent", "--log-level", s.level("info"))
		f.nodes = append(f.nodes, p)
		f.join(p)
		f.start(p)
	}
	f.look()
	return f
}

// keyFile is where the manifest says that the keeper's key is, on each machine.
func (f *fleet) keyFile() string {
	if m := f.coords[0].m; m.holder != nil {
		return filepath.Join(m.dir, "seed.key")
	}
	return filepath.Join(f.dir, "seed.key")
}

// keeper is what the manifest says of the keeper: a key file, or a program that is on each machine.
func (f *fleet) keeper() string {
	if f.store.keeper == nil {
		return "file:" + f.keyFile()
	}
	var path string
	for _, p := range f.coords {
		path = f.store.keeper(p.m)
	}
	return "exec:" + path
}

// found sets the first manifest, with entries of coordinators. The key file that it makes is
// copied to the second machine, as the documents say, and the third has none.
func (f *fleet) found(entries string) {
	f.t.Helper()
	signer, keeper := filepath.Join(f.dir, "alice.key"), f.keeper()
	f.must("manifest", "init", "--cluster", "chaos.example", "--coordinator-key", "x=ed25519:FLuHZi3FvZpeTTTBM06rD32ZSVODrxqxWzFZbbZtubg=",
		"--signer-key-out", signer, "--keeper", keeper, "--out", filepath.Join(f.dir, "init.yaml"))
	made, err := os.ReadFile(filepath.Join(f.dir, "init.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	key := regexp.MustCompile(`name: "alice", key: "(ed25519:[^"]+)"`).FindStringSubmatch(string(made))
	if key == nil {
		f.t.Fatalf("no signer in:\n%s", made)
	}
	text := fmt.Sprintf(`cluster: chaos.example
seed: {threshold: 1, owners: [{name: host, keeper: "%s"}]}
signers: {threshold: 1, keys: [{name: alice, key: "%s"}]}
admit:
%s  - {name: nodes, kind: data, match: ["token:nodes"], svid_ttl: 1m}
degraded: {max: 30s, route_ttl: 30s}
rejoin_grace: 7d
`, keeper, key[1], entries)
	name := filepath.Join(f.dir, "m.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.must("manifest", "set", name, "--socket", f.socket(f.coords[0]))
	if len(f.coords) > 1 && f.coords[0].m.holder != nil && f.store.keeper == nil {
		seed, err := os.ReadFile(f.coords[0].m.path("seed.key"))
		if err = errors.Join(err, os.WriteFile(f.coords[1].m.path("seed.key"), seed, 0o600)); err != nil {
			f.t.Fatal(err)
		}
	}
	f.ready()
}

// join makes a machine a member.
func (f *fleet) join(p *process) {
	f.t.Helper()
	w := writer{f: f, name: p.m.name}
	token, ok := w.token(f.t.Context(), f.coords[0], p.m.name)
	if !ok || !w.join(f.t.Context(), p.m, token, filepath.Join(p.m.dir, "data"), p.m.name) {
		f.t.Fatalf("%s did not join: %v", p.m.name, f.writes)
	}
}

// watch has a process end all others if this one does not live to do it.
func (f *fleet) watch() {
	f.t.Helper()
	cmd := (&machine{}).command(context.Background(), "sh", "-c",
		`cat >/dev/null; [ -e "$0/pids" ] && for p in $(cat "$0/pids"); do [ "/proc/$p/exe" -ef "$1" ] && kill -9 "$p"; done; [ -n "$2" ] || rm -rf "$0"`, f.dir, f.exe, os.Getenv("CHAOS_KEEP"))
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // there may be nothing left to do
	})
}

// start starts a process that is down.
func (f *fleet) start(p *process) {
	f.t.Helper()
	if err := p.start(); err != nil {
		f.t.Fatal(err)
	}
	pids, err := os.OpenFile(filepath.Join(f.dir, "pids"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer pids.Close()
	fmt.Fprintln(pids, p.cmd.Process.Pid)
}

func (f *fleet) socket(p *process) string { return p.m.path("data", "admin.sock") }

// ask runs a command of the program that asks a coordinator.
func (f *fleet) ask(ctx context.Context, args ...string) (out string, status int, said string) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return run((&machine{dir: f.dir}).command(ctx, f.exe, args...))
}

func (f *fleet) must(args ...string) string {
	f.t.Helper()
	out, status, said := f.ask(f.t.Context(), args...)
	if status != 0 {
		f.t.Fatalf("fealty %s: %d %s", strings.Join(args, " "), status, said)
	}
	return out
}

// await waits for what has to come by itself.
func (f *fleet) await(what string, ok func() error) {
	f.t.Helper()
	began := time.Now()
	for {
		err := ok()
		if err == nil {
			if took := time.Since(began); took > 10*time.Second {
				f.t.Logf("%s: %v for %s", clock(), took.Round(time.Millisecond), what)
			}
			return
		}
		if time.Since(began) > patience {
			f.logs()
			f.t.Fatalf("still waiting for %s: %v", what, err)
		}
		f.supervise()
		time.Sleep(100 * time.Millisecond)
	}
}

// supervise starts again what ended by itself, as a supervisor does. Nothing may end by
// itself but a coordinator that starts and cannot reach its store, or may not write there.
func (f *fleet) supervise() {
	f.t.Helper()
	for _, p := range append(slices.Clone(f.coords), f.nodes...) {
		if p.cmd == nil || p.running() {
			continue
		}
		const unusable, unreachable = 3, 4
		status := p.cmd.ProcessState.ExitCode()
		said := p.said()
		readOnly := status == unusable && strings.Contains(said[strings.LastIndex(said, "-- ")+1:], "error FE-S109: ")
		if status != unreachable && !readOnly || slices.Contains(f.nodes, p) {
			f.t.Errorf("%s: %s ended by itself with status %d:\n%s", clock(), p.m.name, status, said)
		}
		f.start(p)
	}
}

// logs shows what processes said last.
func (f *fleet) logs() {
	for _, p := range append(append([]*process(nil), f.coords...), f.nodes...) {
		f.t.Logf("%s, which runs: %v, said:\n%s", p.m.name, p.running(), p.said())
	}
}

func clock() string { return time.Now().Format("15:04:05.000") }

// status asks a coordinator how it is.
func (f *fleet) status(p *process) (*fealtyv1.GetStatusResponse, error) {
	conn, err := mesh.DialLocal(f.socket(p))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
	defer cancel()
	return fealtyv1.NewStatusServiceClient(conn).GetStatus(ctx, &fealtyv1.GetStatusRequest{})
}

// ready waits until all coordinators are, and one of them leads.
func (f *fleet) ready() {
	f.t.Helper()
	for _, p := range f.coords {
		f.await(p.m.name+" to be ready", func() error {
			st, err := f.status(p)
			if err == nil && (st.GetPhase() != "ready" || st.GetLeader().GetName() == "") {
				err = fmt.Errorf("it is in phase %q: %s; %v leads", st.GetPhase(), st.GetPhaseReason(), st.GetLeader())
			}
			return err
		})
	}
}

// settled waits until all agents are certified and connected.
func (f *fleet) settled() {
	f.t.Helper()
	for _, p := range f.nodes {
		f.await(p.m.name+" to be back", func() error {
			conn, err := mesh.DialLocal(p.m.path("data", "agent.sock"))
			if err != nil {
				return err
			}
			defer conn.Close()
			n, err := node(f.t.Context(), conn)
			if err == nil && (!n.GetConnected() || !n.GetSvidNotAfter().AsTime().After(time.Now())) {
				err = fmt.Errorf("connected: %v, certified until %v: %s", n.GetConnected(), n.GetSvidNotAfter().AsTime(), n.GetLastError())
			}
			return err
		})
	}
}

func node(ctx context.Context, conn *grpc.ClientConn) (*fealtyv1.GetNodeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return fealtyv1.NewNodeServiceClient(conn).GetNode(ctx, &fealtyv1.GetNodeRequest{})
}

// look looks at every node and asks every coordinator who leads, until unwatch.
func (f *fleet) look() {
	ctx, cancel := context.WithCancel(f.t.Context())
	f.unwatch = func() { cancel(); f.watches.Wait() }
	f.t.Cleanup(f.unwatch)
	each := func(socket string, pause time.Duration, do func(*grpc.ClientConn)) {
		f.watches.Go(func() {
			for ctx.Err() == nil {
				// A connection of its own: one that hangs tells nothing of the next process.
				if conn, err := mesh.DialLocal(socket); err == nil {
					do(conn)
					conn.Close()
				}
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	for _, p := range f.nodes {
		each(p.m.path("data", "agent.sock"), 500*time.Millisecond, func(conn *grpc.ClientConn) {
			n, err := node(ctx, conn)
			if err != nil {
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.looks[p.m.name] = append(f.looks[p.m.name], chaos.Look{At: time.Now(), NotBefore: n.GetSvidNotBefore().AsTime(), NotAfter: n.GetSvidNotAfter().AsTime()})
		})
	}
	for _, p := range f.coords {
		each(f.socket(p), 300*time.Millisecond, func(conn *grpc.ClientConn) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			r, err := fealtyv1.NewLeaderServiceClient(conn).GetLeader(ctx, &fealtyv1.GetLeaderRequest{})
			if err != nil {
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.sights = append(f.sights, chaos.Sight{By: p.m.name, At: time.Now(), Leader: r.GetLeader().GetName(), Term: r.GetLeader().GetTerm()})
		})
	}
}

// down notes that something is not as it should be from now on, until what it returns is
// called.
func (f *fleet) down(what ...string) (up func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := make(map[string]int)
	for _, name := range what {
		at[name] = len(f.downs[name])
		f.downs[name] = append(f.downs[name], chaos.Span{From: time.Now(), To: time.Now().Add(24 * time.Hour)})
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, i := range at {
			f.downs[name][i].To = time.Now()
		}
	}
}

// promise is what this fleet has to keep. A node that is out of reach of everybody tries
// again after 30 s, at the latest.
var promise = chaos.Promise{Renewed: 10 * time.Second, Back: 45 * time.Second}

// judge returns all that is wrong with what was seen, and says how much that is.
func (f *fleet) judge() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	whole := chaos.Span{From: f.began, To: time.Now()}
	for _, wrong := range chaos.LeadersGoneBack(f.sights, f.back) {
		f.t.Error(wrong)
	}
	out, longest := 0, time.Duration(0)
	for _, p := range f.nodes {
		var up [][]chaos.Span
		// The third has no key of the keeper, and can do nothing while it is the only one.
		for _, c := range f.coords[:min(2, len(f.coords))] {
			downs := append(append([]chaos.Span(nil), f.downs[c.m.name]...), f.downs["store"]...)
			downs = append(append(downs, f.downs["way of "+c.m.name]...), f.downs[p.m.name]...)
			up = append(up, chaos.Without(whole, downs...))
		}
		looks := f.looks[p.m.name]
		for _, wrong := range chaos.Certified(p.m.name, looks, promise, up...) {
			f.t.Errorf("%s\n%s", wrong, p.said())
		}
		// They renew twice in the life of a certificate, and now and then because they are
		// asked to, or start: not all the time.
		if n, most := chaos.Changes(looks), 5+int(whole.Length()/(svidTTL/6)); n > most {
			f.t.Errorf("%s was certified %d times in %v", p.m.name, n, whole.Length())
		}
		n, l := chaos.RanOut(looks)
		out, longest = out+n, max(longest, l)
	}
	tally := map[chaos.Outcome]int{}
	for _, w := range f.writes {
		tally[w.Outcome]++
	}
	f.t.Logf("%d writes were acknowledged, %d refused, %d with unknown outcome; %d looks at leaders saw %d terms; certificates ran out %d times, for %v at most",
		tally[chaos.Acknowledged], tally[chaos.Refused], tally[chaos.Unknown], len(f.sights), chaos.Terms(f.sights), out, longest.Round(time.Second))
}

// kept compares what each coordinator shows with writes.
func (f *fleet) kept(writes []chaos.Write) {
	f.t.Helper()
	for _, p := range f.coords {
		var wrong []string
		// One that follows may be behind for a moment.
		for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
			shown, err := f.shown(p)
			if err == nil {
				wrong = chaos.Kept(writes, shown)
			} else {
				wrong = []string{err.Error()}
			}
			if len(wrong) == 0 || time.Now().After(end) {
				break
			}
		}
		for _, w := range wrong {
			key, _, _ := strings.Cut(w, " ")
			f.t.Errorf("%s shows that %s\n%s", p.m.name, w, chaos.About(writes, key))
		}
	}
}

// written returns what was written until now.
func (f *fleet) written() []chaos.Write {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]chaos.Write(nil), f.writes...)
}

// shown reads, by the program, all that a coordinator shows of what writers write.
func (f *fleet) shown(p *process) (map[string]string, error) {
	var all struct {
		Tokens []struct {
			Name string `json:"name"`
		} `json:"tokens"`
		Members []struct {
			Kind   string `json:"kind"`
			Name   string `json:"name"`
			Banned bool   `json:"banned"`
		} `json:"members"`
		Records []struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
			Min  int64  `json:"min_kbps"`
		} `json:"records"`
		Transitions []struct {
			Reason string `json:"reason"`
		} `json:"transitions"`
	}
	ask := func(args ...string) (string, error) {
		out, status, said := f.ask(f.t.Context(), append(args, "--socket", f.socket(p))...)
		if status != 0 {
			return "", fmt.Errorf("fealty %s: %d %s", strings.Join(args, " "), status, said)
		}
		return out, nil
	}
	for _, args := range [][]string{{"token", "list"}, {"member", "list"}, {"config", "list"}, {"manifest", "history"}} {
		out, err := ask(append(args, "-o", "json")...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &all)
		}
		if err != nil {
			return nil, err
		}
	}
	shown := make(map[string]string)
	for _, t := range all.Tokens {
		shown["token/"+t.Name] = there
	}
	for _, m := range all.Members {
		if m.Kind != "data" {
			continue
		}
		shown["member/"+m.Name] = there
		if m.Banned {
			shown["ban/"+m.Name] = there
		}
	}
	for _, r := range all.Records {
		shown["config/"+r.Name] = fmt.Sprint(r.Min)
	}
	for _, t := range all.Transitions {
		if strings.HasPrefix(t.Reason, "set/") {
			shown[t.Reason] = there
		}
	}
	// The list has no bans of those who are no members: their join is lost, and not the ban.
	for _, w := range f.written() {
		name, ok := strings.CutPrefix(w.Key, "ban/")
		if !ok || w.Outcome == chaos.Refused || shown["member/"+name] == there || shown[w.Key] == there {
			continue
		}
		const notFound = 8
		switch _, status, said := f.ask(f.t.Context(), "member", "unban", "--dry-run", "data/"+name, "--socket", f.socket(p)); status {
		case 0:
			shown[w.Key] = there
		case notFound:
		default:
			return nil, fmt.Errorf("is %s banned? %d %s", name, status, said)
		}
	}
	manifest, err := ask("manifest", "get")
	if err != nil {
		return nil, err
	}
	grace := graceLine.FindStringSubmatch(manifest)
	if grace == nil {
		return nil, errors.New("no rejoin_grace in:\n" + manifest)
	}
	if n, ok := strings.CutSuffix(grace[1], "m"); ok { // else it is that of the beginning
		shown["manifest"] = n
	}
	return shown, nil
}

var graceLine = regexp.MustCompile(`(?m)^rejoin_grace: (\S+)$`)

// there is the value of what is there or not.
const there = "there"
