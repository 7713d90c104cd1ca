package publication_test

import (
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/test/testlane"
)

// What a small change writes follows from the change and not from how many members there are: one transaction
// with the state, the headers that changed and their contents. What changes everybody writes each header once. A
// coordinator that does not lead reads what was written, and nothing else.
func TestWhatIsWritten(t *testing.T) {
	t.Parallel()
	first := make(map[string]int) // bytes, with the fewest members
	for _, n := range testlane.Rounds([]int{500, 5000}, []int{1000, 10_000, 50_000}) {
		f := newFigures(t, n)
		defer f.d.C.Close()
		other := f.d.Second(figureEntries)
		defer other.Close()
		f.publish(t)
		follow(f.d, t, other)
		qos := func(priority string) func() {
			return func() { coordinatortest.MustPut(f.d, "kind: qos\nname: gold\npriority: "+priority+"\n") }
		}
		alter := func(name string, how func(*record.Member)) func() {
			return func() {
				r := f.d.Record(identity.Data, name)
				how(&r.Value)
				f.write(t, r.Version, r.Value)
			}
		}
		drain := func(r *record.Member) { r.State = record.Draining }
		renew := func(r *record.Member) {
			r.Rekey(coordinatortest.KeyNumber(n), f.d.Clock().Add(time.Hour), f.d.Clock(), time.Hour)
		}
		for _, c := range []struct {
			name             string
			change           func()
			records, deletes int // beside the state
		}{
			{"the first record of the config", qos("1"), 2, 0},
			{"another one, and the content before the last goes", qos("2"), 2, 1},
			{"the first member that drains", alter(nameOf(n/2), drain), 2, 0},
			{"another one that is told the same", alter(nameOf(n/3), drain), 1, 0},
			{"a member that comes", func() { f.write(t, 0, memberCalled(nameOf(n/2)+"-new")) }, 1, 0},
		} {
			c.change()
			f.reset()
			f.publish(t)
			if f.commits != 1 || f.records != c.records+1 || f.deletes != c.deletes {
				t.Errorf("%s, %d members: %d transactions write %d records and delete %d", c.name, n, f.commits, f.records, f.deletes)
			}
			if first[c.name] == 0 {
				first[c.name] = f.bytes
			}
			if 5*f.bytes > 6*first[c.name] {
				t.Errorf("%s, %d members: %d bytes, and %d with fewer members", c.name, n, f.bytes, first[c.name])
			}
			// In bins of 64 leaves, who comes hashes what is above its bin, and a fleet of another size as much.
			if hashed := f.d.C.Parts().Publication.View().Tree.Hashed(); hashed > 100 {
				t.Errorf("%s, %d members: %d nodes of the tree are hashed", c.name, n, hashed)
			}
			// The state it reads first, to see that it is another one.
			if p, read := follow(f.d, t, other); read != c.records+2 || p.State.Version != f.d.C.Parts().Publication.View().State.Version {
				t.Errorf("%s, %d members: another coordinator reads %d records", c.name, n, read)
			}
		}
		alter(nameOf(n/4), renew)()
		f.reset()
		if f.publish(t); f.commits > 0 {
			t.Errorf("a renewal, %d members: %d transactions", n, f.commits)
		}
		coordinatortest.WantOnlyNil(t, f.d.Set(figureEntries+coordinatortest.MoreCoordinators(t)))
		f.reset()
		f.publish(t)
		headers := f.d.C.Parts().Publication.View().Len()
		if most := headers/400 + 2; f.commits > most || f.records > headers+most+len(first) {
			t.Errorf("an epoch, %d headers: %d transactions, %d records", headers, f.commits, f.records)
		}
	}
}
