//go:build linux

// Package pgtest runs private PostgreSQL servers for tests, and proxies that lose
// what passes between them and a client.
//
// A server has a directory of its own, with a loopback port and a unix socket, and
// runs from the binaries of this machine's installation. It can be killed as by a
// power cut of its process, and started again on what it left.
//
// The binaries are looked for in FEALTY_POSTGRES_BIN, in Debian's
// /usr/lib/postgresql/*/bin and in PATH; tools/postgres.sh installs them. Without
// them [Start] fails, and so do the tests: nothing is skipped.
//
// PostgreSQL refuses to run as root, so a root's server runs as the user postgres,
// or else nobody.
package pgtest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// patience is how long a server may take to start or to end, on a machine that is busy.
const patience = 3 * time.Minute

// User is the superuser of every server. It needs the password on the loopback
// port, and none on the socket.
const User = "postgres"

// Server is a PostgreSQL server. Its methods are called by one goroutine at a
// time, except for URL, SocketURL and Database.
type Server struct {
	bin      string // folder of the binaries
	dir      string // all of the server's files
	addr     string // HOST:PORT
	password string
	as       *syscall.SysProcAttr

	server    *exec.Cmd     // nil while it is down
	ended     chan struct{} // closed when server ended
	watcher   *exec.Cmd
	watching  io.Closer // the watcher's input: when it ends, the server must
	databases atomic.Int64
}

// New starts a server that ends with the test.
func New(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := Start(settings...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Start makes a new database cluster and starts a server on it, with settings of
// the form name=value beside its own. The caller closes it.
func Start(settings ...string) (_ *Server, err error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fealty-pg-")
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	s := &Server{bin: bin, dir: dir}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := s.chooseUser(); err != nil {
		return nil, err
	}
	if err := s.watch(); err != nil {
		return nil, err
	}
	if err := s.makeData(); err != nil {
		return nil, err
	}
	var conf strings.Builder
	for _, set := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=" + dir, "shared_buffers=32MB", "max_connections=200",
		"autovacuum_naptime=5s", "log_min_messages=warning",
	}, settings...) {
		name, value, _ := strings.Cut(set, "=")
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	if err := appendFile(filepath.Join(s.Data(), "postgresql.conf"), conf.String()); err != nil {
		return nil, err
	}
	// Another process that takes the port between here and there makes the start fail.
	for range 5 {
		if s.addr, err = freeport.Addr(); err != nil {
			return nil, err
		}
		if err = s.Start(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// templates names, in the environment, a folder for the database cluster of the first server
// of many test runs: the others begin with a copy of it, in a tenth of the time. The program
// that sets it removes the folder.
const templates = "FEALTY_PGTEST_TEMPLATES"

// passwordFile is in the data folder, where PostgreSQL leaves it alone.
const passwordFile = "pgtest-password"

// makeData makes the data folder, and knows the password then.
func (s *Server) makeData() error {
	folder := os.Getenv(templates)
	if folder == "" {
		return s.initdb(s.Data())
	}
	template := filepath.Join(folder, "cluster")
	if _, err := os.Stat(template); errors.Is(err, fs.ErrNotExist) {
		own := filepath.Join(s.dir, "template")
		if err := s.initdb(own); err != nil {
			return err
		}
		// Whole or not at all. Another process may have been first; its own serves as well.
		if err := os.Rename(own, template); errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			if err := os.RemoveAll(own); err != nil {
				return fmt.Errorf("pgtest: %w", err)
			}
		} else if err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
	}
	copied := exec.Command("cp", "-a", template, s.Data())
	copied.SysProcAttr = s.as
	if out, err := copied.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: copy %s: %w\n%s", template, err, out)
	}
	password, err := os.ReadFile(filepath.Join(s.Data(), passwordFile))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	s.password = string(password)
	return nil
}

func (s *Server) initdb(data string) error {
	s.password = rand.Text()
	pwfile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pwfile, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if s.as.Credential != nil {
		if err := os.Chown(pwfile, int(s.as.Credential.Uid), int(s.as.Credential.Gid)); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
	}
	out, err := s.command("initdb", "-D", data, "-U", User, "--pwfile", pwfile, "--auth-local=trust", "--auth-host=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: initdb: %w\n%s", err, out)
	}
	if err := os.Rename(pwfile, filepath.Join(data, passwordFile)); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

func appendFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// binaries returns the folder of the newest PostgreSQL that is installed.
func binaries() (string, error) {
	if dir := os.Getenv("FEALTY_POSTGRES_BIN"); dir != "" {
		return dir, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		release := func(name string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(name))))
			return n
		}
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return release(a) - release(b) })), nil
	}
	if name, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(name), nil
	}
	return "", errors.New("pgtest: no PostgreSQL server here, and these tests need a real one: run tools/postgres.sh, install the package postgresql, or set FEALTY_POSTGRES_BIN to the folder of its binaries")
}

// chooseUser makes the server run as somebody, and gives them its directory.
func (s *Server) chooseUser() error {
	// In a group of its own, so that an interrupt at the terminal ends the tests
	// first, and those end the server.
	s.as = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		s.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(s.dir, int(uid), int(gid)); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
		return nil
	}
	return errors.New("pgtest: PostgreSQL does not run as root, and there is neither a user postgres nor nobody: run the tests as another user")
}

// watch starts a process that ends the server if this one does not live to do it.
func (s *Server) watch() error {
	s.watcher = exec.Command("sh", "-c", `cat >/dev/null; kill -QUIT "$(head -n 1 "$0/data/postmaster.pid")" 2>/dev/null && sleep 1; rm -rf "$0"`, s.dir)
	s.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := s.watcher.StdinPipe()
	if err != nil {
		return err
	}
	s.watching = in
	if err := s.watcher.Start(); err != nil {
		s.watcher = nil
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

// Data is the folder of the server's data: its files are only ever touched while it is
// down.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// Command returns a command of PostgreSQL, such as pg_dump, to be run as the
// server's user.
func (s *Server) Command(name string, args ...string) *exec.Cmd {
	cmd := s.command(name, args...)
	attr := *s.as
	cmd.SysProcAttr = &attr
	return cmd
}

// Dump is a database as pg_dump writes it: statements that make it again. Flags say in which form.
func (s *Server) Dump(tb testing.TB, database string, flags ...string) []byte {
	tb.Helper()
	dump, err := s.Command("pg_dump", append(flags, s.SocketURL(database))...).Output()
	if err != nil {
		tb.Fatal(err, stderrOf(err))
	}
	return dump
}

// Copy takes a dump of a database, and returns a function that puts it back in one transaction, as the manual of
// PostgreSQL says.
func (s *Server) Copy(tb testing.TB, database string) (back func()) {
	tb.Helper()
	dump := s.Dump(tb, database, "--clean", "--if-exists")
	return func() {
		tb.Helper()
		cmd := s.Command("psql", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", s.SocketURL(database))
		cmd.Stdin = bytes.NewReader(dump)
		if _, err := cmd.Output(); err != nil {
			tb.Fatal(err, stderrOf(err))
		}
	}
}

func stderrOf(err error) string {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(e.Stderr)
	}
	return ""
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = s.as
	cmd.Env = []string{"PATH=" + s.bin + ":" + os.Getenv("PATH"), "HOME=" + s.dir, "LC_ALL=C", "TZ=UTC"}
	return cmd
}

// Bin is the folder of PostgreSQL's programs.
func (s *Server) Bin() string { return s.bin }

// ServeTLS starts the server again with a certificate for 127.0.0.1, and returns
// the root that verifies it, in PEM.
func (s *Server) ServeTLS(tb testing.TB) (root []byte) {
	tb.Helper()
	cert, key := Certificate(tb)
	s.Exec(tb, "postgres",
		"alter system set ssl_cert_file = '"+s.WriteFile(tb, "server.pem", cert)+"'",
		"alter system set ssl_key_file = '"+s.WriteFile(tb, "server.key", key)+"'",
		"alter system set ssl = on")
	if err := errors.Join(s.Stop(), s.Start()); err != nil {
		tb.Fatal(err)
	}
	return cert
}

// Certificate returns a new self-signed one for 127.0.0.1, and its key, in PEM.
func Certificate(tb testing.TB) (cert, key []byte) {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
}

// Addr is where the server listens, as HOST:PORT. It stays the same.
func (s *Server) Addr() string { return s.addr }

func (s *Server) port() string { return s.addr[strings.LastIndexByte(s.addr, ':')+1:] }

// Password is that of [User].
func (s *Server) Password() string { return s.password }

// URL names a database over the loopback port, with the password.
func (s *Server) URL(database string) string { return s.URLVia(s.Addr(), database) }

// URLVia is URL with another address, such as a proxy's.
func (s *Server) URLVia(addr, database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(User, s.password), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// SocketURL names a database over the unix socket.
func (s *Server) SocketURL(database string) string {
	q := url.Values{"host": {s.dir}, "port": {s.port()}, "user": {User}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Database makes a new, empty database and returns its name.
func (s *Server) Database(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("test%d", s.databases.Add(1))
	s.Exec(tb, "postgres", "create database "+name)
	return name
}

// Exec executes statements in a database, each by itself.
func (s *Server) Exec(tb testing.TB, database string, statements ...string) {
	tb.Helper()
	if err := s.Run(database, statements...); err != nil {
		tb.Fatal(err)
	}
}

// Run is Exec without a test.
func (s *Server) Run(database string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketURL(database))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer conn.Close(ctx)
	for _, text := range statements {
		if _, err := conn.Exec(ctx, text); err != nil {
			return fmt.Errorf("pgtest: %s: %w", text, err)
		}
	}
	return nil
}

// Hold executes statements in a transaction that stays open until release is called. It begins again where the
// server ends the transaction for a deadlock: whoever uses the tables meanwhile may take locks in another order.
func (s *Server) Hold(database string, statements ...string) (release func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		release, err = s.hold(ctx, database, statements)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == deadlock {
			continue
		}
		return release, err
	}
}

// deadlock is the SQLSTATE deadlock_detected.
const deadlock = "40P01"

func (s *Server) hold(ctx context.Context, database string, statements []string) (release func() error, err error) {
	conn, err := pgx.Connect(ctx, s.SocketURL(database))
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	for _, text := range append([]string{"begin"}, statements...) {
		if _, err := conn.Exec(ctx, text); err != nil {
			return nil, errors.Join(fmt.Errorf("pgtest: %s: %w", text, err), conn.Close(ctx))
		}
	}
	return func() error { return conn.Close(context.Background()) }, nil
}

// Connect opens a connection to a database as its superuser. It is closed with
// the test.
func (s *Server) Connect(tb testing.TB, database string) *pgx.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketURL(database))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// WriteFile writes a file that the server can read and nobody else, below the
// directory of all its files (its data is in "data"), and returns its path.
func (s *Server) WriteFile(tb testing.TB, name string, data []byte) string {
	tb.Helper()
	full := filepath.Join(s.dir, name)
	if err := os.WriteFile(full, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	if s.as.Credential != nil {
		if err := os.Chown(full, int(s.as.Credential.Uid), int(s.as.Credential.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	return full
}

// Start starts a server that is down, and returns when it answers.
func (s *Server) Start() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer log.Close()
	cmd := s.command("postgres", "-D", s.Data(), "-p", s.port())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // how it ended stands in its log
	}()
	s.server, s.ended = cmd, ended
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		conn, err := pgx.Connect(ctx, s.SocketURL("postgres"))
		if err == nil {
			conn.Close(ctx)
			cancel()
			return nil
		}
		cancel()
		select {
		case <-ended:
			s.server = nil
			return fmt.Errorf("pgtest: the server did not start:\n%s", s.log())
		default:
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("pgtest: the server does not answer: %w\n%s", err, s.log()), s.Kill())
		}
	}
}

// log returns the end of the server's log.
func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4096):])
}

// Kill ends all of the server's processes at once, with SIGKILL. Their writes
// are left to the kernel. It returns when the server can be started again.
func (s *Server) Kill() error {
	if s.server == nil {
		return nil
	}
	all, err := s.halt()
	if err != nil {
		return err
	}
	memory := s.sharedMemory()
	if err := s.server.Process.Kill(); err != nil {
		return fmt.Errorf("pgtest: kill the server: %w", err)
	}
	send(all, syscall.SIGKILL)
	<-s.ended
	s.server = nil
	return until("processes of a killed server do not end", func() (bool, error) {
		if slices.ContainsFunc(all, func(pid int) bool { _, state := stat(pid); return state != "" && state != "Z" }) {
			return false, nil
		}
		// Somebody who looks at an ended process in /proc keeps its memory for that long, and PostgreSQL does
		// not start while memory of the server before is attached.
		attached, err := attachments(memory)
		return attached == 0, err
	})
}

// halt stops the server, so that it neither makes more processes nor sees any die, and returns those that
// it made.
func (s *Server) halt() ([]int, error) {
	if err := s.server.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("pgtest: stop the server: %w", err)
	}
	// A signal is there at once, but a process that is just being made is still made.
	pid := s.server.Process.Pid
	err := until("the server does not stop", func() (bool, error) {
		_, state := stat(pid)
		return state == "T" || state == "Z" || state == "", nil
	})
	if err != nil {
		return nil, err
	}
	return children(pid)
}

// sharedMemory returns the id of the server's System V shared memory, which stands behind its key in the
// seventh line of postmaster.pid; empty if it did not get as far as that.
func (s *Server) sharedMemory() string {
	text, _ := os.ReadFile(filepath.Join(s.Data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return ""
	}
	_, id, _ := strings.Cut(strings.TrimSpace(lines[6]), " ")
	return strings.TrimSpace(id)
}

// attachments returns how many processes have the shared memory with an id attached, see proc(5).
func attachments(id string) (int, error) {
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return 0, fmt.Errorf("pgtest: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 6 && fields[1] == id {
			return strconv.Atoi(fields[6])
		}
	}
	return 0, nil
}

// until waits for what has to come, for as long as patience lasts.
func until(otherwise string, is func() (bool, error)) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if done, err := is(); done || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("pgtest: " + otherwise)
		}
	}
}

// Pause stops all of the server's processes where they are, until [Server.Resume].
func (s *Server) Pause() error {
	all, err := s.halt()
	send(all, syscall.SIGSTOP)
	return err
}

// Resume lets a paused server go on.
func (s *Server) Resume() error {
	all, err := children(s.server.Process.Pid)
	send(all, syscall.SIGCONT)
	return errors.Join(err, s.server.Process.Signal(syscall.SIGCONT))
}

// send sends a signal to processes, of which some may have ended by themselves.
func send(all []int, signal syscall.Signal) {
	for _, pid := range all {
		_ = syscall.Kill(pid, signal)
	}
}

// Stop ends the server as its service manager does: connections are cut, and
// transactions under way rolled back.
func (s *Server) Stop() error { return s.end(os.Interrupt) }

func (s *Server) end(how os.Signal) error {
	if s.server == nil {
		return nil
	}
	if err := s.server.Process.Signal(how); err != nil {
		return fmt.Errorf("pgtest: stop the server: %w", err)
	}
	select {
	case <-s.ended:
		s.server = nil
		return nil
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("pgtest: the server does not end:\n%s", s.log()), s.Kill())
	}
}

// Close ends the server and deletes its files.
func (s *Server) Close() error {
	err := s.end(syscall.SIGQUIT)
	if s.watcher != nil {
		s.watching.Close()
		err = errors.Join(err, s.watcher.Wait())
		s.watcher = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// children returns the processes whose parent is pid.
func children(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	var all []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, _ := stat(child); parent == pid {
			all = append(all, child)
		}
	}
	return all, nil
}

// stat returns the parent and the state of a process, see proc(5); an empty
// state if there is none.
func stat(pid int) (parent int, state string) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, ""
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return 0, ""
	}
	parent, _ = strconv.Atoi(fields[1])
	return parent, fields[0]
}
