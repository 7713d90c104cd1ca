package postgres

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/store"
)

// TestDecide compares a group with the same jobs one after the other, each alone,
// on a database that keeps what they write.
func TestDecide(t *testing.T) {
	keys := []string{"a", "b", "c"}
	ids := []string{"", "", "x", "y"}
	rapid.Check(t, func(t *rapid.T) {
		db := newDatabase(t, keys, ids)
		var jobs []*job
		for range rapid.IntRange(1, 8).Draw(t, "jobs") {
			jobs = append(jobs, drawJob(t, keys, ids, db.revision))
		}
		alone := db.clone()
		var want []result
		for _, j := range jobs {
			p := decide(alone.state(), []*job{j}, "db")
			if j != nil {
				want = append(want, p.results[0])
			} else {
				want = append(want, result{})
			}
			alone.apply(p)
		}
		together := db.clone()
		p := decide(together.state(), jobs, "db")
		together.apply(p)
		for i, r := range p.results {
			if r.revision != want[i].revision || fmt.Sprint(r.err) != fmt.Sprint(want[i].err) {
				t.Fatalf("job %d of %d: %d, %v; alone %d, %v", i, len(jobs), r.revision, r.err, want[i].revision, want[i].err)
			}
			if !r.certain || jobs[i] == nil {
				continue
			}
			// What is certain is so without the group.
			q := decide(db.clone().state(), []*job{jobs[i]}, "db")
			if q.results[0].revision != r.revision || fmt.Sprint(q.results[0].err) != fmt.Sprint(r.err) || q.writes() {
				t.Fatalf("job %d is certain of %d, %v, and comes to %d, %v before the group", i, r.revision, r.err, q.results[0].revision, q.results[0].err)
			}
		}
		if !together.equal(alone) {
			t.Fatalf("together %+v, one by one %+v", together, alone)
		}
	})
}

// database is what the statements of finish do, in memory.
type database struct {
	revision store.Revision
	logged   int64
	versions map[string]store.Revision
	outcomes map[string]outcome
	log      []string
}

func newDatabase(t *rapid.T, keys, ids []string) *database {
	d := &database{revision: 10, versions: map[string]store.Revision{}, outcomes: map[string]outcome{}}
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
			d.outcomes[id] = outcome{store.Revision(i + 5), nil}
		case 1:
			d.outcomes[id] = outcome{store.Revision(i + 5), []byte("another")}
		}
	}
	return d
}

func (d *database) clone() *database {
	return &database{d.revision, d.logged, maps.Clone(d.versions), maps.Clone(d.outcomes), slices.Clone(d.log)}
}

func (d *database) state() state {
	return state{revision: d.revision, logged: d.logged, versions: maps.Clone(d.versions), outcomes: maps.Clone(d.outcomes), some: len(d.versions) > 0}
}

func (d *database) apply(p *plan) {
	bySeq := map[int64]int{}
	for i, seq := range p.seqs {
		bySeq[seq] = i
		d.log = append(d.log, fmt.Sprintf("%d %s %q", seq, p.keys[i], p.values[i]))
	}
	if len(bySeq) != len(p.seqs) {
		panic("one number for two changes")
	}
	puts, deletes := p.final()
	for _, seq := range puts {
		d.versions[p.keys[bySeq[seq]]] = store.Revision(seq / store.MaxTxOps)
	}
	for _, k := range deletes {
		delete(d.versions, k)
	}
	for i, id := range p.outcomeIDs {
		if _, twice := d.outcomes[id]; twice {
			panic("two outcomes of one ID")
		}
		d.outcomes[id] = outcome{store.Revision(p.outcomeRevisions[i]), p.outcomeDigests[i]}
	}
	d.revision, d.logged = p.revision, p.logged
}

func (d *database) equal(o *database) bool {
	return d.revision == o.revision && d.logged == o.logged && maps.Equal(d.versions, o.versions) && slices.Equal(d.log, o.log) &&
		fmt.Sprint(d.outcomes) == fmt.Sprint(o.outcomes)
}

func drawJob(t *rapid.T, keys, ids []string, revision store.Revision) *job {
	switch rapid.IntRange(0, 7).Draw(t, "kind") {
	case 0:
		return nil // given up
	case 1:
		return &job{kind: jobOutcome, id: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "id")}
	}
	var tx store.Tx
	for _, k := range keys {
		switch rapid.IntRange(0, 3).Draw(t, "write "+k) {
		case 0:
			tx.Put = append(tx.Put, store.Write{Key: k, Value: []byte(rapid.SampledFrom([]string{"", "1"}).Draw(t, "value"))})
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
	j, err := commitJob(tx)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestDecideRaise: only an empty store is raised, and not one that the group has
// just filled.
func TestDecideRaise(t *testing.T) {
	raise := &job{kind: jobRaise, floor: 100}
	empty := func() state {
		return state{revision: 5, versions: map[string]store.Revision{}, outcomes: map[string]outcome{}}
	}
	put, err := commitJob(store.Tx{Put: []store.Write{{Key: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	if p := decide(empty(), []*job{raise, put}, "db"); p.revision != 101 || p.results[0].err != nil || p.results[1].revision != 101 {
		t.Fatalf("%+v", p)
	}
	if p := decide(empty(), []*job{put, raise}, "db"); p.revision != 6 || !errors.Is(p.results[1].err, store.ErrNotEmpty) {
		t.Fatalf("%+v", p)
	}
	full := empty()
	full.some = true
	if p := decide(full, []*job{raise}, "db"); p.writes() || !errors.Is(p.results[0].err, store.ErrNotEmpty) {
		t.Fatalf("%+v", p)
	}
	last := empty()
	last.revision = store.MaxRevision
	if p := decide(last, []*job{put}, "db"); p.writes() || p.results[0].err == nil {
		t.Fatalf("%+v", p)
	}
}
