package publication_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// runtimes returns how many node_runtime headers p has, and of how many contents.
func runtimes(p *publication.View) (headers, contents int) {
	seen := make(map[string]bool)
	for _, h := range p.Headers() {
		if h.Scope == snapshot.ScopeNodeRuntime {
			headers++
			seen[h.Header.Content] = true
		}
	}
	return headers, len(seen)
}

// poolScopes is how many scopes the group of poolEntries' members has.
const poolScopes = 3

func TestPublish(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	b := publication.NewPublisher()
	if p := coordinatortest.MustPublish(d, b); p.Serves() || coordinatortest.CounterOf(d.C.Registry(),
		"fealty_snapshot_uncompiled") != 0 {
		t.Fatal("a record over no header")
	}
	a, z := d.Joined("a"), d.Joined("z")
	ra, rz := coordinatortest.ReaderOf(a), coordinatortest.ReaderOf(z)
	first := coordinatortest.MustPublish(d, b)
	va := ra.MustRead(d, first)
	rz.MustRead(d, first)
	content, ok := va.NodeRuntime()
	if !ok || content.Entry != "pool" || content.State != snapshot.MemberActive ||
		!slices.Equal(content.Roles, []string{"egress", "ingress"}) ||
		!slices.Equal(content.Organizations, []string{"acme", "globex"}) || !slices.Equal(content.Coordinators,
		[]string{d.C.Addr()}) || content.Degraded == nil {
		t.Fatalf("content %+v", content)
	}
	if record, _ := va.Record(); va.Header().ConfigVersion != record.Generation || record.TreeSize != 2+poolScopes ||
		record.Revocations != d.C.Parts().Bundle.View().Revocations {
		t.Fatalf("version %d under %+v", va.Header().ConfigVersion, record)
	}
	if _, n := runtimes(first); n != 1 || len(d.Store.Keys(publication.ContentPrefix)) != 1+poolScopes {
		t.Fatalf("%d contents for two members of one entry", n)
	}

	t.Run("equal content commits nothing", func(t *testing.T) {
		before := d.Store.Snapshot()[publication.StateKey]
		if err := a.Renew(); err != nil { // another version of the record, the same content
			t.Fatal(err)
		}
		if p := coordinatortest.MustPublish(d, publication.NewPublisher()); p != first ||
			d.Store.Snapshot()[publication.StateKey].Version != before.Version {
			t.Fatal("published again")
		}
	})
	t.Run("a join changes no other header", func(t *testing.T) {
		m := d.Joined("m")
		p := coordinatortest.MustPublish(d, b)
		coordinatortest.ReaderOf(m).MustRead(d, p)
		i, _ := p.Find(publication.RuntimePath("data/a"))
		if j, _ := first.Find(publication.RuntimePath("data/a")); !bytes.Equal(p.Header(i).Header.Header,
			first.Header(j).Header.Header) {
			t.Fatal("the header of another member changed")
		}
		v := ra.MustRead(d, p) // a newer record over the same header
		if v.HeaderDigest() != va.HeaderDigest() {
			t.Fatal("another header")
		}
		if _, err := ra.Read(d, first); err == nil {
			t.Fatal("the older record was accepted")
		}
	})
	t.Run("a record is renewed before it is stale", func(t *testing.T) {
		was := d.C.Parts().Publication.View()
		d.Advance(publication.Renew)
		p := coordinatortest.MustPublish(d, b)
		v := ra.MustRead(d, p)
		if p.State.Value.Generation <= was.State.Value.Generation || v.HeaderDigest() != va.HeaderDigest() ||
			v.Freshness(d.Clock(), 0) != snapshot.Fresh {
			t.Fatalf("generation %d after %d", p.State.Value.Generation, was.State.Value.Generation)
		}
		if v.Freshness(d.Clock().Add(publication.Fresh), time.Minute) != snapshot.Stale {
			t.Fatal("fresh for longer than announced")
		}
	})
	t.Run("a header is renewed at half of its life", func(t *testing.T) {
		d.Advance(publication.HeaderLife / 2)
		if err := d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true); err != nil {
			t.Fatal(err)
		}
		ra.Follow(d)
		v := ra.MustRead(d, coordinatortest.MustPublish(d, b))
		if v.Header().ConfigVersion != va.Header().ConfigVersion || !v.Header().ExpiresAt.After(va.Header().ExpiresAt) {
			t.Fatalf("version %d until %v", v.Header().ConfigVersion, v.Header().ExpiresAt)
		}
		va = v
	})
	t.Run("a ban makes a new record", func(t *testing.T) {
		coordinatortest.BanAt(d, t, identity.Data, "m")
		p := coordinatortest.MustPublish(d, b)
		if p.State.Value.Revocations != d.C.Parts().Bundle.View().Revocations.String() {
			t.Fatal("the record does not know of the ban")
		}
	})
	t.Run("the manifest changes", func(t *testing.T) {
		coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
			"roles: [ingress, egress]",
			"roles: [thin]",
			1)), "")
		ra.Follow(d)
		p := coordinatortest.MustPublish(d, b)
		v := ra.MustRead(d, p)
		content, _ := v.NodeRuntime()
		if v.Header().ConfigVersion <= va.Header().ConfigVersion || !slices.Equal(content.Roles, []string{"thin"}) ||
			content.Degraded != nil {
			t.Fatalf("version %d: %+v", v.Header().ConfigVersion, content)
		}
		if got, want := len(d.Store.Keys(publication.ContentPrefix)), 1+len(content.Companions); got != want ||
			p.Len() != 3+len(content.Companions) {
			t.Fatalf("%d contents, want %d, and %d headers: the old ones are not removed", got, want, p.Len())
		}
	})
	t.Run("a member is drained, and is not any more", func(t *testing.T) {
		i, _ := coordinatortest.MustPublish(d, b).Find(publication.RuntimePath("data/a"))
		was := d.C.Parts().Publication.View().Header(i).Header.ConfigVersion
		for _, c := range []struct {
			drain bool
			want  snapshot.MemberState
		}{{true, snapshot.MemberDraining}, {false, snapshot.MemberActive}} {
			if c.drain {
				coordinatortest.DrainAt(d, t, "a")
			} else if _, err := d.Members().UndrainMember(t.Context(), &fealtyv1.UndrainMemberRequest{Kind: "data",
				Name: "a"}); err != nil {
				t.Fatal(err)
			}
			coordinatortest.FollowMembers(d, d.C)
			v := ra.MustRead(d, coordinatortest.MustPublish(d, b))
			if content, _ := v.NodeRuntime(); content.State != c.want || v.Header().ConfigVersion <= was {
				t.Fatalf("version %d: %+v, want %s", v.Header().ConfigVersion, content, c.want)
			}
			was = v.Header().ConfigVersion
		}
	})
	t.Run("a member leaves", func(t *testing.T) {
		coordinatortest.RemoveAt(d, t, identity.Data, "z")
		coordinatortest.FollowMembers(d, d.C)
		p := coordinatortest.MustPublish(d, b)
		if _, ok := p.Find(publication.RuntimePath("data/z")); ok ||
			slices.Contains(d.Store.Keys(publication.PackedPrefix),
				publication.PackedKey(publication.RuntimePath("data/z"))) {
			t.Fatal("it still has a header")
		}
	})
	t.Run("no entry covers it any more", func(t *testing.T) {
		coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
			`name: pool, kind: data, match: ["token:pool"]`,
			`name: other, kind: data, match: ["token:other"]`, 1)), "")
		if p := coordinatortest.MustPublish(d, b); p.Serves() || p.Len() != 0 ||
			len(d.Store.Keys(publication.ContentPrefix)) != 0 {
			t.Fatalf("%d headers", p.Len())
		}
		if _, err := ra.Read(d, d.C.Parts().Publication.View()); err == nil {
			t.Fatal("it is still told something")
		}
	})
}

// A replica that starts serves what is stored, to the byte, without compiling.
func TestPublicationIsLoaded(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	d.Joined("b")
	was := coordinatortest.MustPublish(d, publication.NewPublisher())
	version := d.Store.Snapshot()[publication.StateKey].Version
	d.Restart()
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	if p == was || d.Store.Snapshot()[publication.StateKey].Version != version {
		t.Fatal("it published instead of reading")
	}
	x, _ := was.Message(0)
	if y, err := p.Message(0); err != nil || !bytes.Equal(x.GetEnvelope(), y.GetEnvelope()) {
		t.Fatalf("other bytes (%v)", err)
	}
	coordinatortest.ReaderOf(m).MustRead(d, p)
}

// Somebody else's change of the records is noticed, not served, and made again.
func TestPublicationIsRepaired(t *testing.T) {
	t.Parallel()
	flip := func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
	gone := func([]byte) []byte { return nil }
	for _, tc := range []struct {
		name   string
		key    func(d *coordinatortest.Desk) string
		do     func([]byte) []byte
		forged bool
	}{
		{"header altered", func(*coordinatortest.Desk) string {
			return publication.PackedKey(
				publication.RuntimePath("data/a"))
		}, flip,
			true},
		{"header deleted", func(*coordinatortest.Desk) string {
			return publication.PackedKey(
				publication.RuntimePath("data/a"))
		}, gone,
			false},
		{"content altered", func(d *coordinatortest.Desk) string { return d.Store.Keys(publication.ContentPrefix)[0] },
			flip,
			true},
		{"content deleted", func(d *coordinatortest.Desk) string { return d.Store.Keys(publication.ContentPrefix)[0] },
			gone,
			false},
		{"record altered", func(*coordinatortest.Desk) string { return publication.StateKey }, flip, true},
		{"record deleted", func(*coordinatortest.Desk) string { return publication.StateKey }, gone, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			a, z := coordinatortest.ReaderOf(d.Joined("a")), coordinatortest.ReaderOf(d.Joined("z"))
			was := coordinatortest.MustPublish(d, publication.NewPublisher())
			a.MustRead(d, was)
			z.MustRead(d, was)
			if !d.Store.Alter(tc.key(d), tc.do) {
				t.Fatal("there is no such key")
			}
			d.Restart() // what is in memory is not read again
			p := coordinatortest.MustPublish(d, publication.NewPublisher())
			if got := coordinatortest.ForgedRecords(d.C) > 0; got != tc.forged {
				t.Errorf("alarm: %v, want %v", got, tc.forged)
			}
			if !p.Serves() || p.State.Value.Generation <= was.State.Value.Generation {
				t.Fatalf("generation %d after %d", p.State.Value.Generation, was.State.Value.Generation)
			}
			a.MustRead(d, p)
			z.MustRead(d, p)
			if again := coordinatortest.MustPublish(d, publication.NewPublisher()); again != p {
				t.Error("it goes on repairing")
			}
		})
	}
	t.Run("header set back", func(t *testing.T) {
		// It has its MAC, and says what holds now; only its version was overtaken.
		d := coordinatortest.PoolDesk(t)
		a := coordinatortest.ReaderOf(d.Joined("a"))
		was := coordinatortest.MustPublish(d, publication.NewPublisher())
		a.MustRead(d, was)
		old := d.Store.Snapshot()[publication.PackedKey(publication.RuntimePath("data/a"))].Value
		coordinatortest.DrainAt(d, t, "a")
		coordinatortest.FollowMembers(d, d.C)
		a.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
		if _, err := d.Members().UndrainMember(t.Context(),
			&fealtyv1.UndrainMemberRequest{Kind: "data", Name: "a"}); err != nil {
			t.Fatal(err)
		}
		coordinatortest.FollowMembers(d, d.C)
		newest := a.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
		if !d.Store.Alter(publication.PackedKey(publication.RuntimePath("data/a")),
			func([]byte) []byte { return old }) {
			t.Fatal("there is no such key")
		}
		d.Restart()
		if v := a.MustRead(d,
			coordinatortest.MustPublish(d, publication.NewPublisher())); v.Header().ConfigVersion <= newest.Header().ConfigVersion {
			t.Fatalf("version %d after %d", v.Header().ConfigVersion, newest.Header().ConfigVersion)
		}
		if len(d.Store.Keys(publication.PackedPrefix)) != 1+poolScopes ||
			len(d.Store.Keys(publication.ContentPrefix)) != 1+poolScopes {
			t.Fatalf("keys %v", d.Store.Keys(publication.Prefix))
		}
	})
	t.Run("another layout", func(t *testing.T) {
		// Headers that lie where an earlier release kept them are made again, once.
		d := coordinatortest.PoolDesk(t)
		a := coordinatortest.ReaderOf(d.Joined("a"))
		was := a.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
		contents, headers := d.Store.Keys(publication.ContentPrefix), d.Store.Keys(publication.PackedPrefix)
		for _, key := range []string{publication.PackedPrefix + "data/a",
			publication.PackedPrefix + "unknown/node/data/a",
			publication.PackedPrefix + "node_runtime/data/a", publication.HeaderPrefix + "node_runtime/node/data/"} {
			s := d.State()
			ch := s.Records.NewChange(s.HeadVersion)
			i, _ := d.C.Parts().Publication.View().Find(publication.RuntimePath("data/a"))
			ch.Write(key, d.C.Parts().Publication.View().Header(i).Header)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		d.Store.Alter(publication.PackedKey(publication.RuntimePath("data/a")), func([]byte) []byte { return nil })
		d.Restart()
		b := publication.NewPublisher()
		if v := a.MustRead(d, coordinatortest.MustPublish(d, b)); v.Header().ConfigVersion <= was.Header().ConfigVersion ||
			v.Header().ContentHash != was.Header().ContentHash {
			t.Fatalf("version %d after %d", v.Header().ConfigVersion, was.Header().ConfigVersion)
		}
		if keys := d.Store.Keys(publication.PackedPrefix); !slices.Equal(keys, headers) {
			t.Fatalf("headers are kept at %v", keys)
		}
		if keys := d.Store.Keys(publication.ContentPrefix); !slices.Equal(keys, contents) {
			t.Fatalf("other contents: %v", keys)
		}
		version := d.Store.Snapshot()[publication.StateKey].Version
		d.Restart()
		if coordinatortest.MustPublish(d, publication.NewPublisher()); d.Store.Snapshot()[publication.StateKey].Version != version {
			t.Fatal("it is made again a second time")
		}
	})
	t.Run("the other form of what was made again", func(t *testing.T) {
		// An earlier release that led makes all again, and was stopped before it swept.
		d := coordinatortest.PoolDesk(t)
		a := coordinatortest.ReaderOf(d.Joined("a"))
		a.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
		i, _ := d.C.Parts().Publication.View().Find(publication.RuntimePath("data/a"))
		left := d.C.Parts().Publication.View().Header(i).Header
		d.Store.Alter(publication.PackedKey(publication.RuntimePath("data/a")), func([]byte) []byte { return nil })
		d.Restart()
		p := coordinatortest.MustPublish(d, publication.NewPublisher())
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		ch.Write(publication.HeaderKey(publication.RuntimePath("data/a")), left)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.Restart()
		again := coordinatortest.MustPublish(d, publication.NewPublisher())
		if again.State.Version != p.State.Version || again.Broken {
			t.Error("all is made again for a left-over")
		}
		coordinatortest.WantWholeAt(d, t, again)
	})
	t.Run("foreign key", func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		d.Joined("a")
		coordinatortest.MustPublish(d, publication.NewPublisher())
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		ch.Write(publication.Prefix+"x", 1)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.Restart()
		coordinatortest.MustPublish(d, publication.NewPublisher())
		if slices.Contains(d.Store.Keys(publication.Prefix), publication.Prefix+"x") {
			t.Fatal("it is still there")
		}
	})
}

// A member that does not compile keeps its last header in the next record, with an
// alarm, and blocks nobody.
func TestMemberThatDoesNotCompile(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	b := publication.NewPublisher()
	a := coordinatortest.ReaderOf(d.Joined("a"))
	was := a.MustRead(d, coordinatortest.MustPublish(d, b))
	d.Faults.Fail("publish.compile.data/a", errors.New("broken"))
	z := coordinatortest.ReaderOf(d.Joined("z"))
	coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries, "roles: [ingress, egress]",
		"roles: [ingress]",
		1)), "")
	a.Follow(d)
	z.Follow(d)
	p := coordinatortest.MustPublish(d, b)
	if v := a.MustRead(d, p); v.HeaderDigest() != was.HeaderDigest() {
		t.Fatal("another header")
	}
	if c, _ := z.MustRead(d, p).NodeRuntime(); !slices.Equal(c.Roles, []string{"ingress"}) {
		t.Fatalf("the other has %+v", c)
	}
	if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_snapshot_uncompiled"); n != 1 {
		t.Fatalf("%v members are said not to compile", n)
	}
	d.Faults.Disarm("publish.compile.data/a")
	if c, _ := a.MustRead(d, coordinatortest.MustPublish(d, b)).NodeRuntime(); !slices.Equal(c.Roles,
		[]string{"ingress"}) || coordinatortest.CounterOf(d.C.Registry(), "fealty_snapshot_uncompiled") != 0 {
		t.Fatalf("repaired: %+v", c)
	}
}

// A member whose record somebody altered, or that changes while each generation is
// made, blocks nobody.
func TestContestedMember(t *testing.T) {
	alter := func(d *coordinatortest.Desk) {
		if !d.Store.Alter(record.MemberPrefix+"data/a", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }) {
			d.T.Fatal("there is no such key")
		}
	}
	for _, tc := range []struct {
		name string
		do   func(d *coordinatortest.Desk, a *coordinatortest.Machine)
	}{
		{"altered", func(d *coordinatortest.Desk, _ *coordinatortest.Machine) { alter(d) }},
		{"altered, and then a start", func(d *coordinatortest.Desk, _ *coordinatortest.Machine) {
			alter(
				d)
			d.Restart()
		}},
		{"it renews all the time", func(d *coordinatortest.Desk, a *coordinatortest.Machine) {
			d.Faults.Arm("publish.before-commit", a.Renew)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			a, z := d.Joined("a"), coordinatortest.ReaderOf(d.Joined("z"))
			z.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
			coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
				"roles: [ingress, egress]",
				"roles: [ingress]",
				1)), "")
			z.Follow(d)
			tc.do(d, a)
			b := publication.NewPublisher()
			for range 2 {
				if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil && !errors.Is(err,
					store.ErrConflict) {
					t.Fatal(err)
				}
			}
			p := d.C.Parts().Publication.View()
			if c, _ := z.MustRead(d, p).NodeRuntime(); !slices.Equal(c.Roles, []string{"ingress"}) {
				t.Fatalf("the other has %+v", c)
			}
			if _, ok := p.Find(publication.RuntimePath("data/a")); !ok {
				t.Fatal("it lost its last header")
			}
		})
	}
}

// Two coordinators that one entry admits are both named, and agree on that.
func TestCoordinatorsOfOneEntry(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	d.Alter = func(c *coordinator.Config) { c.Advertise = []string{"other.example:7443"} }
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	both := strings.Replace(string(d.Manifest(coordinatortest.PoolEntries)), `match: ["key:`,
		fmt.Sprintf(`match: ["key:%s", "key:`, other.Parts().Self.EnrolmentKey()), 1)
	if _, err := d.C.Parts().Moves.Manifests.Set(t.Context(), d.Request([]byte(both)), true); err != nil {
		t.Fatal(err)
	}
	other.Parts().Moves.Succession.Look(t.Context())
	d.Joined("a")
	publishers := map[*coordinator.Coordinator]*publication.Publisher{d.C: publication.NewPublisher(),
		other: publication.NewPublisher()}
	var generations []uint64
	for range 4 {
		for c, b := range publishers {
			coordinatortest.FollowMembers(d, c)
			if err := coordinatortest.PublishAll(d, c, b); err != nil {
				t.Fatal(err)
			}
		}
		generations = append(generations, d.C.Parts().Publication.View().State.Value.Generation)
	}
	if generations[2] != generations[3] {
		t.Fatalf("they go on publishing against each other: generations %v", generations)
	}
	if got := d.C.Parts().Publication.View().State.Value.Addresses(); len(got) != 2 {
		t.Fatalf("named are %v", got)
	}
}

// A repair that takes several generations comes to its end though coordinators make
// them in turn, and each reads what the other left.
func TestRepairInTurn(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDeskWith(t, coordinatortest.PoolEntries, smallGenerations)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { other.Close() }()
	coordinatortest.WantOnly(t,
		"set", d.Set(coordinatortest.PoolEntries+fmt.Sprintf(
			"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	const n = 2*store.CutOps + 7
	crowd(d, n)
	coordinatortest.FollowMembers(d, other)
	publishers := func() map[*coordinator.Coordinator]*publication.Publisher {
		return map[*coordinator.Coordinator]*publication.Publisher{d.C: publication.NewPublisher(),
			other: publication.NewPublisher()}
	}
	for c, b := range publishers() {
		if err := coordinatortest.PublishAll(d, c, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{publication.PackedKey(publication.RuntimePath("data/n0000")), publication.StateKey} {
		if !d.Store.Alter(key, func([]byte) []byte { return nil }) {
			t.Fatal("there is no such key")
		}
		// A publication in memory is not read again, so they start again.
		d.Restart()
		coordinatortest.WantOnlyNil(t, other.Close())
		again, err := d.Another("other")
		if err != nil {
			t.Fatal(err)
		}
		other = again
		coordinatortest.FollowMembers(d, d.C)
		coordinatortest.FollowMembers(d, other)
		both := publishers()
		for range 8 {
			for c, b := range both {
				d.Lead(c)
				if _, err := c.Parts().Publication.Publish(t.Context(), c.Parts().Head.State(), b); err != nil {
					t.Fatal(err)
				}
			}
		}
		p, err := d.C.Parts().Publication.Load(t.Context(), d.State())
		if err != nil || !p.Serves() || p.Len() != n+poolScopes || len(p.Orphans) != 0 {
			t.Fatalf("without %s: %d headers and %d orphans after 16 turns (%v)", key, p.Len(),
				len(p.Orphans), err)
		}
	}
}

// crowd makes n members without their machines.
func crowd(d *coordinatortest.Desk, n int) {
	d.T.Helper()
	s := d.State()
	for i := range n {
		r := record.Member{Kind: identity.Data, Name: fmt.Sprintf("n%04d", i), State: record.Active,
			Organizations: []string{"acme"}}
		r.State, r.Entry, r.Selectors, r.Incarnation, r.NarrowTo = record.Active, "pool", []string{"token:pool"},
			coordinatortest.KeyNumber(i),
			[]string{fmt.Sprintf("none-%d", i)}
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
		if _, err := ch.Commit(context.Background()); err != nil {
			d.T.Fatal(err)
		}
	}
	coordinatortest.FollowMembers(d, d.C)
}

// A generation changes as many headers as one transaction takes, however many members there are; each
// generation is whole, and nothing else that is written is longer than what every engine writes as it is.
func TestPublicationIsBounded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ set, most, bytes int }{
		{store.CutOps, store.CutOps, store.CutBytes},
		{0, store.MaxTxOps, 4 * store.CutBytes},
	} {
		t.Run(fmt.Sprint(tc.set), func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.ReadyDeskWith(t, coordinatortest.PoolEntries,
				func(cfg *coordinator.Config) { cfg.Publishing.Operations = tc.set })
			s := d.State()
			n := 2*tc.most + 7
			crowd(d, n)
			largest := 0
			d.Store.Intercept(func(tx store.Tx) {
				ops, generation := len(tx.If)+len(tx.Put)+len(tx.Delete), slices.ContainsFunc(tx.Put,
					func(w store.Write) bool { return w.Key == publication.StateKey })
				if largest = max(largest, ops); tx.Size() > tc.bytes || !generation && ops > store.CutOps {
					t.Errorf("a transaction of %d operations and %d bytes; a generation: %v", ops, tx.Size(), generation)
				}
			})
			b := publication.NewPublisher()
			var sizes []int
			for more := true; more; {
				var err error
				if more, err = d.C.Parts().Publication.Publish(t.Context(), s, b); err != nil {
					t.Fatal(err)
				}
				if p := d.C.Parts().Publication.View(); p.Serves() {
					sizes = append(sizes, p.Len())
				}
			}
			// Of each member there are a header and a condition, and beside them a few operations.
			if each := (tc.most - 40) / 2; len(sizes) > n/each+1 || sizes[len(sizes)-1] != n+poolScopes {
				t.Fatalf("generations of %v headers", sizes)
			}
			coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries, "roles: [ingress, egress]",
				"roles: [ingress]",
				1)), "")
			p := coordinatortest.MustPublish(d, b)
			if got, _ := runtimes(p); got != n || len(maps.Collect(p.Contents())) == 0 || largest > tc.most || largest < tc.most-40 {
				t.Fatalf("%d headers; the largest transaction has %d operations", p.Len(), largest)
			}
			coordinatortest.WantWholeAt(d, t, p)
		})
	}
}

// A generation takes as much as one transaction of the store does: what is left goes
// with the next, and a content that no store takes is cut.
func TestMuchContent(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	// No form of a secret begins with this letter: a name is then looked through in no time.
	long := strings.Repeat("z", 55)
	addresses := make([]string, 60)
	for i := range addresses {
		addresses[i] = fmt.Sprintf("%q", fmt.Sprintf("h%d-%s.%s.%s.example:1", i, long, long, long))
	}
	for i := range 2 {
		var records []string
		for j := range 200 {
			records = append(records,
				fmt.Sprintf("kind: peer\nname: zig-%d-%d\nmember: data/both\naddresses: [%s]\nclass: bootstrap", i, j,
					strings.Join(addresses, ", ")))
		}
		coordinatortest.MustPut(d, strings.Join(records, "\n---\n"))
	}
	most := 0
	d.Store.Intercept(func(tx store.Tx) {
		for _, w := range tx.Put {
			most = max(most, len(w.Value))
		}
	})
	p := coordinatortest.MustPublish(d, b)
	if most < store.CutBytes/4 || most > store.CutBytes/2 {
		t.Errorf("a value of %d bytes was written", most)
	}
	raw := p.Content(coordinatortest.Given(t, d, p, "acme")[snapshot.ScopePeerDirectory].ContentHash.String())
	if len(raw) < store.MaxValueBytes*9/10 || len(raw) > store.MaxValueBytes {
		t.Fatalf("%d bytes", len(raw))
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 1 || !strings.Contains(f[0].GetSummary(), "too large") {
		t.Fatalf("findings %v", f)
	}
	coordinatortest.WantWholeAt(d, t, p)
	// The next one has it as its base.
	coordinatortest.MustPut(d, "kind: peer\nname: zig-0-0\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
}

// Members are told everything that a manifest may name; a name too long for a header is
// refused when it is set, not when somebody joins.
func TestNamesOfEntries(t *testing.T) {
	many := func(n, width int) string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("o%0*d", width, i)
		}
		return strings.Join(names, ", ")
	}
	for _, tc := range []struct {
		name, organizations string
		refused             error
	}{
		{"upper case", "Acme-EU", nil},
		{"as many as there may be", many(64, 4), nil},
		{"one too many", many(65, 4), errcode.RequestField},
		{"too long together", many(64, 120), errcode.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			err := d.Set(strings.Replace(coordinatortest.PoolEntries, "acme, globex", tc.organizations, 1))
			if tc.refused != nil {
				if !errors.Is(err, tc.refused) {
					t.Fatalf("set: %v", err)
				}
				return
			}
			coordinatortest.WantOnly(t, "set", err, "")
			a := coordinatortest.ReaderOf(d.Joined("a"))
			a.MustRead(d, coordinatortest.MustPublish(d, publication.NewPublisher()))
		})
	}
}

// During a rotation a record carries the signatures of both keys.
func TestRecordSigners(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	coordinatortest.MustPublish(d, publication.NewPublisher())
	coordinatortest.Rotate(d, time.Hour)
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	if n := len(p.State.Value.Signatures); n != 2 {
		t.Fatalf("%d signatures during a rotation", n)
	}
}

// Of two replicas one commits a generation; a commit that is late, and one whose
// answer is lost, make no second root for a generation.
func TestPublicationsRace(t *testing.T) {
	testlane.Checks(t, 10, 100) // each is a cluster of its own
	rapid.Check(t, func(rt *rapid.T) {
		d := coordinatortest.NewDesk(rt)
		other, err := d.Another("other")
		if err != nil {
			rt.Fatal(err)
		}
		defer other.Close()
		defer func() { _ = d.C.Close() }()
		if err := d.Set(coordinatortest.PoolEntries + fmt.Sprintf(
			"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())); err != nil {
			rt.Fatal(err)
		}
		other.Parts().Moves.Succession.Look(context.Background())
		replicas := []*coordinator.Coordinator{d.C, other}
		publishers := []*publication.Publisher{publication.NewPublisher(), publication.NewPublisher()}
		roots := make(map[uint64]string)
		see := func(p *publication.View) {
			if !p.Serves() {
				return
			}
			v := p.State.Value
			if root, ok := roots[v.Generation]; ok && root != v.Root {
				rt.Fatalf("generation %d has roots %s and %s", v.Generation, root, v.Root)
			}
			roots[v.Generation] = v.Root
		}
		m := coordinatortest.ReaderOf(d.Joined("first"))
		joined := 0
		steps := rapid.IntRange(4, 12).Draw(rt, "steps")
		for range steps {
			i := rapid.IntRange(0, 1).Draw(rt, "replica")
			switch rapid.SampledFrom([]string{"join", "publish", "race", "lost", "lost for good", "dropped",
				"renew"}).Draw(rt, "step") {
			case "join":
				joined++
				d.Joined(fmt.Sprintf("n%d", joined))
				coordinatortest.FollowMembers(d, other)
			case "renew":
				d.Advance(publication.Renew)
			case "lost":
				d.Store.Lose(coordinatortest.LostApplied)
			case "lost for good":
				d.Store.Lose(coordinatortest.LostForGood, coordinatortest.Answered)
			case "dropped":
				d.Store.Lose(coordinatortest.LostDropped)
			case "race":
				// The other one is through while this one is about to commit.
				inside := false
				d.Store.Intercept(func(tx store.Tx) {
					if inside {
						return
					}
					inside = true
					d.Lead(replicas[1-i])
					_, _ = replicas[1-i].Parts().Publication.Publish(context.Background(),
						replicas[1-i].Parts().Head.State(), publishers[1-i])
				})
			}
			d.Lead(replicas[i])
			_, err := replicas[i].Parts().Publication.Publish(context.Background(), replicas[i].Parts().Head.State(),
				publishers[i])
			d.Store.Intercept(nil)
			d.Store.Lose()
			if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrUnknownOutcome) {
				rt.Fatal(err)
			}
			for _, c := range replicas {
				see(c.Parts().Publication.View())
			}
		}
		// In peace both come to serve the same, and a node that saw all of it goes on.
		for range 3 {
			for i, c := range replicas {
				coordinatortest.FollowMembers(d, c)
				if err := coordinatortest.PublishAll(d, c, publishers[i]); err != nil {
					rt.Fatal(err)
				}
				see(c.Parts().Publication.View())
			}
		}
		a, b := d.C.Parts().Publication.View(), other.Parts().Publication.View()
		if a.State.Version != b.State.Version || a.Tree.Root() != b.Tree.Root() ||
			a.Len() != joined+1+poolScopes {
			rt.Fatalf("they serve versions %d and %d of %d headers", a.State.Version, b.State.Version, a.Len())
		}
		if c, _ := m.MustRead(d, a).NodeRuntime(); len(c.Coordinators) == 0 {
			rt.Fatal("no coordinators")
		}
	})
}

// A commit that was held up while another replica published fails, and nothing of
// it is served.
func TestLatePublication(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { other.Close() }()
	coordinatortest.WantOnly(t,
		"set", d.Set(coordinatortest.PoolEntries+fmt.Sprintf(
			"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	d.Joined("a")
	coordinatortest.FollowMembers(d, other)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	if err := coordinatortest.PublishAll(d, other, publication.NewPublisher()); err != nil {
		t.Fatal(err)
	}
	held := coordinatortest.MustPublish(d, b)
	d.Joined("b")
	d.Faults.Arm("publish.before-commit", func() error {
		d.Faults.Disarm("publish.before-commit")
		coordinatortest.FollowMembers(d, other)
		return coordinatortest.PublishAll(d, other, publication.NewPublisher())
	})
	_, err = d.C.Parts().Publication.Publish(t.Context(), d.State(), b)
	if !errors.Is(err, store.ErrConflict) || d.C.Parts().Publication.View() != held {
		t.Fatalf("the late commit: %v", err)
	}
	if p := coordinatortest.MustPublish(d, b); p.State.Version != other.Parts().Publication.View().State.Version {
		t.Fatal("it published again what was published")
	}
}

// A member that changed after it was compiled is compiled again: what is
// published is true at the revision that published it.
func TestMemberChangesWhileItIsCompiled(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	d.Joined("a")
	d.Faults.Arm("publish.before-commit", func() error {
		d.Faults.Disarm("publish.before-commit")
		coordinatortest.RemoveAt(d, t, identity.Data, "a")
		return nil
	})
	if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("published for a member that is gone: %v", err)
	}
	coordinatortest.FollowMembers(d, d.C)
	if p := coordinatortest.MustPublish(d, b); p.Len() != 0 {
		t.Fatal("it has a header")
	}
}

// Content published under a later epoch than the bundle that was sent waits for its
// bundle, however the two come into force.
func TestRuntimeWaitsForItsBundle(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	stream := &coordinatortest.SentNews{Ctx: t.Context()}
	earlier := *d.C.Parts().Bundle.View()
	earlier.Epoch--
	coordinatortest.MustPublish(d, publication.NewPublisher())
	dl := d.C.Parts().Delivery.NewSender(stream, m.ID, nil)
	dl.Delivered(&earlier)
	if err := dl.SendPublished(t.Context()); err != nil || len(stream.Sent) != 0 {
		t.Fatalf("sent %v (%v)", stream.Sent, err)
	}
	if err := dl.SendTrust(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and once, after the links of the history that the bundle names
		if err := dl.SendPublished(t.Context()); err != nil || len(stream.Sent) != 3+poolScopes ||
			stream.Sent[2].GetSnapshot().GetScope() != string(snapshot.ScopeNodeRuntime) {
			t.Fatalf("sent %v (%v)", stream.Sent, err)
		}
	}
}

// A head that moves while the bundle is fitted to the one before is no failure of
// the loop: its state is over.
func TestHeadMovesUnderTheTrustLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		before := d.State()
		coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
			"roles: [ingress, egress]",
			"roles: [ingress]",
			1)), "")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.C.Parts().Trust.Follow(ctx, before) }()
		time.Sleep(trust.PollPause)
		synctest.Wait()
		if len(ended) != 0 {
			t.Errorf("the loop failed: %v", <-ended)
		}
		cancel()
		synctest.Wait()
	})
}

// The leader from now on publishes at once, also while its loop waits for more to
// gather: what is to be told waited for a leader already.
func TestWhoLeadsPublishesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.PoolDesk(t)
		coordinatortest.MustPublish(d, publication.NewPublisher())
		d.Joined("n1")
		coordinatortest.FollowMembers(d, d.C)
		d.Lapse()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.C.Parts().Publication.Follow(ctx, d.State()) }()
		synctest.Wait()
		coordinatortest.MustPut(d, coordinatortest.QosRecord) // the loop waits for more
		synctest.Wait()
		if _, told := d.C.Parts().Publication.View().Find(publication.RuntimePath("data/n1")); told {
			t.Fatal("it publishes, and does not lead")
		}
		began := time.Now()
		d.Lead(d.C)
		synctest.Wait()
		if _, told := d.C.Parts().Publication.View().Find(publication.RuntimePath("data/n1")); !told {
			t.Errorf("nothing was published by %v after it led", time.Since(began))
		}
		cancel()
		synctest.Wait()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A change on an idle cluster is told at the very moment at which it is made. Changes that
// follow soon are gathered: a storm of them costs a publication a pause, and no more.
func TestFirstChangeIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := coordinatortest.Tenants(t)
		var published atomic.Int64
		d.Faults.Arm("publish.after-commit", func() error { published.Add(1); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go d.C.Parts().Publication.Follow(ctx, d.State())
		quiet := func() {
			time.Sleep(10*publication.PollPause + time.Second)
			synctest.Wait()
			published.Store(
				0)
		} // between two polls
		quiet()
		for i := range 3 {
			began := time.Now()
			coordinatortest.MustPut(d, route("acme", fmt.Sprintf("path /first-%d", i)))
			synctest.Wait()
			if n := published.Load(); n != 1 {
				t.Errorf("change %d after a quiet time: %d publications after %v, want one at once", i, n,
					time.Since(began))
			}
			quiet()
		}
		const changes, apart = 100, 5 * time.Millisecond
		began := time.Now()
		for i := range changes {
			coordinatortest.MustPut(d, route("acme", fmt.Sprintf("path /storm-%d", i)))
			time.Sleep(apart)
		}
		time.Sleep(publication.PublishPause)
		synctest.Wait()
		n, most := published.Load(), int64(changes*apart/publication.PublishPause)+2 // the first, and one after the last
		if n > most || n < 2 {
			t.Errorf("%d changes in %v made %d publications, want at most %d", changes, time.Since(began), n, most)
		}
		quiet()
	})
}
