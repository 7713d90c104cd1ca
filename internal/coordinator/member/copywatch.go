package member

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// When two processes are taken for two machines.
const (
	// CopyWindow is the time within which a member's processes have to replace each other.
	CopyWindow = time.Minute
	// Returns is how many of them have to be a return: of a process whose place another
	// one had taken. A machine that restarts its process never comes back as one of
	// before. Two returns are three replacements.
	Returns = 2
	// Quiet is how long an alarm stands after what raised it last.
	Quiet = 10 * time.Minute

	// maxRuns bounds the processes of a member that are remembered, and maxFrom the address
	// of each. Who holds a copy and starts it again and again is seen by the machine that it
	// was copied from, which returns, as long as that is not forgotten within [CopyWindow].
	maxRuns = 32
	maxFrom = 64
)

// CopyWatch sees which process of each member opened the newest stream. Its zero value is
// ready; its methods may be called by several goroutines at once.
type CopyWatch struct {
	mu      sync.Mutex
	members map[string]*runs // guarded by mu
}

// runs is what is known of one member.
type runs struct {
	last    string             // of the newest stream
	seen    map[string]process // by run: those whose place was taken, and last
	returns []time.Time        // the newest ones, at most Returns
	alarm   CopyAlarm          // raised last; At is zero: none was
	older   CopyAlarm          // when an earlier key was presented last; At is zero: none was
}

// process is one process of a member.
type process struct {
	at   time.Time // when it opened a stream last, or its place was taken, whichever is later
	from string    // the address from which it opened its last stream; "": not known
}

// CopyAlarm is that two machines were seen to hold one identity.
type CopyAlarm struct {
	At time.Time // when what raised it was seen last
	// From are the addresses of the two: of the one that came last, and of the one whose place
	// it took. Those that are not known are left out.
	From []string
	// First: no other alarm of the kind stood for this member.
	First bool
}

// Opened notes at now that the process run of a member opened a stream from an address. It
// reports whether that is a return by which two machines are seen to hold one identity; it
// says so again with each further return. An empty run says nothing.
func (w *CopyWatch) Opened(member, run, from string, now time.Time) (CopyAlarm, bool) {
	if run == "" {
		return CopyAlarm{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.ofLocked(member)
	from = from[:min(len(from), maxFrom)]
	if r.last == run {
		r.seen[run] = process{now, from}
		return CopyAlarm{}, false
	}
	before, back := r.seen[run]
	was := r.seen[r.last]
	if r.last != "" {
		was.at = now // its place is taken now, however long it had that
		r.seen[r.last] = was
	}
	r.last, r.seen[run] = run, process{now, from}
	r.forget()
	if !back || now.Sub(before.at).Abs() > CopyWindow {
		return CopyAlarm{}, false
	}
	r.returns = append(r.returns, now)
	if r.returns = r.returns[max(0, len(r.returns)-Returns):]; len(r.returns) < Returns || now.Sub(r.returns[0]).Abs() > CopyWindow {
		return CopyAlarm{}, false
	}
	r.alarm = CopyAlarm{At: now, From: known(from, was.from), First: !stands(r.alarm, now)}
	return r.alarm, true
}

// known returns the addresses that are known, each once.
func known(all ...string) []string {
	return slices.Compact(slices.DeleteFunc(all, func(s string) bool { return s == "" }))
}

// stands reports whether an alarm stands at now.
func stands(a CopyAlarm, now time.Time) bool { return !a.At.IsZero() && now.Sub(a.At) < Quiet }

// OlderKey notes at now that somebody at an address proved an earlier key of a member, which
// is an alarm at once.
func (w *CopyWatch) OlderKey(member, from string, now time.Time) CopyAlarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.ofLocked(member)
	r.older = CopyAlarm{At: now, From: known(from[:min(len(from), maxFrom)]), First: !stands(r.older, now)}
	return r.older
}

func (w *CopyWatch) ofLocked(member string) *runs {
	if w.members == nil {
		w.members = make(map[string]*runs)
	}
	r := w.members[member]
	if r == nil {
		r = &runs{seen: make(map[string]process)}
		w.members[member] = r
	}
	return r
}

// forget bounds what is remembered: the processes that were replaced longest ago go.
func (r *runs) forget() {
	for len(r.seen) > maxRuns {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(r.seen)),
			func(a, b string) int { return r.seen[a].at.Compare(r.seen[b].at) })
		delete(r.seen, oldest)
	}
}

// Forget drops what is known of who is no member any more.
func (w *CopyWatch) Forget(member string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.members, member)
}

// Alarms returns the members that two processes run as and whose alarm stands at now,
// sorted, with it.
func (w *CopyWatch) Alarms(now time.Time) (members []string, all map[string]CopyAlarm) {
	return w.standing(now, func(r *runs) CopyAlarm { return r.alarm })
}

// OlderKeys returns likewise the members of which somebody proved an earlier key.
func (w *CopyWatch) OlderKeys(now time.Time) (members []string, all map[string]CopyAlarm) {
	return w.standing(now, func(r *runs) CopyAlarm { return r.older })
}

func (w *CopyWatch) standing(now time.Time, of func(*runs) CopyAlarm) (members []string, all map[string]CopyAlarm) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = make(map[string]CopyAlarm)
	for member, r := range w.members {
		if a := of(r); stands(a, now) {
			all[member] = a
		}
	}
	return slices.Sorted(maps.Keys(all)), all
}
