package chaos_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program builds the program as it is built for use: without the race detector.
// FEALTY_TEST_PROGRAM names one that was built already.
var program = sync.OnceValues(func() (string, error) {
	if made := os.Getenv("FEALTY_TEST_PROGRAM"); made != "" {
		return made, nil
	}
	path := filepath.Join(scratch, "fealty")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace,nethttpomithttp2", "-o", path, "../../cmd/fealty")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, said)
	}
	return path, nil
})

// scratch is the folder of everything that is made here. Its path is short, for sockets.
// CHAOS_KEEP names an existing folder for it, in which the logs of all processes stay.
var scratch = os.Getenv("CHAOS_KEEP")

func TestMain(m *testing.M) {
	keep := scratch != ""
	if !keep {
		var err error
		if scratch, err = os.MkdirTemp("", "chaos"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if !keep {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// A machine has a disk of its own, and nothing else that is worth telling: a tmpfs in a
// mount namespace, at the same path on each of them. Where there are no user namespaces
// it is a folder of this machine's disk.
type machine struct {
	name   string
	dir    string    // of the disk, as its processes see it
	root   string    // what stands before that for everybody else; empty: there is no namespace
	holder *exec.Cmd // keeps the namespace
	end    io.Closer // of the holder's input, with which it ends
}

// diskBytes is the size of the disk of each machine.
const diskBytes = 24 << 20

// newMachine starts a machine with a disk at a path, or a folder at it if there are no
// namespaces here.
func newMachine(name, disk, folder string) (*machine, error) {
	m := &machine{name: name, dir: disk}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		fmt.Sprintf(`mount -t tmpfs -o size=%d,mode=0700 none "$0" && echo ready && exec cat >/dev/null`, diskBytes), disk)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err == nil {
		if line, _ := bufio.NewReader(out).ReadString('\n'); line == "ready\n" {
			m.root, m.holder, m.end = fmt.Sprintf("/proc/%d/root", cmd.Process.Pid), cmd, in
			return m, nil
		}
		in.Close()
		_ = cmd.Wait() // why it could not be is of no interest
	}
	m.dir = folder
	return m, os.MkdirAll(folder, 0o700)
}

func (m *machine) close() {
	if m.holder != nil {
		m.end.Close()
		_ = m.holder.Wait() // that it ended is enough
	}
}

// path returns where a file of the machine is for this process.
func (m *machine) path(elem ...string) string {
	return m.root + filepath.Join(append([]string{m.dir}, elem...)...)
}

// command returns a command that runs on the machine.
func (m *machine) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if m.holder != nil {
		args = append([]string{"--preserve-credentials", "--user", "--mount", "--target", fmt.Sprint(m.holder.Process.Pid), "--", name}, args...)
		name = "nsenter"
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=" + m.dir, "TMPDIR=" + m.dir, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// full fills the disk, and returns what frees it again.
func (m *machine) full() (free func() error, err error) {
	name := m.path("ballast")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for block := make([]byte, 64<<10); ; {
		if _, err := f.Write(block); err != nil {
			if len(block) == 512 && errors.Is(err, syscall.ENOSPC) {
				return func() error { return os.Remove(name) }, nil
			}
			if !errors.Is(err, syscall.ENOSPC) {
				return nil, errors.Join(err, os.Remove(name))
			}
			block = block[:512]
		}
	}
}

// A process is one that goes on on a machine until it is ended. Its methods are called by
// one goroutine.
type process struct {
	m    *machine
	log  string
	args []string // with the program
	web  string   // where it serves the documents of the web; empty: nowhere

	// reader, if there is one, reads what the process prints and writes it to the log. Without one the
	// process has the file itself.
	reader *reader

	cmd   *exec.Cmd     // nil while it is down
	ended chan struct{} // closed when cmd ended
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "-- %s: start\n", time.Now().Format("15:04:05.000"))
	cmd := p.m.command(context.Background(), p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.reader != nil {
		out, err := p.reader.open(p.log)
		if err != nil {
			return err
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended stands in its log
	}()
	p.cmd, p.ended = cmd, ended
	return nil
}

// A reader reads what a process prints from a pipe that holds little, as a log collector does, and stops when
// it is told to.
type reader struct {
	may sync.Mutex // held by whoever has it stop
}

// open returns the end of a new pipe for a process to write to. What comes out goes to the end of a file, until
// nobody has that end any more.
func (r *reader) open(log string) (*os.File, error) {
	to, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	from, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	if _, err := unix.FcntlInt(out.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		return nil, errors.Join(err, to.Close(), from.Close(), out.Close())
	}
	go func() {
		defer from.Close()
		defer to.Close()
		for block := make([]byte, 1024); ; {
			r.wait()
			n, err := from.Read(block)
			if _, wrong := to.Write(block[:n]); err != nil || wrong != nil {
				return
			}
		}
	}()
	return out, nil
}

// wait waits for whoever has it stop.
func (r *reader) wait() {
	r.may.Lock()
	defer r.may.Unlock()
}

// stop has it read no more, but for one block at most, until resume is called.
func (r *reader) stop() (resume func()) {
	r.may.Lock()
	return r.may.Unlock
}

// running reports whether it was started and did not end by itself.
func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends a signal. One that ended by itself takes none: it is started again soon.
func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// kill ends it at once, whatever state it is in.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	p.cmd = nil
}

// stop ends it as a supervisor does.
func (p *process) stop() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		p.cmd = nil
		return nil
	case <-time.After(30 * time.Second):
		p.kill()
		return fmt.Errorf("%s did not end:\n%s", p.m.name, p.said())
	}
}

// said returns the end of its log.
func (p *process) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-6000):])
}

// run runs a command to its end, and returns what it printed, its status, and the first
// line of what it said. The status is that of an unknown outcome if it did not end by
// itself.
func run(cmd *exec.Cmd) (out string, status int, said string) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	said = strings.Join(strings.Fields(stderr.String()), " ")
	if err == nil {
		return stdout.String(), 0, said
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return stdout.String(), exit.ExitCode(), said
	}
	return stdout.String(), unknownStatus, fmt.Sprint(err, ": ", said)
}

// unknownStatus is how commands end that do not know what became of it.
const unknownStatus = 11
