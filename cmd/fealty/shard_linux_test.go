package main

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/operator"
	"github.com/fealty-io/fealty/test/wait"
)

// actuation is a provider of processes and shards before it, as programs, without any
// coordinator.
type actuation struct {
	t       *testing.T
	program string
	dir     string
	pki     *pkitest.PKI
	at      map[string]string // addresses, by the names of programs
	runs    map[string]*exec.Cmd
	tenants map[string]*tenant // by the shards
}

func newActuation(t *testing.T) *actuation {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	a := &actuation{t: t, program: name, dir: t.TempDir(), pki: pkitest.NewPKI(t, "corp", nil),
		at: make(map[string]string), runs: make(map[string]*exec.Cmd), tenants: make(map[string]*tenant)}
	for _, id := range []string{"provider/laptop", "shard/eu-1", "operator/acme"} {
		a.certify(id)
	}
	t.Cleanup(a.endMachines)
	return a
}

// endMachines ends the processes of machines, which outlive their provider.
func (a *actuation) endMachines() {
	for _, pid := range a.working() {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// certify writes the three files of an identity, as an operator's PKI does.
func (a *actuation) certify(path string) {
	a.t.Helper()
	id, err := identity.Parse("spiffe://prod.example/" + path)
	if err != nil {
		a.t.Fatal(err)
	}
	key := pkitest.NewKey(a.t)
	chain := a.pki.Issue(a.t, key, func(c *x509.Certificate) { c.URIs = []*url.URL{id.URL()} })
	a.write(path+"/tls.crt", pkitest.PEM(chain...))
	a.write(path+"/tls.key", pkitest.KeyPEM(a.t, key))
	a.write(path+"/ca.crt", pkitest.PEM(a.pki.Root.Cert))
}

func (a *actuation) write(name string, data []byte) {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		a.t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// grant writes a grant of the shard, signed by the authority whose public key is in
// authority.pub.
func (a *actuation) grant(name string, number uint32, key ed25519.PrivateKey) {
	a.t.Helper()
	text, err := fence.Grant{Cluster: "prod.example", Holder: "spiffe://prod.example/shard/eu-1", Number: number,
		AuthorityEpoch: 1}.Sign(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name, []byte(text+"\n"))
}

// start starts a program that is called name here, with the identity of path.
func (a *actuation) start(name, path string, args ...string) {
	a.t.Helper()
	a.run(name, append(args, "--tls-cert", path+"/tls.crt", "--tls-key", path+"/tls.key", "--tls-ca", path+"/ca.crt",
		"--authority-key", "authority.pub")...)
}

// run starts a program that is called name here.
func (a *actuation) run(name string, args ...string) {
	a.t.Helper()
	if a.at[name] == "" {
		for _, what := range []string{name, name + " metrics"} {
			addr, err := freeport.Addr()
			if err != nil {
				a.t.Fatal(err)
			}
			a.at[what] = addr
		}
	}
	args = append(args, "--listen", a.at[name], "--metrics", a.at[name+" metrics"], "--data", name+".data")
	cmd := exec.Command(a.program, args...)
	log, err := os.OpenFile(filepath.Join(a.dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = a.dir, log, log
	cmd.Env = []string{"HOME=" + a.dir, "TMPDIR=" + a.dir, "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.runs[name] = cmd
	a.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if a.t.Failed() {
			a.t.Logf("%s:\n%s", name, a.log(name))
		}
	})
}

func (a *actuation) log(name string) string {
	text, err := os.ReadFile(filepath.Join(a.dir, name+".log"))
	if err != nil {
		a.t.Fatal(err)
	}
	return string(text)
}

// get asks a program over HTTP.
func (a *actuation) get(name, path string) (status int, body string) {
	resp, err := http.Get("http://" + a.at[name+" metrics"] + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// working are the processes of the machines that a tenant has, by the machine.
func (a *actuation) working() map[string]int { return a.machines("configured") }

// machines are the machines in a state, with their processes, as the provider has them on disk.
func (a *actuation) machines(state string) map[string]int {
	out := make(map[string]int)
	files, err := filepath.Glob(filepath.Join(a.dir, "provider.data", "machines", "*", "machine.json"))
	if err != nil || len(files) == 0 {
		files, _ = filepath.Glob(filepath.Join(a.dir, "provider.data", "machines", "*"))
	}
	for _, file := range files {
		var m struct {
			Machine, State string
			Process        struct{ PID int }
		}
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &m) != nil || m.State != state {
			continue
		}
		out[m.Machine] = m.Process.PID
	}
	return out
}

// tenant is the operator of tenant acme at a shard.
type tenant struct {
	a      *actuation
	states *operator.Operator
	end    func()
}

// operator runs the operator of acme at a shard until the test ends, or another one of it is run there.
func (a *actuation) operator(shard string, run uint64) *tenant {
	a.t.Helper()
	files, err := credential.NewFiles(credential.FilesConfig{Paths: credential.FilePaths{
		Cert: filepath.Join(a.dir, "operator/acme/tls.crt"), Key: filepath.Join(a.dir, "operator/acme/tls.key"),
		CA: filepath.Join(a.dir, "operator/acme/ca.crt")}})
	if err != nil {
		a.t.Fatal(err)
	}
	return a.operatorWith(files, shard, run)
}

// operatorWith is operator with an identity of the tenant; nil is none.
func (a *actuation) operatorWith(source credential.Source, shard string, run uint64) *tenant {
	a.t.Helper()
	if before := a.tenants[shard]; before != nil {
		before.end()
	}
	cfg := operator.Config{Target: a.at[shard], Source: source, RunNumber: run, Log: slog.New(slog.DiscardHandler)}
	if source == nil {
		cfg.Insecure, cfg.Tenant = true, "acme"
	}
	o, err := operator.Open(cfg)
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); _ = o.Run(ctx) }() // what it ends with, Set tells
	end := sync.OnceFunc(func() { cancel(); <-over; o.Close() })
	a.t.Cleanup(end)
	a.tenants[shard] = &tenant{a, o, end}
	return a.tenants[shard]
}

// wants reports what the tenant wants, until the shard takes it.
func (o *tenant) wants(machines int) {
	o.a.t.Helper()
	if err := o.states.Set(o.a.t.Context(), []operator.Row{{Profile: "web", Priority: 5, Count: machines}}); err != nil {
		o.a.t.Fatal(err)
	}
}

// A shard is stopped, and another process with its identity takes over under the next grant.
// Then the first one goes on, as if nothing had happened: the provider refuses it, no process
// of a machine notices, and the incident is in its log, its metrics, its journal and its end.
// No coordinator is there at any time.
func TestZombieShard(t *testing.T) {
	t.Parallel()
	a := newActuation(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	a.write("authority.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	a.grant("first.grant", 1, private)
	a.grant("second.grant", 2, private)
	a.write("profiles.yaml", []byte("profiles:\n  - name: web\n    slots: 6\n    command: [sleep, \"600\"]\n"))
	a.start("provider", "provider/laptop", "provider", "process", "--profiles", "profiles.yaml")
	has := func(n int) func() bool { return func() bool { return len(a.working()) == n } }
	run := func(name, grant string) {
		a.start(name, "shard/eu-1", "shard", "--provider", "laptop="+a.at["provider"], "--grant", grant, "--enrol",
			"--quota", "acme/web=6", "--cycle", "200ms")
	}

	run("first", "first.grant")
	o := a.operator("first", 1)
	o.wants(3)
	wait.Until(t, "three machines", has(3))
	before := a.working()

	if err := a.runs["first"].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	run("second", "second.grant")
	next := a.operator("second", 2)
	next.wants(5)
	wait.Until(t, "five machines", has(5))
	five := a.working()
	for machine, pid := range before {
		if five[machine] != pid {
			t.Errorf("machine %s is process %d, and was %d before the takeover", machine, five[machine], pid)
		}
	}

	// It sees two machines too many, and takes them back: it believes that it is in charge.
	if err := a.runs["first"].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the incident", func() bool { return strings.Contains(a.log("first"), "this shard was fenced") })
	if now := a.working(); !maps.Equal(now, five) {
		t.Errorf("the zombie changed machines: %v, and they were %v", now, five)
	}
	for machine, pid := range five {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("the process of machine %s: %v", machine, err)
		}
	}
	if _, metrics := a.get("first", "/metrics"); !strings.Contains(metrics, "\nfealty_shard_fenced 1\n") {
		t.Errorf("its metrics do not tell: %s", metrics)
	}
	if status, _ := a.get("first", "/probe/readiness"); status != http.StatusServiceUnavailable {
		t.Errorf("it is ready: %d", status)
	}
	if !strings.Contains(a.log("provider"), `msg="the fence refused a shard"`) ||
		!strings.Contains(a.log("provider"), "reason=stale") {
		t.Error("the provider does not tell of it")
	}
	if _, metrics := a.get("provider", "/metrics"); !strings.Contains(metrics, `fealty_provider_refused_total{reason="stale"}`) {
		t.Errorf("the provider does not count it: %s", metrics)
	}
	// The log tells at once, and the journal once the call that was refused is over.
	wait.UntilNil(t, "its journal tells", func() error {
		for said, err := range execute.Replay(execute.Export(durable.OS(), filepath.Join(a.dir, "first.data", "journal"))) {
			if err != nil {
				return err
			}
			if said.Outcome == "fenced" {
				return nil
			}
		}
		return errors.New("nothing of the fence")
	})

	// The other one goes on.
	next.wants(6)
	wait.Until(t, "six machines", has(6))
	if _, metrics := a.get("second", "/metrics"); !strings.Contains(metrics, "\nfealty_shard_fenced 0\n") {
		t.Errorf("the successor: %s", metrics)
	}
	if err := a.runs["first"].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := a.runs["first"].Wait(); a.runs["first"].ProcessState.ExitCode() != 10 ||
		!strings.Contains(a.log("first"), "FE-P102") {
		t.Errorf("it ended with %v", err)
	}
}

// Everything without TLS, on loopback addresses: to try things out. What nobody wants any more is deleted, but one.
func TestInsecureShard(t *testing.T) {
	t.Parallel()
	a := newActuation(t)
	a.write("profiles.yaml", []byte("profiles:\n  - name: web\n    slots: 4\n    command: [sleep, \"600\"]\n"))
	a.run("provider", "provider", "process", "--profiles", "profiles.yaml", "--insecure", "--believe-epochs")
	a.run("shard", "shard", "--provider", "laptop="+a.at["provider"], "--insecure", "--enrol", "--cycle", "200ms", "--keep-idle", "1")
	o := a.operatorWith(nil, "shard", 1)
	o.wants(4)
	wait.Until(t, "four machines", func() bool { return len(a.working()) == 4 })
	o.wants(2)
	wait.Until(t, "two machines, and an idle one", func() bool { return len(a.working()) == 2 && len(a.machines("idle")) == 1 })
}
