package logging_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/logging"
)

// stream is one whose reader can stop, and which can fail.
type stream struct {
	mu    sync.Mutex
	text  bytes.Buffer
	fails error
	takes int           // bytes of the next write before it fails
	held  chan struct{} // nil: it is read
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		n, _ := s.text.Write(p[:min(s.takes, len(p))])
		s.takes = 0
		return n, s.fails
	}
	return s.text.Write(p)
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *stream) hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.held = held
	return func() {
		s.mu.Lock()
		s.held = nil
		s.mu.Unlock()
		close(held)
	}
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func say(w io.Writer, lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
}

// A stream that is read gets everything, in order, and there is nothing to tell.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(stream)
		w := logging.Start(to)
		var want strings.Builder
		for i := range 3 * logging.MaxLines {
			line := fmt.Sprint("line ", i)
			say(w, line)
			fmt.Fprintln(&want, line)
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		w.Close(t.Context())
		if to.String() != want.String() {
			t.Error("it wrote something else than it was given")
		}
		if s := w.Status(); s != (logging.Status{}) {
			t.Errorf("its status is %+v", s)
		}
		if say(w, "late"); w.Status().Left != 1 || strings.Contains(to.String(), "late") {
			t.Errorf("after the end it took a line: %+v", w.Status())
		}
	})
}

// A reader that stops holds up nobody: what waits is bounded, what is left out is told at its place once it reads
// again, and the status says so for as long as it lasts.
func TestReaderStops(t *testing.T) {
	for name, line := range map[string]string{
		"short lines": "x",
		"long lines":  strings.Repeat("x", logging.MaxBytes/16),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := new(stream)
				w := logging.Start(to)
				release := to.hold()
				began := time.Now()
				given := 3 * min(logging.MaxLines, logging.MaxBytes/len(line))
				for range given {
					say(w, line)
				}
				if s := w.Status(); s.Problem != "" || s.Left == 0 {
					t.Errorf("at once its status is %+v", s)
				}
				time.Sleep(logging.StuckAfter)
				s := w.Status()
				if !strings.Contains(s.Problem, "whoever reads it does not") || !s.Since.Equal(began) {
					t.Errorf("its status is %+v", s)
				}
				release()
				synctest.Wait()
				say(w, "after")
				synctest.Wait()
				if s := w.Status(); s.Problem != "" || !s.Since.IsZero() {
					t.Errorf("once it is read its status is %+v", s)
				}
				all := strings.Split(strings.TrimSuffix(to.String(), "\n"), "\n")
				kept := given - int(s.Left)
				if len(all) != kept+2 || all[kept-1] != line || all[kept+1] != "after" ||
					!strings.Contains(all[kept], fmt.Sprint(s.Left, " lines were left out here since ")) {
					t.Errorf("of %d lines it kept %d, and wrote %d, of which the last are %q", given, kept, len(all),
						all[max(0, len(all)-2):])
				}
				w.Close(t.Context())
			})
		})
	}
}

// What fails says why, is tried each second although nobody writes, and what was left out is told once.
func TestFails(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EPIPE:  "nobody reads it any more",
		syscall.EBADF:  "it is closed",
		syscall.ENOSPC: "no space left",
		syscall.EIO:    "its terminal is gone",
		&os.PathError{Op: "write", Path: "/dev/stderr", Err: errors.New("broken")}: "broken",
	} {
		t.Run(err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := new(stream)
				w := logging.Start(to)
				defer w.Close(t.Context())
				say(w, "first")
				synctest.Wait()
				to.fail(err)
				to.takes = 3
				began := time.Now()
				say(w, "second")
				synctest.Wait()
				time.Sleep(10 * logging.RetryEvery)
				say(w, "third", "fourth")
				if s := w.Status(); !strings.Contains(s.Problem, want) || !s.Since.Equal(began) || s.Left != 3 {
					t.Errorf("its status is %+v", s)
				}
				to.fail(nil)
				time.Sleep(2 * logging.RetryEvery)
				if s := w.Status(); s != (logging.Status{Left: 3}) {
					t.Errorf("once it is written its status is %+v", s)
				}
				say(w, "fifth")
				synctest.Wait()
				got := to.String()
				before, after, _ := strings.Cut(got, "fealty: 3 lines were left out here since "+began.UTC().Format(time.RFC3339))
				if before != "first\nsec\n" || !strings.HasSuffix(after, "\nfifth\n") || strings.Count(after, "\n") != 2 {
					t.Errorf("it wrote\n%s", got)
				}
			})
		})
	}
}

// A reader that is slower than it is written to is told too, though each write comes back.
func TestReaderIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(slow)
		w := logging.Start(to)
		for range 2 * logging.MaxLines {
			say(w, "x")
		}
		time.Sleep(logging.StuckAfter)
		if s := w.Status(); !strings.Contains(s.Problem, "slower") {
			t.Errorf("its status is %+v", s)
		}
		w.Close(t.Context())
		if s := w.Status(); s.Problem != "" {
			t.Errorf("in the end its status is %+v", s)
		}
	})
}

// slow takes its time for each line.
type slow struct{}

func (slow) Write(p []byte) (int, error) {
	time.Sleep(2 * logging.StuckAfter / logging.MaxLines)
	return len(p), nil
}

// The end writes what there is, and waits for a stream that takes nothing no longer than it may.
func TestClose(t *testing.T) {
	const bound = 3 * time.Second
	for name, row := range map[string]struct {
		hold   bool
		fails  error
		within time.Duration
		want   string
	}{
		"read":    {want: "last\n"},
		"stopped": {hold: true, within: bound},
		"failing": {fails: syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to := new(stream)
				w := logging.Start(to)
				release := func() {}
				if row.hold {
					release = to.hold()
				}
				to.fail(row.fails)
				say(w, "last")
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				defer cancel()
				w.Close(ctx)
				if took := time.Since(began); took != row.within || to.String() != row.want {
					t.Errorf("after %v it had written %q", took, to.String())
				}
				release()
				synctest.Wait()
			})
		})
	}
}

// Commands that end by themselves wait for their reader, and hear of what fails.
func TestDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(stream)
		w := logging.Start(to)
		say(w, "before")
		io.WriteString(w, "one ")
		io.WriteString(w, "line\n")
		w.Direct()
		say(w, "after")
		to.fail(syscall.EPIPE)
		if _, err := io.WriteString(w, "lost"); !errors.Is(err, syscall.EPIPE) || to.String() != "before\none line\nafter\n" {
			t.Errorf("it returned %v, and wrote %q", err, to.String())
		}
		w.Close(t.Context())
	})
}

// Nobody watches a stream that is none.
func TestNil(t *testing.T) {
	var w *logging.Writer
	if s := w.Status(); s != (logging.Status{}) || len(w.Collectors()) == 0 {
		t.Errorf("its status is %+v", s)
	}
}

// A stream that was closed before the process began is known, and one that was sent nowhere on purpose is none.
func TestClosedAtTheStart(t *testing.T) {
	for name, row := range map[string]struct {
		flags int
		want  bool
	}{"closed": {os.O_RDWR, true}, "on purpose": {os.O_WRONLY, false}} {
		t.Run(name, func(t *testing.T) {
			f, err := os.OpenFile(os.DevNull, row.flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w := logging.Start(f)
			defer w.Close(t.Context())
			if s := w.Status(); (s.Problem != "") != row.want || s.Since.IsZero() == row.want {
				t.Errorf("its status is %+v", s)
			}
		})
	}
}

// Format and level change for all loggers that there are, and a gap is told in the format of the log.
func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(stream)
		w := logging.Start(to)
		h := logging.NewHandler(w, logging.Config{Format: "text", Level: slog.LevelInfo})
		log := slog.New(h).With("cluster", "prod.example").WithGroup("of")
		log.Debug("hidden")
		log.Info("shown", "name", "a")
		h.Set("json", slog.LevelDebug)
		log.Debug("shown too", "name", "b")
		synctest.Wait()
		to.fail(syscall.ENOSPC)
		log.Info("lost")
		synctest.Wait()
		to.fail(nil)
		time.Sleep(2 * logging.RetryEvery)
		w.Close(t.Context())
		lines := strings.Split(strings.TrimSuffix(to.String(), "\n"), "\n")
		want := []string{`msg=shown cluster=prod.example of.name=a`,
			`"msg":"shown too","cluster":"prod.example","of":{"name":"b"}}`,
			`"msg":"lines of the log were left out here: standard error did not take them","lines":1,"since":`}
		if len(lines) != len(want) {
			t.Fatalf("it wrote\n%s", to)
		}
		for i, line := range lines {
			if !strings.Contains(line, want[i]) {
				t.Errorf("line %d is %s", i, line)
			}
		}
		if !strings.HasSuffix(lines[2], `"code":"FE-U120"}`) {
			t.Errorf("a gap is told without a code: %s", lines[2])
		}
	})
}
