// Package copies tells two machines that hold one identity from one that comes back: those
// of a copy take the place of each other again and again, or one presents a key that the
// other has replaced.
package copies

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// When two processes are taken for two machines.
const (
	// Window is the time within which a member's processes have to replace each other.
	Window = time.Minute
	// Returns is how many of them have to be a return: of a process whose place another
	// one had taken. A machine that restarts its process never comes back as one of
	// before. Two returns are three replacements.
	Returns = 2
	// Quiet is how long an alarm stands after what raised it last.
	Quiet = 10 * time.Minute

	// maxRuns bounds the processes of a member that are remembered.
	maxRuns = 8
)

// Watch sees which process of each member opened the newest stream. Its zero value is
// ready; its methods may be called by several goroutines at once.
type Watch struct {
	mu      sync.Mutex
	members map[string]*runs // guarded by mu
}

// runs is what is known of one member.
type runs struct {
	last    string               // of the newest stream
	seen    map[string]time.Time // when each process took the place of another one last
	returns []time.Time          // the newest ones, at most Returns
	alarm   time.Time            // of the last return that raised one; zero: none did
	older   time.Time            // when an earlier key was presented last; zero: none was
}

// Opened notes at now that the process run of a member opened a stream. It reports
// whether that is a return by which two machines are seen to hold one identity; it says
// so again with each further return. An empty run says nothing.
func (w *Watch) Opened(member, run string, now time.Time) (alarm bool) {
	if run == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.ofLocked(member)
	if r.last == run {
		return false
	}
	before, back := r.seen[run]
	r.last, r.seen[run] = run, now
	r.forget()
	if !back || now.Sub(before).Abs() > Window {
		return false
	}
	r.returns = append(r.returns, now)
	if r.returns = r.returns[max(0, len(r.returns)-Returns):]; len(r.returns) < Returns || now.Sub(r.returns[0]).Abs() > Window {
		return false
	}
	r.alarm = now
	return true
}

// OlderKey notes at now that somebody proved an earlier key of a member, which is an alarm
// at once.
func (w *Watch) OlderKey(member string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ofLocked(member).older = now
}

func (w *Watch) ofLocked(member string) *runs {
	if w.members == nil {
		w.members = make(map[string]*runs)
	}
	r := w.members[member]
	if r == nil {
		r = &runs{seen: make(map[string]time.Time)}
		w.members[member] = r
	}
	return r
}

// forget bounds what is remembered: the processes that were replaced longest ago go.
func (r *runs) forget() {
	for len(r.seen) > maxRuns {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.seen)), func(a, b string) int { return r.seen[a].Compare(r.seen[b]) })
		delete(r.seen, oldest)
	}
}

// Forget drops what is known of who is no member any more.
func (w *Watch) Forget(member string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.members, member)
}

// Alarms returns the members that two processes run as and whose alarm stands at now,
// sorted, with its time.
func (w *Watch) Alarms(now time.Time) (members []string, at map[string]time.Time) {
	return w.standing(now, func(r *runs) time.Time { return r.alarm })
}

// OlderKeys returns likewise the members of which somebody proved an earlier key.
func (w *Watch) OlderKeys(now time.Time) (members []string, at map[string]time.Time) {
	return w.standing(now, func(r *runs) time.Time { return r.older })
}

func (w *Watch) standing(now time.Time, of func(*runs) time.Time) (members []string, at map[string]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = make(map[string]time.Time)
	for member, r := range w.members {
		if last := of(r); !last.IsZero() && now.Sub(last) < Quiet {
			at[member] = last
		}
	}
	return slices.Sorted(maps.Keys(at)), at
}
