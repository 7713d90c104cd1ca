package engine

import (
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// RetentionLimits say what is kept.
type RetentionLimits struct {
	Age     time.Duration // of changes, at least, if the bounds allow it
	Commits int           // whose changes are kept at most, about
	Bytes   int64         // of changes at most, about
}

// RetentionWindow decides which changes and outcomes are old. It does no I/O, and belongs
// to one goroutine.
//
// Age is measured from marks on the process's monotonic clock: which revision
// was current when. So a step of the wall clock neither deletes early nor keeps
// for ever; a restart only makes what is there young again. A commit of another
// process is as old as this one's knowledge of it, never older than it is.
type RetentionWindow struct {
	age     time.Duration
	commits store.Revision
	bytes   int64

	compacted store.Revision // what has been pruned
	current   store.Revision // newest commit
	total     int64          // bytes ever written to the log, by anyone
	marks     []mark         // oldest first; the changes up to marks[0] are those to prune next
	target    store.Revision // prune up to here
	postponed bool           // pruning failed; wait for the next tick
}

// mark says that at this time this revision was the newest, and that so many
// bytes had been written to the log.
type mark struct {
	at       time.Time
	revision store.Revision
	total    int64
}

// MarksPerWindow is the resolution of age and bytes: 1/64 of what is kept.
const MarksPerWindow = 64

const (
	pruneBatch = 1024 // revisions that one transaction prunes at most, if no job waits
)

// Part is some of the changes found at the start: their bytes, and the newest
// of them.
type Part struct {
	Revision store.Revision
	Bytes    int64
}

// NewRetentionWindow takes what was found at the start, oldest first. Those changes
// are as young as if they had been made now, but the bounds hold for them.
func NewRetentionWindow(o RetentionLimits, now time.Time, compacted, current store.Revision, total int64, kept []Part) RetentionWindow {
	r := RetentionWindow{
		age: o.Age, commits: store.Revision(o.Commits), bytes: o.Bytes,
		compacted: compacted, current: current, target: compacted, total: total,
	}
	for _, p := range kept {
		r.total -= p.Bytes
	}
	for _, p := range kept {
		r.total += p.Bytes
		r.marks = append(r.marks, mark{now, p.Revision, r.total})
	}
	r.marks = append(r.marks, mark{now, current, r.total})
	r.decide(now)
	return r
}

// Found takes what a transaction found. A database that went back while it was in use has
// other commits than those that the window knows: it begins anew with what is there, as
// what it would prune by its own knowledge may be all that there is.
func (r *RetentionWindow) Found(now time.Time, current, compacted store.Revision, total int64) {
	if current >= r.current && compacted >= r.compacted {
		return
	}
	r.compacted, r.current, r.total, r.target = compacted, current, total, compacted
	r.marks = []mark{{now, current, total}}
}

// Interval is how often tick wants to be called.
func (r *RetentionWindow) Interval() time.Duration {
	return max(r.age/MarksPerWindow, time.Millisecond)
}

// Tick takes what is known of the database by now.
func (r *RetentionWindow) Tick(now time.Time, current store.Revision, total int64) {
	r.postponed = false
	r.current, r.total = max(r.current, current), max(r.total, total)
	r.mark(now)
	r.decide(now)
}

func (r *RetentionWindow) mark(now time.Time) {
	last := r.marks[len(r.marks)-1]
	if last.revision == r.current {
		return // it was reached then, not now
	}
	r.marks = append(r.marks, mark{now, r.current, r.total})
}

// decide moves the target to the newest mark that is too old or too far back.
func (r *RetentionWindow) decide(now time.Time) {
	for len(r.marks) > 0 {
		m := r.marks[0]
		if now.Sub(m.at) < r.age && r.total-m.total < r.bytes {
			break
		}
		r.target = max(r.target, m.revision)
		if len(r.marks) == 1 {
			break // the last mark stays, so that the next has one to differ from
		}
		r.marks = r.marks[1:]
	}
	// In batches, so that not every commit prunes one.
	if slack := r.commits / MarksPerWindow; r.current > r.commits+slack {
		if over := r.current - r.commits; over > r.target+slack {
			r.target = over
		}
	}
}

// Committed records the state that a transaction left.
func (r *RetentionWindow) Committed(now time.Time, current, compacted store.Revision, total int64) {
	r.current = current
	r.compacted = compacted
	r.total = total
	if r.total-r.marks[len(r.marks)-1].total > r.bytes/MarksPerWindow {
		r.mark(now)
	}
	r.decide(now)
}

// Due reports whether there is something to prune.
func (r *RetentionWindow) Due() bool { return r.compacted < r.target && !r.postponed }

// Postpone stops pruning until the next tick.
func (r *RetentionWindow) Postpone() { r.postponed = true }

// Next returns up to where a transaction with so many jobs should prune: more
// than these jobs add, so that pruning keeps up, but not so much that they wait.
func (r *RetentionWindow) Next(compacted store.Revision, jobs int) store.Revision {
	if r.postponed || compacted >= r.target {
		return compacted
	}
	batch := store.Revision(pruneBatch)
	if jobs > 0 {
		batch = store.Revision(4 * jobs)
	}
	return min(r.target, compacted+batch)
}

// Skip returns up to where pruning may go that would go up to to, where nothing is older
// than oldest: revisions that a store was raised over hold nothing, and there may be
// more of them than can be counted through.
func (r *RetentionWindow) Skip(to, oldest store.Revision) store.Revision {
	return max(to, min(r.target, oldest-1))
}
