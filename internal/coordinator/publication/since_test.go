package publication_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/testlane"
)

// follow has a coordinator that does not lead look at the publication, and returns what it serves then and how
// many records it read.
func follow(d *coordinatortest.Desk, t *testing.T, c *coordinator.Coordinator) (*publication.View, int) {
	t.Helper()
	d.Store.CountReads(publication.Prefix)
	if _, err := c.Parts().Publication.Publish(t.Context(), c.Parts().Head.State(), publication.NewPublisher()); err != nil {
		t.Fatal(err)
	}
	return c.Parts().Publication.View(), d.Store.ReadSince()
}

// binsFrom has leaves lie in bins from a number of headers on.
func binsFrom(n int) func(*coordinator.Config) {
	return func(cfg *coordinator.Config) { cfg.Publishing.BinsFrom = n }
}

// followed returns a desk with tenants, whose coordinator published once by b, and another coordinator that has read it
// and does not lead. Who calls it closes that one, within its bubble.
func followed(t *testing.T) (d *coordinatortest.Desk, b *publication.Publisher, other *coordinator.Coordinator) {
	t.Helper()
	return followedWith(t, nil)
}

// followedWith is followed, with a config that alter changes.
func followedWith(t *testing.T, alter func(*coordinator.Config)) (d *coordinatortest.Desk, b *publication.Publisher,
	other *coordinator.Coordinator) {
	t.Helper()
	d, b = coordinatortest.TenantsWith(t, alter), publication.NewPublisher()
	other = d.Second(coordinatortest.TenantEntries)
	coordinatortest.MustPublish(d, b)
	follow(d, t, other)
	return d, b, other
}

// wantAsStored checks that p is what reading all of it makes.
func wantAsStored(d *coordinatortest.Desk, t *testing.T, p *publication.View) {
	t.Helper()
	want, err := d.C.Parts().Publication.Load(t.Context(), d.State())
	if err != nil {
		t.Fatal(err)
	}
	if p.State.Version != want.State.Version || p.Tree.Root() != want.Tree.Root() || p.Len() != want.Len() || p.Broken != want.Broken {
		t.Fatalf("version %d of %d headers is served, and version %d of %d is stored", p.State.Version, p.Len(), want.State.Version,
			want.Len())
	}
	for i, h := range want.Headers() {
		if got := p.Header(i); got.HeaderPath != h.HeaderPath || !slices.Equal(got.Header.Header, h.Header.Header) {
			t.Fatalf("header %d is that of %s, and %s is stored", i, got.HeaderPath, h.HeaderPath)
		}
	}
	text := func(p *publication.View) map[string]string {
		out := make(map[string]string)
		for hash, raw := range p.Contents() {
			out[hash] = string(raw)
		}
		return out
	}
	if !maps.Equal(text(p), text(want)) || !p.StoredAs(want) {
		t.Fatalf("%d contents are served, and %d stored, or otherwise", len(text(p)), len(text(want)))
	}
}

// A coordinator that reads what was written since has the publication as it is stored, whatever happened to it:
// members that come and go, contents in parts that share some, and leaders that were killed anywhere.
func TestSinceIsAsStored(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(testlane.Seed(t), 1))
	const middle = 32 // headers, of which there are more at times, and fewer than half at others
	d, b, other := followedWith(t, binsFrom(middle))
	defer other.Close()
	name := func() string { return fmt.Sprintf("n-%d", random.IntN(30)) }
	changes := []func(){
		func() {
			coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", random.IntN(1000)))
		},
		func() {
			coordinatortest.MustPut(d, fmt.Sprintf("kind: peer\nname: zig-1\nmember: data/both\naddresses: [\"h%d:1\"]\nclass: bootstrap",
				random.IntN(1000)))
		},
		func() {
			r, n := d.Record(identity.Data, "both"), name()
			r.Value.Name, r.Value.Incarnation, r.Version = n, coordinatortest.KeyNumber(random.IntN(100)), d.Record(identity.Data, n).Version
			ch := d.State().Records.NewChange(d.State().HeadVersion)
			ch.Put(record.MemberKey(identity.Data, n), r.Version, r.Value)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			ch := d.State().Records.NewChange(d.State().HeadVersion)
			ch.Drop(record.MemberKey(identity.Data, name()))
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		func() { // killed, and the next one begins with what it left
			killed := errors.New("killed")
			at := []string{"publish.after-contents", "publish.before-commit", "publish.after-commit", "publish.before-sweep"}[random.IntN(4)]
			coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", random.IntN(1000)))
			d.Faults.Fail(at, killed)
			if err := coordinatortest.PublishAll(d, d.C, b); err != nil && !errors.Is(err, killed) {
				t.Fatal(err)
			}
			d.Faults.Disarm(at)
			b = publication.NewPublisher()
		},
	}
	coordinatortest.LongPeers(d, "zig")
	byChanges := 0
	for range testlane.Rounds(20, 400) {
		for range 1 + random.IntN(3) {
			changes[random.IntN(len(changes))]()
		}
		coordinatortest.FollowMembers(d, d.C)
		d.Lead(d.C)
		for more := true; more; {
			var err error
			if more, err = d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil {
				t.Fatal(err)
			}
			if random.IntN(2) > 0 || !more {
				p, read := follow(d, t, other)
				wantAsStored(d, t, p)
				if read > 0 && read < len(d.Store.Keys(publication.Prefix)) {
					byChanges++
				}
			}
		}
	}
	if byChanges < 15 {
		t.Errorf("it read no more than what changed %d times", byChanges)
	}
}

// Whatever the store tells of what was written, what is served is what is stored and signed: all of it is read.
func TestSinceOfALyingStore(t *testing.T) {
	t.Parallel()
	puts := func(family string, f func(*store.Entry)) func(*store.Change, map[string]store.Entry) {
		return func(ch *store.Change, _ map[string]store.Entry) {
			for i := range ch.Put {
				if strings.HasPrefix(ch.Put[i].Key, family) {
					f(&ch.Put[i])
				}
			}
		}
	}
	flip := func(e *store.Entry) { e.Value[len(e.Value)-1] ^= 1 }
	omit := func(family string) func(*store.Change, map[string]store.Entry) {
		return func(ch *store.Change, _ map[string]store.Entry) {
			ch.Put = slices.DeleteFunc(ch.Put, func(e store.Entry) bool { return strings.HasPrefix(e.Key, family) })
		}
	}
	gone := func(family string) func(*store.Change, map[string]store.Entry) {
		return func(ch *store.Change, before map[string]store.Entry) {
			for key := range before {
				if strings.HasPrefix(key, family) && !slices.Contains(ch.Delete, key) {
					ch.Delete = append(ch.Delete, key)
				}
			}
		}
	}
	for name, lie := range map[string]func(ch *store.Change, before map[string]store.Entry){
		"a content that is not its name": nil,
		"it is not kept":                 func(*store.Change, map[string]store.Entry) {},
		"nothing is told":                func(ch *store.Change, _ map[string]store.Entry) { *ch = store.Change{Revision: 1} },
		"it is told as a later one":      func(ch *store.Change, _ map[string]store.Entry) { ch.Revision++ },
		"a header is altered":            puts(publication.PackedPrefix, flip),
		"a content is altered":           puts(publication.ContentPrefix, flip),
		"the record is altered":          puts(publication.StateKey, flip),
		"a header is left out":           omit(publication.PackedPrefix),
		"a content is left out":          omit(publication.ContentPrefix),
		"the record is left out":         omit(publication.StateKey),
		"a header is gone":               gone(publication.PackedKey(publication.RuntimePath("data/both"))),
		"contents are gone":              gone(publication.ContentPrefix),
		"a content under the name of another": func(ch *store.Change, before map[string]store.Entry) {
			puts(publication.ContentPrefix, func(e *store.Entry) {
				for key, b := range before {
					if strings.HasPrefix(key, publication.ContentPrefix) {
						e.Value = slices.Clone(b.Value)
					}
				}
			})(ch, before)
		},
		"headers and the record as they were": func(ch *store.Change, before map[string]store.Entry) {
			puts("", func(e *store.Entry) {
				if b, ok := before[e.Key]; ok {
					e.Value = slices.Clone(b.Value)
				}
			})(ch, before)
		},
		"headers as they were": func(ch *store.Change, before map[string]store.Entry) {
			puts(publication.PackedPrefix, func(e *store.Entry) {
				if b, ok := before[e.Key]; ok {
					e.Value = slices.Clone(b.Value)
				}
			})(ch, before)
		},
		"a family of a later release": func(ch *store.Change, _ map[string]store.Entry) {
			ch.Put = append(ch.Put, store.Entry{Key: publication.Prefix + "later/x", Version: ch.Revision})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // it waits for what is not told
				d := coordinatortest.Tenants(t)
				other := d.Second(coordinatortest.TenantEntries)
				defer other.Close()
				b := publication.NewPublisher()
				priority := func(n int) {
					coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", n))
					coordinatortest.MustPublish(d, b)
				}
				priority(1)
				follow(d, t, other)
				priority(2)
				if p, read := follow(d, t, other); read >= len(d.Store.Keys(publication.Prefix)) {
					t.Fatalf("it reads %d records of %d for a change of one", read, p.Len())
				}
				before := d.Store.Snapshot()
				priority(3)
				if name == "a content that is not its name" {
					lie = puts(publication.ContentPrefix,
						func(e *store.Entry) { e.Value = d.State().Records.Auth.Seal(e.Key, []byte("another")) })
				}
				d.Store.Tell(func(ch store.Change) store.Change {
					lie(&ch, before)
					return ch
				})
				if name == "it is not kept" {
					for i := range 100 {
						if _, err := d.Store.CompareAndSwap(t.Context(), fmt.Sprintf("other/%d", i), 0, []byte("x")); err != nil {
							t.Fatal(err)
						}
					}
				}
				p, read := follow(d, t, other)
				wantAsStored(d, t, p)
				if !p.Serves() || read < len(d.Store.Keys(publication.Prefix)) {
					t.Errorf("it read %d of %d records", read, len(d.Store.Keys(publication.Prefix)))
				}
			})
		})
	}
}

// What was altered in the store, and not written, is found within the hour by coordinators that do not lead.
func TestAlteredBehindAFollower(t *testing.T) {
	t.Parallel()
	d, b, other := followed(t)
	defer other.Close()
	if !d.Store.Alter(publication.PackedKey(publication.RuntimePath("data/both")), func(raw []byte) []byte {
		raw[len(raw)-1] ^= 1
		return raw
	}) {
		t.Fatal("there is no such header")
	}
	coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
	coordinatortest.MustPublish(d, b)
	follow(d, t, other)
	if coordinatortest.ForgedRecords(other) > 0 {
		t.Fatal("all is read for one change")
	}
	d.Advance(time.Hour)
	coordinatortest.MustPublish(d, b)
	if follow(d, t, other); coordinatortest.ForgedRecords(other) == 0 {
		t.Error("nobody noticed")
	}
}

// What was altered is said for each publication that is read, by coordinators that do not lead, for as long as it is there.
func TestAlteredIsSaidAgain(t *testing.T) {
	t.Parallel()
	d, b, other := followed(t)
	defer other.Close()
	altered := publication.ContentKey(strings.Repeat("0", 64)) // which no header names
	version, err := d.Store.CompareAndSwap(t.Context(), altered, 0, []byte("altered"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(n int) int {
		coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", n))
		coordinatortest.MustPublish(d, b)
		p, read := follow(d, t, other)
		wantAsStored(d, t, p)
		return read
	}
	for n := range 3 {
		change(n)
		if got := coordinatortest.ForgedRecords(other); got != float64(n+1) {
			t.Fatalf("after %d publications it was said %v times", n+1, got)
		}
	}
	tx := store.Tx{If: []store.Condition{{Key: altered, Version: version}}, Delete: []string{altered}}
	if _, err := d.Store.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	change(3)
	if read := change(4); coordinatortest.ForgedRecords(other) != 3 || read >= len(d.Store.Keys(publication.Prefix)) {
		t.Errorf("it is gone, was said %v times, and %d records are read", coordinatortest.ForgedRecords(other), read)
	}
}

// A log that does not tell what was written is waited for once, and not for each generation: a coordinator that does not lead
// must not be behind all the time.
func TestSilentLogIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, b, other := followed(t)
		defer other.Close()
		d.Store.Tell(func(store.Change) store.Change { return store.Change{Revision: 1} })
		for n := range 3 {
			coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", n))
			coordinatortest.MustPublish(d, b)
			before := time.Now()
			p, _ := follow(d, t, other)
			wantAsStored(d, t, p)
			if waited := time.Since(before) > 0; waited != (n == 0) {
				t.Errorf("generation %d: it waited %s", n, time.Since(before))
			}
		}
		d.Store.Tell(nil)
		d.Advance(time.Hour)
		for n := range 2 { // the first one reads all for the hour
			coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", n+10))
			coordinatortest.MustPublish(d, b)
			if _, read := follow(d, t, other); n > 0 && read >= len(d.Store.Keys(publication.Prefix)) {
				t.Errorf("it tells again, and %d records are read", read)
			}
		}
	})
}

// While a fleet grows and shrinks, a coordinator that does not lead follows from the order of paths to bins, to more and to fewer
// bins and back by what was written, and has what is stored each time.
func TestBinsAreFollowed(t *testing.T) {
	t.Parallel()
	d, b, other := followedWith(t, binsFrom(100))
	defer other.Close()
	was := d.Record(identity.Data, "both").Value
	var seen []int
	step := func(from, to int, change func(*record.Change, string)) {
		t.Helper()
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		for i := from; i < to; i++ {
			change(ch, fmt.Sprintf("n-%03d", i))
		}
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		coordinatortest.FollowMembers(d, d.C)
		coordinatortest.MustPublish(d, b)
		p, read := follow(d, t, other)
		wantAsStored(d, t, p)
		if all := len(d.Store.Keys(publication.Prefix)); read == 0 || read >= all {
			t.Errorf("with %d bins it reads %d records of %d", p.State.Value.Bins, read, all)
		}
		if n := len(seen); n == 0 || seen[n-1] != p.State.Value.Bins {
			seen = append(seen, p.State.Value.Bins)
		}
	}
	const most, batch = 160, 8
	for i := 0; i < most; i += batch {
		step(i, i+batch, func(ch *record.Change, name string) {
			r := was
			r.Name, r.Incarnation = name, coordinatortest.KeyNumber(i)
			ch.Put(record.MemberKey(identity.Data, name), 0, r)
		})
	}
	for i := most; i > 0; i -= batch {
		step(i-batch, i, func(ch *record.Change, name string) { ch.Drop(record.MemberKey(identity.Data, name)) })
	}
	if want := []int{0, 4, 8, 2, 0}; !slices.Equal(seen, want) {
		t.Errorf("there are %v bins in turn, want %v", seen, want)
	}
}
