package devshard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/internal/freeport"
)

const (
	// endAfter is how long a program has to end once it was told to.
	endAfter = 10 * time.Second
	// maxMetrics and maxLog bound what is read of a program, in bytes.
	maxMetrics = 4 << 20
	maxLog     = 8 << 10
)

// program is one that was started.
type program struct {
	name    string // what its files are called after
	cmd     *exec.Cmd
	at      string // where it serves
	metrics string // where it shows its metrics
	log     string
	ended   chan struct{} // closed when it ended
	paused  bool
}

// start starts a program that serves, in a process group of its own.
func (f *Fleet) start(name string, args ...string) (*program, error) {
	p := &program{name: name, log: filepath.Join(f.cfg.Dir, name+".log"), ended: make(chan struct{})}
	for _, at := range []*string{&p.at, &p.metrics} {
		addr, err := freeport.Addr()
		if err != nil {
			return nil, err
		}
		*at = addr
	}
	args = append(args, "--listen", p.at, "--metrics", p.metrics, "--data", filepath.Join(f.cfg.Dir, name))
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(f.cfg.Program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = f.cfg.Dir, log, log
	// No setting of this process is one of theirs.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FEALTY_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	apart(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its state says how it ended
	}()
	f.programs = append(f.programs, p)
	return p, nil
}

// serves waits until a program shows its metrics.
func (f *Fleet) serves(ctx context.Context, p *program) error {
	return f.cfg.Await(ctx, p.name+" to serve", func(ctx context.Context) (bool, error) {
		select {
		case <-p.ended:
			return false, fmt.Errorf("it ended with %v: %s", p.cmd.ProcessState, p.said())
		default:
		}
		_, err := scrape(ctx, p.metrics)
		return err == nil, err
	})
}

// said is the end of what a program logged.
func (p *program) said() string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-maxLog), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxLog))
	return string(text)
}

// pause stops a program where it stands.
func (p *program) pause() error {
	if err := pause(p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("stop %s with SIGSTOP: %w", p.name, err)
	}
	p.paused = true
	return nil
}

// wake lets a program go on that was stopped.
func (p *program) wake() error {
	if err := wake(p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("wake %s with SIGCONT: %w", p.name, err)
	}
	p.paused = false
	return nil
}

// end tells a program to end, waits for it, and returns its exit status. One that does not is
// killed.
func (p *program) end() int {
	if p.paused {
		_ = p.wake()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.kill()
	}
	select {
	case <-p.ended:
	case <-time.After(endAfter):
		p.kill()
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends a program at once, and waits for it.
func (p *program) kill() {
	select {
	case <-p.ended: // somebody else may have its pid
		return
	default:
	}
	_ = kill(p.cmd.Process.Pid)
	<-p.ended
}

// scrape returns the metrics of whoever shows them at an address, by their names with labels.
func scrape(ctx context.Context, at string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		var v float64
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			if _, err := fmt.Sscan(line[at:], &v); err == nil {
				out[line[:at]] = v
			}
		}
	}
	return out, nil
}
