package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Means records how one step of the story shows a thing: what was done in place of what happens to
// machines. It is noted where it is done, so that no step has to say of itself what it did not do.
// The zero value is ready.
type Means struct {
	mu   sync.Mutex
	what []string            // in order; guarded by mu
	of   map[string][]string // whom each was done to; guarded by mu
}

// OnWire is how a step shows a thing that does nothing of that kind.
const OnWire = "over TLS on loopback, all parts in one process"

// Note takes that something was done, to somebody or, with "", to nobody.
func (m *Means) Note(who, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.what, what) {
		m.what = append(m.what, what)
	}
	if m.of == nil {
		m.of = make(map[string][]string)
	}
	if who != "" && !slices.Contains(m.of[what], who) {
		m.of[what] = append(m.of[what], who)
	}
}

// Passed notes that time was let pass.
func (m *Means) Passed(d time.Duration) { m.Note("", "clock moved on by "+stretch(d)) }

// Take returns what was noted since the last call, in words.
func (m *Means) Take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, what := range m.what {
		if of := slices.Sorted(slices.Values(m.of[what])); len(of) > 0 {
			what = strings.Join(of, ", ") + " " + what
		}
		out = append(out, what)
	}
	m.what, m.of = nil, nil
	if out == nil {
		return OnWire
	}
	return strings.Join(out, "; ")
}

// stretch is a duration in hours and minutes.
func stretch(d time.Duration) string {
	h, m := int(d/time.Hour), int(d%time.Hour/time.Minute)
	switch {
	case h == 0:
		return fmt.Sprintf("%d min", m)
	case m == 0:
		return fmt.Sprintf("%d h", h)
	}
	return fmt.Sprintf("%d h %d min", h, m)
}
