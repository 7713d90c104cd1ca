package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
)

// TestRetention compares retention with a model that knows when each revision
// was committed: nothing young is pruned that the bounds leave room for, and
// nothing is kept for ever.
func TestRetention(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := RetentionLimits{
			Age:     time.Duration(rapid.IntRange(64, 10_000).Draw(t, "age")) * time.Millisecond,
			Commits: rapid.IntRange(1, 500).Draw(t, "commits"),
			Bytes:   int64(rapid.IntRange(1, 50_000).Draw(t, "bytes")),
		}
		type commit struct {
			at    time.Time
			bytes int64
		}
		commits := []commit{{}} // by revision
		now := time.Unix(0, 0)
		r := NewRetentionWindow(o, now, 0, 0, 0, nil)
		current, compacted := store.Revision(0), store.Revision(0)
		logged := int64(0) // ever
		// check fails if a revision was pruned that should be kept.
		check := func() {
			var younger int64 // bytes of revisions above rev
			for rev := current; rev > 0; rev-- {
				c := commits[rev]
				fits := younger+c.bytes <= o.Bytes-o.Bytes/MarksPerWindow-c.bytes &&
					current-rev < store.Revision(o.Commits)
				if rev <= r.target && fits && now.Sub(c.at) < o.Age {
					t.Fatalf("revision %d, %v old, %d commits and %d bytes ago, is to be pruned of %+v", rev, now.Sub(c.at), current-rev, younger, o)
				}
				younger += c.bytes
			}
		}
		step := func(d time.Duration) {
			// Time passes in ticks, as the writer makes them.
			for end := now.Add(d); now.Before(end); {
				now = now.Add(min(r.Interval(), end.Sub(now)))
				r.Tick(now, current, logged)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"commit": func(t *rapid.T) {
				n := rapid.IntRange(1, 40).Draw(t, "jobs")
				for range n {
					c := commit{now, int64(rapid.IntRange(1, 300).Draw(t, "bytes"))}
					commits = append(commits, c)
					logged += c.bytes
				}
				current += store.Revision(n)
				to := r.Next(compacted, n)
				if to < compacted || to > current {
					t.Fatalf("prune from %d to %d of %d", compacted, to, current)
				}
				compacted = to
				r.Committed(now, current, compacted, logged)
			},
			"time passes": func(t *rapid.T) {
				step(time.Duration(rapid.Int64Range(1, int64(o.Age)).Draw(t, "time")))
			},
			"idle": func(*rapid.T) {
				for r.Due() {
					to := r.Next(compacted, 0)
					if to <= compacted {
						t.Fatalf("due, but stays at %d of %d", to, r.target)
					}
					compacted = to
					r.Committed(now, current, compacted, logged)
				}
				if kept := current - compacted; kept > store.Revision(o.Commits)*(MarksPerWindow+2)/MarksPerWindow+1 {
					t.Fatalf("%d commits kept, at most %d wanted", kept, o.Commits)
				}
			},
			"long idle": func(*rapid.T) {
				step(2 * o.Age)
				if r.target != current {
					t.Fatalf("after twice the retention %d of %d are to be pruned", r.target, current)
				}
			},
			"restart": func(*rapid.T) {
				// As keptChanges finds it.
				width := (current-compacted)/MarksPerWindow + 1
				var kept []Part
				for rev := compacted + 1; rev <= current; rev++ {
					if len(kept) == 0 || rev/width != kept[len(kept)-1].Revision/width {
						kept = append(kept, Part{})
					}
					kept[len(kept)-1].Revision = rev
					kept[len(kept)-1].Bytes += commits[rev].bytes
					commits[rev].at = now
				}
				r = NewRetentionWindow(o, now, compacted, current, logged, kept)
			},
			"failure": func(*rapid.T) {
				r.Postpone()
				if r.Due() {
					t.Fatal("due right after a failure")
				}
				step(r.Interval())
			},
		})
		if len(r.marks) > 4*MarksPerWindow {
			t.Fatalf("%d marks", len(r.marks))
		}
	})
}
