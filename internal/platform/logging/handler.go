package logging

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lmittmann/tint"

	"github.com/fealty-io/fealty/internal/errcode"
)

// Config says how a log is written.
type Config struct {
	Format string     // "text" or "json"
	Level  slog.Level // the least that is written

	// Terminal writes text for a person at a terminal, and Colour with colour.
	Terminal, Colour bool
}

// Handler writes a log as one format has it. Format and level can be changed while it is used, for all loggers that
// were made of it.
type Handler struct {
	shared     *inForce
	text, json slog.Handler
}

// inForce is what a handler and all that were made of it go by.
type inForce struct {
	level slog.LevelVar
	json  atomic.Bool
}

// NewHandler returns a handler that writes to w, one call of Write for each line. If w is a [Writer], that says in
// this format what it had to leave out.
func NewHandler(w io.Writer, cfg Config) *Handler {
	h := newHandler(w, cfg, new(inForce))
	h.Set(cfg.Format, cfg.Level)
	if w, ok := w.(*Writer); ok {
		w.tellGaps(func(g Gap) []byte {
			var line bytes.Buffer
			// Not the handler itself: what it writes comes after what waits.
			r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of the log were left out here: standard error did not take them", 0)
			r.AddAttrs(slog.Uint64("lines", g.Lines), slog.Time("since", g.Since), slog.String("code", string(errcode.LogFailing)))
			_ = newHandler(&line, cfg, h.shared).Handle(context.Background(), r) // a buffer takes all
			return line.Bytes()
		})
	}
	return h
}

func newHandler(w io.Writer, cfg Config, shared *inForce) *Handler {
	h := &Handler{shared: shared, json: slog.NewJSONHandler(w, &slog.HandlerOptions{Level: &shared.level}),
		text: slog.NewTextHandler(w, &slog.HandlerOptions{Level: &shared.level})}
	if cfg.Terminal {
		h.text = tint.NewTextHandler(w, &tint.Options{Level: &shared.level, TimeFormat: "15:04:05.000", NoColor: !cfg.Colour})
	}
	return h
}

// Set changes the format, which is "text" or "json", and the level.
func (h *Handler) Set(format string, level slog.Level) {
	h.shared.json.Store(format == "json")
	h.shared.level.Set(level)
}

func (h *Handler) now() slog.Handler {
	if h.shared.json.Load() {
		return h.json
	}
	return h.text
}

// Enabled, Handle, WithAttrs and WithGroup are those of [slog.Handler].
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.shared.level.Level()
}

// Handle is one of [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error { return h.now().Handle(ctx, r) }

// WithAttrs is one of [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{shared: h.shared, text: h.text.WithAttrs(attrs), json: h.json.WithAttrs(attrs)}
}

// WithGroup is one of [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{shared: h.shared, text: h.text.WithGroup(name), json: h.json.WithGroup(name)}
}
