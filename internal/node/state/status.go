package state

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalPause bounds how often the same refusal of a scope is written to disk.
const refusalPause = time.Minute

// Condition is what the agent tells of itself.
type Condition struct {
	Now func() time.Time

	mu          sync.Mutex
	connected   bool               // guarded by mu
	lost        time.Time          // when contact was lost; zero: there was none yet; guarded by mu
	coordinator string             // in use, or the last one; guarded by mu
	stream      error              // why there is no stream; guarded by mu
	renewal     error              // why the last renewal failed; guarded by mu
	nextRenewal time.Time          // guarded by mu
	standing    string             // what the membership said last of this node; guarded by mu
	refusal     map[string]Refusal // that stand, by scope; guarded by mu
	changes     uint64             // of refusal; guarded by mu
}

// View is a copy of a condition.
type View struct {
	Connected   bool
	Lost        time.Time
	Coordinator string
	Stream      error
	Renewal     error
	NextRenewal time.Time
	Standing    string
}

// View returns a copy.
func (s *Condition) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return View{s.connected, s.lost, s.coordinator, s.stream, s.renewal, s.nextRenewal, s.standing}
}

// LastError is the view's trouble in one line, or "".
func (v View) LastError() string {
	var parts []string
	if !v.Connected && v.Stream != nil {
		parts = append(parts, OneLine(v.Stream))
	}
	if v.Renewal != nil {
		parts = append(parts, "renewal: "+OneLine(v.Renewal))
	}
	return strings.Join(parts, "; ")
}

// Opened notes that there is a stream to coordinator.
func (s *Condition) Opened(coordinator string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected, s.coordinator, s.stream = true, coordinator, nil
}

// Closed notes that there is no stream; a nil err keeps the reason.
func (s *Condition) Closed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected {
		s.connected, s.lost = false, s.Now()
	}
	if err != nil {
		s.stream = err
	}
}

// Renewed notes how the last renewal ended; nil: well.
func (s *Condition) Renewed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal = err
}

// Stands notes what the membership says of this node, and reports whether it is
// news.
func (s *Condition) Stands(state string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.standing != state
	s.standing = state
	return news
}

// RenewsAt notes when the next renewal is due.
func (s *Condition) RenewsAt(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextRenewal = t
}

// Refused notes a refusal, and reports whether it says something that is worth
// writing down.
func (s *Condition) Refused(r Refusal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, was := s.refusal[r.Scope]
	if s.refusal == nil {
		s.refusal = make(map[string]Refusal)
	}
	if was && old.Reason == r.Reason && old.Detail == r.Detail && r.At.Sub(old.At).Abs() < refusalPause {
		return false
	}
	s.refusal[r.Scope] = r
	s.changes++
	return true
}

// Resolved ends the refusal of a scope, and reports whether there was one.
func (s *Condition) Resolved(scope string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.refusal[scope]
	delete(s.refusal, scope)
	return was
}

// Refusals returns those that stand, by scope.
func (s *Condition) Refusals() []Refusal {
	out, _ := s.RefusalsAt()
	return out
}

// RefusalsAt also returns a number that grows with each new refusal.
func (s *Condition) RefusalsAt() ([]Refusal, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.SortedStableFunc(maps.Values(s.refusal),
		func(a, b Refusal) int { return strings.Compare(a.Scope, b.Scope) })
	return out, s.changes
}
