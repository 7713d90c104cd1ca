package publication_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// alteredFindings are what c finds of altered records among what it publishes.
func alteredFindings(c *coordinator.Coordinator) (out []string) {
	for _, f := range c.Parts().Publication.Findings() {
		if f.GetCode() == string(errcode.StoreForged) {
			out = append(out, f.GetSummary())
		}
	}
	return out
}

// wantAltered wants one finding at c that names a key and says what it comes to.
func wantAltered(t *testing.T, c *coordinator.Coordinator, key, effect string) {
	t.Helper()
	if got := alteredFindings(c); len(got) != 1 || !strings.Contains(got[0], key) || !strings.Contains(got[0], effect) {
		t.Errorf("found is %q, want one that names %s and says %q", got, key, effect)
	}
}

const (
	fromMemory   = "serve snapshots as they were signed, from memory"
	lastVerified = "go on with the snapshots that they verified last"
)

// mustFollow has a node verify what p has for it: news, or what it has.
func mustFollow(d *coordinatortest.Desk, t *testing.T, r *coordinatortest.Reader, p *publication.View) {
	t.Helper()
	_, err := r.Read(d, p)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); err != nil && (!ok || rejected.Reason != snapshot.ReasonUnchanged) {
		t.Error(err)
	}
}

// an attack on what is stored of a publication, after the leader wrote its last generation.
type attack struct {
	key     func(p *publication.View, header string) string
	do      func(now, before map[string]store.Entry, key string) []byte // nil: it is deleted
	what    string
	refused bool // it fails its MAC, or is not its name
}

func attacks() []attack {
	header := func(_ *publication.View, header string) string { return header }
	content := func(p *publication.View, header string) string {
		for _, h := range p.Headers() {
			if publication.PackedKey(h.HeaderPath) == header {
				return publication.ContentKey(h.Header.Content)
			}
		}
		return ""
	}
	state := func(*publication.View, string) string { return publication.StateKey }
	flip := func(now, _ map[string]store.Entry, key string) []byte {
		raw := slices.Clone(now[key].Value)
		raw[len(raw)-1] ^= 1
		return raw
	}
	gone := func(_, _ map[string]store.Entry, _ string) []byte { return nil }
	older := func(_, before map[string]store.Entry, key string) []byte { return slices.Clone(before[key].Value) }
	return []attack{
		{header, flip, "a header altered", true},
		{header, gone, "a header deleted", false},
		{header, func(now, _ map[string]store.Entry, key string) []byte {
			for other, e := range now {
				if strings.HasPrefix(other, publication.PackedPrefix) && other != key {
					return slices.Clone(e.Value)
				}
			}
			return nil
		}, "a header of another in its place", true},
		{header, older, "an older header", false},
		{content, flip, "a content altered", true},
		{content, gone, "a content deleted", false},
		{state, flip, "the record altered", true},
		{state, gone, "the record deleted", false},
		{state, older, "an older record", false},
	}
}

// Whatever somebody alters in the store, a coordinator that does not lead serves what is signed: the generation of the record
// in the store, where its memory, the store and the log have all of it, and else the one that it served. It says so, follows
// what is published next, and all is as it was once another coordinator leads.
func TestFollowerWithstandsTheStore(t *testing.T) {
	t.Parallel()
	silent := func(store.Change) store.Change { return store.Change{Revision: 1} }
	for at, tt := range attacks() {
		for _, changed := range []bool{false, true} { // what is altered changed with the last generation
			for n, log := range []string{"tells it", "is silent", "lies too"} {
				from := []int{1, 1024}[(at+n)%2] // a tree with bins, and one without
				t.Run(fmt.Sprintf("%s/changed %v/the log %s", tt.what, changed, log), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						d, b := coordinatortest.TenantsWith(t, binsFrom(from)), publication.NewPublisher()
						a := coordinatortest.ReaderOf(coordinatortest.JoinedAs(d, "acme", "a-1"))
						other := d.Second(coordinatortest.TenantEntries)
						defer other.Close()
						coordinatortest.FollowMembers(d, d.C)
						priority := func(n int) {
							coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", n))
							coordinatortest.MustPublish(d, b)
						}
						priority(1)
						before := d.Store.Snapshot()
						priority(2)
						had, _ := follow(d, t, other)
						a.Follow(d)
						mustFollow(d, t, a, had)
						header := ""
						for _, key := range d.Store.Keys(publication.PackedPrefix + string(snapshot.ScopeQoSPolicy)) {
							if !bytes.Equal(before[key].Value, d.Store.Snapshot()[key].Value) {
								header = key
							}
						}
						d.Advance(time.Hour) // and it reads all
						if changed {
							priority(3)
						} else {
							coordinatortest.MustPut(d, "kind: peer\nname: zig-1\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
							coordinatortest.MustPublish(d, b)
						}
						want := d.C.Parts().Publication.View()
						key := tt.key(want, header)
						if key == "" || want.Tree.Root() == had.Tree.Root() {
							t.Fatal("the test shows nothing")
						}
						altered := tt.do(d.Store.Snapshot(), before, key)
						if !d.Store.Alter(key, func([]byte) []byte { return altered }) {
							t.Fatalf("there is no %s", key)
						}
						switch log {
						case "is silent":
							d.Store.Tell(silent)
						case "lies too":
							d.Store.Tell(func(ch store.Change) store.Change {
								for i := range ch.Put {
									if ch.Put[i].Key == key {
										ch.Put[i].Value = altered
									}
								}
								if n := len(ch.Put); altered == nil {
									ch.Put = slices.DeleteFunc(ch.Put, func(e store.Entry) bool { return e.Key == key })
									if len(ch.Put) < n {
										ch.Delete = append(ch.Delete, key)
									}
								}
								return ch
							})
						}
						p, _ := follow(d, t, other)
						whole := key != publication.StateKey && (!changed || log == "tells it")
						switch {
						case !p.Serves():
							t.Fatal("it serves nothing")
						case whole && p.Tree.Root() != want.Tree.Root():
							t.Error("it does not serve what is signed")
						case !whole && p.Tree.Root() != had.Tree.Root():
							t.Error("it does not serve what it verified last")
						case p.Behind() == whole:
							t.Errorf("that it is behind is %v", p.Behind())
						}
						mustFollow(d, t, a, p)
						switch {
						case whole:
							wantAltered(t, other, key, fromMemory)
						case tt.refused:
							wantAltered(t, other, key, lastVerified)
						default: // which of them is not what is signed cannot be told
							wantAltered(t, other, publication.StateKey, lastVerified)
						}
						if coordinatortest.ForgedRecords(other) == 0 || len(alteredFindings(d.C)) > 0 {
							t.Errorf("it was said %v times, and the leader finds %q", coordinatortest.ForgedRecords(other), alteredFindings(d.C))
						}
						if again, read := follow(d, t, other); again != p || read > 1 {
							t.Errorf("it is looked at again, and %d records are read", read)
						}

						priority(4)
						next := d.C.Parts().Publication.View()
						if p, _ = follow(d, t, other); !p.Serves() || p.Tree.Root() != next.Tree.Root() {
							t.Error("it does not follow what is published next")
						}
						mustFollow(d, t, a, p)

						d.Store.Tell(nil)
						coordinatortest.FollowMembers(d, other)
						if _, err := other.Parts().Desired.Read(t.Context(), other.Parts().Head.State(), false); err != nil {
							t.Fatal(err)
						}
						coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
						p = other.Parts().Publication.View()
						wantAsStored(d, t, p)
						if !strings.HasPrefix(key, publication.ContentPrefix) { // which is the base of another one, and lost
							coordinatortest.WantWholeAt(d, t, p)
						}
						mustFollow(d, t, a, p)
						if got := alteredFindings(other); !p.Serves() || len(got) > 0 {
							t.Errorf("after it led it finds %q", got)
						}
						said := coordinatortest.ForgedRecords(d.C)
						was, _ := follow(d, t, d.C)
						if wantAsStored(d, t, was); coordinatortest.ForgedRecords(d.C) > said || len(alteredFindings(d.C)) > 0 {
							t.Error("something is altered still")
						}
					})
				})
			}
		}
	}
}

// alterHeader alters the header of a member, and has the record in the store be of another version, so that everybody looks.
func alterHeader(d *coordinatortest.Desk, t *testing.T, member string) (key string) {
	t.Helper()
	key = publication.PackedKey(publication.RuntimePath(member))
	if !d.Store.Alter(key, func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw }) {
		t.Fatal("there is no such header")
	}
	state := d.Store.Snapshot()[publication.StateKey]
	if _, err := d.Store.CompareAndSwap(t.Context(), state.Key, state.Version, state.Value); err != nil {
		t.Fatal(err)
	}
	d.Store.Tell(func(store.Change) store.Change { return store.Change{Revision: 1} })
	return key
}

// Who leads takes nothing from memory, in the middle of a term as at its beginning: it makes again what was altered.
func TestLeaderTakesNothingFromMemory(t *testing.T) {
	t.Parallel()
	made := func(d *coordinatortest.Desk, t *testing.T, c *coordinator.Coordinator, b *publication.Publisher, key string) {
		t.Helper()
		altered := d.Store.Snapshot()[key].Value
		coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, c, b))
		p := c.Parts().Publication.View()
		if p.State.Value.Since == 0 || bytes.Equal(d.Store.Snapshot()[key].Value, altered) {
			t.Error("it is not made again")
		}
		wantAsStored(d, t, p)
		coordinatortest.WantWholeAt(d, t, p)
		if got := alteredFindings(c); len(got) > 0 {
			t.Errorf("it finds %q", got)
		}
	}
	t.Run("after a commit whose answer was lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, b, other := followed(t)
			defer other.Close()
			coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
			lost := errors.New("the answer is lost")
			d.Faults.Fail("publish.after-commit", lost)
			if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, lost) {
				t.Fatal(err)
			}
			d.Faults.Disarm("publish.after-commit")
			made(d, t, d.C, b, alterHeader(d, t, "data/both"))
		})
	})
	t.Run("who did not lead for a moment", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, b, other := followed(t)
			defer other.Close()
			term, _, _ := d.C.Parts().Election.Leading()
			key := alterHeader(d, t, "data/both")
			d.Lapse()
			if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil {
				t.Fatal(err)
			}
			wantAltered(t, d.C, key, fromMemory)
			made(d, t, d.C, b, key)
			if now, _, _ := d.C.Parts().Election.Leading(); now != term {
				t.Error("it leads in another term: the test shows nothing")
			}
		})
	})
	for when, effect := range map[string]string{"who begins": fromMemory, "who begins, and was behind": lastVerified} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _, other := followed(t)
				defer other.Close()
				key := alterHeader(d, t, "data/both")
				if effect == lastVerified {
					d.Store.Alter(publication.StateKey, func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw })
				}
				p, _ := follow(d, t, other)
				wantAltered(t, other, key, effect)
				if !p.Serves() {
					t.Error("before, it serves nothing")
				}
				coordinatortest.FollowMembers(d, other)
				made(d, t, other, publication.NewPublisher(), key)
			})
		})
	}
}

// A coordinator that has nothing in memory serves nothing while a header is altered, and says so.
func TestAlteredBeforeAStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.Tenants(t)
		other := d.Second(coordinatortest.TenantEntries)
		defer other.Close()
		coordinatortest.MustPublish(d, publication.NewPublisher())
		key := alterHeader(d, t, "data/both")
		if p, _ := follow(d, t, other); p.Serves() {
			t.Error("it serves")
		}
		wantAltered(t, other, key, "serves no snapshots until all are made again")
	})
}

// A publication of before that is put back whole is genuine: who served a later one in the same authority epoch does not go
// back, and says so. After a restore, which makes another epoch, the one that is in the store counts.
func TestPublicationPutBackWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it waits for what is not told
		d, b, other := followed(t)
		defer other.Close()
		before := d.Store.Snapshot()
		coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
		coordinatortest.MustPublish(d, b)
		had, _ := follow(d, t, other)
		back := func() {
			for key := range d.Store.Snapshot() {
				if strings.HasPrefix(key, publication.Prefix) {
					d.Store.Remove(key)
				}
			}
			for key, e := range before {
				if strings.HasPrefix(key, publication.Prefix) {
					d.Store.Write(key, e.Value)
				}
			}
		}
		back()
		p, _ := follow(d, t, other)
		if !p.Serves() || p.Tree.Root() != had.Tree.Root() || !p.Behind() {
			t.Error("it went back")
		}
		wantAltered(t, other, publication.StateKey, lastVerified)

		if _, err := coordinatortest.Rekey(d); err != nil {
			t.Fatal(err)
		}
		other.Parts().Moves.Succession.Look(context.Background())
		if err := other.Parts().Bundle.Refresh(t.Context(), other.Parts().Head.State(), true); err != nil {
			t.Fatal(err)
		}
		back()
		p, _ = follow(d, t, other)
		if wantAsStored(d, t, p); p.Behind() || len(alteredFindings(other)) > 0 {
			t.Errorf("in the next epoch it finds %q", alteredFindings(other))
		}
	})
}

// After the authority epoch moved, what was verified before is served no more where the record in the store was altered:
// members that heard of the new one refuse it. It is remembered, and what is published next is made of it.
func TestAlteredInTheNextEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, b, other := followed(t)
		defer other.Close()
		if _, err := coordinatortest.Rekey(d); err != nil {
			t.Fatal(err)
		}
		other.Parts().Moves.Succession.Look(t.Context())
		if err := other.Parts().Bundle.Refresh(t.Context(), other.Parts().Head.State(), true); err != nil {
			t.Fatal(err)
		}
		coordinatortest.MustPublish(d, b)
		d.Store.Alter(publication.StateKey, func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw })
		d.Store.Tell(func(ch store.Change) store.Change { ch.Revision++; return ch })
		if p, _ := follow(d, t, other); p.Serves() {
			t.Error("what is of the former epoch is served")
		}
		d.Store.Tell(nil)
		coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
		coordinatortest.MustPublish(d, b)
		key := publication.PackedKey(publication.RuntimePath("data/both"))
		d.Store.Alter(key, func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw })
		p, _ := follow(d, t, other)
		if want := d.C.Parts().Publication.View(); !p.Serves() || p.Tree.Root() != want.Tree.Root() ||
			p.State.Value.AuthorityEpoch != d.State().Head.AuthorityEpoch {
			t.Error("it does not serve what is signed in the new epoch")
		}
		wantAltered(t, other, key, fromMemory)
	})
}

// What was altered and is in no snapshot is found until it is gone, also by who leads meanwhile. Its name need not be text.
func TestAlteredOrphanIsFoundUntilItIsGone(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"who leads", "somebody"} {
		d, b, other := followed(t)
		key := publication.ContentPrefix + "a\xff" + strings.Repeat("b", 4000)
		if by == "who leads" { // and no key of an engine can be like that
			key = publication.ContentKey(strings.Repeat("0", 64))
		}
		d.Store.Write(key, []byte("altered"))
		d.Advance(time.Hour) // and all is read
		coordinatortest.MustPut(d, "kind: qos\nname: gold\npriority: 1\n")
		coordinatortest.MustPublish(d, b)
		follow(d, t, other)
		wantAltered(t, other, publication.ContentPrefix, "nobody is told anything of it")
		for _, f := range alteredFindings(other) {
			if !utf8.ValidString(f) {
				t.Error("the finding is no text")
			}
		}
		if by == "somebody" {
			d.Store.Remove(key)
		}
		coordinatortest.FollowMembers(d, other)
		if _, err := other.Parts().Desired.Read(t.Context(), other.Parts().Head.State(), false); err != nil {
			t.Fatal(err)
		}
		coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
		if got := alteredFindings(other); len(got) > 0 || d.Store.Version(key) != 0 {
			t.Errorf("%s removed it, and found is %q", by, got)
		}
		other.Close()
	}
}

// Who begins to lead where nothing is to be published removes what is altered and in no snapshot, and finds it no more.
func TestAlteredOrphanIsSwept(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	was := coordinatortest.MustPublish(d, publication.NewPublisher())
	key := publication.ContentKey(strings.Repeat("0", 64))
	d.Store.Write(key, []byte("altered"))
	d.Restart()
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	if got := alteredFindings(d.C); p.State.Version != was.State.Version || d.Store.Version(key) != 0 || len(got) > 0 {
		t.Errorf("version %d after %d, and it finds %q", p.State.Version, was.State.Version, got)
	}
}

// A record of before that is put back over the same headers is not served: it would make what members hold look older.
func TestRecordPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // it waits for what is not told
		d, b, other := followed(t)
		defer other.Close()
		before := d.Store.Snapshot()[publication.StateKey].Value
		d.Advance(publication.Renew)
		coordinatortest.MustPublish(d, b)
		had, _ := follow(d, t, other)
		d.Store.Write(publication.StateKey, before)
		p, _ := follow(d, t, other)
		if want := had.State.Value; p.Tree.Root() != had.Tree.Root() || p.State.Value.Generation != want.Generation ||
			!p.State.Value.FreshUntil.Equal(want.FreshUntil) || !p.Behind() {
			t.Errorf("generation %d is served after %d", p.State.Value.Generation, want.Generation)
		}
		wantAltered(t, other, publication.StateKey, lastVerified)
	})
}
