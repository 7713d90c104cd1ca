// Package reload reads the files of a process again when it gets SIGHUP.
//
// Whoever holds something that came from a file adds a [Part] to the [Parts] of its process, which
// runs them. Parts that follow their files by themselves are added too, so that an operator who
// replaced a file and sends the signal learns whether the new file was accepted.
package reload

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// MaxRead is how long one part may read. A file on a disk that does not answer holds up no other part for longer.
const MaxRead = 10 * time.Second

// Part is something that was read from files, such as a certificate with its key.
type Part struct {
	// Name is what it is, and for what: "the certificate of --tls-cert". It is logged.
	Name string

	// Read reads the files again, and adopts what they hold where that can be used; otherwise it keeps what it has
	// and returns why. It returns in a few words what is different now, "" if nothing is, and never a secret: it is
	// logged. One call is made at a time, unless a call took longer than [MaxRead].
	Read func(ctx context.Context) (changed string, err error)
}

// Parts are those of a process. The zero value has none. A nil *Parts takes parts and forgets them, for a
// process that nobody tells to read again.
type Parts struct {
	mu  sync.Mutex
	all []Part // guarded by mu
}

// Add adds a part.
func (p *Parts) Add(part Part) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, part)
}

// Run has all parts read again for each signal of told, one after the other, and logs in one line what changed
// and what could not be used, also if nothing changed. begins is called before each round, and what it returns after it. It
// returns when ctx ends, and leaves a read behind then that waits for a disk.
func (p *Parts) Run(ctx context.Context, told <-chan os.Signal, log *slog.Logger, begins func() (done func())) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
			done := begins()
			p.Read(ctx, log)
			done()
		}
	}
}

// Read is one round of [Parts.Run].
func (p *Parts) Read(ctx context.Context, log *slog.Logger) {
	p.mu.Lock()
	all := p.all[:len(p.all):len(p.all)]
	p.mu.Unlock()
	var changed, kept []string
	for _, part := range all {
		news, err := readWithin(ctx, part)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			kept = append(kept, part.Name+": "+err.Error())
		case news != "":
			changed = append(changed, part.Name+": "+news)
		}
	}
	attrs := []slog.Attr{slog.String("changed", "nothing"), slog.Int("parts", len(all))}
	if len(changed) > 0 {
		attrs[0] = slog.String("changed", strings.Join(changed, "; "))
	}
	if len(kept) == 0 {
		log.LogAttrs(ctx, slog.LevelInfo, "files were read again", attrs...)
		return
	}
	attrs = append(attrs, slog.String("not_used", strings.Join(kept, "; ")))
	log.LogAttrs(ctx, slog.LevelWarn, "files were read again, and what could not be used stays as it was", attrs...)
}

// readWithin reads one part, and gives up on it after [MaxRead]: reading a file cannot be cancelled.
func readWithin(ctx context.Context, part Part) (string, error) {
	type answer struct {
		changed string
		err     error
	}
	ctx, cancel := context.WithTimeout(ctx, MaxRead)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		changed, err := part.Read(ctx)
		done <- answer{changed, err}
	}()
	select {
	case a := <-done:
		return a.changed, a.err
	case <-ctx.Done():
		return "", fmt.Errorf("it was not read within %v", MaxRead)
	}
}
