package attest_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/attest"
)

const (
	socketVar = "FEALTY_TEST_SOCKET"
	heldVar   = "FEALTY_TEST_HELD"
)

// TestMain lets the test binary be a process that connects.
func TestMain(m *testing.M) {
	if os.Getenv(heldVar) != "" {
		held()
	} else if socket := os.Getenv(socketVar); socket != "" {
		connects(socket)
	}
	os.Exit(m.Run())
}

// connects obeys the lines that it reads from its connection: "exec PATH" becomes another program, "pass" starts
// a child that holds the connection and ends, and the end of the connection ends it.
func connects(socket string) {
	defer os.Exit(0)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		verb, path, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "exec":
			_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0)
			_ = syscall.Exec(path, []string{path}, append(os.Environ(), fmt.Sprintf("%s=%d", heldVar, f.Fd())))
		case "pass":
			cmd := exec.Command(os.Args[0])
			cmd.Env, cmd.ExtraFiles = append(os.Environ(), heldVar+"=3"), []*os.File{f}
			_ = cmd.Start()
			return
		}
	}
}

// held says that it has the connection, until that ends.
func held() {
	defer os.Exit(0)
	var fd uintptr
	fmt.Sscan(os.Getenv(heldVar), &fd)
	conn, err := net.FileConn(os.NewFile(fd, "held"))
	if err != nil {
		return
	}
	fmt.Fprintln(conn, "held")
	bufio.NewScanner(conn).Scan()
}

// peer is a process that connected.
type peer struct {
	*attest.Process
	t    *testing.T
	conn net.Conn
	cmd  *exec.Cmd
}

func (p *peer) say(line string) {
	if _, err := fmt.Fprintln(p.conn, line); err != nil {
		p.t.Fatal(err)
	}
}

// held waits until another program has the connection.
func (p *peer) held() {
	if line, err := bufio.NewReader(p.conn).ReadString('\n'); line != "held\n" {
		p.t.Fatalf("%q, %v", line, err)
	}
}

func listen(t *testing.T) *net.UnixListener {
	dir, err := os.MkdirTemp("", "p") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	return l.(*net.UnixListener)
}

func start(t *testing.T, hashes *attest.Hashes, program string, attr *syscall.SysProcAttr) *peer {
	t.Helper()
	l := listen(t)
	cmd := exec.Command(program)
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), socketVar+"="+l.Addr().String()), attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p, err := attest.OpenProcess(conn, hashes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		_ = cmd.Wait()
		p.Close()
	})
	return &peer{p, t, conn, cmd}
}

// copied is a copy of this program, with more at its end.
func copied(t *testing.T, more string) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/exe")
	path := filepath.Join(t.TempDir(), "program")
	if err == nil {
		durabletest.WriteProgram(t, path, append(raw, more...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func sum(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256(raw)
	return hex.EncodeToString(s[:])
}

func (p *peer) facts() workload.Facts {
	p.t.Helper()
	f, err := p.Facts(p.t.Context(), workload.Everything)
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

func (p *peer) refused(want error) {
	p.t.Helper()
	for _, read := range []workload.Want{workload.Everything, {Path: true}, {}} {
		if f, err := p.Facts(p.t.Context(), read); !errors.Is(err, want) || f.Path != "" || f.SHA256 != "" {
			p.t.Errorf("%+v, %v; want %v", f, err, want)
		}
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	path := copied(t, "")
	p := start(t, new(attest.Hashes), path, nil)
	f := p.facts()
	if f.PID != int32(p.cmd.Process.Pid) || f.UID != uint32(os.Getuid()) || f.GID != uint32(os.Getgid()) || f.Path != path ||
		f.SHA256 != sum(t, path) || len(f.Unread) != 0 {
		t.Errorf("%+v", f)
	}
	for _, want := range []workload.Want{{}, {Path: true}, {SHA256: true}, {Placed: true}} {
		got, err := p.Facts(t.Context(), want)
		if err != nil || (got.Path != "") != want.Path || (got.SHA256 != "") != want.SHA256 || got.UID != f.UID ||
			got.Unit != "" && !want.Placed {
			t.Errorf("of %+v: %+v, %v", want, got, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Facts(ended, workload.Everything); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	found, err := attest.FindProcess(f.PID, new(attest.Hashes))
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	if g, err := found.Facts(t.Context(), workload.Everything); err != nil || g.Path != path || g.UID != f.UID {
		t.Errorf("found by its number: %+v, %v", g, err)
	}
	p.Close()
	p.refused(attest.ErrGone)
}

// A process that ended gets nothing more, even if another one holds its connection.
func TestEnded(t *testing.T) {
	t.Parallel()
	p := start(t, new(attest.Hashes), os.Args[0], nil)
	p.say("pass")
	p.held()
	if err := p.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	p.refused(attest.ErrGone)
	if _, err := attest.OpenProcess(p.conn, new(attest.Hashes)); !errors.Is(err, attest.ErrGone) {
		t.Errorf("opened anew: %v", err)
	}
	if _, err := attest.FindProcess(int32(p.cmd.Process.Pid), new(attest.Hashes)); !errors.Is(err, attest.ErrGone) {
		t.Errorf("found: %v", err)
	}
}

// One that ended before anybody looked is nobody.
func TestEndedBefore(t *testing.T) {
	t.Parallel()
	l := listen(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), socketVar+"="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := attest.OpenProcess(conn, new(attest.Hashes)); !errors.Is(err, attest.ErrGone) {
		t.Errorf("opened: %v", err)
	}
}

// One that became another program since it connected gets nothing more.
func TestOtherProgram(t *testing.T) {
	t.Parallel()
	p := start(t, new(attest.Hashes), os.Args[0], nil)
	p.facts()
	p.say("exec " + copied(t, ""))
	p.held()
	p.refused(attest.ErrOther)
}

// A program whose file was removed or replaced has no path, and still the hash of what runs.
func TestDeleted(t *testing.T) {
	t.Parallel()
	path := copied(t, "one")
	want := sum(t, path)
	p := start(t, new(attest.Hashes), path, nil)
	if err := os.Rename(copied(t, "two"), path); err != nil {
		t.Fatal(err)
	}
	if f := p.facts(); f.Path != "" || f.Unread["path"] == "" || f.SHA256 != want {
		t.Errorf("%+v", f)
	}
	// A name that looks like it is not believed either.
	odd := copied(t, "three")
	if err := os.Rename(odd, odd+" (deleted)"); err != nil {
		t.Fatal(err)
	}
	if f := start(t, new(attest.Hashes), odd+" (deleted)", nil).facts(); f.Path != "" {
		t.Errorf("%+v", f)
	}
}

// A hash is remembered for the file as it was, and not for what was written to it since.
func TestHashes(t *testing.T) {
	t.Parallel()
	hashes, path := new(attest.Hashes), copied(t, "")
	p := start(t, hashes, path, nil)
	first := p.facts().SHA256
	if again := start(t, hashes, path, nil); again.facts().SHA256 != first {
		t.Error("two processes of one program differ")
	} else {
		again.conn.Close()
		_ = again.cmd.Wait()
	}
	p.conn.Close()
	_ = p.cmd.Wait()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString("more")
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, hashes, path, nil)
	if got := p.facts().SHA256; got == first || got != sum(t, path) {
		t.Errorf("after a change %s, want %s", got, sum(t, path))
	}
	p.conn.Close()
	_ = p.cmd.Wait()
	if err := os.Truncate(path, attest.MaxExecutable+1); err != nil {
		t.Fatal(err)
	}
	if f := start(t, hashes, path, nil).facts(); f.SHA256 != "" || f.Unread["sha256"] == "" || f.Path != path {
		t.Errorf("of a huge one: %+v", f)
	}
}

// A process that sees other files than we has no path here, and still a hash.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("makes a mount namespace, which takes root")
	}
	path := copied(t, "")
	p := start(t, new(attest.Hashes), path, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	if f := p.facts(); f.Path != "" || f.Unread["path"] == "" || f.SHA256 != sum(t, path) {
		t.Errorf("%+v", f)
	}
}
