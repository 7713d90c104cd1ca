// Package process starts and stops the programs that `fealty dev` runs as processes of their own.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/internal/platform/freeport"
)

const (
	// EndAfter is how long a program has to end once it was told to.
	EndAfter = 10 * time.Second
	// maxMetrics and maxLog bound what is read of a program, in bytes.
	maxMetrics = 4 << 20
	maxLog     = 8 << 10
)

// Config says what to start.
type Config struct {
	Dir     string   // where the log is, and the folder of the process; it is there
	Name    string   // what its files there are called after
	Program string   // the path of the program
	Args    []string // its arguments
	Env     []string // KEY=VALUE, beside those of this process
}

// Program is one that was started. It belongs to one goroutine.
type Program struct {
	Name    string // what its files are called after
	At      string // where it serves, if [Serve] started it
	Metrics string // where it shows its metrics, likewise
	Log     string // the file with what it prints

	cmd    *exec.Cmd
	ended  chan struct{} // closed when it ended
	paused bool
}

// Serve is Start for a program that serves: its arguments end with --listen and --metrics at ports
// of loopback that are free, and --data with a folder called after it.
func Serve(cfg Config) (*Program, error) {
	var at [2]string
	for i := range at {
		addr, err := freeport.Addr()
		if err != nil {
			return nil, err
		}
		at[i] = addr
	}
	cfg.Args = append(slices.Clone(cfg.Args), "--listen", at[0], "--metrics", at[1], "--data",
		filepath.Join(cfg.Dir, cfg.Name))
	p, err := Start(cfg)
	if err != nil {
		return nil, err
	}
	p.At, p.Metrics = at[0], at[1]
	return p, nil
}

// Start starts a program in a process group of its own.
func Start(cfg Config) (*Program, error) {
	p := &Program{Name: cfg.Name, Log: filepath.Join(cfg.Dir, cfg.Name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(cfg.Program, cfg.Args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = cfg.Dir, log, log
	// No setting of this process is one of theirs.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FEALTY_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, cfg.Env...)
	apart(p.cmd)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its state says how it ended
	}()
	return p, nil
}

// PID is the number of its process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Paused reports whether it was stopped where it stands.
func (p *Program) Paused() bool { return p.paused }

// Runs returns an error that has what the program said if it ended.
func (p *Program) Runs() error {
	select {
	case <-p.ended:
		return fmt.Errorf("it ended with %v: %s", p.cmd.ProcessState, p.Said())
	default:
		return nil
	}
}

// Serves reports whether a program shows its metrics, and why not.
func (p *Program) Serves(ctx context.Context) (bool, error) {
	if err := p.Runs(); err != nil {
		return false, err
	}
	_, err := Scrape(ctx, p.Metrics)
	return err == nil, err
}

// Said is the end of what a program logged.
func (p *Program) Said() string {
	f, err := os.Open(p.Log)
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

// Pause stops a program where it stands.
func (p *Program) Pause() error {
	if err := pause(p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("stop %s with SIGSTOP: %w", p.Name, err)
	}
	p.paused = true
	return nil
}

// Wake lets a program go on that was stopped.
func (p *Program) Wake() error {
	if err := wake(p.cmd.Process.Pid); err != nil {
		return fmt.Errorf("wake %s with SIGCONT: %w", p.Name, err)
	}
	p.paused = false
	return nil
}

// End tells a program to end, waits for it, and returns its exit status. One that does not is
// killed.
func (p *Program) End() int {
	if p.paused {
		_ = p.Wake()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.Kill()
	}
	select {
	case <-p.ended:
	case <-time.After(EndAfter):
		p.Kill()
	}
	return p.cmd.ProcessState.ExitCode()
}

// Kill ends a program at once, and waits for it.
func (p *Program) Kill() {
	select {
	case <-p.ended: // somebody else may have its pid
		return
	default:
	}
	_ = kill(p.cmd.Process.Pid)
	<-p.ended
}

// Scrape returns the metrics of whoever shows them at an address, by their names with labels.
func Scrape(ctx context.Context, at string) (map[string]float64, error) {
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
