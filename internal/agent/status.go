package agent

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalPause bounds how often the same refusal of a scope is written to disk.
const refusalPause = time.Minute

// condition is what the agent tells of itself.
type condition struct {
	now func() time.Time

	mu          sync.Mutex
	connected   bool               // guarded by mu
	lost        time.Time          // when contact was lost; zero: there was none yet; guarded by mu
	coordinator string             // in use, or the last one; guarded by mu
	stream      error              // why there is no stream; guarded by mu
	renewal     error              // why the last renewal failed; guarded by mu
	nextRenewal time.Time          // guarded by mu
	standing    string             // what the membership said last of this node; guarded by mu
	refusal     map[string]refusal // that stand, by scope; guarded by mu
	changes     uint64             // of refusal; guarded by mu
}

// view is a copy of a condition.
type view struct {
	connected   bool
	lost        time.Time
	coordinator string
	stream      error
	renewal     error
	nextRenewal time.Time
	standing    string
}

func (s *condition) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{s.connected, s.lost, s.coordinator, s.stream, s.renewal, s.nextRenewal, s.standing}
}

// lastError is the view's trouble in one line, or "".
func (v view) lastError() string {
	var parts []string
	if !v.connected && v.stream != nil {
		parts = append(parts, oneLine(v.stream))
	}
	if v.renewal != nil {
		parts = append(parts, "renewal: "+oneLine(v.renewal))
	}
	return strings.Join(parts, "; ")
}

func (s *condition) opened(coordinator string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected, s.coordinator, s.stream = true, coordinator, nil
}

// closed notes that there is no stream; a nil err keeps the reason.
func (s *condition) closed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected {
		s.connected, s.lost = false, s.now()
	}
	if err != nil {
		s.stream = err
	}
}

func (s *condition) renewed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal = err
}

// stands notes what the membership says of this node, and reports whether it is
// news.
func (s *condition) stands(state string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.standing != state
	s.standing = state
	return news
}

func (s *condition) renewsAt(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextRenewal = t
}

// refused notes a refusal, and reports whether it says something that is worth
// writing down.
func (s *condition) refused(r refusal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, was := s.refusal[r.Scope]
	if s.refusal == nil {
		s.refusal = make(map[string]refusal)
	}
	if was && old.Reason == r.Reason && old.Detail == r.Detail && r.At.Sub(old.At).Abs() < refusalPause {
		return false
	}
	s.refusal[r.Scope] = r
	s.changes++
	return true
}

// resolved ends the refusal of a scope, and reports whether there was one.
func (s *condition) resolved(scope string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.refusal[scope]
	delete(s.refusal, scope)
	return was
}

// refusals returns those that stand, by scope.
func (s *condition) refusals() []refusal {
	out, _ := s.refusalsAt()
	return out
}

// refusalsAt also returns a number that grows with each new refusal.
func (s *condition) refusalsAt() ([]refusal, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.SortedStableFunc(maps.Values(s.refusal), func(a, b refusal) int { return strings.Compare(a.Scope, b.Scope) })
	return out, s.changes
}
