package flowcontrol

import (
	"context"
	"log/slog"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Lines that a [LogSampler] passes on each second, and at once.
const (
	LogLines = 20
	LogBurst = 200
)

// LogSampler keeps strangers from filling the log: it passes on [LogLines] lines each
// second, and says how many it left out.
type LogSampler struct {
	limiter *rate.Limiter
	dropped atomic.Int64
}

// NewLogSampler returns a sampler that has passed on nothing yet.
func NewLogSampler() *LogSampler { return &LogSampler{limiter: rate.NewLimiter(LogLines, LogBurst)} }

// Log writes the line, or counts it. The next line that is written says in left_out_before
// how many were not.
func (s *LogSampler) Log(ctx context.Context, log *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	if !s.limiter.Allow() {
		s.dropped.Add(1)
		return
	}
	if n := s.dropped.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("left_out_before", n))
	}
	log.LogAttrs(ctx, level, msg, attrs...)
}
