package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// A stream is what a process has for standard output and standard error.
type stream struct {
	file *os.File // what the process gets; nil: the stream is closed
	read *os.File // the other end; nil: there is none
}

func newPipe(t *testing.T) *stream {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return &stream{file: w, read: r}
}

// fill has a pipe take nothing more: the next write to it waits for a reader.
func (s *stream) fill(t *testing.T) {
	t.Helper()
	// A description of its own: the process that has the pipe must not see that this one does not wait.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()), unix.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for size := 4096; size > 0; size /= 2 {
		for {
			if _, err := unix.Write(fd, bytes.Repeat([]byte("."), size)); err != nil {
				break
			}
		}
	}
}

// drain reads a pipe from now on, as far as its writers write.
func (s *stream) drain() {
	go func(from *os.File) { _, _ = io.Copy(io.Discard, from) }(s.read)
}

// stdout and stderr are the streams of a process.
const stdout, stderr = "stdout", "stderr"

// TestStreams has processes that go on live with every state of a stream, and with SIGHUP and SIGPIPE: at the start, in
// service and while they end; of both streams, which are one then, and of each alone. Each serves, says that its log is
// lost for as long as it is, and ends with SIGTERM.
func TestStreams(t *testing.T) {
	t.Parallel()
	f := newStreams(t)
	t.Run("garbage", f.garbage)
	type row struct {
		name           string
		open           func(t *testing.T) *stream
		then           func(t *testing.T, s *stream) // in service; nil: it was so at the start
		problem        string
		drops, recover bool
		alone          string // the one of the two streams that is so; empty: both are
	}
	rows := []row{
		{name: "closed", open: func(*testing.T) *stream { return new(stream) }, problem: "it was closed when the process started"},
		{name: "full", open: func(t *testing.T) *stream {
			file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { file.Close() })
			return &stream{file: file}
		}, problem: "there is no space left", drops: true},
		{name: "reader gone", open: func(t *testing.T) *stream {
			s := newPipe(t)
			s.read.Close()
			return s
		}, problem: "nobody reads it any more", drops: true},
		{name: "reader goes", open: newPipe, then: func(_ *testing.T, s *stream) { s.read.Close() },
			problem: "nobody reads it any more", drops: true},
		{name: "reader stopped", open: func(t *testing.T) *stream {
			s := newPipe(t)
			s.fill(t)
			return s
		}, problem: "whoever reads it does not"},
		{name: "reader stops", open: newPipe, then: func(t *testing.T, s *stream) { s.fill(t) },
			problem: "whoever reads it does not", recover: true},
	}
	for _, both := range slices.Clone(rows) {
		for _, alone := range []string{stdout, stderr} {
			one := both
			one.name, one.alone = both.name+" "+alone, alone
			rows = append(rows, one)
		}
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if row.alone != "" && !strings.HasPrefix(row.name, "closed") && !strings.HasPrefix(row.name, "reader stopped") {
				testlane.Nightly(t)
			}
			f.t = t
			var all []*streaming
			for _, name := range []string{"coordinator", "agent", "provider", "shard"} {
				bad := row.open(t)
				out, err := bad, bad
				if row.alone != "" {
					good := newPipe(t)
					good.drain()
					if row.alone == stdout {
						err = good
					} else {
						out = good
					}
				}
				p := f.begin(name, out, err)
				p.stream = bad
				all = append(all, p)
				p.becomes("ready", func() bool { status, _ := p.get("/probe/readiness"); return status == http.StatusOK })
			}
			for _, p := range all {
				if row.then != nil {
					row.then(t, p.stream)
				}
				p.signal(syscall.SIGPIPE)
				p.signal(syscall.SIGHUP) // which is a line of the log
			}
			// The log is what goes to standard error. Whoever takes nothing of the other stream loses nothing of it.
			lost := row.alone != stdout
			for _, p := range all {
				if !lost {
					break
				}
				p.becomes("one that says that its log is lost", func() bool {
					// A process that another test just started has the pipe's other end for a moment yet, and the pipe
					// takes a line for it.
					if row.drops {
						p.signal(syscall.SIGHUP)
					}
					status, body := p.get("/probe/readiness")
					_, metrics := p.get("/metrics")
					return status == http.StatusOK && strings.Contains(body, row.problem) &&
						strings.Contains(metrics, "\nfealty_log_failing 1\n") &&
						(!row.drops || !strings.Contains(metrics, "\nfealty_log_dropped_total 0\n"))
				})
			}
			if !lost {
				row.problem = ""
			}
			f.works(row.name, row.problem)
			for _, p := range all {
				if lost {
					break
				}
				status, body := p.get("/probe/readiness")
				_, metrics := p.get("/metrics")
				if status != http.StatusOK || strings.Contains(body, `"log"`) || !strings.Contains(metrics, "\nfealty_log_failing 0\n") ||
					!strings.Contains(metrics, "\nfealty_log_dropped_total 0\n") {
					t.Errorf("the %s, whose log is read, says %d %s\n%s", p.name, status, body, logMetrics(metrics))
				}
			}
			if lost {
				f.until("status names the agent", func(out string) bool {
					return strings.Contains(strings.Join(strings.Fields(out), " "), "standard error of the agent of shard/eu-1 ")
				}, "status", "--socket", f.socket("coordinator-1"))
			}
			if lost && row.recover {
				for _, p := range all {
					p.stream.drain()
					p.becomes("well again", func() bool {
						_, body := p.get("/probe/readiness")
						_, metrics := p.get("/metrics")
						return !strings.Contains(body, `"log"`) && strings.Contains(metrics, "\nfealty_log_failing 0\n")
					})
				}
				f.until("status finds nothing of a log", func(out string) bool {
					return out != "" && !strings.Contains(out, "FE-U120")
				}, "status", "--socket", f.socket("coordinator-1"))
				for _, p := range all {
					p.stream.read = nil // it is read until it ends
				}
			}
			for _, p := range all {
				p.end()
			}
			for _, p := range all {
				p.ends()
			}
		})
	}
}

// garbage has strangers say to the coordinator, the provider and the shard what no TLS is: a few lines of the log tell of
// all, and a metric counts each.
func (f *streams) garbage(t *testing.T) {
	f.t = t
	const many = 40
	for _, name := range []string{"coordinator", "provider", "shard"} {
		s := newPipe(t)
		p := f.begin(name, s, s)
		p.becomes("ready", func() bool { status, _ := p.get("/probe/readiness"); return status == http.StatusOK })
		for range many {
			conn, err := net.Dial("tcp", p.listens)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, conn) // until it is closed
			conn.Close()
		}
		if name != "provider" {
			p.becomes("one that counted them", func() bool {
				_, metrics := p.get("/metrics")
				return strings.Contains(metrics, fmt.Sprintf("\nfealty_mesh_handshake_failures_total{reason=\"Protocol\"} %d\n", many))
			})
		}
		defer func() {
			p.end()
			p.ends()
			s.file.Close()
			said, err := io.ReadAll(s.read)
			if n := strings.Count(string(said), `msg="a handshake failed"`); err != nil || n == 0 || n > many/2 {
				t.Errorf("the %s says %d times that a handshake failed (%v):\n%s", name, n, err, said)
			}
		}()
	}
}

// streams is a coordinator with the members of a shard and a provider.
type streams struct {
	*fleet
	enrolled bool
}

func newStreams(t *testing.T) *streams {
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := &streams{fleet: newFleet(t, exe, "", "")}
	const name = "coordinator-1"
	if f.listens[name], err = freeport.Addr(); err != nil {
		t.Fatal(err)
	}
	f.store = "sqlite:" + filepath.Join(f.dir, "fealty.db")
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
	for _, kind := range []string{"shard", "provider"} {
		entries += "  - {name: " + kind + "s, kind: " + kind + ", match: [\"token:" + kind + "s\"], max_members: 9}\n"
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), nodes, entries+nodes, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must("manifest", "set", "m.yaml", "--socket", f.socket(name))
	f.ready(name)
	for _, member := range []string{"shard/eu-1", "provider/laptop"} {
		kind, of, _ := strings.Cut(member, "/")
		f.join(kind, of)
	}
	profiles := "profiles:\n  - name: web\n    domain: eu\n    slots: 1\n    command: [sleep, \"600\"]\n"
	if err := os.WriteFile(filepath.Join(f.dir, "profiles.yaml"), []byte(profiles), 0o600); err != nil {
		t.Fatal(err)
	}
	f.kill(name)
	return f
}

// join has a member join.
func (f *streams) join(kind, name string) {
	f.t.Helper()
	entry := kind + "s"
	if kind == "data" {
		entry = "nodes"
	}
	token := f.must("token", "create", "--entry", entry, "--name", name, "--socket", f.socket("coordinator-1"))
	f.must("join", strings.TrimSpace(token), "--kind", kind, "--data", name)
}

// works has a member join and be banned, the agent renew, and every place say what is wrong with logs; if problem is
// empty, that nothing is.
func (f *streams) works(row, problem string) {
	f.t.Helper()
	socket := f.socket("coordinator-1")
	name := strings.ReplaceAll(row, " ", "-")
	f.join("data", name)
	f.must("member", "ban", "data/"+name, "--reason", "a test", "--yes", "--socket", socket)
	local, err := client.Dial(filepath.Join(f.dir, "eu-1", "agent.sock"), patience)
	if err != nil {
		f.t.Fatal(err)
	}
	defer local.Close()
	// It is asked for until it comes through: the agent may not have reached the coordinator yet.
	f.renews(fealtyv1.NewNodeServiceClient(local))
	out, _ := f.run("status", "--socket", socket)
	checked, _ := f.run("check", "node", "--data", "eu-1", "-o", "json")
	if problem == "" {
		if out == "" || checked == "" || strings.Contains(out+checked, "FE-U120") {
			f.t.Errorf("status and check say\n%s\n%s", out, checked)
		}
		return
	}
	for _, part := range []string{"FE-U120", "standard error of coordinator coordinator-1", problem} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
			f.t.Errorf("status is without %q:\n%s", part, out)
		}
	}
	if !strings.Contains(checked, "node.log") || !strings.Contains(checked, "FE-U120") || !strings.Contains(checked, problem) {
		f.t.Errorf("check says\n%s", checked)
	}
}

func (f *streams) renews(node fealtyv1.NodeServiceClient) {
	f.t.Helper()
	wait.UntilNil(f.t, "the agent renews", func() error {
		_, err := node.RenewIdentity(f.t.Context(), new(fealtyv1.RenewIdentityRequest))
		return err
	})
}

// streaming is a process with a stream.
type streaming struct {
	f       *streams
	name    string
	cmd     *exec.Cmd
	stream  *stream // what is wrong with it is what the test is about
	listens string
	metrics string
	ended   chan struct{}
}

// begin starts a process that goes on, with these streams.
func (f *streams) begin(name string, out, err *stream) *streaming {
	f.t.Helper()
	p := &streaming{f: f, name: name, stream: err, ended: make(chan struct{})}
	var at [2]string
	for i := range at {
		var wrong error
		if at[i], wrong = freeport.Addr(); wrong != nil {
			f.t.Fatal(wrong)
		}
	}
	p.metrics, p.listens = at[0], at[1]
	if name == "coordinator" {
		p.listens = f.listens["coordinator-1"]
	}
	args := map[string][]string{
		"coordinator": {"coordinator", "--data", "coordinator-1", "--listen", f.listens["coordinator-1"]},
		"agent":       {"agent", "--data", "eu-1"},
		"provider": {"provider", "process", "--profiles", "profiles.yaml", "--agent", "laptop", "--data", "provider.data",
			"--listen", at[1]},
		"shard": {"shard", "--agent", "eu-1", "--data", "shard.data", "--listen", at[1], "--cycle", "200ms"},
	}[name]
	if name == "shard" && !f.enrolled {
		args, f.enrolled = append(args, "--enrol"), true
	}
	config := filepath.Join(f.dir, name+".yaml")
	_ = os.Remove(config) // of the row before
	if err := unix.Mkfifo(config, 0o600); err != nil {
		f.t.Fatal(err)
	}
	args = append(args, "--metrics", p.metrics, "--config", name+".yaml")
	p.cmd = f.fealty(context.WithoutCancel(f.t.Context()), args...)
	closing := ""
	if p.cmd.Stdout = out.file; out.file == nil {
		p.cmd.Stdout, closing = nil, " >&-"
	}
	if p.cmd.Stderr = err.file; err.file == nil {
		p.cmd.Stderr, closing = nil, closing+" 2>&-"
	}
	if closing != "" {
		// As a shell does it: nothing else can start a process without the stream.
		p.cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@"` + closing, p.cmd.Path}, p.cmd.Args[1:]...)
		p.cmd.Path = "/bin/sh"
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }() // its state says how it ended
	f.t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	// It stands still where it reads its settings, until there are some, and hears of the signals there.
	var settings *os.File
	p.becomes("one that reads its settings", func() bool {
		var err error
		settings, err = os.OpenFile(config, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return err == nil
	})
	defer settings.Close()
	text := []byte("log_level: info\n")
	if err := os.Remove(config); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o600); err != nil { // for when it is told to read them again
		f.t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGPIPE)
	if _, err := settings.Write(text); err != nil {
		f.t.Fatal(err)
	}
	return p
}

func (p *streaming) signal(sig os.Signal) {
	p.f.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.f.t.Fatalf("%s: %v: %v", p.name, sig, err)
	}
}

// get asks the process over HTTP.
func (p *streaming) get(path string) (status int, body string) {
	resp, err := http.Get("http://" + p.metrics + path)
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

func (p *streaming) becomes(what string, is func() bool) {
	p.f.t.Helper()
	for end := time.Now().Add(2 * patience); !is(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.ended:
			p.f.t.Fatalf("the %s ended with %v before it was %s", p.name, p.cmd.ProcessState, what)
		default:
		}
		if time.Now().After(end) {
			_, ready := p.get("/probe/readiness")
			_, metrics := p.get("/metrics")
			p.f.t.Fatalf("the %s is not %s yet: %s\n%s", p.name, what, ready, logMetrics(metrics))
		}
	}
}

// logMetrics are those that tell of the log.
func logMetrics(metrics string) string {
	return strings.Join(regexp.MustCompile(`(?m)^fealty_log_.*$`).FindAllString(metrics, -1), "\n")
}

// end tells the process to end, while the other signals come.
func (p *streaming) end() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		_ = p.cmd.Process.Signal(sig) // it may have ended
	}
}

// ends waits until the process did as it was told.
func (p *streaming) ends() {
	p.f.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * patience):
		p.f.t.Fatalf("the %s does not end", p.name)
	}
	if state := p.cmd.ProcessState; state.ExitCode() != 0 {
		p.f.t.Errorf("the %s ended with %v", p.name, state)
	}
}

// What is started by another command and goes on all the same is ended neither by the terminal that it came from nor by
// a pipe that nobody reads: by SIGTERM alone, and well. One that SIGHUP ends would not come to that.
func TestOthersThatGoOn(t *testing.T) {
	t.Parallel()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	f := startOne(t, exe)
	token := strings.TrimSpace(f.must("token", "create", "--entry", "nodes", "--name", "b", "--socket", f.socket("coordinator-1")))
	for _, row := range []struct {
		name string
		args []string
		up   string // in its log, once it is up
	}{
		{"join", []string{"join", token, "--run", "--data", "b"}, "stored in"},
		{"write", []string{"workload", "write", "--dir", "tls", "--socket", "unix:" + filepath.Join(f.dir, "nobody.sock")}, "no identity yet"},
		{"dev", []string{"dev", "--data", "d"}, "In a second terminal"},
	} {
		f.spawn(row.name, row.args...)
		cmd := f.runs[row.name]
		log := func() string {
			text, err := os.ReadFile(filepath.Join(f.dir, row.name+".log"))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		wait.Until(t, row.name+" is up", func() bool { return strings.Contains(log(), row.up) })
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM} {
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v:\n%s", row.name, err, log())
		}
		delete(f.runs, row.name)
	}
}

// A provider is told by SIGHUP to read its files again: it takes what is good, keeps what it has where that is not, and
// one line says which. Settings that cannot change while it runs are named.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	a := newActuation(t)
	authority := func() {
		t.Helper()
		public, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		a.write("authority.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	authority()
	a.write("profiles.yaml", []byte("profiles:\n  - name: web\n    slots: 1\n    command: [sleep, \"600\"]\n"))
	a.write("fealty.yaml", []byte("log_level: info\n"))
	a.start("provider", "provider/laptop", "provider", "process", "--profiles", "profiles.yaml", "--config", "fealty.yaml")
	ready := func() bool { status, _ := a.get("provider", "/probe/readiness"); return status == http.StatusOK }
	wait.Until(t, "the provider", ready)
	told := 0
	// tell returns the line that the provider says of it.
	tell := func() (line string) {
		t.Helper()
		if err := a.runs["provider"].Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		told++
		wait.Until(t, "a line of the log", func() bool {
			lines := regexp.MustCompile(`(?m)^.*files were read again.*$`).FindAllString(a.log("provider"), -1)
			if len(lines) == told {
				line = lines[told-1]
			}
			return line != ""
		})
		return line
	}
	wants := func(line string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(line, part) {
				t.Errorf("it says %q, without %q", line, part)
			}
		}
	}
	wants(tell(), "level=INFO", "changed=nothing")

	a.certify("provider/laptop")
	authority()
	// Its address is that of a flag, which counts before the file; that of the metrics too.
	a.write("fealty.yaml", []byte("log_level: debug\nlog_format: json\noutput: json\n"))
	wants(tell(), `"level":"INFO"`, "log_level is debug (fealty.yaml:1) and was info",
		"log_format is json (fealty.yaml:2) and was text", "output changed since the start, and counts from the next one on",
		"the certificate in provider/laptop/tls.crt: another one is in use, which ends at ",
		"the keys in authority.pub: the grants and assignments of ")

	a.write("provider/laptop/tls.crt", []byte("-----BEGIN CERTIFICATE-----\n"))
	a.write("authority.pub", nil)
	a.write("fealty.yaml", []byte("log_level: loud\n"))
	wants(tell(), `"level":"WARN"`, "what could not be used stays as it was", "FE-U113", "authority.pub", "tls.crt")
	if !ready() {
		t.Error("it is not ready any more")
	}
}
