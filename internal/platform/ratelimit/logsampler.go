package ratelimit

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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

// Lines of one kind that a [NoiseSampler] passes on at once, and the time from each to the next after that.
const (
	NoiseBurst = 5
	NoiseEvery = time.Minute

	maxKinds = 32
)

// NoiseSampler keeps short what the log says of connections that come to nothing, which anybody who reaches a port can
// make for as long as they like: of each kind it passes on [NoiseBurst] lines, and then one in [NoiseEvery], which says how
// many it left out. Whoever counts them all has a metric. The zero value has passed on nothing yet.
type NoiseSampler struct {
	mu sync.Mutex
	of map[string]*LogSampler // by kind; guarded by mu
}

// Log writes the line, or counts it; see [LogSampler.Log]. kind is one of a few, and not what a stranger chose: of more
// than 32 the later ones count as one.
func (s *NoiseSampler) Log(ctx context.Context, log *slog.Logger, kind string, level slog.Level, msg string,
	attrs ...slog.Attr) {
	s.kind(kind).Log(ctx, log, level, msg, attrs...)
}

func (s *NoiseSampler) kind(kind string) *LogSampler {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]*LogSampler)
	}
	if s.of[kind] == nil && len(s.of) >= maxKinds {
		kind = ""
	}
	if s.of[kind] == nil {
		s.of[kind] = &LogSampler{limiter: rate.NewLimiter(rate.Every(NoiseEvery), NoiseBurst)}
	}
	return s.of[kind]
}
