package balancer

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How many lines a journal writes: at once, and one more in each pause.
const (
	LinesAtOnce = 64
	LinePause   = time.Second
)

// maxNamed bounds the addresses that one line lists.
const maxNamed = 8

// Journal says in one log line each that an endpoint is rejected, for another reason than before,
// or healed. A line that the limit holds back is written at the next attempt, unless by then it says
// no more than the last one did. A nil Journal says nothing.
type Journal struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu     sync.Mutex
	states map[string]*state // of endpoints that are, or were said to be, rejected; guarded by mu
	left   []LeftOut         // said last; guarded by mu
}

// state is what an endpoint is rejected for; "" is healed.
type state struct{ is, said string }

// NewJournal returns a journal that writes to log.
func NewJournal(log *slog.Logger) *Journal {
	return &Journal{log: log, limit: rate.NewLimiter(rate.Every(LinePause), LinesAtOnce),
		states: make(map[string]*state)}
}

// Rejected notes that the handshake with endpoint failed. details go into the line.
func (j *Journal) Rejected(endpoint, reason string, details ...any) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.states[endpoint]
	if s == nil {
		s = &state{}
		j.states = put(j.states, endpoint, s)
	}
	if s.is = reason; s.said == s.is || !j.limit.Allow() {
		return
	}
	s.said = s.is
	j.log.Warn("endpoint rejected, it is skipped and tried again",
		append([]any{"endpoint", endpoint, "reason", reason}, details...)...)
}

// Healed notes that endpoint answered over a connection that was secured.
func (j *Journal) Healed(endpoint string) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.states[endpoint]
	if s == nil {
		return
	}
	s.is = ""
	if s.said != "" {
		if !j.limit.Allow() {
			return
		}
		j.log.Info("endpoint healed", "endpoint", endpoint, "was", s.said)
	}
	delete(j.states, endpoint)
}

// Resolved notes which addresses a set has now, and which of them are not used.
func (j *Journal) Resolved(addresses []string, left []LeftOut) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for e := range j.states {
		if !slices.Contains(addresses, e) {
			delete(j.states, e)
		}
	}
	if slices.Equal(left, j.left) || len(left) > 0 && !j.limit.Allow() {
		return
	}
	j.left = left
	if len(left) == 0 {
		return
	}
	named := make([]string, 0, maxNamed)
	for _, l := range left[:min(len(left), maxNamed)] {
		named = append(named, l.Address+": "+l.Why)
	}
	j.log.Warn("endpoints are left out", "endpoints", named, "left_out", len(left), "used", len(addresses))
}
