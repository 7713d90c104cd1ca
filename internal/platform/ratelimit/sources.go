package ratelimit

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/errcode"
)

// Sources limits how often each source begins something, and how often all of them
// together do.
type Sources struct {
	overall *rate.Limiter
	sources *PerKey
}

// NewSources lets each source begin perSource things per second, and sourceBurst at once;
// and all of them together begin perSecond, and burst at once.
func NewSources(perSource rate.Limit, sourceBurst int, perSecond rate.Limit, burst int) *Sources {
	return &Sources{
		overall: rate.NewLimiter(perSecond, burst),
		sources: NewPerKey(perSource, sourceBurst, MaxSources),
	}
}

// Limit returns what each source may begin per second.
func (s *Sources) Limit() rate.Limit {
	perSecond, _ := s.sources.Limit()
	return perSecond
}

// Allow reports whether one more thing from addr, "host:port", may begin now, and counts it
// if so. The source is asked first, so that one noisy address cannot use up what is
// everybody's.
func (s *Sources) Allow(addr string, now time.Time) bool {
	return s.sources.Allow(Source(addr), now) && s.overall.AllowN(now, 1)
}

// Admit is [Sources.Allow] with the words for a caller: what names what is begun, such as
// "joins". Its error is [errcode.RateLimited].
func (s *Sources) Admit(what, addr string, now time.Time) error {
	if s.Allow(addr, now) {
		return nil
	}
	return errcode.New(errcode.RateLimited, "what", what+" from "+Source(addr),
		"limit", fmt.Sprintf("%v per second", s.Limit()))
}

// Len returns how many sources are remembered, [MaxSources] at most.
func (s *Sources) Len() int { return s.sources.Len() }

// Alive returns once nobody holds the lock that every call takes: a watchdog calls it.
func (s *Sources) Alive() { s.sources.Alive() }
