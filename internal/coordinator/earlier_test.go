package coordinator_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// A field that a coordinator of an earlier release cannot read is refused by its name
// while that one is heard, and only where it is new.
func TestSetWaitsForEarlierReleases(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	r := coordinatortest.NewReplica(t, f)
	coordinatortest.WantOnly(t, "set", f.Set(f.Manifest("")), "")
	r.Config = func(cfg *coordinator.Config) { cfg.Earlier("0.1.0") }
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(x peer.Record) bool { return x.Phase == "ready" })
	with := f.Manifest("  - {name: racks, kind: data, match: [\"token:racks\"], labels: [rack=r2]}\n")
	before := f.State().Head.Hash
	err := f.Set(with)
	e := errcode.Of(err)
	if e == nil || e.Code != errcode.ManifestFieldUnread {
		t.Fatalf("set: %v, want %s", err, errcode.ManifestFieldUnread)
	}
	for field, want := range map[string]string{"field": "admit.labels", "coordinator": "coordinator-2",
		"release": "0.1.0"} {
		if e.Fields[field] != want {
			t.Errorf("%s is %q, want %q", field, e.Fields[field], want)
		}
	}
	if f.State().Head.Hash != before {
		t.Error("the head moved")
	}
	// A manifest that it can read is set.
	coordinatortest.WantOnly(t, "without the field",
		f.Set(f.Manifest("  - {name: racks, kind: data, match: [\"token:racks\"]}\n")), "")
	r.AwaitHead(f)
	dismissed := strings.Replace(string(with), "name: coordinator-2, kind: coordinator, match: [\"key:"+r.Enrolment,
		"name: coordinator-2, kind: coordinator, match: [\""+"key:"+newClaim(t), 1)
	if dismissed == string(with) {
		t.Fatal("the manifest admits it still")
	}
	r.Kill()
	// Upgraded, it holds up nothing.
	r.Config = nil
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(x peer.Record) bool { return x.Phase == "ready" && len(x.Reads) > 0 })
	coordinatortest.WantOnly(t, "after the upgrade", f.Set(with), "")
	r.AwaitHead(f)
	// The field is there already: an earlier one that comes is not what a set waits for.
	r.Kill()
	r.Config = func(cfg *coordinator.Config) { cfg.Earlier("test") }
	r.Start()
	coordinatortest.AwaitReplica(r, func(x peer.Record) bool { return len(x.Reads) == 0 })
	coordinatortest.WantOnly(t, "another entry", f.Set(append(with,
		"  - {name: more, kind: data, match: [\"token:more\"], labels: [a=b]}\n"...)), "")
	// Without labels again, and then it is no coordinator of the manifest that has them.
	coordinatortest.WantOnly(t, "without again", f.Set(f.Manifest("")), "")
	coordinatortest.WantCode(t, f.Set(with), errcode.ManifestFieldUnread)
	coordinatortest.WantOnly(t, "without that coordinator", f.Set([]byte(dismissed)), "")
	// One that is admitted and was stopped in order is not waited for.
	coordinatortest.WantOnly(t, "with it again", f.Set(f.Manifest("")), "")
	r.AwaitHead(f)
	r.Stop()
	coordinatortest.AwaitReplica(f, func(x peer.Record) bool { return x.Phase == "ready" })
	coordinatortest.WantOnly(t, "after it stopped", f.Set(with), "")
}

// A long manifest that an earlier release wrote is whole, and read by all; the next one would be in parts.
func TestLongSetWaitsForEarlierReleases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, "")
	d.Alter = func(cfg *coordinator.Config) { cfg.Earlier("0.1.0") }
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	entries := fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n", other.Parts().Self.EnrolmentKey())
	long := func(c byte) string { return entries + "#" + strings.Repeat(string(c), manifest.LongBytes) + "\n" }
	coordinatortest.WantOnly(t, "a long one", d.Set(long('x')), "")
	other.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantOnlyNil(t, other.Parts().Announcement.Announce(t.Context(), false))
	coordinatortest.WantCode(t, d.Set(long('y')), errcode.ManifestFieldUnread)
	coordinatortest.WantOnly(t, "the same again", d.Set(long('x')), "")
	coordinatortest.WantOnly(t, "a short one", d.Set(entries), "")
	coordinatortest.WantCode(t, d.Set(long('y')), errcode.ManifestFieldUnread)
	coordinatortest.WantOnlyNil(t, other.Parts().Announcement.Announce(t.Context(), true))
	coordinatortest.WantOnly(t, "after it stopped", d.Set(long('y')), "")
}

// Long contents are in parts and headers are packed, but while a coordinator of an earlier release is heard, which
// reads neither.
func TestContentsAreWholeForEarlierReleases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	d.Alter = func(cfg *coordinator.Config) { cfg.Earlier("0.1.0") }
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.TenantEntries+fmt.Sprintf(
		"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n", other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.LongPeers(d, "zig")
	b := publication.NewPublisher()
	inParts := func(when string, want bool) {
		t.Helper()
		p := coordinatortest.MustPublish(d, b)
		coordinatortest.WantWholeAt(d, t, p)
		if got := len(d.Store.Keys(publication.IndexPrefix)) > 0; got != want {
			t.Errorf("%s, and contents are in parts: %v", when, got)
		}
		packed, long := d.Store.Keys(publication.PackedPrefix), d.Store.Keys(publication.HeaderPrefix)
		if want && len(long) > 0 || !want && len(packed) > 0 {
			t.Errorf("%s, and %d headers are packed, and %d not", when, len(packed), len(long))
		}
		if _, err := other.Parts().Publication.Publish(t.Context(), other.Parts().Head.State(), publication.NewPublisher()); err != nil {
			t.Fatal(err)
		}
		followed := other.Parts().Publication.View() // by what was written since
		for hash, raw := range p.Contents() {
			if !bytes.Equal(followed.Content(hash), raw) {
				t.Errorf("%s, and another coordinator lacks content %s", when, hash)
			}
		}
		again, err := other.Parts().Publication.Load(t.Context(), other.Parts().Head.State())
		if err != nil || !again.Serves() || again.Tree.Root() != p.Tree.Root() {
			t.Errorf("%s, and another coordinator reads something else (%v)", when, err)
		}
	}
	announce := func(stopped bool) {
		t.Helper()
		if err := other.Parts().Announcement.Announce(t.Context(), stopped); err != nil {
			t.Fatal(err)
		}
	}
	inParts("it was never heard", true)
	announce(false)
	inParts("it is heard", false)
	coordinatortest.MustPut(d, "kind: peer\nname: zig-9\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	inParts("it is heard, and something is new", false)
	announce(true)
	inParts("it stopped", false) // what is whole is left so
	coordinatortest.MustPut(d, "kind: peer\nname: zig-8\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	inParts("it stopped, and something is new", true)
	announce(false)
	inParts("it is back", false)
	d.Advance(peer.SilentAfter)
	coordinatortest.MustPut(d, "kind: peer\nname: zig-7\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	inParts("it is silent", true)
}

// A coordinator that leads again does not take it from memory how contents are stored: another one may
// have found them stored for an earlier release, with nothing else changed.
func TestContentsThatWereStoredAnew(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	d.Alter = func(cfg *coordinator.Config) { cfg.Earlier("0.1.0") }
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.TenantEntries+fmt.Sprintf(
		"  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n", other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
	coordinatortest.LongPeers(d, "zig", "zag") // too long to go with the commit, whole or not
	b := publication.NewPublisher()
	version := coordinatortest.MustPublish(d, b).State.Version
	// It begins to store them whole, and does not come to the end.
	coordinatortest.WantOnlyNil(t, other.Parts().Announcement.Announce(t.Context(), false))
	killed := errors.New("killed")
	d.Faults.Fail("publish.before-commit", killed)
	if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	d.Faults.Disarm("publish.before-commit")
	coordinatortest.WantOnlyNil(t, other.Parts().Announcement.Announce(t.Context(), true))
	// The other one finds them whole, and sweeps the parts.
	if _, err := other.Parts().Desired.Read(t.Context(), other.Parts().Head.State(), false); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantOnlyNil(t, coordinatortest.PublishAll(d, other, publication.NewPublisher()))
	if len(d.Store.Keys(publication.PartPrefix)) > 0 || d.Store.Version(publication.StateKey) != version {
		t.Fatal("contents are in parts still, or there is another generation")
	}
	// The next directory begins as the one before.
	coordinatortest.MustPut(d, "kind: peer\nname: zig-9\nmember: data/both\naddresses: [\"h:1\"]\nclass: bootstrap")
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	coordinatortest.WantWholeAt(d, t, p)
	got, err := d.C.Parts().Publication.Load(t.Context(), d.State())
	if err != nil || !got.Serves() || got.Tree.Root() != p.Tree.Root() {
		t.Errorf("something else is read (%v)", err)
	}
}

// What an earlier release stored is turned where generations have room, and turned back at once when such a
// coordinator is heard again. A kill anywhere leaves a publication that is whole.
func TestHeadersAreTurned(t *testing.T) {
	t.Parallel()
	const crowd = 100 // more than two generations have room for
	// In small generations, and in a tree that stays the same.
	small := func(cfg *coordinator.Config) {
		cfg.Publishing.Operations, cfg.Publishing.BinsFrom = store.CutOps, 2*crowd
	}
	d := coordinatortest.ReadyDeskWith(t, coordinatortest.PoolEntries, small)
	d.Alter = func(cfg *coordinator.Config) {
		cfg.Earlier("0.1.0")
		small(cfg)
	}
	other := d.Second(coordinatortest.PoolEntries)
	defer other.Close()
	d.Alter = small
	for i := range crowd {
		s := d.State()
		r := record.Member{Kind: identity.Data, Name: fmt.Sprintf("n%04d", i), State: record.Active, Entry: "pool"}
		r.Selectors, r.Incarnation = []string{"token:pool"}, coordinatortest.KeyNumber(i)
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	coordinatortest.FollowMembers(d, d.C)
	counts := func() (packed, long int) {
		return len(d.Store.Keys(publication.PackedPrefix)), len(d.Store.Keys(publication.HeaderPrefix))
	}
	announce := func(stopped bool) {
		t.Helper()
		if err := other.Parts().Announcement.Announce(t.Context(), stopped); err != nil {
			t.Fatal(err)
		}
	}
	b := publication.NewPublisher()
	announce(false)
	p := coordinatortest.MustPublish(d, b)
	root := p.Tree.Root()
	if packed, long := counts(); packed > 0 || long != p.Len() {
		t.Fatalf("an earlier release is heard, and of %d headers %d are packed", p.Len(), packed)
	}
	killed := errors.New("killed")
	// again renews what is published, and is killed at a point on the way; "": it is not.
	again := func(at string) {
		t.Helper()
		if at != "" {
			d.Faults.Fail(at, killed)
		}
		if err := coordinatortest.PublishAll(d, d.C, b); err != nil && !errors.Is(err, killed) {
			t.Fatal(err)
		}
		if at != "" {
			d.Faults.Disarm(at)
			d.Restart()
			coordinatortest.FollowMembers(d, d.C)
			b = publication.NewPublisher()
		}
		for _, c := range []*coordinator.Coordinator{d.C, other} {
			p, err := c.Parts().Publication.Load(t.Context(), c.Parts().Head.State())
			if err != nil || !p.Serves() || p.Tree.Root() != root {
				t.Fatalf("killed at %q, and a publication of %d headers is left broken (%v)", at, p.Len(), err)
			}
		}
	}
	announce(true)
	steps := 0
	for packed, was := 0, 0; packed < p.Len(); packed, _ = counts() {
		d.Advance(publication.Renew)
		again([]string{"", "publish.before-commit", "publish.after-commit", ""}[steps%4])
		if now, _ := counts(); now < was || now-was > store.CutOps/2 {
			t.Fatalf("%d headers were packed, and %d are", was, now)
		}
		was, _ = counts()
		if steps++; steps > crowd {
			t.Fatalf("it does not end: %d of %d are packed", was, p.Len())
		}
	}
	if steps < 3 {
		t.Errorf("it is done in %d steps", steps)
	}
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
	announce(false)
	again("publish.after-commit")
	again("")
	if packed, long := counts(); packed > 0 || long != p.Len() {
		t.Errorf("it is heard again, and of %d headers %d are packed", p.Len(), packed)
	}
	coordinatortest.WantWholeAt(d, t, coordinatortest.MustPublish(d, b))
}

func newClaim(t *testing.T) string {
	t.Helper()
	return proof.KeyClaim(coordinatortest.NewTestKey(t).Public().(ed25519.PublicKey))
}

// The leaves of many headers lie in bins, but while a coordinator of an earlier release is heard, which knows them in the order
// of their paths alone: then what is stored is what that release stores. Headers stay as they are. A kill anywhere on the way
// leaves a publication that is whole.
func TestBinsWaitForEarlierReleases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	d.Alter = func(cfg *coordinator.Config) {
		cfg.Earlier("0.1.0", publication.ReadsParts, publication.ReadsPacked)
	}
	other := d.Second(coordinatortest.TenantEntries)
	defer other.Close()
	d.Alter = nil
	b, killed := publication.NewPublisher(), errors.New("killed")
	announce := func(stopped bool) {
		t.Helper()
		if err := other.Parts().Announcement.Announce(t.Context(), stopped); err != nil {
			t.Fatal(err)
		}
	}
	stored := func() (state map[string]any, headers map[string]store.Revision) {
		t.Helper()
		headers = make(map[string]store.Revision)
		for _, key := range d.Store.Keys(publication.PackedPrefix) {
			headers[key] = d.Store.Version(key)
		}
		e, err := d.Store.Get(t.Context(), publication.StateKey)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := d.State().Records.Open(e.Key, e.Value)
		if err == nil {
			err = json.Unmarshal(raw, &state)
		}
		if err != nil {
			t.Fatal(err)
		}
		return state, headers
	}
	var before map[string]store.Revision
	inBins := func(when string, want, same bool) {
		t.Helper()
		p := coordinatortest.MustPublish(d, b)
		coordinatortest.WantWholeAt(d, t, p)
		state, headers := stored()
		var leaves []snapshot.Digest
		for _, h := range p.Headers() {
			leaves = append(leaves, h.Leaf)
		}
		plain := snapshot.NewTree(leaves).Root() == snapshot.Digest(p.Tree.Root())
		if _, got := state["bins"]; got != want || plain == want || state["root"] != snapshot.Digest(p.Tree.Root()).String() {
			t.Errorf("%s, and leaves lie in bins: %v; in the order of paths: %v", when, got, plain)
		}
		if same && !maps.Equal(headers, before) {
			t.Errorf("%s, and headers were written", when)
		}
		before = headers
		if _, err := other.Parts().Publication.Publish(t.Context(), other.Parts().Head.State(), publication.NewPublisher()); err != nil {
			t.Fatal(err)
		}
		again, err := other.Parts().Publication.Load(t.Context(), other.Parts().Head.State())
		if err != nil || !again.Serves() || again.Tree.Root() != p.Tree.Root() || other.Parts().Publication.View().Tree.Root() != p.Tree.Root() {
			t.Errorf("%s, and another coordinator has something else (%v)", when, err)
		}
	}
	kills := func() {
		t.Helper()
		for _, at := range []string{"publish.before-commit", "publish.after-commit"} {
			d.Faults.Fail(at, killed)
			if err := coordinatortest.PublishAll(d, d.C, b); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			d.Faults.Disarm(at)
			if p, err := other.Parts().Publication.Load(t.Context(), other.Parts().Head.State()); err != nil || !p.Serves() {
				t.Errorf("killed at %s, and what is left is broken (%v)", at, err)
			}
			d.Restart()
			coordinatortest.FollowMembers(d, d.C)
			b = publication.NewPublisher()
		}
	}
	number := 0
	somethingNew := func() {
		t.Helper()
		number++
		coordinatortest.MustPut(d, fmt.Sprintf("kind: qos\nname: gold\npriority: %d\n", number))
	}
	inBins("it was never heard", true, false)
	announce(false)
	kills()
	inBins("it is heard", false, true)
	somethingNew()
	inBins("it is heard, and something is new", false, false)
	announce(true)
	inBins("it stopped", false, true) // as it is, until there is a generation
	d.Advance(publication.Renew)
	kills()
	inBins("it stopped, and the record was renewed", true, true)
	announce(false)
	inBins("it is back", false, true)
	d.Advance(peer.SilentAfter)
	somethingNew()
	inBins("it is silent", true, false)
}
