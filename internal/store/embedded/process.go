package embedded

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/localsocket"
)

// How a server that died is started again: after a pause that doubles up to a bound, and is short again for one that ran
// for a while.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 10 * time.Second
	settled    = time.Minute
)

const (
	endAfter     = 15 * time.Second // that a server has to end
	maxLine      = 16 << 10         // of what it logs, in bytes
	maxSaid      = 400              // of what is kept of a line, in bytes
	slowStart    = 10 * time.Second // after which it is logged that somebody waits for it
	stillWaiting = "the embedded store does not serve yet"
)

// Config says what to start.
type Config struct {
	Program string         // the path of fealty-store
	Dir     string         // the folder of the store, absolute; it is made
	Locks   *durable.Locks // that of the folder is among them; nil: among those of nobody
	Log     *slog.Logger   // gets what the server logs, and how it ends. Required

	// QuotaBytes is [Settings.QuotaBytes].
	QuotaBytes int64
}

// Process keeps a server running. It is for concurrent use.
type Process struct {
	cfg    Config
	lock   io.Closer
	stop   context.CancelFunc
	ended  chan struct{} // closed when the server has ended for good
	closed sync.Once

	mu   sync.Mutex
	ends Ends   // guarded by mu
	down string // why it does not serve; guarded by mu
	pid  int    // of the server that runs, or ran last; guarded by mu
}

// Ends are how often a server ended that nobody told to.
type Ends struct {
	Count int
	Last  time.Time
	Said  string // how the last one ended, and its last words
}

// Start starts the server and returns when it serves.
//
// Errors: *[ProgramError] if there is none, *[LockedError] if somebody else has the folder, *[StartError] if it ends before it serves.
func Start(ctx context.Context, cfg Config) (_ *Process, err error) {
	if err := CheckProgram(cfg.Program); err != nil {
		return nil, err
	}
	if err := localsocket.CheckPath(filepath.Join(cfg.Dir, SocketName)); err != nil {
		return nil, fmt.Errorf("embedded store: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(cfg.Dir, 0o700); err != nil { // it may have been made by hand
		return nil, err
	}
	lock, err := cfg.Locks.OS().Lock(filepath.Join(cfg.Dir, ownerName))
	if held, ok := errors.AsType[*durable.LockedError](err); ok {
		return nil, &LockedError{Dir: cfg.Dir, PID: held.PID}
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	p := &Process{cfg: cfg, lock: lock, ended: make(chan struct{})}
	first, err := p.launch()
	if err != nil {
		return nil, &ProgramError{Path: cfg.Program, Err: bare(err)}
	}
	slow := time.NewTimer(slowStart)
	defer slow.Stop()
	for serves := false; !serves; {
		select {
		case <-first.ready:
			serves = true
		case <-first.ended:
			return nil, &StartError{Dir: cfg.Dir, Said: first.said()}
		case <-slow.C:
			cfg.Log.WarnContext(ctx, stillWaiting, "dir", cfg.Dir, "pid", first.pid())
		case <-ctx.Done():
			first.end()
			return nil, ctx.Err()
		}
	}
	watching, stop := context.WithCancel(context.Background())
	p.stop = stop
	go p.watch(watching, first)
	return p, nil
}

// Socket is the path at which the server serves.
func (p *Process) Socket() string { return filepath.Join(p.cfg.Dir, SocketName) }

// PID is the number of the server's process, or of the last one if none runs.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Down says why the server does not serve; "" if it does, as far as is known.
func (p *Process) Down() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

// Ends returns how often the server ended that nobody told to.
func (p *Process) Ends() Ends {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// Close ends the server, and returns when it has ended.
func (p *Process) Close() error {
	var err error
	p.closed.Do(func() {
		p.stop()
		<-p.ended
		err = p.lock.Close()
	})
	return err
}

// watch starts the server again whenever it ends, until ctx does.
func (p *Process) watch(ctx context.Context, s *server) {
	defer close(p.ended)
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			s.end()
			return
		case <-s.ended:
		}
		if time.Since(s.began) > settled {
			pause = firstPause
		}
		p.endedWith(s.said())
		for next := (*server)(nil); next == nil; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, longPause)
			var err error
			if next, err = p.launch(); err != nil {
				p.endedWith("it could not be started: " + err.Error())
				continue
			}
			s = next
		}
	}
}

// endedWith notes that a server ended.
func (p *Process) endedWith(said string) {
	p.mu.Lock()
	p.ends = Ends{Count: p.ends.Count + 1, Last: time.Now(), Said: said}
	p.down = ProgramName + " ended and is started again: " + said
	p.mu.Unlock()
	p.cfg.Log.Error("the embedded store ended, and is started again", "said", said, "dir", p.cfg.Dir)
}

// serves notes that the server whose process has this number serves.
func (p *Process) serves(pid int) {
	p.mu.Lock()
	p.down = ""
	again := p.ends.Count > 0
	p.mu.Unlock()
	if again {
		p.cfg.Log.Info("the embedded store serves again", "dir", p.cfg.Dir, "pid", pid)
	}
}

// server is one that was started.
type server struct {
	cmd   *exec.Cmd
	life  io.Closer // it ends when this is closed
	began time.Time
	ready chan struct{} // closed when it serves
	ended chan struct{} // closed when it ended

	mu    sync.Mutex
	last  string // the last line that it logged, or the one that says why it ends; guarded by mu
	dying bool   // last is the latter; guarded by mu
}

// launch starts a server and does not wait for it.
func (p *Process) launch() (*server, error) {
	settings, err := json.Marshal(Settings{Protocol: Protocol, Dir: p.cfg.Dir, QuotaBytes: p.cfg.QuotaBytes})
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(p.cfg.Program), began: time.Now(), ready: make(chan struct{}), ended: make(chan struct{})}
	s.cmd.Dir = p.cfg.Dir
	// Nothing of this process's environment is for it, such as passwords and proxies, but how Go uses the machine.
	s.cmd.Env = []string{}
	for _, name := range []string{"GOMAXPROCS", "GOMEMLIMIT", "GOGC"} {
		if v, ok := os.LookupEnv(name); ok {
			s.cmd.Env = append(s.cmd.Env, name+"="+v)
		}
	}
	// An interrupt at the terminal ends the coordinator first, which writes to its store until the end.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, bare(err)
	}
	s.life = in
	p.mu.Lock()
	p.pid = s.pid()
	p.mu.Unlock()
	var reading sync.WaitGroup
	reading.Go(func() {
		lines(out, func(line []byte) {
			if string(line) == ReadyLine && !isClosed(s.ready) {
				p.serves(s.pid())
				close(s.ready)
			}
		})
	})
	reading.Go(func() { lines(log, func(line []byte) { s.logged(p.cfg.Log, line) }) })
	go func() {
		defer close(s.ended)
		// It fits into any pipe; where nobody reads it the server ended, and says why.
		_, _ = in.Write(append(settings, '\n'))
		reading.Wait()
		_ = s.cmd.Wait() // its state says how it ended
	}()
	return s, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// end tells the server to end, waits for it, and kills it if it does not.
func (s *server) end() {
	s.life.Close()
	select {
	case <-s.ended:
	case <-time.After(endAfter):
		_ = s.cmd.Process.Kill() // it may have ended just now
		<-s.ended
	}
}

// said returns how a server ended, and its last words.
func (s *server) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	how := s.cmd.ProcessState.String()
	// What one logged that somebody killed says nothing of that.
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); s.last == "" || ok && status.Signaled() && !s.dying {
		return how
	}
	return how + ": " + s.last
}

// lines gives f each line of r without its end, the first maxLine bytes of it.
func lines(r io.Reader, f func([]byte)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			f(bytes.TrimRight(line, "\r\n"))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = b.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

// logged takes in a line that the server logged: JSON of zap, or what the runtime of Go prints when it dies.
func (s *server) logged(log *slog.Logger, line []byte) {
	level, text := slog.LevelWarn, string(line)
	dies := strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ")
	var fields map[string]any
	if json.Unmarshal(line, &fields) == nil {
		level, text = wordsOf(fields)
		dies = fields["level"] == "panic" || fields["level"] == "fatal"
	}
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	if len(text) > maxSaid {
		text = strings.ToValidUTF8(text[:maxSaid], "") + "…"
	}
	s.mu.Lock()
	// Of a program that dies the first line says why, and those after it where.
	if !s.dying {
		s.last, s.dying = text, dies
	}
	s.mu.Unlock()
	log.Log(context.Background(), level, "the embedded store logs", "said", text, "pid", s.pid())
}

// wordsOf returns level and text of a line of zap. Fields stand behind the message in the order of their names.
func wordsOf(fields map[string]any) (slog.Level, string) {
	level := slog.LevelWarn
	switch fields["level"] {
	case "debug", "info":
		level = slog.LevelDebug
	case "error", "dpanic", "panic", "fatal":
		level = slog.LevelError
	}
	text := fmt.Sprint(fields["msg"])
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch name {
		case "level", "msg", "ts", "caller", "stacktrace":
		default:
			text += fmt.Sprintf(", %s: %v", name, fields[name])
		}
	}
	return level, text
}
