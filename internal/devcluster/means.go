package devcluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// means notes by what a step of the story shows a thing: what was done in this process in
// place of what happens to machines. It is noted where it is done, so that no step says of
// itself what it did not do.
type means struct {
	mu   sync.Mutex
	what []string            // in order; guarded by mu
	of   map[string][]string // whom each was done to; guarded by mu
}

// onWire is how a step shows a thing that does nothing of that kind.
const onWire = "over TLS on loopback, all parts in one process"

// note takes that something was done, to somebody or, with "", to nobody.
func (m *means) note(who, what string) {
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

// take returns what was noted since the last call, in words.
func (m *means) take() string {
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
		return onWire
	}
	return strings.Join(out, "; ")
}

// pass lets d pass at once, for every part alike.
func (c *Cluster) pass(d time.Duration) {
	c.means.note("", "clock moved on by "+stretch(d))
	c.clock.pass(d)
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
