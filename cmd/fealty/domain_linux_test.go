package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// startActuation starts a coordinator, and a provider and two shards with their agents, which
// own nothing.
func startActuation(t *testing.T) (*fleet, *actuation) {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
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
	f.must("manifest", "init", "--cluster", "prod.example", "--coordinator-key", name+"="+key,
		"--keeper", "file:"+filepath.Join(f.dir, "keeper.key"), "--signer-key-out", "alice.key", "--out", "m.yaml")
	file := filepath.Join(f.dir, "m.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const nodes = "  - {name: nodes, kind: data"
	entries := ""
	for _, kind := range []string{"shard", "provider", "operator"} {
		entries += "  - {name: " + kind + "s, kind: " + kind + ", match: [\"token:" + kind + "s\"], max_members: 9}\n"
	}
	changed := strings.Replace(string(text), nodes, entries+nodes, 1)
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must("manifest", "set", "m.yaml", "--socket", f.socket(name))
	f.ready(name)
	for _, member := range []string{"shard/eu-1", "shard/eu-2", "provider/laptop", "operator/acme"} {
		kind, of, _ := strings.Cut(member, "/")
		token := f.must("token", "create", "--entry", kind+"s", "--name", of, "--socket", f.socket(name))
		f.must("join", strings.TrimSpace(token), "--kind", kind, "--data", of)
		f.agent(of)
	}
	a := &actuation{t: t, program: exe, dir: f.dir, at: f.listens, runs: make(map[string]*exec.Cmd),
		tenants: make(map[string]*tenant)}
	t.Cleanup(a.endMachines)
	a.write("profiles.yaml",
		[]byte("profiles:\n  - name: web\n    domain: eu\n    slots: 8\n    command: [sleep, \"600\"]\n"))
	a.run("provider", "provider", "process", "--profiles", "profiles.yaml", "--agent", "laptop")
	// One of them is told of the provider, the other one finds it in the registry.
	a.run("shard-eu-1", "shard", "--agent", "eu-1", "--provider", "laptop="+a.at["provider"], "--enrol", "--cycle", "200ms")
	a.run("shard-eu-2", "shard", "--agent", "eu-2", "--enrol", "--cycle", "200ms")
	f.must("provider", "put", "laptop", "--address", a.at["provider"], "--socket", f.socket(name))
	return f, a
}

// Two shards before one provider: each acts in the domain while it owns it, and no longer. A
// domain moves from one to the other while machines work; one whose owner stands still is taken
// from it by force, and what that one does when it goes on is refused; and with all coordinators
// gone its owner goes on, also when it is started anew, and keeps to the quotas that it was told.
func TestDomainMove(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	f, a := startActuation(t)
	socket := f.socket("coordinator-1")
	operator, err := client.Open(client.Config{Dir: filepath.Join(f.dir, "acme"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	has := func(n int) func() bool { return func() bool { return len(a.working()) == n } }
	said := func(shard, text string) func() bool {
		return func() bool { return strings.Contains(a.log("shard-"+shard), text) }
	}

	// A shard asks for quotas every few seconds, and keeps to those that it was told: both are told of each change
	// before anything hangs on it. The provider was the first change.
	told := func(change int) {
		t.Helper()
		for _, shard := range []string{"eu-1", "eu-2"} {
			wait.Until(t, fmt.Sprintf("%s to be told of change %d of quotas and providers", shard, change),
				said(shard, fmt.Sprintf(`msg="the shard was told of quotas and providers" version=%d `, 1<<32|change)))
		}
	}

	first := a.operatorWith(operator.Source(), "shard-eu-1", 1)
	f.must("quota", "put", "acme/web", "--machines", "2", "--socket", socket)
	told(2)
	first.wants(3)
	// It has the demand, and owns nothing: a member that joins never does.
	if n := len(a.working()); n != 0 {
		t.Fatalf("before the domain was assigned there are %d machines", n)
	}
	f.must("domain", "assign", "eu", "--to", "shard/eu-1", "--socket", socket)
	wait.Until(t, "two machines, as the quota says", has(2))
	f.must("quota", "put", "acme/web", "--machines", "6", "--reason", "a test", "--socket", socket)
	told(3)
	wait.Until(t, "three machines", has(3))
	three := a.working()

	f.must("domain", "assign", "eu", "--to", "shard/eu-2", "--reason", "a move", "--socket", socket)
	wait.Until(t, "eu-1 to let go", said("eu-1", `msg="a domain was let go"`))
	f.until("eu-2 owns it", func(out string) bool { return strings.Contains(out, "shard/eu-2") && !strings.Contains(out, "moving") },
		"domain", "show", "eu", "--socket", socket)
	second := a.operatorWith(operator.Source(), "shard-eu-2", 2)
	second.wants(5)
	wait.Until(t, "five machines", has(5))
	five := a.working()
	for machine, pid := range three {
		if five[machine] != pid {
			t.Errorf("machine %s is process %d, and was %d before the domain moved", machine, five[machine], pid)
		}
	}

	// The owner stands still, and does not let go: it is passed over.
	if err := a.runs["shard-eu-2"].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	f.must("domain", "assign", "eu", "--to", "shard/eu-1", "--force", "--reason", "eu-2 stands still", "--yes", "--socket", socket)
	first.wants(6)
	wait.Until(t, "six machines", has(6))
	six := a.working()
	if err := a.runs["shard-eu-2"].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// It hears so from the provider or from a coordinator, whichever it asks first.
	wait.Until(t, "eu-2 to notice", func() bool {
		return said("eu-2", "belongs to somebody else")() || said("eu-2", "is not this member's any more")()
	})
	if now := a.working(); !maps.Equal(now, six) {
		t.Errorf("who was passed over changed machines: %v, and they were %v", now, six)
	}

	// Told to pause it decides and does nothing, also when it is started anew, until it is told to
	// resume; each of it is done once.
	tell := func(kind string) {
		t.Helper()
		f.must("instruction", "give", "shard/eu-1", kind, "--reason", "a test", "--socket", socket)
		f.until("eu-1 did "+kind, func(out string) bool { return strings.Contains(out, kind) && !strings.Contains(out, "waits") },
			"instruction", "list", "--socket", socket)
	}
	restart := func() {
		t.Helper()
		if err := a.runs["shard-eu-1"].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = a.runs["shard-eu-1"].Wait() // that it was killed is known
		a.run("shard-eu-1", "shard", "--agent", "eu-1", "--provider", "laptop="+a.at["provider"], "--cycle", "200ms")
	}
	tell("pause")
	restart()
	paused := a.operatorWith(operator.Source(), "shard-eu-1", 3)
	paused.wants(4)
	wait.Until(t, "eu-1 to be paused", func() bool {
		_, metrics := a.get("shard-eu-1", "/metrics")
		return strings.Contains(metrics, "\nfealty_shard_paused 1\n")
	})
	if now := a.working(); !maps.Equal(now, six) {
		t.Errorf("while it is paused machines change: %v, and they were %v", now, six)
	}
	tell("resume")
	wait.Until(t, "four machines", has(4))
	if out := f.must("instruction", "list", "--socket", socket, "-o", "wide"); strings.Count(out, " done ") != 2 {
		t.Errorf("what became of both: %s", out)
	}

	// The decisions of both shards are in the audit log of the cluster.
	decided := func(shard string, least int) {
		t.Helper()
		f.until(shard+"'s decisions are in the log", func(out string) bool {
			return strings.Count(out, "\"machine.") >= least
		}, "audit", "list", "--member", "shard/"+shard, "--action", "machine", "-o", "json", "--socket", socket)
	}
	decided("eu-1", 12) // what began and what became of it, for six machines at least
	decided("eu-2", 4)
	before := strings.Count(f.must("audit", "list", "--member", "shard/eu-1", "--action", "machine", "-o", "json",
		"--socket", socket), "\"machine.")

	// No coordinator is there any more, and not for the shard's next start either.
	f.kill("coordinator-1")
	paused.wants(5)
	wait.Until(t, "five machines without a coordinator", has(5))
	restart()
	again := a.operatorWith(operator.Source(), "shard-eu-1", 4)
	again.wants(8)
	wait.Until(t, "six machines after a start without a coordinator", has(6))
	_, metrics := a.get("shard-eu-1", "/metrics")
	for _, want := range []string{"fealty_shard_quotas 1", "fealty_shard_providers 1", "fealty_shard_plan_age_seconds -1"} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("without a coordinator there is no %s in %s", want, metrics)
		}
	}

	// A start that waits for a coordinator ends as soon as it is told to, and uses up no life.
	silent, err := net.Listen("tcp", f.listens["coordinator-1"])
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begun := func(text string) int { return strings.Count(a.log("shard-eu-1"), text) }
	lives, asked := begun("the shard begins a life"), begun("the shard asks a coordinator for a grant")
	restart()
	wait.Until(t, "the shard to ask", func() bool { return begun("the shard asks a coordinator for a grant") > asked })
	if err := a.runs["shard-eu-1"].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := a.runs["shard-eu-1"].Wait(); err != nil {
		t.Errorf("a start that was told to end: %v", err)
	}
	if now := begun("the shard begins a life"); now != lives {
		t.Errorf("a start that was told to end began %d lives", now-lives)
	}

	// Decisions made while no coordinator was there are in the log once there is one.
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	f.start("coordinator-1")
	f.ready("coordinator-1")
	a.run("shard-eu-1", "shard", "--agent", "eu-1", "--provider", "laptop="+a.at["provider"], "--cycle", "200ms")
	decided("eu-1", before+8)
	if n := len(a.working()); n != 6 {
		t.Errorf("%d machines work, and the quota is 6", n)
	}
	f.must("audit", "verify", "--socket", socket)
	for command, want := range map[string]string{"quota": "acme/web", "provider": a.at["provider"]} {
		if out := f.must(command, "list", "--socket", socket); !strings.Contains(out, want) {
			t.Errorf("fealty %s list shows no %s: %s", command, want, out)
		}
	}
}

// Two processes run as one shard: a newer one was started, and the one of before is there still.
// The coordinators serve the newer one alone. All that is instructed is done by it, and while it
// stands still nobody lets its domain go in its place.
func TestZombieAndCoordinators(t *testing.T) {
	t.Parallel()
	f, a := startActuation(t)
	socket := f.socket("coordinator-1")
	said := func(name, text string) func() bool {
		return func() bool { return strings.Contains(a.log(name), text) }
	}
	f.must("domain", "assign", "eu", "--to", "shard/eu-1", "--socket", socket)
	wait.Until(t, "eu-1 to own the domain", said("shard-eu-1", "this member acts there"))

	// Nobody refuses the old one at a provider: it has nothing to do there.
	a.run("shard-eu-1-new", "shard", "--agent", "eu-1", "--provider", "laptop="+a.at["provider"], "--enrol", "--cycle",
		"200ms")
	wait.Until(t, "the new one to own the domain", said("shard-eu-1-new", "this member acts there"))
	wait.Until(t, "the old one to be fenced", said("shard-eu-1", "this shard was fenced"))
	f.until("the incident", func(out string) bool { return strings.Contains(out, "FE-P102") }, "status", "--socket", socket)

	kinds := []string{"pause", "resume"}
	for i := range 10 {
		f.must("instruction", "give", "shard/eu-1", kinds[i%2], "--reason", "a test", "--socket", socket)
	}
	f.until("all ten are done", func(out string) bool {
		return strings.Count(out, " done ") == 10
	}, "instruction", "list", "--member", "shard/eu-1", "--socket", socket, "-o", "wide")
	const carriedOut = `msg="an instruction is carried out"`
	if n, old := strings.Count(a.log("shard-eu-1-new"), carriedOut),
		strings.Count(a.log("shard-eu-1"), carriedOut); n != 10 || old != 0 {
		t.Errorf("of ten instructions the new process carried out %d, and the fenced one %d", n, old)
	}

	// The owner stands still. A process that polls once a second would have let go by the time
	// that another shard was told two things, one after the other.
	if err := a.runs["shard-eu-1-new"].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	f.must("domain", "assign", "eu", "--to", "shard/eu-2", "--reason", "a move", "--socket", socket)
	for i, kind := range kinds {
		f.must("instruction", "give", "shard/eu-2", kind, "--reason", "a test", "--socket", socket)
		f.until("eu-2 did "+kind, func(out string) bool { return strings.Count(out, " done ") == i+1 },
			"instruction", "list", "--member", "shard/eu-2", "--socket", socket, "-o", "wide")
	}
	if out := f.must("domain", "show", "eu", "--socket", socket); !strings.Contains(out, "moving") ||
		strings.Contains(out, "owner      shard/eu-2") {
		t.Errorf("nobody but the fenced process could let go, and the domain went on: %s", out)
	}
	if err := a.runs["shard-eu-1-new"].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.until("eu-2 owns it", func(out string) bool {
		return strings.Contains(out, "shard/eu-2") && !strings.Contains(out, "moving")
	}, "domain", "show", "eu", "--socket", socket)
	const letGo = `msg="a domain was let go"`
	wait.Until(t, "the owner to have let go", said("shard-eu-1-new", letGo))
	if said("shard-eu-1", letGo)() {
		t.Error("the fenced process let the domain go")
	}
}
