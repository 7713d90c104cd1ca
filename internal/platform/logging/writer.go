// Package logging writes the log of a process without ever waiting for whoever reads it.
//
// These are its promises:
//
//   - [Writer.Write] does not wait and does not fail, whatever became of the stream: it was closed,
//     its reader went away or stopped reading, its disk is full. A request, a renewal, a lease and
//     the end of the process do not depend on who reads the log.
//   - What waits to be written is bounded, in lines and in bytes.
//   - Lines keep their order. Where lines had to be dropped, one line says at that place how many,
//     as soon as the stream takes anything again; and they are counted.
//   - While the stream takes nothing, [Writer.Status] says so, and why. It stops saying so once the
//     stream takes something, without anybody having to write.
package logging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/metrics"
)

// Bounds of what waits to be written, and times of a [Writer].
const (
	MaxLines = 8192
	MaxBytes = 1 << 20

	// StuckAfter is how long one write may take before the stream counts as stuck.
	StuckAfter = 5 * time.Second

	// RetryEvery is how often a stream that failed is tried again, and nothing else is written to it.
	RetryEvery = time.Second
)

// Gap is what was left out at one place.
type Gap struct {
	Lines uint64
	Since time.Time
}

// Status is what becomes of what is written.
type Status struct {
	// Problem says why the stream takes nothing now, as in "standard error …"; "" if it does.
	Problem string

	// Since is since when; zero without a Problem.
	Since time.Time

	// Left is how many lines were left out since the start.
	Left uint64
}

// Writer is a stream that is written to by one goroutine of its own. Make it with [Start], and end it with
// [Writer.Close]. A nil *Writer stands for a stream that nobody watches: it has the zero [Status].
type Writer struct {
	to   io.Writer
	wake chan struct{} // that there is something to do
	shut chan struct{} // closed by Close
	done chan struct{} // closed when the goroutine ended

	mu      sync.Mutex
	queue   []entry          // what is written is the first one; guarded by mu, as all below
	lines   int              // of text in the queue
	bytes   int              // of text in the queue
	left    uint64           // lines that were left out, in all
	gap     func(Gap) []byte // the line that tells of one
	closed  bool             // nothing is taken any more
	direct  bool             // calls of Write write
	began   time.Time        // when the write that is under way began; zero: none is
	failure error            // of the last write; nil: it came through
	since   time.Time        // when the failures began
	nowhere time.Time        // since when what is written goes nowhere though no write fails; zero: it does not
}

// entry is text that is written at once, or else a gap.
type entry struct {
	text []byte
	gap  Gap
}

// lines of a text that is written at once.
func (e entry) lines() int { return max(1, bytes.Count(e.text, []byte("\n"))) }

// Start returns a writer to a stream. Its goroutine runs from now on.
func Start(to io.Writer) *Writer {
	w := &Writer{to: to, wake: make(chan struct{}, 1), shut: make(chan struct{}), done: make(chan struct{}),
		gap: func(g Gap) []byte {
			lines := "lines were"
			if g.Lines == 1 {
				lines = "line was"
			}
			return fmt.Appendf(nil, "fealty: %d %s left out here since %s: nobody took them\n", g.Lines, lines,
				g.Since.UTC().Format(time.RFC3339))
		}}
	if leadsNowhere(to) {
		w.nowhere = time.Now()
	}
	go w.run()
	return w
}

// Write takes p, to be written at once, or leaves it out. It fails for a writer alone that is [Writer.Direct].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	if w.direct {
		w.mu.Unlock()
		return w.to.Write(p)
	}
	defer w.mu.Unlock()
	lines := entry{text: p}.lines()
	if w.closed || w.failure != nil || w.lines+lines > MaxLines || w.bytes+len(p) > MaxBytes {
		w.leaveOut(uint64(lines))
	} else {
		w.lines += lines
		w.bytes += len(p)
		w.queue = append(w.queue, entry{text: bytes.Clone(p)})
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// leaveOut counts lines at the place where they would have been. The caller holds mu.
func (w *Writer) leaveOut(lines uint64) {
	w.left += lines
	if n := len(w.queue); n > 0 && w.queue[n-1].text == nil {
		w.queue[n-1].gap.Lines += lines
		return
	}
	w.queue = append(w.queue, entry{gap: Gap{Lines: lines, Since: time.Now()}})
}

// tellGaps has f word the line that tells of a gap.
func (w *Writer) tellGaps(f func(Gap) []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gap = f
}

// run writes until the writer is closed and there is nothing left to write, or it cannot be written.
func (w *Writer) run() {
	defer close(w.done)
	within := false // the last write ended within a line
	for {
		select {
		case <-w.wake:
		case <-w.shut:
		}
		for {
			text, told := w.first()
			if text == nil {
				break
			}
			if within && told > 0 {
				text = append([]byte("\n"), text...)
			}
			n, err := w.to.Write(text)
			if n > 0 {
				within = text[n-1] != '\n'
			}
			if w.wrote(told, err); err == nil {
				continue
			}
			again := time.NewTimer(RetryEvery)
			select {
			case <-again.C:
			case <-w.shut:
				again.Stop()
				return
			}
		}
		select {
		case <-w.shut:
			return
		default:
		}
	}
}

// first returns what is to be written next, nil if there is nothing; if it is the line of a gap, with the lines
// that it tells of.
func (w *Writer) first() (text []byte, told uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil, 0
	}
	w.began = time.Now()
	if e := w.queue[0]; e.text == nil {
		return w.gap(e.gap), e.gap.Lines
	}
	return w.queue[0].text, 0
}

// wrote takes the outcome of writing what first returned.
func (w *Writer) wrote(told uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began = (time.Time{}); err != nil {
		if w.failure == nil {
			w.since = time.Now()
		}
		w.failure = err
		w.collapse()
		return
	}
	w.failure, w.since = nil, time.Time{}
	if e := &w.queue[0]; e.text == nil {
		if e.gap.Lines -= told; e.gap.Lines > 0 {
			e.gap.Since = time.Now() // it grew meanwhile
			return
		}
	} else {
		w.lines -= e.lines()
		w.bytes -= len(e.text)
	}
	if w.queue = w.queue[1:]; len(w.queue) == 0 {
		w.queue = nil
	}
}

// collapse leaves out all that waits. The caller holds mu.
func (w *Writer) collapse() {
	all := Gap{Since: time.Now()}
	for _, e := range w.queue {
		if e.text != nil {
			w.left += uint64(e.lines())
			all.Lines += uint64(e.lines())
			continue
		}
		all.Lines += e.gap.Lines
		if e.gap.Since.Before(all.Since) {
			all.Since = e.gap.Since
		}
	}
	w.queue, w.lines, w.bytes = []entry{{gap: all}}, 0, 0
}

// Status says what becomes of what is written.
func (w *Writer) Status() Status {
	if w == nil {
		return Status{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	late := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) >= StuckAfter }
	out := Status{Left: w.left}
	switch {
	case w.failure != nil:
		out.Problem, out.Since = wordOf(w.failure), w.since
	case late(w.began):
		out.Problem, out.Since = "whoever reads it does not: one write has not come back yet", w.began
	case !w.nowhere.IsZero():
		out.Problem, out.Since = "it was closed when the process started, or leads to /dev/null", w.nowhere
	default:
		for _, e := range w.queue {
			if e.text == nil && late(e.gap.Since) {
				out.Problem, out.Since = "whoever reads it is slower than it is written to", e.gap.Since
				break
			}
		}
	}
	return out
}

// Finding words that the log of who is lost, as a finding of its own; nil while it is not.
func (w *Writer) Finding(who string) *errcode.Error {
	s := w.Status()
	if s.Problem == "" {
		return nil
	}
	return errcode.New(errcode.LogFailing, "who", who, "problem", s.Problem, "since",
		s.Since.UTC().Format(time.RFC3339), "lines", s.Left)
}

// Detail says in one line what keeps the stream from taking the log, for a probe; "" if nothing does.
func (w *Writer) Detail() string {
	s := w.Status()
	if s.Problem == "" {
		return ""
	}
	return fmt.Sprintf("standard error does not take the log since %s: %s (%s)", s.Since.UTC().Format(time.RFC3339), s.Problem,
		errcode.LogFailing)
}

// wordOf says in a few words why a write failed.
func wordOf(err error) string {
	switch {
	case errors.Is(err, syscall.EPIPE):
		return "nobody reads it any more: the other end of the pipe is closed"
	case errors.Is(err, syscall.EBADF), errors.Is(err, os.ErrClosed):
		return "it is closed"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "there is no space left where it is kept"
	case errors.Is(err, syscall.EIO):
		return "its terminal is gone, or its disk fails"
	}
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// Close writes what waits, for as long as ctx allows and the stream takes it. A write that does not come back then
// is left behind, and ends with the process. What is written afterwards is left out.
func (w *Writer) Close(ctx context.Context) {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.shut)
	}
	w.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

// Direct writes what waits, and has each call of [Writer.Write] write by itself from then on, wait for the reader and
// fail: as commands do that end by themselves.
func (w *Writer) Direct() {
	w.Close(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.direct = true
}

// Fd is the number of the stream, for whoever asks whether it is a terminal; the number of no stream if it has none.
func (w *Writer) Fd() uintptr {
	if f, ok := w.to.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// Collectors are the metrics of a writer, which may be nil.
func (w *Writer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fealty_log_dropped_total",
			Help: "Lines of the log that were left out because standard error did not take them."},
			func() float64 { return float64(w.Status().Left) }),
		metrics.GaugeIf("fealty_log_failing", "1 while standard error does not take the log: it is closed or full, or "+
			"nobody reads it.", func() bool { return w.Status().Problem != "" }),
	}
}
