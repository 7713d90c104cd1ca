package publication_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

const marker = "globex"

// No member of one organization is ever sent, or can pull, a byte of the other's.
func TestMembersGetTheirOrganizationAlone(t *testing.T) {
	d := coordinatortest.Tenants(t)
	p := coordinatortest.MustPublish(d, publication.NewPublisher())
	coordinatortest.WantWholeAt(d, t, p)
	for _, m := range []struct {
		name             string
		foreign, allowed string
		scopes           []snapshot.Scope
	}{
		{"acme", "globex", "acme", []snapshot.Scope{snapshot.ScopeDegradedModePolicy, snapshot.ScopeNodeRuntime,
			snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy,
			snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory}},
		{"globex", "acme", "globex", []snapshot.Scope{snapshot.ScopeDegradedModePolicy, snapshot.ScopeNodeRuntime,
			snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy,
			snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory}},
		{"edge", "globex", "acme", []snapshot.Scope{snapshot.ScopeDegradedModePolicy, snapshot.ScopeNodeRuntime,
			snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy,
			snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory}},
	} {
		id, err := identity.New(d.State().Manifest.Cluster, identity.Data, m.name)
		if err != nil {
			t.Fatal(err)
		}
		own := 0
		var scopes []snapshot.Scope
		mine := make(map[string]bool)
		for _, i := range p.Of(identity.Data, m.name) {
			msg, err := p.Message(i)
			if err != nil {
				t.Fatal(err)
			}
			scopes = append(scopes, p.Header(i).Scope)
			mine[p.Header(i).Header.Content] = true
			sent, err := snapshot.Unmarshal(msg.GetEnvelope())
			if err != nil {
				t.Fatal(err)
			}
			// All but signatures, whose bytes may be those of a name.
			if bytes.Contains(slices.Concat(sent.Header, sent.Publication.Record, sent.Content, sent.Patch), []byte(m.foreign)) {
				t.Errorf("%s is sent a %s with %s", m.name, msg.GetScope(), m.foreign)
			}
			own += bytes.Count(p.Content(p.Header(i).Header.Content), []byte(m.allowed+"-"))
		}
		if slices.Sort(scopes); !slices.Equal(scopes, m.scopes) {
			t.Errorf("%s gets %v, want %v", m.name, scopes, m.scopes)
		}
		if own < 2 {
			t.Errorf("%s is told %d things of its own organization", m.name, own)
		}
		for hash := range p.Contents() {
			digest, err := snapshot.ParseDigest(hash)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.ContentFor(id, digest); (got != nil) != mine[hash] {
				t.Errorf("%s can pull %s: %v", m.name, hash, got != nil)
			}
		}
	}
	// A member that serves both is told of both.
	both := 0
	for _, i := range p.Of(identity.Data, "both") {
		if raw := p.Content(p.Header(i).Header.Content); bytes.Contains(raw, []byte("acme-")) &&
			bytes.Contains(raw, []byte("globex-")) {
			both++
		}
	}
	if both < 4 {
		t.Errorf("%d scopes of both organizations", both)
	}
}

func route(organization, match string) string {
	return fmt.Sprintf("kind: route\nname: %[1]s-route\norganization: %[1]s\nmatch: %[2]s\nto: [%[1]s-peer]",
		organization, match)
}

// A change of the config makes new headers of what it changes and of nothing else,
// and none if it changes nothing.
func TestConfigChangesWhatItChanges(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	was := coordinatortest.MustPublish(d, b)
	changed := func(p *publication.View) []string {
		var out []string
		for i, h := range p.Headers() {
			if j, ok := was.Find(h.HeaderPath); !ok || was.Header(j).Header.ConfigVersion != h.Header.ConfigVersion {
				out = append(out, string(coordinatortest.HeaderAt(t, p, i).ScopeType)+" "+strings.Join(coordinatortest.HeaderAt(t, p,
					i).OrganizationIDs, ","))
			} else if !bytes.Equal(was.Header(j).Header.Header, h.Header.Header) {
				t.Errorf("%s has other bytes under the same version", h.HeaderPath)
			}
		}
		slices.Sort(out)
		return out
	}
	for _, tc := range []struct {
		name, put string
		want      []string
	}{
		{"nothing", route("acme", "host acme"), nil},
		{"a note", "kind: organization\nname: acme\ndescription: x", nil},
		{"a route", route("acme", "path /x"), []string{"route_policy acme", "route_policy acme,globex"}},
		{"a service of one organization", "kind: service\nname: globex-web\norganization: globex\ntype: web2",
			[]string{"service_assignment acme,globex", "service_assignment globex"}},
		{"what all are told", "kind: storage\nname: public\nurl: https://public.example/\nfamilies: [route_policy]",
			[]string{"storage_directory acme", "storage_directory acme", "storage_directory acme,globex",
				"storage_directory globex"}},
	} {
		version := d.Store.Snapshot()[publication.StateKey].Version
		coordinatortest.MustPut(d, tc.put)
		p := coordinatortest.MustPublish(d, b)
		if got := changed(p); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if after := d.Store.Snapshot()[publication.StateKey].Version; (after == version) != (len(tc.want) == 0) {
			t.Errorf("%s: published under %d, was %d", tc.name, after, version)
		}
		coordinatortest.WantWholeAt(d, t, p)
		// A publisher that starts anew finds nothing to do.
		if again := coordinatortest.MustPublish(d, publication.NewPublisher()); again != p {
			t.Errorf("%s: it is published again", tc.name)
		}
		was = p
	}
}

// Each header of a scope with increments names the version right before, whose
// content is kept for as long: also after a restart and a renewal, and not across
// epochs.
func TestBases(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	coordinatortest.MustPublish(d, publication.NewPublisher())
	at := func() (*publication.View, snapshot.Header) {
		t.Helper()
		p := coordinatortest.MustPublish(d, publication.NewPublisher())
		coordinatortest.WantWholeAt(d, t, p)
		return p, coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy]
	}
	_, first := at()
	if first.Base != nil {
		t.Fatalf("the first has base %+v", first.Base)
	}
	contents := make(map[snapshot.Digest][]byte)
	keep := func(p *publication.View, h snapshot.Header) {
		contents[h.ContentHash] = p.Content(h.ContentHash.String())
	}
	p, last := at()
	keep(p, last)
	for i, restart := range []bool{false, true, false} {
		coordinatortest.MustPut(d, route("acme", fmt.Sprintf("path /%d", i)))
		if restart {
			d.Restart()
		}
		p, next := at()
		keep(p, next)
		if next.Base == nil || next.Base.ConfigVersion != last.ConfigVersion ||
			next.Base.ContentHash != last.ContentHash {
			t.Fatalf("after version %d (%s): base %+v", last.ConfigVersion, last.ContentHash, next.Base)
		}
		if _, ok := snapshot.Diff(snapshot.ScopeRoutePolicy, p.Content(next.Base.ContentHash.String()),
			p.Content(next.ContentHash.String())); !ok {
			t.Fatal("no patch can be made")
		}
		last = next
	}
	t.Run("a renewal is of the same base", func(t *testing.T) {
		d.Advance(publication.HeaderLife / 2)
		if err := d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true); err != nil {
			t.Fatal(err)
		}
		_, next := at()
		if next.ConfigVersion != last.ConfigVersion || !next.ExpiresAt.After(last.ExpiresAt) ||
			*next.Base != *last.Base {
			t.Fatalf("%+v, was %+v", next, last)
		}
		last = next
	})
	t.Run("scopes that go whole have none", func(t *testing.T) {
		coordinatortest.MustPut(d, "kind: degraded\nname: less\nmax: 1s")
		p, _ := at()
		for scope, h := range coordinatortest.Given(t, d, p, "acme") {
			if !scope.Increments() && h.Base != nil {
				t.Errorf("%s has base %+v", scope, h.Base)
			}
		}
	})
	t.Run("a lost base costs the increment alone", func(t *testing.T) {
		d.Store.Alter(publication.ContentKey(last.Base.ContentHash.String()), func([]byte) []byte { return nil })
		d.Restart()
		p := coordinatortest.MustPublish(d, publication.NewPublisher())
		if h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy]; !bytes.Equal(p.Content(h.ContentHash.String()),
			contents[h.ContentHash]) || h.ConfigVersion != last.ConfigVersion {
			t.Fatalf("%+v", h)
		}
		coordinatortest.MustPut(d, route("acme", "path /mended"))
		_, last = at()
	})
	t.Run("a new epoch begins without", func(t *testing.T) {
		coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.TenantEntries+coordinatortest.CoordinatorEntry(t, 2)), "")
		coordinatortest.FollowMembers(d, d.C)
		p, next := at()
		if next.AuthorityEpoch != last.AuthorityEpoch+1 || next.Base != nil || next.ContentHash != last.ContentHash {
			t.Fatalf("%+v", next)
		}
		for i := range p.Len() {
			if h := coordinatortest.HeaderAt(t, p, i); h.Base != nil || h.AuthorityEpoch != next.AuthorityEpoch {
				t.Errorf("%s: %+v", p.Header(i).HeaderPath, h)
			}
		}
		coordinatortest.MustPut(d, route("acme", "path /again"))
		if _, h := at(); h.Base == nil || h.Base.ConfigVersion != next.ConfigVersion {
			t.Fatalf("%+v after %+v", h.Base, next)
		}
	})
}

// A config that is written while a generation is made of the one before makes that
// generation void: what is published is true at the revision that published it.
func TestConfigChangesWhileItIsCompiled(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	coordinatortest.MustPut(d, route("acme", "path /old"))
	d.Faults.Arm("publish.before-commit", func() error {
		d.Faults.Disarm("publish.before-commit")
		coordinatortest.MustPut(d, route("acme", "path /new"))
		return nil
	})
	if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("published what was overtaken: %v", err)
	}
	p := coordinatortest.MustPublish(d, b)
	h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy]
	if raw := p.Content(h.ContentHash.String()); !bytes.Contains(raw, []byte("/new")) {
		t.Fatalf("%s", raw)
	}
	coordinatortest.WantWholeAt(d, t, p)
}

// Somebody who writes config all the time does not hold up joins, nor what is not
// about config; and once it is quiet all of it is published.
func TestConfigThatChangesAllTheTime(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	coordinatortest.JoinedAs(d, "acme", "later")
	n := 0
	churn := func() error {
		n++
		coordinatortest.MustPut(d, route("acme", fmt.Sprintf("path /%d", n)))
		return nil
	}
	if err := churn(); err != nil {
		t.Fatal(err)
	}
	d.Faults.Arm("publish.before-commit", churn)
	for tries := 0; ; tries++ {
		if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil && !errors.Is(err,
			store.ErrConflict) {
			t.Fatal(err)
		}
		if _, ok := d.C.Parts().Publication.View().Find(publication.RuntimePath("data/later")); ok {
			break
		}
		if tries == 5 {
			t.Fatal("who joined is told nothing")
		}
	}
	d.Faults.Disarm("publish.before-commit")
	p := coordinatortest.MustPublish(d, b)
	h := coordinatortest.Given(t, d, p, "later")
	if raw := p.Content(h[snapshot.ScopeRoutePolicy].ContentHash.String()); !bytes.Contains(raw,
		fmt.Appendf(nil, "path /%d", n)) || h[snapshot.ScopeServiceAssignment].ConfigVersion == 0 {
		t.Fatalf("%s, %v", raw, h)
	}
	coordinatortest.WantWholeAt(d, t, p)
}

// While this replica does not know the config that another one wrote, it publishes
// what does not depend on it, and no assignments of it.
func TestConfigThatIsNotKnownYet(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	was := coordinatortest.MustPublish(d, b)
	// Another replica wrote: the version moved, and what is in memory did not.
	s := d.State()
	state, err := record.Get[desired.State](t.Context(), s.Records, desired.StateKey)
	if err != nil {
		t.Fatal(err)
	}
	ch := s.Records.NewChange(s.HeadVersion)
	state.Value.Change++
	ch.Put(desired.StateKey, state.Version, state.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	coordinatortest.DrainAt(d, t, "acme")
	coordinatortest.JoinedAs(d, "acme", "later")
	coordinatortest.FollowMembers(d, d.C)
	for range 3 {
		if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); err != nil && !errors.Is(err,
			store.ErrConflict) {
			t.Fatal(err)
		}
	}
	p := d.C.Parts().Publication.View()
	if h := coordinatortest.Given(t, d, p, "later"); h[snapshot.ScopeNodeRuntime].ConfigVersion == 0 ||
		h[snapshot.ScopeServiceAssignment].ConfigVersion != 0 || h[snapshot.ScopeRoutePolicy].ConfigVersion == 0 {
		t.Errorf("who joined meanwhile gets %v", h)
	}
	now, before := coordinatortest.Given(t, d, p, "acme"), coordinatortest.Given(t, d, was, "acme")
	if now[snapshot.ScopeNodeRuntime].ConfigVersion <= before[snapshot.ScopeNodeRuntime].ConfigVersion {
		t.Error("the drain was not told")
	}
	for scope := range before {
		if scope != snapshot.ScopeNodeRuntime && now[scope].ContentHash != before[scope].ContentHash {
			t.Errorf("%s changed", scope)
		}
	}
	if _, err := d.C.Parts().Desired.Read(t.Context(), s, true); err != nil {
		t.Fatal(err)
	}
	p = coordinatortest.MustPublish(d, b)
	if h := coordinatortest.Given(t, d, p, "later"); h[snapshot.ScopeServiceAssignment].ConfigVersion == 0 {
		t.Errorf("who joined meanwhile is still not assigned anything: %v", h)
	}
	coordinatortest.WantWholeAt(d, t, p)
}

// Of a config that somebody altered nothing is compiled, and what was stays: also
// for members that come later, and across a restart.
func TestForgedConfigKeepsTheLast(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			d := coordinatortest.Tenants(t)
			b := publication.NewPublisher()
			was := coordinatortest.MustPublish(d, b)
			if !d.Store.Alter("config/record/route/acme-route", func(v []byte) []byte { v[len(v)-1] ^= 1; return v }) {
				t.Fatal("there is no such record")
			}
			if restart {
				d.Restart()
				b = publication.NewPublisher()
			} else if _, err := d.C.Parts().Desired.Read(t.Context(), d.State(), true); !errors.Is(
				err, store.ErrForged) {
				t.Fatalf("the config is believed: %v", err)
			}
			p := coordinatortest.MustPublish(d, b)
			for _, h := range was.Headers() {
				if i, ok := p.Find(h.HeaderPath); !ok || !bytes.Equal(p.Header(i).Header.Header, h.Header.Header) {
					t.Errorf("%s is another one", h.HeaderPath)
				}
			}
			coordinatortest.JoinedAs(d, "acme", "later")
			p = coordinatortest.MustPublish(d, b)
			if h := coordinatortest.Given(t, d, p, "later"); h[snapshot.ScopeNodeRuntime].ConfigVersion == 0 ||
				h[snapshot.ScopeRoutePolicy].ContentHash != coordinatortest.Given(t, d, was,
					"acme")[snapshot.ScopeRoutePolicy].ContentHash {
				t.Errorf("who joins gets %v", h)
			}
			d.Advance(publication.HeaderLife / 2) // and its node_runtime is renewed
			if err := d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true); err != nil {
				t.Fatal(err)
			}
			if got, before := coordinatortest.Given(t, d, coordinatortest.MustPublish(d, b), "acme"), coordinatortest.Given(t, d, was,
				"acme"); !got[snapshot.ScopeNodeRuntime].ExpiresAt.After(before[snapshot.ScopeNodeRuntime].ExpiresAt) ||
				got[snapshot.ScopeServiceAssignment].ContentHash != before[snapshot.ScopeServiceAssignment].ContentHash {
				t.Errorf("%v", got)
			}
		})
	}
}

// A kill before or after the commit leaves what was or what is, whole.
func TestCrashWhilePublishing(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"publish.before-commit", "publish.after-commit"} {
		t.Run(at, func(t *testing.T) {
			d := coordinatortest.Tenants(t)
			b := publication.NewPublisher()
			was := coordinatortest.MustPublish(d, b)
			coordinatortest.MustPut(d, route("acme", "path /new"))
			killed := errors.New("killed")
			d.Faults.Fail(at, killed)
			if _, err := d.C.Parts().Publication.Publish(t.Context(), d.State(), b); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			d.Faults.Disarm(at)
			d.Restart()
			p, err := d.C.Parts().Publication.Load(t.Context(), d.State())
			if err != nil || p.Broken {
				t.Fatalf("it is left broken (%v)", err)
			}
			coordinatortest.WantWholeAt(d, t, p)
			done := at == "publish.after-commit"
			if moved := p.State.Version != was.State.Version; moved != done {
				t.Errorf("the publication moved: %v", moved)
			}
			p = coordinatortest.MustPublish(d, publication.NewPublisher())
			coordinatortest.WantWholeAt(d, t, p)
			h, before := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy], coordinatortest.Given(t, d, was,
				"acme")[snapshot.ScopeRoutePolicy]
			if h.Base == nil || h.Base.ConfigVersion != before.ConfigVersion ||
				!bytes.Contains(p.Content(h.ContentHash.String()), []byte("/new")) {
				t.Errorf("%+v after %+v", h, before)
			}
		})
	}
}

// Two replicas on one store compile to the same, and do not publish against each
// other.
func TestReplicasCompileTheSame(t *testing.T) {
	d := coordinatortest.NewDesk(t)
	other, err := d.Another("other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	coordinatortest.WantOnly(t,
		"set", d.Set(coordinatortest.TenantEntries+fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
			other.Parts().Self.EnrolmentKey())), "")
	other.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.JoinedAs(d, "acme", "acme")
	coordinatortest.JoinedAs(d, "globex", "globex")
	coordinatortest.MustPut(d, "kind: organization\nname: acme\n---\nkind: peer\nname: acme-peer\norganization: acme\nmember: "+
		"data/acme\naddresses: [\"a:1\"]\nclass: active")
	publishers := map[*coordinator.Coordinator]*publication.Publisher{d.C: publication.NewPublisher(),
		other: publication.NewPublisher()}
	turn := func() uint64 {
		t.Helper()
		for range 3 {
			for _, c := range []*coordinator.Coordinator{d.C, other} {
				coordinatortest.FollowMembers(d, c)
				if _, err := c.Parts().Desired.Read(t.Context(), c.Parts().Head.State(), false); err != nil {
					t.Fatal(err)
				}
				if err := coordinatortest.PublishAll(d, c, publishers[c]); err != nil {
					t.Fatal(err)
				}
			}
		}
		return uint64(d.Store.Snapshot()[publication.StateKey].Version)
	}
	for i := range 3 {
		coordinatortest.MustPut(d, route("acme", fmt.Sprintf("path /%d", i)))
		if a, b := turn(), turn(); a != b {
			t.Fatalf("they go on publishing: %d, %d", a, b)
		}
		a, b := d.C.Parts().Publication.View(), other.Parts().Publication.View()
		if a.Tree.Root() != b.Tree.Root() || a.State.Version != b.State.Version {
			t.Fatal("they serve different roots")
		}
		if h := coordinatortest.Given(t, d, b, "acme")[snapshot.ScopeRoutePolicy]; !bytes.Contains(b.Content(h.ContentHash.String()),
			fmt.Appendf(nil, "/%d", i)) {
			t.Fatalf("the other serves %s", b.Content(h.ContentHash.String()))
		}
		coordinatortest.WantWholeAt(d, t, a)
	}
}

// A scope that does not compile keeps its last header, with an alarm and a finding,
// and blocks nobody.
func TestScopeThatDoesNotCompile(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	was := coordinatortest.MustPublish(d, b)
	i, _ := was.Find(publication.RuntimePath("data/acme"))
	point := "publish.compile.group/" + was.Header(i).Header.Group + ".route_policy"
	d.Faults.Fail(point, errors.New("broken"))
	coordinatortest.MustPut(d, route("acme", "path /new"))
	p := coordinatortest.MustPublish(d, b)
	if got, before := coordinatortest.Given(t, d, p, "acme"), coordinatortest.Given(t, d, was,
		"acme"); got[snapshot.ScopeRoutePolicy].ConfigVersion != before[snapshot.ScopeRoutePolicy].ConfigVersion {
		t.Error("another header")
	}
	if h := coordinatortest.Given(t, d, p, "both")[snapshot.ScopeRoutePolicy]; !bytes.Contains(p.Content(h.ContentHash.String()),
		[]byte("/new")) {
		t.Error("it blocked others")
	}
	if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_snapshot_uncompiled"); n != 1 {
		t.Errorf("%v subjects are said not to compile", n)
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.SnapshotUncompiled); len(f) != 1 || !strings.Contains(f[0].GetSummary(), "broken") {
		t.Errorf("findings %v", f)
	}
	d.Faults.Disarm(point)
	p = coordinatortest.MustPublish(d, b)
	if h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy]; !bytes.Contains(p.Content(h.ContentHash.String()),
		[]byte("/new")) || coordinatortest.CounterOf(d.C.Registry(), "fealty_snapshot_uncompiled") != 0 {
		t.Error("not repaired")
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.SnapshotUncompiled); len(f) != 0 {
		t.Errorf("findings %v", f)
	}
}

// A wish of the config that cannot be granted is left out, counted once and found
// until it is mended; a ban, a removal and a join are news to it.
func TestRemovedIsReported(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	count := func(reason string) float64 {
		return coordinatortest.CounterOf(d.C.Registry(), "fealty_compile_removed_total", reason, "peer_directory")
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 0 {
		t.Fatalf("findings %v", f)
	}
	coordinatortest.MustPut(d, "kind: peer\nname: lost\norganization: acme\nmember: data/nobody\naddresses: [\"h:1\"]\nclass: bootstrap")
	for range 2 {
		coordinatortest.MustPublish(d, b)
		if err := coordinatortest.PublishAll(d, d.C, b); err != nil {
			t.Fatal(err)
		}
	}
	f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven)
	if len(f) != 1 || !strings.Contains(f[0].GetSummary(), "peer/lost") ||
		!strings.Contains(f[0].GetSummary(), "data/nobody") || f[0].GetRemedy() == "" || count("unknown_member") != 1 {
		t.Fatalf("findings %v, counted %v", f, count("unknown_member"))
	}
	sees := func(name, peer string) bool {
		coordinatortest.FollowMembers(d, d.C)
		p := coordinatortest.MustPublish(d, b)
		return bytes.Contains(p.Content(coordinatortest.Given(t, d, p, name)[snapshot.ScopePeerDirectory].ContentHash.String()),
			[]byte(peer))
	}
	if sees("acme", "lost") {
		t.Fatal("it is given")
	}
	coordinatortest.JoinedAs(d, "acme", "nobody")
	if !sees("acme", "lost") || len(coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven)) != 0 {
		t.Fatal("it came, and is not given")
	}
	coordinatortest.BanAt(d, t, identity.Data, "nobody")
	if sees("acme", "lost") || count("banned_member") != 1 {
		t.Fatal("a banned member is somebody's peer")
	}
	coordinatortest.UnbanAt(d, t, identity.Data, "nobody")
	if sees("acme", "lost") || count("absent_member") != 1 {
		t.Fatal("a member without a machine is somebody's peer")
	}
	coordinatortest.RemoveAt(d, t, identity.Data, "nobody")
	if sees("acme", "lost") || count("unknown_member") != 2 {
		t.Fatal("a member that is gone is somebody's peer")
	}
	t.Run("placed on nobody", func(t *testing.T) {
		coordinatortest.MustPut(d, "kind: service\nname: lost\norganization: acme\ntype: web\nmembers: [data/globex, data/never]")
		coordinatortest.MustPublish(d, b)
		if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 3 {
			t.Fatalf("findings %v", f)
		}
	})
	t.Run("much of a kind is one finding", func(t *testing.T) {
		var records []string
		for i := range 9 {
			records = append(records,
				fmt.Sprintf("kind: peer\nname: lost-%d\norganization: acme\nmember: data/nobody-%d\naddresses: "+
					"[\"h:1\"]\nclass: bootstrap", i, i))
		}
		coordinatortest.MustPut(d, strings.Join(records, "\n---\n"))
		coordinatortest.MustPublish(d, b)
		if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 3 ||
			!strings.Contains(f[0].GetSummary()+f[1].GetSummary()+f[2].GetSummary(), "and 7 more") {
			t.Fatalf("findings %v", f)
		}
	})
}

// A member that the manifest gives another organization is told the new one's
// things, and nothing of the old one any more: no content, and no base.
func TestMemberChangesItsOrganization(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	was := coordinatortest.MustPublish(d, b)
	coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.TenantEntries,
		`["token:globex"], roles: [egress], organizations: [globex]`,
		`["token:globex"], roles: [egress], organizations: [acme]`, 1)), "")
	coordinatortest.FollowMembers(d, d.C)
	p := coordinatortest.MustPublish(d, b)
	coordinatortest.WantWholeAt(d, t, p)
	headers, before := coordinatortest.Given(t, d, p, "globex"), coordinatortest.Given(t, d, was, "globex")
	for _, i := range p.Of(identity.Data, "globex") {
		h := p.Header(i)
		if raw := p.Content(h.Header.Content); h.Scope != snapshot.ScopeNodeRuntime &&
			bytes.Contains(raw, []byte(marker+"-")) {
			t.Errorf("%s: %s", h.Scope, raw)
		}
		if base := p.Content(h.Header.Base); bytes.Contains(base, []byte(marker+"-")) {
			t.Errorf("%s has base %s", h.Scope, base)
		}
	}
	if headers[snapshot.ScopeRoutePolicy].Subject == before[snapshot.ScopeRoutePolicy].Subject ||
		headers[snapshot.ScopeRoutePolicy].Subject != coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy].Subject {
		t.Error("it is in another group")
	}
	if headers[snapshot.ScopeServiceAssignment].Base != nil {
		t.Error("the assignment goes on from that of the other organization")
	}
	groups := make(map[string]bool)
	for _, h := range p.Headers() {
		if h.Scope == snapshot.ScopeNodeRuntime {
			groups[h.Header.Group] = true
		}
	}
	for _, h := range p.Headers() {
		if h.Group != "" && !groups[h.Group] {
			t.Errorf("%s is nobody's", h.HeaderPath)
		}
	}
	t.Run("while its new assignment does not compile", func(t *testing.T) {
		d.Faults.Fail("publish.compile.data/globex.service_assignment", errors.New("broken"))
		coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.TenantEntries), "")
		coordinatortest.FollowMembers(d, d.C)
		p := coordinatortest.MustPublish(d, b)
		if h := coordinatortest.Given(t, d, p, "globex"); h[snapshot.ScopeServiceAssignment].ConfigVersion != 0 {
			t.Error("it keeps the one of the other organization")
		}
		coordinatortest.WantWholeAt(d, t, p)
		d.Faults.Disarm("publish.compile.data/globex.service_assignment")
		if h := coordinatortest.Given(t, d, coordinatortest.MustPublish(d, b), "globex"); h[snapshot.ScopeServiceAssignment].ConfigVersion == 0 {
			t.Error("it is not given another one")
		}
	})
}

// That a member renews concerns no group that sees it; that it drains does.
func TestRenewalsConcernNoGroup(t *testing.T) {
	d := coordinatortest.Tenants(t)
	m := coordinatortest.JoinedAs(d, "acme", "peer")
	coordinatortest.MustPut(d, "kind: peer\nname: p\norganization: acme\nmember: data/peer\naddresses: [\"h:1\"]\nclass: active")
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	if err := m.Renew(); err != nil {
		t.Fatal(err)
	}
	coordinatortest.MustPublish(d, b) // it may not have been looked at before
	concerned := func() []string {
		coordinatortest.FollowMembers(d, d.C)
		p := d.C.Parts().Publication.View()
		b.Collect(d.C.Parts().Publication, d.State(), d.C.Parts().Bundle.View(), p, p.State.Value.Addresses(),
			d.Clock())
		return b.Concerned()
	}
	if err := m.Renew(); err != nil {
		t.Fatal(err)
	}
	if got := concerned(); len(got) != 0 {
		t.Fatalf("a renewal concerns %v", got)
	}
	coordinatortest.DrainAt(d, t, "peer")
	// Those of acme: nodes, edge, and who serves both.
	if got := concerned(); len(got) != 3 {
		t.Fatalf("a drain concerns %v", got)
	}
	p := coordinatortest.MustPublish(d, b)
	if h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopePeerDirectory]; !bytes.Contains(p.Content(h.ContentHash.String()),
		[]byte(`"state":"draining"`)) {
		t.Fatal("the drain is not told")
	}
	// A ban leaves the record of the member as it is.
	coordinatortest.BanAt(d, t, identity.Data, "peer")
	p = coordinatortest.MustPublish(d, b)
	if h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopePeerDirectory]; bytes.Contains(p.Content(h.ContentHash.String()),
		[]byte("data/peer")) {
		t.Fatal("who is banned is still somebody's peer")
	}
}

// node_runtime says which scopes a node is to hold: those that it is given.
func TestCompanions(t *testing.T) {
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	check := func(p *publication.View) {
		t.Helper()
		for _, name := range []string{"acme", "globex", "edge", "both"} {
			given := coordinatortest.Given(t, d, p, name)
			raw := p.Content(given[snapshot.ScopeNodeRuntime].ContentHash.String())
			for _, scope := range snapshot.Scopes() {
				if scope == snapshot.ScopeNodeRuntime {
					continue
				}
				_, has := given[scope]
				if says := bytes.Contains(raw, []byte(`"`+string(scope)+`"`)); says != has {
					t.Errorf("%s: the %s is given: %v, and its node_runtime says %v", name, scope, has, says)
				}
			}
		}
	}
	p := coordinatortest.MustPublish(d, b)
	check(p)
	assigned := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeNodeRuntime].ConfigVersion
	for _, o := range []string{"acme", "globex"} {
		if _, err := coordinatortest.ConfigAt(d).DeleteConfig(t.Context(),
			&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "service", Name: o +
				"-web"}}}); err != nil {
			t.Fatal(err)
		}
	}
	p = coordinatortest.MustPublish(d, b)
	check(p)
	given := coordinatortest.Given(t, d, p, "acme")
	if _, ok := given[snapshot.ScopeServiceAssignment]; ok ||
		given[snapshot.ScopeNodeRuntime].ConfigVersion <= assigned {
		t.Errorf("nothing is assigned any more, and it gets %v", given)
	}
	coordinatortest.WantWholeAt(d, t, p)
}

// A content that is too large is cut to what fits, and that is said.
func TestTooLargeContent(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	long := strings.Repeat("x", 1000)
	for i := range 6 {
		var records []string
		for j := range 200 {
			records = append(records,
				fmt.Sprintf("kind: route\nname: r%d-%d\norganization: acme\nroles: [egress]\nmatch: %s\ndeny: %v", i, j,
					long, j < 10))
		}
		coordinatortest.MustPut(d, strings.Join(records, "\n---\n"))
	}
	p := coordinatortest.MustPublish(d, b)
	h := coordinatortest.Given(t, d, p, "acme")[snapshot.ScopeRoutePolicy]
	raw := p.Content(h.ContentHash.String())
	if len(raw) > internalsnapshot.DefaultContent || len(raw) < internalsnapshot.DefaultContent*9/10 ||
		bytes.Count(raw, []byte(`"deny":true`)) != 60 {
		t.Fatalf("%d bytes with %d denials", len(raw), bytes.Count(raw, []byte(`"deny":true`)))
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) != 1 || !strings.Contains(f[0].GetSummary(), "too large") {
		t.Fatalf("findings %v", f)
	}
	if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_compile_removed_total", "too_large",
		"route_policy"); n == 0 {
		t.Fatal("it is not counted")
	}
	version := d.Store.Snapshot()[publication.StateKey].Version
	d.Advance(time.Second)
	if coordinatortest.MustPublish(d, publication.NewPublisher()); d.Store.Snapshot()[publication.StateKey].Version != version {
		t.Fatal("it is cut in another way")
	}
}

// Records that the bundle revokes by name are in no content any more, at once, and that
// is said; a member that has no role left is assigned nothing.
func TestRevokedIsLeftOut(t *testing.T) {
	t.Parallel()
	d := coordinatortest.Tenants(t)
	b := publication.NewPublisher()
	coordinatortest.MustPublish(d, b)
	revoke := func(kind string, name string) *publication.View {
		t.Helper()
		if _, err := coordinatortest.TrustService(d).Revoke(t.Context(),
			&fealtyv1.RevokeRequest{Kind: kind, Name: name, Reason: "it leaked"}); err != nil {
			t.Fatal(err)
		}
		p := coordinatortest.MustPublish(d, b)
		coordinatortest.WantWholeAt(d, t, p)
		return p
	}
	has := func(p *publication.View, text string) bool {
		return slices.ContainsFunc(slices.Collect(maps.Values(maps.Collect(p.Contents()))),
			func(raw []byte) bool { return bytes.Contains(raw, []byte(text)) })
	}
	current := func(p *publication.View, text string) (in []string) {
		for _, h := range p.Headers() {
			if bytes.Contains(p.Content(h.Header.Content), []byte(text)) {
				in = append(in, h.String())
			}
		}
		return in
	}
	for _, tc := range []struct {
		kind string
		name string
		gone string
	}{
		{internalsnapshot.RevokedService, "acme-web", `"acme-web"`},
		{internalsnapshot.RevokedPeer, "data/globex", `"globex-peer":`},
		{internalsnapshot.RevokedStorage, "acme-store", `"acme-store":`},
		{internalsnapshot.RevokedPermission, "continue_services", ""},
	} {
		if tc.gone != "" && !has(d.C.Parts().Publication.View(), tc.gone) {
			t.Fatalf("there is no %s", tc.gone)
		}
		p := revoke(tc.kind, tc.name)
		if in := current(p, tc.gone); tc.gone != "" && len(in) != 0 {
			t.Errorf("%s %s is revoked, and %s is in %v", tc.kind, tc.name, tc.gone, in)
		}
	}
	if f := coordinatortest.FindingsAt(d, t, errcode.ConfigNotGiven); len(f) < 3 || !strings.Contains(fmt.Sprint(f), "revoked") {
		t.Errorf("findings %v", f)
	}
	if _, ok := coordinatortest.Given(t, d, d.C.Parts().Publication.View(), "globex")[snapshot.ScopeServiceAssignment]; !ok {
		t.Fatal("globex is assigned nothing")
	}
	p := revoke(internalsnapshot.RevokedRole, "data/globex/egress")
	left := coordinatortest.Given(t, d, p, "globex")
	if _, ok := left[snapshot.ScopeNodeRuntime]; !ok || len(left) != 1 {
		t.Errorf("a member one of whose roles is revoked is given %v", slices.Sorted(maps.Keys(left)))
	}
	if content := p.Content(left[snapshot.ScopeNodeRuntime].ContentHash.String()); bytes.Contains(content,
		[]byte("companions")) {
		t.Errorf("it is to hold %s", content)
	}
	if given := coordinatortest.Given(t, d, p, "acme"); len(given) < 3 {
		t.Errorf("a member of whose roles none is revoked is given %v", slices.Sorted(maps.Keys(given)))
	}
	// Another start comes to the same.
	version := p.State.Version
	if coordinatortest.MustPublish(d, publication.NewPublisher()).State.Version != version {
		t.Error("it is compiled in another way")
	}
}
