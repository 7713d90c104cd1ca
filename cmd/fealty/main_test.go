package main

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/store/etcd/etcdtest"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/test/testlane"
)

// programDir is the folder of the program, made and named by who needs it first, and removed are others that
// go with it.
var (
	programDir string
	removed    []string
)

func TestMain(m *testing.M) {
	if os.Getenv(lingers) != "" {
		code := cli.Main()
		fmt.Println("\nended")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(code)
	}
	code := m.Run()
	for _, dir := range append(removed, programDir) {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// lingers is the variable that makes a process of these tests the program, which says when
// its command has ended, and exits when its standard input does.
const lingers = "FEALTY_TEST_LINGERS"

// A signal that comes after the command has ended changes nothing of how it ended: a
// supervisor that stops an agent which just left its cluster sees no failure.
func TestSignalAfterTheEnd(t *testing.T) {
	for _, row := range []struct {
		args []string
		want int
	}{{[]string{"help"}, 0}, {[]string{"no-such-command"}, int(errcode.ExitUsage)}} {
		t.Run(row.args[0], func(t *testing.T) {
			cmd := exec.Command(os.Args[0], row.args...)
			cmd.Env = append(os.Environ(), lingers+"=1")
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(stdout)
			for lines.Scan() && lines.Text() != "ended" {
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			stdin.Close()
			err = cmd.Wait()
			if state := cmd.ProcessState; state.ExitCode() != row.want {
				t.Errorf("it ended with %v (%v), want exit status %d", state, err, row.want)
			}
		})
	}
}

// program returns the path of the program as it is built for use: without the race
// detector, with which these tests may be. FEALTY_TEST_PROGRAM names one that was built
// already; it is called fealty.
var program = sync.OnceValues(func() (string, error) {
	if made := os.Getenv("FEALTY_TEST_PROGRAM"); made != "" {
		return made, nil
	}
	var err error
	if programDir, err = os.MkdirTemp("", "fealty-program"); err != nil {
		return "", err
	}
	path := filepath.Join(programDir, "fealty")
	// With these flags what tools/lint.sh and the tests of docs compiled is found in Go's
	// build cache.
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, said)
	}
	return path, nil
})

// moreGarbage is of the environment of the program, which collects its garbage less often with it:
// that is a tenth of what the many short commands of these tests cost.
const moreGarbage = "GOGC=200"

// The scripts run the program as people do: what a line says is what is typed, and
// the checks below it are the manual page. A line that begins with exec starts a process; one that
// begins with fealty runs the same command within the process of the tests (see [oneShot]).
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// Scripts that take long wait for the night. What a provider has to keep is held in the quick lane by the
// tests of internal/provider/conformance, and for the provider of processes by its own.
func TestNightlyScripts(t *testing.T) {
	testlane.Nightly(t)
	runScripts(t, "testdata/nightly")
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	fealty, err := program()
	if err != nil {
		t.Fatal(err)
	}
	files := certificates(t)
	maps.Copy(files, snapshots(t))
	// Where testscript would make it otherwise, builds of go are, on a disk that is waited for.
	work, err := os.MkdirTemp("", "scripts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	commands := &commandLines{t: t, dir: dir}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		WorkdirRoot:         work,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config")) // marks
			env.Vars = append(env.Vars, moreGarbage)
			env.Setenv("PATH", filepath.Dir(fealty)+string(os.PathListSeparator)+env.Getenv("PATH"))
			for name, data := range files {
				if err := os.WriteFile(filepath.Join(env.WorkDir, name), data, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"etcd":     startEtcd,
			"address":  address,
			"exits":    commands.exits,
			"fealty":   commands.run,
			"pki":      newOperators(t).issue,
			"postgres": new(servers).command,
			"serve":    serve,
			"until":    commands.until,
		},
	})
}

// address NAME puts an address of this machine that nobody has into the variable NAME.
func address(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: address NAME")
	}
	addr, err := freeport.Addr()
	ts.Check(err)
	ts.Setenv(args[0], addr)
}

// patience is how long a script waits for a process, on a machine that is busy.
const patience = 2 * time.Minute

// serve SOCKET waits until somebody serves on a unix socket.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: serve SOCKET")
	}
	path := args[0]
	if !filepath.IsAbs(path) {
		path = ts.MkAbs(path)
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", path); err == nil {
			conn.Close()
			return
		} else if time.Now().After(end) {
			ts.Fatalf("nobody serves on %s: %v", path, err)
		}
	}
}

// startEtcd is etcd start: a private server of the script, which finds it in the
// variable ETCDURL.
func startEtcd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "start" {
		ts.Fatalf("usage: etcd start")
	}
	server, err := etcdtest.Start(etcdtest.Options{})
	ts.Check(err)
	ts.Defer(func() { ts.Check(server.Close()) })
	ts.Setenv("ETCDURL", server.URL("/prod"))
}

// servers are the PostgreSQL servers of the scripts that asked for one.
type servers struct {
	mu sync.Mutex
	of map[*testscript.TestScript]*pgtest.Server // guarded by mu

	release func() error // ends the transaction of postgres lock; of one script; guarded by mu
}

// command is postgres start|kill|stop: a private server of the script, which
// finds it in the variables PGADDR, PGPASS and PGURL and gets it back after a
// kill. With postgres sql STATEMENT… its superuser gives it statements, and with
// postgres lock in a transaction that stays open until postgres unlock.
func (s *servers) command(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 || len(args) != 1 && args[0] != "sql" && args[0] != "lock" {
		ts.Fatalf("usage: postgres start|kill|stop|unlock, or postgres sql|lock STATEMENT…")
	}
	s.mu.Lock()
	server := s.of[ts]
	s.mu.Unlock()
	switch {
	case args[0] == "start" && server == nil:
		server, err := pgtest.Start()
		ts.Check(err)
		ts.Defer(func() { ts.Check(server.Close()) })
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.of == nil {
			s.of = make(map[*testscript.TestScript]*pgtest.Server)
		}
		s.of[ts] = server
		ts.Setenv("PGADDR", server.Addr())
		ts.Setenv("PGPASS", server.Password())
		ts.Setenv("PGURL", server.URL("postgres"))
	case server == nil:
		ts.Fatalf("no server was started")
	case args[0] == "start":
		ts.Check(server.Start())
	case args[0] == "kill":
		ts.Check(server.Kill())
	case args[0] == "stop":
		ts.Check(server.Stop())
	case args[0] == "lock":
		release, err := server.Hold("postgres", args[1:]...)
		ts.Check(err)
		s.mu.Lock()
		s.release = release
		s.mu.Unlock()
	case args[0] == "unlock":
		ts.Check(s.release())
	case args[0] == "sql":
		ts.Check(server.Run("postgres", args[1:]...))
	default:
		ts.Fatalf("usage: postgres start|kill|stop")
	}
}

// certificates returns PEM files of a cluster prod.example, made for this run.
func certificates(t *testing.T) map[string][]byte {
	a, other := pkitest.NewAuthority(t, "prod.example"), pkitest.NewAuthority(t, "prod.example")
	id := a.ID(t, identity.Data, "node-c")
	chain, key := a.Issue(t, id)
	expired, _ := a.Issue(t, id, pkitest.Expired())
	two, _ := a.IssueRaw(t, func(c *x509.Certificate) {
		c.ExtraExtensions = append(c.ExtraExtensions, pkitest.AltNames("spiffe://prod.example/data/a", "spiffe://prod.example/data/b"))
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	root := a.Root().Cert
	return map[string][]byte{
		"svid.pem":    append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), encode(append(chain, root)...)...),
		"expired.pem": encode(append(expired, root)...),
		"two.pem":     encode(append(two, root)...),
		"leaf.pem":    encode(chain[0]),
		"root.pem":    encode(root),
		"other.pem":   encode(other.Root().Cert),
		"bundle.pem":  encode(root, a.MeshCA().Cert),
	}
}

func encode(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}
