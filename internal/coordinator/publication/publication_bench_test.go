package publication_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
)

// BenchmarkGenerations measures what a change costs the coordinator that publishes it, in clusters of three
// sizes: a record of the config that one group gets, another state of one member, a member that comes,
// and a new authority epoch, which changes every header. The store is in memory, and keys, streams and TLS
// are left out: the CPU time is that of compiling, of the tree, and of writing what the store is given.
func BenchmarkGenerations(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint("members=", n), func(b *testing.B) { // once, as others are in it
			f := newFigures(b, n)
			changes := 0
			b.Run("config", func(b *testing.B) {
				f.measure(b, func() {
					changes++
					coordinatortest.MustPut(f.d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", changes%1000))
				})
			})
			b.Run("member", func(b *testing.B) {
				f.measure(b, func() {
					changes++
					r := f.d.Record(identity.Data, nameOf(changes%n))
					if r.Value.State = record.Active; changes/n%2 == 0 {
						r.Value.State = record.Draining
					}
					f.write(b, r.Version, r.Value)
				})
			})
			b.Run("join", func(b *testing.B) {
				f.measure(b, func() {
					changes++
					f.write(b, 0, memberCalled(nameOf(changes%n)+fmt.Sprint("-", changes)))
				})
			})
			b.Run("epoch", func(b *testing.B) {
				f.measure(b, func() {
					if err := f.d.Set(figureEntries + coordinatortest.MoreCoordinators(b)); err != nil {
						b.Fatal(err)
					}
				})
			})
		})
	}
}

// figureEntries admit members that are given what the config says for all.
const figureEntries = "  - {name: pool, kind: data, match: [\"token:pool\"], roles: [core], organizations: [acme]}\n"

func nameOf(i int) string { return fmt.Sprintf("n-%06d", i) }

func memberCalled(name string) record.Member {
	r := record.Member{Kind: identity.Data, Name: name, State: record.Active, Entry: "pool"}
	r.Selectors = []string{"token:pool"}
	return r
}

// figures counts what publishing costs.
type figures struct {
	d *coordinatortest.Desk
	p *publication.Publisher

	commits, records, bytes int // of transactions of the publication
	conditions, deletes     int
}

// newFigures returns a cluster of n members that were told what they are.
func newFigures(b testing.TB, n int) *figures {
	b.Helper()
	f := &figures{d: coordinatortest.ReadyDesk(b, figureEntries), p: publication.NewPublisher()}
	b.Cleanup(func() { f.d.C.Close() })
	var recs []record.Versioned[record.Member]
	s := f.d.State()
	for i := 0; i < n; {
		ch := s.Records.NewChange(s.HeadVersion)
		from := i
		for ; i < min(n, from+500); i++ {
			ch.Put(record.MemberKey(identity.Data, nameOf(i)), 0, memberCalled(nameOf(i)))
		}
		rev, err := ch.Commit(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for ; from < i; from++ {
			recs = append(recs, record.Versioned[record.Member]{Value: memberCalled(nameOf(from)), Version: rev})
		}
	}
	f.d.C.Parts().Membership.Roster().Fill(recs, f.d.Store.Revision())
	f.d.Lead(f.d.C)
	f.publish(b)
	f.d.Store.Follow(func(tx store.Tx) {
		f.commits++
		f.records += len(tx.Put)
		f.conditions += len(tx.If)
		f.deletes += len(tx.Delete)
		for _, w := range tx.Put {
			f.bytes += len(w.Key) + len(w.Value)
		}
	})
	return f
}

func (f *figures) write(b testing.TB, was store.Revision, r record.Member) {
	b.Helper()
	ch := f.d.State().Records.NewChange(f.d.State().HeadVersion)
	ch.Put(record.MemberKey(r.Kind, r.Name), was, r)
	rev, err := ch.Commit(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	f.d.C.Parts().Membership.Roster().Put(r, rev)
}

// publish publishes until there is nothing more to do.
func (f *figures) publish(b testing.TB) {
	b.Helper()
	for more := true; more; {
		var err error
		if more, err = f.d.C.Parts().Publication.Publish(context.Background(), f.d.State(), f.p); err != nil {
			b.Fatal(err)
		}
	}
}

// reset begins to count anew.
func (f *figures) reset() { f.commits, f.records, f.bytes, f.conditions, f.deletes = 0, 0, 0, 0, 0 }

// measure publishes what change changes, which is left out.
func (f *figures) measure(b *testing.B, change func()) {
	var took time.Duration
	commits, records, bytes := 0, 0, 0
	for b.Loop() {
		b.StopTimer()
		change()
		f.reset()
		before := cpuTime(b)
		b.StartTimer()
		f.publish(b)
		took += cpuTime(b) - before
		commits, records, bytes = commits+f.commits, records+f.records, bytes+f.bytes
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(commits)/float64(b.N), "commits/op")
	b.ReportMetric(float64(records)/float64(b.N), "records/op")
	b.ReportMetric(float64(bytes)/float64(b.N), "store-bytes/op")
}

// cpuTime is the time that all processors spent on this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
