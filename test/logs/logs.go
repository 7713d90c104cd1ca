// Package logs keeps what code under test logs.
package logs

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// Text is what was written to it, by any number of goroutines. The zero value is empty.
type Text struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write adds p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(p)
}

// Logger writes records of this level and above to t, a line for each.
func (t *Text) Logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(t, &slog.HandlerOptions{Level: level}))
}

// String is all that was written.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Bytes is a copy of all that was written.
func (t *Text) Bytes() []byte { return []byte(t.String()) }

// Len is the number of bytes that were written.
func (t *Text) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Len()
}

// Reset forgets all that was written.
func (t *Text) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Reset()
}

// Lines are the lines that have each of these texts, in order.
func (t *Text) Lines(texts ...string) (found []string) {
	for line := range strings.Lines(t.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, line)
		}
	}
	return found
}

// Has reports whether some line has each of these texts.
func (t *Text) Has(texts ...string) bool { return len(t.Lines(texts...)) > 0 }
