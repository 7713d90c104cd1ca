package sqlite

import (
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// retention decides which changes and outcomes are old. It does no I/O.
//
// Age is measured from marks on the process's monotonic clock: which revision
// was current when. So a step of the wall clock neither deletes early nor keeps
// for ever; a restart only makes what is there young again.
type retention struct {
	age     time.Duration
	commits store.Revision
	bytes   int64

	compacted store.Revision // what has been pruned
	current   store.Revision // newest commit
	total     int64          // bytes of changes ever counted, those at the start included
	marks     []mark         // oldest first; the changes up to marks[0] are those to prune next
	target    store.Revision // prune up to here
	postponed bool           // pruning failed; wait for the next tick
}

// mark says that at this time this revision was the newest, and that so many
// bytes of changes had been counted.
type mark struct {
	at       time.Time
	revision store.Revision
	total    int64
}

const (
	marksPerWindow = 64   // resolution of age and bytes: 1/64 of what is kept
	pruneBatch     = 1024 // revisions that one transaction prunes at most, if no job waits
)

// part is some of the changes found at the start: their bytes, and the newest
// of them.
type part struct {
	revision store.Revision
	bytes    int64
}

// newRetention takes what was found at the start, oldest first. Those changes
// are as young as if they had been made now, but the bounds hold for them.
func newRetention(o Options, now time.Time, compacted, current store.Revision, kept []part) retention {
	r := retention{
		age: o.Retention, commits: store.Revision(o.RetainCommits), bytes: o.RetainBytes,
		compacted: compacted, current: current, target: compacted,
	}
	for _, p := range kept {
		r.total += p.bytes
		r.marks = append(r.marks, mark{now, p.revision, r.total})
	}
	r.marks = append(r.marks, mark{now, current, r.total})
	r.decide(now)
	return r
}

// interval is how often tick wants to be called.
func (r *retention) interval() time.Duration { return max(r.age/marksPerWindow, time.Millisecond) }

func (r *retention) tick(now time.Time) {
	r.postponed = false
	r.mark(now)
	r.decide(now)
}

func (r *retention) mark(now time.Time) {
	last := r.marks[len(r.marks)-1]
	if last.revision == r.current {
		return // it was reached then, not now
	}
	r.marks = append(r.marks, mark{now, r.current, r.total})
}

// decide moves the target to the newest mark that is too old or too far back.
func (r *retention) decide(now time.Time) {
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
	if slack := r.commits / marksPerWindow; r.current > r.commits+slack {
		if over := r.current - r.commits; over > r.target+slack {
			r.target = over
		}
	}
}

// committed records what a transaction did.
func (r *retention) committed(now time.Time, current, compacted store.Revision, bytes int) {
	r.current = current
	r.compacted = compacted
	r.total += int64(bytes)
	if r.total-r.marks[len(r.marks)-1].total > r.bytes/marksPerWindow {
		r.mark(now)
	}
	r.decide(now)
}

// due reports whether there is something to prune.
func (r *retention) due() bool { return r.compacted < r.target && !r.postponed }

// postpone stops pruning until the next tick.
func (r *retention) postpone() { r.postponed = true }

// next returns up to where a transaction with so many jobs should prune: more
// than these jobs add, so that pruning keeps up, but not so much that they wait.
func (r *retention) next(compacted store.Revision, jobs int) store.Revision {
	if r.postponed || compacted >= r.target {
		return compacted
	}
	batch := store.Revision(pruneBatch)
	if jobs > 0 {
		batch = store.Revision(4 * jobs)
	}
	return min(r.target, compacted+batch)
}

// skip returns up to where pruning may go that would go up to to, where nothing is older
// than oldest: revisions that a store was raised over hold nothing, and there may be
// more of them than can be counted through.
func (r *retention) skip(to, oldest store.Revision) store.Revision {
	return max(to, min(r.target, oldest-1))
}
