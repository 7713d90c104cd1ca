package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
	storeengine "github.com/fealty-io/fealty/internal/store/engine"
)

// TestDecide compares a group with the same jobs one after the other, each alone,
// on a database that keeps what they write.
func TestDecide(t *testing.T) {
	keys := []string{"a", "b", "c"}
	ids := []string{"", "", "x", "y"}
	rapid.Check(t, func(t *rapid.T) {
		db := drawRows(t, keys, ids)
		var jobs []*storeengine.Job
		for range rapid.IntRange(1, 8).Draw(t, "jobs") {
			jobs = append(jobs, drawJob(t, keys, ids, db.revision))
		}
		alone := db.clone()
		var want []storeengine.Result
		for _, j := range jobs {
			p, r := storeengine.Decide(alone.state(), j)
			want = append(want, r[0])
			alone.apply(p)
		}
		together := db.clone()
		before := together.state()
		p, results := storeengine.Decide(before, jobs...)
		if !maps.Equal(before.Versions, db.versions) || fmt.Sprint(before.Outcomes) != fmt.Sprint(db.outcomes) {
			t.Fatal("deciding changed the state")
		}
		together.apply(p)
		for i, r := range results {
			if r.Revision != want[i].Revision || fmt.Sprint(r.Err) != fmt.Sprint(want[i].Err) {
				t.Fatalf("job %d of %d: %d, %v; alone %d, %v",
					i, len(jobs), r.Revision, r.Err, want[i].Revision, want[i].Err)
			}
			if !r.Certain {
				continue
			}
			// A certain result is the same without the group.
			q, before := storeengine.Decide(db.state(), jobs[i])
			if before[0].Revision != r.Revision || fmt.Sprint(before[0].Err) != fmt.Sprint(r.Err) || q.Writes() {
				t.Fatalf("job %d is certain of %d, %v, and comes to %d, %v before the group",
					i, r.Revision, r.Err, before[0].Revision, before[0].Err)
			}
		}
		if !together.equal(alone) {
			t.Fatalf("together %+v, one by one %+v", together, alone)
		}
	})
}

// rows is a database that keeps what plans write in rows.
type rows struct {
	revision store.Revision
	logged   int64
	versions map[string]store.Revision
	outcomes map[string]storeengine.Outcome
	log      []string
}

func drawRows(t *rapid.T, keys, ids []string) *rows {
	d := &rows{revision: 10, versions: map[string]store.Revision{}, outcomes: map[string]storeengine.Outcome{}}
	for i, k := range keys {
		if rapid.Bool().Draw(t, "exists") {
			d.versions[k] = store.Revision(i + 1)
		}
	}
	for i, id := range ids {
		if id == "" {
			continue
		}
		switch rapid.IntRange(0, 2).Draw(t, "outcome") {
		case 0:
			d.outcomes[id] = storeengine.Outcome{Revision: store.Revision(i + 5)}
		case 1:
			d.outcomes[id] = storeengine.Outcome{Revision: store.Revision(i + 5), Digest: []byte("another")}
		}
	}
	return d
}

func (d *rows) clone() *rows {
	return &rows{d.revision, d.logged, maps.Clone(d.versions), maps.Clone(d.outcomes), slices.Clone(d.log)}
}

func (d *rows) state() storeengine.State {
	return storeengine.State{
		Revision: d.revision, Logged: d.logged, Versions: maps.Clone(d.versions), Outcomes: maps.Clone(d.outcomes),
		Some: len(d.versions) > 0,
	}
}

func (d *rows) apply(p *storeengine.Plan) {
	last, lasts := int64(-1), map[string]int{}
	for _, row := range p.Rows() {
		if row.Seq <= last || store.Revision(row.Seq/storeengine.RowsPerRevision) != row.Version {
			panic("rows out of order, or one number for two changes")
		}
		last = row.Seq
		d.log = append(d.log, fmt.Sprintf("%d %s %q %v", row.Seq, row.Key, row.Value, row.Value == nil))
		if !row.Last {
			continue
		}
		lasts[row.Key]++
		if row.Value == nil {
			delete(d.versions, row.Key)
		} else {
			d.versions[row.Key] = row.Version
		}
	}
	for _, key := range p.Keys() {
		if lasts[key] != 1 {
			panic(fmt.Sprintf("%d last rows of %s", lasts[key], key))
		}
	}
	for _, c := range p.Changes {
		if c.Tx.ID == "" {
			continue
		}
		if _, twice := d.outcomes[c.Tx.ID]; twice {
			panic("two outcomes of one ID")
		}
		d.outcomes[c.Tx.ID] = storeengine.Outcome{Revision: c.Revision, Digest: c.Digest}
	}
	d.revision, d.logged = p.Revision, p.Logged
}

func (d *rows) equal(o *rows) bool {
	return d.revision == o.revision && d.logged == o.logged && maps.Equal(d.versions, o.versions) &&
		slices.Equal(d.log, o.log) && fmt.Sprint(d.outcomes) == fmt.Sprint(o.outcomes)
}

func drawJob(t *rapid.T, keys, ids []string, revision store.Revision) *storeengine.Job {
	if rapid.IntRange(0, 7).Draw(t, "kind") == 0 {
		return storeengine.OutcomeJob(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "id"))
	}
	var tx store.Tx
	for _, k := range keys {
		switch rapid.IntRange(0, 3).Draw(t, "write "+k) {
		case 0:
			value := []byte(rapid.SampledFrom([]string{"", "1"}).Draw(t, "value"))
			tx.Put = append(tx.Put, store.Write{Key: k, Value: value})
		case 1:
			tx.Delete = append(tx.Delete, k)
		}
		if rapid.IntRange(0, 3).Draw(t, "if "+k) == 0 {
			v := rapid.SampledFrom([]store.Revision{0, 1, 2, 3, revision + 1, revision + 2}).Draw(t, "version")
			tx.If = append(tx.If, store.Condition{Key: k, Version: v})
		}
	}
	if len(tx.Put)+len(tx.Delete) == 0 {
		tx.Put = []store.Write{{Key: "a"}}
	}
	tx.ID = rapid.SampledFrom(ids).Draw(t, "id")
	j, err := storeengine.CommitJob(tx)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestDecideRaise: only an empty store is raised, and not one that the group has
// just filled.
func TestDecideRaise(t *testing.T) {
	raise := storeengine.RaiseJob(100)
	empty := storeengine.State{Revision: 5}
	put, err := storeengine.CommitJob(store.Tx{Put: []store.Write{{Key: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	p, r := storeengine.Decide(empty, raise, put)
	if p.Revision != 101 || r[0].Err != nil || r[1].Revision != 101 {
		t.Fatalf("%+v", p)
	}
	if p, r := storeengine.Decide(empty, put, raise); p.Revision != 6 || !errors.Is(r[1].Err, store.ErrNotEmpty) {
		t.Fatalf("%+v", p)
	}
	full := empty
	full.Some = true
	if p, r := storeengine.Decide(full, raise); p.Writes() || !errors.Is(r[0].Err, store.ErrNotEmpty) {
		t.Fatalf("%+v", p)
	}
	last := empty
	last.Revision = store.MaxRevision
	p, r = storeengine.Decide(last, put, storeengine.OutcomeJob("x"))
	if p.Writes() || r[0].Err == nil || r[1].Err == nil || errors.Is(r[1].Err, store.ErrNotFound) {
		t.Fatalf("%+v", p)
	}
}
