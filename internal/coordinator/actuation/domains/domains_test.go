package domains_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/test/testlane"
)

func serverOf(c *coordinator.Coordinator) fealtyv1.DomainServiceServer {
	return coordinatortest.Served[fealtyv1.DomainServiceServer](c.Parts().Fencing.Domains.RegisterServices)
}

// as is the context of a call of a member.
func as(m *coordinatortest.Machine) context.Context {
	return identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
}

func assign(d *coordinatortest.Desk, name, to string) (*fealtyv1.AssignDomainResponse, error) {
	return serverOf(d.C).AssignDomain(context.Background(), &fealtyv1.AssignDomainRequest{Name: name, To: to})
}

func mustAssign(t *testing.T, d *coordinatortest.Desk, name, to string) *fealtyv1.Domain {
	t.Helper()
	resp, err := assign(d, name, to)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetDomain()
}

// owned are the assignments of a member, as a receiver believes them, and those of which it is
// to let go.
func owned(t testing.TB, d *coordinatortest.Desk, c *coordinator.Coordinator, m *coordinatortest.Machine) (all []fence.Assignment,
	release []string) {
	t.Helper()
	resp, err := serverOf(c).PollAssignments(as(m), &fealtyv1.PollAssignmentsRequest{Name: m.ID.Name()})
	if err != nil {
		t.Fatal(err)
	}
	bundle, _, err := d.State().Bundle.Open(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	authority := bundle.FenceAuthority(d.Clock)
	for _, o := range resp.GetDomains() {
		verified, err := authority.OpenAssignment(o.GetAssignment())
		if err != nil {
			t.Fatal(err)
		}
		a, _ := verified.Get()
		if a.Domain != o.GetName() || a.Ownership != o.GetOwnership() || a.Holder != m.ID.String() {
			t.Errorf("%v says %+v", o, a)
		}
		all = append(all, a)
		if o.GetRelease() {
			release = append(release, a.Domain)
		}
	}
	term, err := authority.OpenTerm(resp.GetTerm())
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := term.Get(); uint64(s.Term) != d.C.Parts().Election.Message().GetTerm() {
		t.Errorf("the answer is of term %d", s.Term)
	}
	return all, release
}

func release(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, name string, ownership uint64) bool {
	t.Helper()
	resp, err := serverOf(d.C).ReleaseDomain(as(m), &fealtyv1.ReleaseDomainRequest{Name: m.ID.Name(), Domain: name, Ownership: ownership})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetChanged()
}

// A member that joins owns nothing; it owns what it is assigned, and no member that owns
// something is let go.
func TestJoinedOwnsNothing(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	if got := d.Record(identity.Data, "a").Value.Domains; len(got) != 0 {
		t.Errorf("a member that joins owns %v", got)
	}
	if all, _ := owned(t, d, d.C, a); len(all) != 0 {
		t.Errorf("a member that joins is told that it owns %v", all)
	}
	mustAssign(t, d, "eu", "data/a")
	mustAssign(t, d, "ap", "data/a")
	if got := d.Record(identity.Data, "a").Value.Domains; !slices.Equal(got, []string{"ap", "eu"}) {
		t.Errorf("its record says %v", got)
	}
	d.C.Parts().Membership.Listens(d.Clock().Add(-time.Hour))
	coordinatortest.DrainAt(d, t, "a")
	_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "remove an owner", err, errcode.MemberOwnsDomains)
	if what := errcode.Of(err).What; !strings.HasSuffix(what, "it owns 2 domains") {
		t.Errorf("it says %q", what)
	}
	// Its name is replaced by another machine: it goes on owning, and its grants tell them apart.
	entries, text := coordinatortest.Audits(d, "domain.assign")
	if len(entries) != 2 || !strings.Contains(text, "data/a") {
		t.Errorf("the audit log: %s", text)
	}
}

// A domain moves when its owner let go, and not before.
func TestMove(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a, b := d.Joined("a"), d.Joined("b")
	first := mustAssign(t, d, "eu", "data/a")
	if first.GetOwner() != "data/a" || first.GetOwnership() <= d.State().Head.AuthorityEpoch<<32 {
		t.Fatalf("%v", first)
	}
	moving := mustAssign(t, d, "eu", "data/b")
	if moving.GetOwner() != "data/a" || moving.GetOwnership() != first.GetOwnership() || !moving.GetMoving() ||
		moving.GetNext() != "data/b" {
		t.Errorf("on its way it is %v", moving)
	}
	ofA, letGo := owned(t, d, d.C, a)
	ofB, _ := owned(t, d, d.C, b)
	if len(ofA) != 1 || len(ofB) != 0 || !slices.Equal(letGo, []string{"eu"}) {
		t.Errorf("before the owner let go it owns %v, to release %v, and the next one %v", ofA, letGo, ofB)
	}
	if release(t, d, b, "eu", first.GetOwnership()) || release(t, d, a, "eu", first.GetOwnership()+1) {
		t.Error("somebody else let go of it")
	}
	if !release(t, d, a, "eu", first.GetOwnership()) {
		t.Error("nothing changed when its owner let go")
	}
	if release(t, d, a, "eu", first.GetOwnership()) {
		t.Error("it let go twice")
	}
	ofA, _ = owned(t, d, d.C, a)
	ofB, letGo = owned(t, d, d.C, b)
	if len(ofA) != 0 || len(ofB) != 1 || len(letGo) != 0 || ofB[0].Ownership != first.GetOwnership()+1 {
		t.Errorf("afterwards they own %v and %v, to release %v", ofA, ofB, letGo)
	}
	if x, y := d.Record(identity.Data, "a").Value.Domains, d.Record(identity.Data, "b").Value.Domains; len(x) != 0 ||
		!slices.Equal(y, []string{"eu"}) {
		t.Errorf("their records say %v and %v", x, y)
	}
	if resp, err := assign(d, "eu", "data/b"); err != nil || resp.GetChanged() {
		t.Errorf("assigned again: %v, %v", resp, err)
	}
	// By force nobody is waited for.
	resp, err := serverOf(d.C).AssignDomain(t.Context(),
		&fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a", Force: true, Reason: "b burned"})
	if err != nil || resp.GetDomain().GetOwner() != "data/a" || resp.GetDomain().GetOwnership() != first.GetOwnership()+2 {
		t.Errorf("by force: %v, %v", resp, err)
	}
	if release(t, d, b, "eu", first.GetOwnership()+1) {
		t.Error("who was passed over let go of it")
	}
	d.Restart()
	if ofA, _ = owned(t, d, d.C, a); len(ofA) != 1 || ofA[0].Ownership != first.GetOwnership()+2 {
		t.Errorf("after a restart it owns %v", ofA)
	}
	un, err := serverOf(d.C).UnassignDomain(t.Context(), &fealtyv1.UnassignDomainRequest{Name: "eu"})
	if err != nil || !un.GetDomain().GetMoving() || un.GetDomain().GetNext() != "" {
		t.Errorf("unassigned: %v, %v", un, err)
	}
	if !release(t, d, a, "eu", first.GetOwnership()+2) {
		t.Error("its owner did not let go")
	}
	got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	if err != nil || got.GetDomain().GetOwner() != "" || got.GetDomain().GetOwnership() != first.GetOwnership()+3 {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

// If the next owner cannot own any more when the one before lets go, the domain is nobody's.
func TestNextOwnerIsGone(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Joined("b")
	first := mustAssign(t, d, "eu", "data/a")
	mustAssign(t, d, "eu", "data/b")
	coordinatortest.DrainAt(d, t, "b")
	if !release(t, d, a, "eu", first.GetOwnership()) {
		t.Fatal("it did not let go")
	}
	got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	if err != nil || got.GetDomain().GetOwner() != "" || got.GetDomain().GetMoving() {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAssignRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, d *coordinatortest.Desk)
		req     *fealtyv1.AssignDomainRequest
		want    errcode.Code
	}{
		{"no name", nil, &fealtyv1.AssignDomainRequest{To: "data/a"}, errcode.RequestField},
		{"a bad name", nil, &fealtyv1.AssignDomainRequest{Name: "E U", To: "data/a"}, errcode.RequestField},
		{"nobody", nil, &fealtyv1.AssignDomainRequest{Name: "eu"}, errcode.RequestField},
		{"no kind", nil, &fealtyv1.AssignDomainRequest{Name: "eu", To: "a"}, errcode.RequestField},
		{"no such member", nil, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/x"}, errcode.NotFound},
		{"a witness", nil, &fealtyv1.AssignDomainRequest{Name: "eu", To: "witness/a"}, errcode.DomainKind},
		{"a person", nil, &fealtyv1.AssignDomainRequest{Name: "eu", To: "admin/bob"}, errcode.DomainKind},
		{"one that is banned", func(_ *testing.T, d *coordinatortest.Desk) { ban(d, "a") },
			&fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"one whose key is banned", func(_ *testing.T, d *coordinatortest.Desk) { revoke(d, "a") },
			&fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"one whose certificate ended", func(_ *testing.T, d *coordinatortest.Desk) { expire(d, "a") },
			&fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"next is one that is banned", func(t *testing.T, d *coordinatortest.Desk) {
			d.Joined("b")
			mustAssign(t, d, "eu", "data/b")
			ban(d, "a")
		}, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"its owner, which is banned", func(t *testing.T, d *coordinatortest.Desk) {
			mustAssign(t, d, "eu", "data/a")
			ban(d, "a")
		}, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"one that drains", func(t *testing.T, d *coordinatortest.Desk) { coordinatortest.DrainAt(d, t, "a") },
			&fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"next is one that drains", func(t *testing.T, d *coordinatortest.Desk) {
			d.Joined("b")
			mustAssign(t, d, "eu", "data/b")
			coordinatortest.DrainAt(d, t, "a")
		}, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainUnfit},
		{"by force, without a reason", nil, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a", Force: true},
			errcode.RequestField},
		{"too many of one member", func(t *testing.T, d *coordinatortest.Desk) {
			s, rec := d.State(), d.Record(identity.Data, "a")
			for i := range domains.MaxOwned {
				rec.Value.Domains = append(rec.Value.Domains, fmt.Sprintf("d%03d", i))
			}
			ch := s.Records.NewChange(s.HeadVersion)
			ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"}, errcode.DomainTooMany},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.PoolDesk(t)
			d.Joined("a")
			if tc.prepare != nil {
				tc.prepare(t, d)
			}
			before := d.Store.Snapshot()
			_, err := serverOf(d.C).AssignDomain(t.Context(), tc.req)
			coordinatortest.WantOnly(t, "it", err, tc.want)
			for key, e := range d.Store.Snapshot() {
				if e.Version != before[key].Version {
					t.Errorf("%s was written", key)
				}
			}
		})
	}
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	before := d.Store.Snapshot()
	resp, err := serverOf(d.C).AssignDomain(t.Context(), &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a", DryRun: true})
	if err != nil || !resp.GetChanged() || resp.GetDomain().GetOwner() != "data/a" || len(d.Store.Snapshot()) != len(before) {
		t.Errorf("a dry run: %v, %v", resp, err)
	}
	_, err = serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	coordinatortest.WantOnly(t, "a domain that is none", err, errcode.NotFound)
	_, err = serverOf(d.C).UnassignDomain(t.Context(), &fealtyv1.UnassignDomainRequest{Name: "eu"})
	coordinatortest.WantOnly(t, "a domain that is none", err, errcode.NotFound)
}

func TestList(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	d.Joined("b")
	for i := range 5 {
		mustAssign(t, d, fmt.Sprint("d", i), "data/"+string("ab"[i%2]))
	}
	var names []string
	after := ""
	for range 5 {
		resp, err := serverOf(d.C).ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{PageSize: 2, After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range resp.GetDomains() {
			names, after = append(names, x.GetName()), x.GetName()
		}
		if !resp.GetMore() {
			break
		}
	}
	if want := []string{"d0", "d1", "d2", "d3", "d4"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	resp, err := serverOf(d.C).ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{Member: "data/b"})
	if err != nil || len(resp.GetDomains()) != 2 || resp.GetMore() {
		t.Errorf("of one member: %v, %v", resp, err)
	}
	for _, size := range []int32{-1, 1001} {
		_, err := serverOf(d.C).ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{PageSize: size})
		coordinatortest.WantOnly(t, "a page of that size", err, errcode.RequestField)
	}
}

// Somebody who can write the store and holds no seed gives nobody a domain.
func TestForgedDomain(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	mustAssign(t, d, "eu", "data/a")
	d.Store.Alter(domains.KeyOf("eu"), func(v []byte) []byte { v[len(v)-2] ^= 1; return v })
	_, err := serverOf(d.C).PollAssignments(as(a), &fealtyv1.PollAssignmentsRequest{Name: "a"})
	coordinatortest.WantOnly(t, "a domain that was altered", err, errcode.StoreForged)
}

// People ask two coordinators for anything in any order, while answers of the store are
// lost: of no ownership of a domain two members are told that it is theirs (I7).
func TestOneOwnerEach(t *testing.T) {
	testlane.Checks(t, 10, 100) // each is a cluster of its own
	rapid.Check(t, func(rt *rapid.T) {
		d := coordinatortest.ReadyDesk(rt, "")
		d.T = rt
		defer func() { _ = d.C.Close() }()
		other := d.Second(coordinatortest.PoolEntries)
		defer func() { _ = other.Close() }()
		members := []*coordinatortest.Machine{d.Joined("a"), d.Joined("b"), d.Joined("c")}
		owners, held := map[uint64]string{}, map[string]uint64{}
		member, at := rapid.IntRange(0, len(members)-1), rapid.IntRange(0, 1)
		all := []*coordinator.Coordinator{d.C, other}
		lose := func(rt *rapid.T) {
			if rapid.IntRange(0, 3).Draw(rt, "lose") == 0 {
				d.Store.Lose(rapid.SampledFrom(coordinatortest.Losses()).Draw(rt, "how"))
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"assign": func(rt *rapid.T) {
				lose(rt)
				_, _ = serverOf(all[at.Draw(rt, "at")]).AssignDomain(context.Background(), &fealtyv1.AssignDomainRequest{Name: "eu",
					To: "data/" + members[member.Draw(rt, "to")].ID.Name(), Force: rapid.IntRange(0, 4).Draw(rt, "force") == 0, Reason: "x"})
			},
			"unassign": func(rt *rapid.T) {
				lose(rt)
				_, _ = serverOf(all[at.Draw(rt, "at")]).UnassignDomain(context.Background(), &fealtyv1.UnassignDomainRequest{Name: "eu"})
			},
			"release": func(rt *rapid.T) {
				lose(rt)
				m := members[member.Draw(rt, "by")]
				_, _ = serverOf(all[at.Draw(rt, "at")]).ReleaseDomain(as(m), &fealtyv1.ReleaseDomainRequest{Name: m.ID.Name(),
					Domain: "eu", Ownership: held[m.ID.Name()]})
			},
			"": func(rt *rapid.T) {
				d.Store.ForgetLost()
				for _, m := range members {
					resp, err := serverOf(all[at.Draw(rt, "at")]).PollAssignments(as(m), &fealtyv1.PollAssignmentsRequest{Name: m.ID.Name()})
					if err != nil {
						rt.Fatal(err)
					}
					for _, o := range resp.GetDomains() {
						name := m.ID.Name()
						if was, ok := owners[o.GetOwnership()]; ok && was != name {
							rt.Fatalf("ownership %d is of %s and of %s", o.GetOwnership(), was, name)
						}
						owners[o.GetOwnership()], held[name] = name, o.GetOwnership()
						for who, ownership := range held {
							if who != name && ownership > o.GetOwnership() {
								rt.Fatalf("%s is told ownership %d after %s had %d", name, o.GetOwnership(), who, ownership)
							}
						}
					}
				}
			},
		})
	})
}

// A change that somebody else was first with is decided again on what is there then.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	d.Joined("b")
	overtaken := false
	d.Store.Intercept(func(tx store.Tx) {
		if !overtaken && slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == domains.KeyOf("eu") }) {
			overtaken = true
			mustAssign(t, d, "eu", "data/b")
		}
	})
	if got := mustAssign(t, d, "eu", "data/a"); got.GetOwner() != "data/b" || got.GetNext() != "data/a" || !got.GetMoving() {
		t.Errorf("%v", got)
	}
}

// A copy of the owner that shows an older key learns nothing of its domains, and lets go of
// none.
func TestOlderKeyOwnsNothing(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	copied := *a
	for range 3 {
		coordinatortest.WantOnlyNil(t, a.Renew())
	}
	is := mustAssign(t, d, "eu", "data/a")
	_, err := serverOf(d.C).PollAssignments(as(&copied), &fealtyv1.PollAssignmentsRequest{Name: "a"})
	coordinatortest.WantOnly(t, "what a copy owns", err, errcode.RenewOlderKey)
	_, err = serverOf(d.C).ReleaseDomain(as(&copied), &fealtyv1.ReleaseDomainRequest{Name: "a", Domain: "eu",
		Ownership: is.GetOwnership()})
	coordinatortest.WantOnly(t, "a release of a copy", err, errcode.RenewOlderKey)
	if all, _ := owned(t, d, d.C, a); len(all) != 1 {
		t.Errorf("the member owns %v", all)
	}
}

// A process that was overtaken does not let go what its successor owns: not when that called
// already, and not when it is granted while the word of the older one is on its way.
func TestZombieLetsNothingGo(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Joined("b")
	letGo := func(life fence.Life, ownership uint64) error {
		_, err := serverOf(d.C).ReleaseDomain(coordinatortest.Calls(a, life), &fealtyv1.ReleaseDomainRequest{Name: "a",
			Domain: "eu", Ownership: ownership})
		return err
	}
	polls := func(life fence.Life) error {
		_, err := serverOf(d.C).PollAssignments(coordinatortest.Calls(a, life), &fealtyv1.PollAssignmentsRequest{Name: "a"})
		return err
	}
	ownership := mustAssign(t, d, "eu", "data/a").GetOwnership()
	mustAssign(t, d, "eu", "data/b")
	old := d.Process(a)
	coordinatortest.WantOnlyNil(t, polls(old))
	live := d.Process(a)
	coordinatortest.WantOnlyNil(t, polls(live))
	stays := func(what string) {
		t.Helper()
		rec, err := record.Get[domains.Record](t.Context(), d.State().Records, domains.KeyOf("eu"))
		if err != nil || rec.Value.Owner != "data/a" || !rec.Value.Moving {
			t.Errorf("%s: the domain is %+v, %v", what, rec.Value, err)
		}
	}
	coordinatortest.WantOnly(t, "a zombie lets go", letGo(old, ownership), errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "a zombie lets go what is not its", letGo(old, ownership+1), errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "a zombie asks", polls(old), errcode.ProcessOvertaken)
	coordinatortest.WantOnly(t, "one without a life lets go", letGo(fence.Life{}, ownership), errcode.ProcessOvertaken)
	stays("after a zombie's word")

	var next fence.Life
	d.Store.Intercept(func(tx store.Tx) {
		if next.Grant == "" && slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == domains.KeyOf("eu") }) {
			next = d.Process(a)
		}
	})
	coordinatortest.WantOnly(t, "one that is overtaken meanwhile", letGo(live, ownership), errcode.ProcessOvertaken)
	stays("after the word of one that was overtaken meanwhile")
	coordinatortest.WantOnlyNil(t, letGo(next, ownership))
	rec, err := record.Get[domains.Record](t.Context(), d.State().Records, domains.KeyOf("eu"))
	if err != nil || rec.Value.Owner != "data/b" {
		t.Errorf("the newest process let go: %+v, %v", rec.Value, err)
	}
}

func ban(d *coordinatortest.Desk, name string) {
	d.T.Helper()
	if _, err := d.Members().BanMember(context.Background(), &fealtyv1.BanMemberRequest{Kind: "data", Name: name,
		Reason: "a test"}); err != nil {
		d.T.Fatal(err)
	}
}

// revoke has the signers ban the key of a member, and nothing of its name.
func revoke(d *coordinatortest.Desk, name string) {
	d.T.Helper()
	key := d.Record(identity.Data, name).Value.Key
	if _, err := coordinatortest.ApplyEmergency(d, coordinatortest.Statement(d, 1, func(e *trust.Emergency) {
		e.Keys = []identity.KeyID{key}
	}), false); err != nil {
		d.T.Fatal(err)
	}
}

// expire has the certificate of a member end, and no other one.
func expire(d *coordinatortest.Desk, name string) { certify(d, name, d.Clock().Add(-time.Second)) }

// certify has the certificate of a member end at a time.
func certify(d *coordinatortest.Desk, name string, until time.Time) {
	d.T.Helper()
	s, rec := d.State(), d.Record(identity.Data, name)
	rec.Value.NotAfter = until
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(record.MemberKey(identity.Data, name), rec.Version, rec.Value)
	if _, err := ch.Commit(context.Background()); err != nil {
		d.T.Fatal(err)
	}
	look(d)
}

// look has the coordinator read its members, as it does when people look.
func look(d *coordinatortest.Desk) {
	d.T.Helper()
	if _, err := d.Members().ListMembers(context.Background(), &fealtyv1.ListMembersRequest{}); err != nil {
		d.T.Fatal(err)
	}
}

// A refusal says what can be done: undrain is for one that drains alone.
func TestRemedies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(d *coordinatortest.Desk)
		want    string
	}{
		"drains":  {func(d *coordinatortest.Desk) { coordinatortest.DrainAt(d, t, "a") }, "undrain data/a"},
		"banned":  {func(d *coordinatortest.Desk) { ban(d, "a") }, "unban data/a"},
		"revoked": {func(d *coordinatortest.Desk) { revoke(d, "a") }, "member replace data/a"},
		"expired": {func(d *coordinatortest.Desk) { expire(d, "a") }, "member show data/a"},
	} {
		d := coordinatortest.PoolDesk(t)
		d.Joined("a")
		tc.prepare(d)
		_, err := assign(d, "eu", "data/a")
		e := errcode.Of(err)
		if e == nil || !strings.Contains(e.Do, tc.want) || strings.Contains(e.Do, "undrain") != (name == "drains") {
			t.Errorf("one that is %s: %v, want the remedy %q", name, e, tc.want)
		}
	}
}

// An owner that nobody hears any more is not waited for. One that may be heard is, and people are
// told until when.
func TestOwnerIsGone(t *testing.T) {
	t.Parallel()
	gone := map[string]func(*coordinatortest.Desk, string){"it is banned": ban, "its key is banned": revoke, "certificate": expire}
	for word, lose := range gone {
		d := coordinatortest.PoolDesk(t)
		d.Joined("a")
		b := d.Joined("b")
		first := mustAssign(t, d, "eu", "data/a")
		mustAssign(t, d, "us", "data/a")
		lose(d, "a")
		got, err := assign(d, "eu", "data/b")
		if err != nil || got.GetDomain().GetOwner() != "data/b" || got.GetDomain().GetMoving() ||
			got.GetDomain().GetOwnership() != first.GetOwnership()+1 || !strings.Contains(got.GetPassedOver(), word) {
			t.Errorf("%s: %v, %v", word, got, err)
		}
		if all, _ := owned(t, d, d.C, b); len(all) != 1 {
			t.Errorf("%s: the next owner is told %v", word, all)
		}
		if _, text := coordinatortest.Audits(d, "domain.assign"); !strings.Contains(text, "owner_gone") {
			t.Errorf("%s: the audit log does not say why it was not waited for: %s", word, text)
		}
		took, err := serverOf(d.C).UnassignDomain(t.Context(), &fealtyv1.UnassignDomainRequest{Name: "us"})
		if err != nil || took.GetDomain().GetOwner() != "" || took.GetDomain().GetMoving() {
			t.Errorf("%s: %v, %v", word, took, err)
		}
	}
}

// While a domain waits for its owner people are told until when, and the leader passes on at once
// what waits for one that is banned meanwhile; for one whose certificate ended an admin decides.
func TestOwnerGoesMeanwhile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		lose  func(*coordinatortest.Desk, string)
		still bool
	}{{"banned", ban, false}, {"expired", expire, true}} {
		d := coordinatortest.PoolDesk(t)
		d.Joined("a")
		d.Joined("b")
		mustAssign(t, d, "eu", "data/a")
		moving := mustAssign(t, d, "eu", "data/b")
		lease := max(d.State().Manifest.Degraded.Max, domains.MinLease)
		if until := moving.GetWaitsUntil().AsTime(); until.Before(d.Clock().Add(domains.Wait(lease))) ||
			until.After(d.Clock().Add(domains.Wait(lease)+time.Minute)) {
			t.Errorf("it waits until %v, and it is %v", until, d.Clock())
		}
		leases := d.C.Parts().Fencing.Domains.NewLeases()
		look := func() {
			t.Helper()
			if err := leases.Look(t.Context(), d.State()); err != nil {
				t.Fatal(err)
			}
		}
		owner := func() string {
			t.Helper()
			got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetDomain().GetOwner()
		}
		look()
		if owner() != "data/a" {
			t.Errorf("%s: an owner that may be heard was not waited for", tc.name)
		}
		tc.lose(d, "a")
		look()
		if got := owner(); (got == "data/a") != tc.still {
			t.Errorf("%s: then the owner is %s", tc.name, got)
		}
		if tc.still {
			if got, err := assign(d, "eu", "data/b"); err != nil || got.GetDomain().GetOwner() != "data/b" {
				t.Errorf("%s: assigned once more: %v, %v", tc.name, got, err)
			}
		}
	}
}

// Who looks is told which owners nobody hears, and what waits: of what was seen.
func TestFindings(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Joined("b")
	asks := func() {
		t.Helper()
		if _, err := serverOf(d.C).PollAssignments(as(a), &fealtyv1.PollAssignmentsRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	codes := func() (out []string) {
		look(d)
		found, err := d.C.Parts().Fencing.Domains.Findings(t.Context(), d.State())
		coordinatortest.WantOnlyNil(t, err)
		for _, f := range found {
			out = append(out, f.GetCode()+" "+f.GetSummary())
		}
		return out
	}
	leases := d.C.Parts().Fencing.Domains.NewLeases()
	gauge := func(name string) int64 { return int64(coordinatortest.CounterOf(d.C.Registry(), "fealty_"+name)) }
	counts := func(what string, gone, silent, moving int64) {
		t.Helper()
		got := []int64{gauge("domain_owners_gone"), gauge("domain_owners_silent"), gauge("domains_moving")}
		if !slices.Equal(got, []int64{gone, silent, moving}) {
			t.Errorf("%s: the gauges of gone, silent and moving are %v, want %v", what, got, []int64{gone, silent, moving})
		}
	}
	looks := func() {
		t.Helper()
		if err := leases.Look(t.Context(), d.State()); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, codeAndText ...string) {
		t.Helper()
		got := codes()
		if len(got) != len(codeAndText)/2 {
			t.Errorf("%s: %q", what, got)
			return
		}
		for i, line := range got {
			if !strings.HasPrefix(line, codeAndText[2*i]) || !strings.Contains(line, codeAndText[2*i+1]) {
				t.Errorf("%s: %q, want %q", what, line, codeAndText[2*i:2*i+2])
			}
		}
	}
	mustAssign(t, d, "eu", "data/a")
	mustAssign(t, d, "us", "data/a")
	asks()
	want("an owner that asks")
	d.Advance(2*time.Minute + time.Second)
	want("one that may be heard elsewhere: this coordinator did not listen for long enough")
	d.Pass(2*time.Minute + time.Second)
	d.Lead(d.C)
	want("an owner that does not", "FE-F109", "data/a")
	counts("before the leader looked", 0, 0, 0)
	looks()
	counts("an owner that does not ask", 0, 1, 0)
	asks()
	want("one that asks again")
	mustAssign(t, d, "eu", "data/b")
	want("a move that began just now")
	looks()
	counts("a move that began just now", 0, 0, 0)
	d.Advance(time.Minute)
	asks()
	want("a move that waits", "FE-F110", "domain eu")
	looks()
	counts("a move that waits", 0, 0, 1)
	ban(d, "a")
	want("an owner that is banned", "FE-F108", "data/a", "FE-F110", "domain eu")
	got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	if err != nil || got.GetDomain().GetOwnerProblem() != "it is banned" {
		t.Errorf("%v, %v", got, err)
	}
	at := got.GetDomain().GetWaitsUntil().GetSeconds()
	if gauge("domains_moving_until_seconds") != at || at == 0 {
		t.Errorf("the move waits until %d, and its gauge says %d", at, gauge("domains_moving_until_seconds"))
	}
	looks() // what waits for one that is banned passes on, and what does not is its own still
	look(d)
	looks()
	want("an owner that is banned, once the leader looked", "FE-F108", "us", "FE-F109", "data/b")
	counts("an owner that is banned, and one that never asked", 1, 1, 0)
	if n := gauge("domains_moving_until_seconds"); n != 0 {
		t.Errorf("nothing waits, and a gauge says until %d", n)
	}
	// Who leads says it, and nobody else does.
	d.Lapse()
	counts("one that does not lead", 0, 0, 0)
}

// What a change was decided on is so when it is made: nobody bans the next owner meanwhile, and
// nobody lifts the ban because of which an owner is passed over.
func TestStandingChangesMeanwhile(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	d.Joined("b")
	d.Joined("c")
	tries := 0
	meanwhile := func(do func()) {
		tries = 0
		d.Store.Intercept(func(tx store.Tx) {
			if slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == domains.KeyOf("eu") }) {
				if tries++; tries == 1 {
					do()
				}
			}
		})
	}
	mustAssign(t, d, "eu", "data/a")
	meanwhile(func() { ban(d, "b") })
	_, err := assign(d, "eu", "data/b")
	coordinatortest.WantOnly(t, "the next owner is banned meanwhile", err, errcode.DomainUnfit)

	d.Store.Intercept(nil)
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(record.BanIDKey(identity.Data, "a"), 0, record.Ban{Reason: "a test"})
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	meanwhile(func() { d.Store.Remove(record.BanIDKey(identity.Data, "a")) })
	got, err := assign(d, "eu", "data/c")
	if err != nil || tries != 2 || got.GetDomain().GetOwner() != "data/a" || got.GetPassedOver() != "" {
		t.Errorf("the ban of the owner is lifted meanwhile: decided %d times: %v, %v", tries, got, err)
	}
	d.Store.Intercept(nil)
}

// Who is banned is told by the store, before the bans in force that members are told of say so; and
// neither an owner that is no member any more nor a member whose name waits for its next machine is
// taken for one that can be heard.
func TestStandingIsOfTheStore(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	for _, name := range []string{"a", "b", "c", "e"} {
		d.Joined(name)
	}
	if _, err := d.Members().ReplaceMember(t.Context(), &fealtyv1.ReplaceMemberRequest{Kind: "data", Name: "e",
		Reason: "it burned"}); err != nil {
		t.Fatal(err)
	}
	_, err := assign(d, "ap", "data/e")
	coordinatortest.WantOnly(t, "one whose name waits for a machine", err, errcode.DomainUnfit)
	if !strings.Contains(err.Error(), "no machine holds it now") || strings.Contains(err.Error(), "unban") {
		t.Errorf("one whose name waits for a machine: %v", err)
	}

	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(record.BanIDKey(identity.Data, "a"), 0, record.Ban{Reason: "of another coordinator, just now"})
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = assign(d, "eu", "data/a")
	coordinatortest.WantOnly(t, "one whose ban is in the store alone", err, errcode.DomainUnfit)

	mustAssign(t, d, "us", "data/b")
	d.Store.Remove(record.MemberKey(identity.Data, "b"))
	got, err := assign(d, "us", "data/c")
	if err != nil || got.GetDomain().GetOwner() != "data/c" || !strings.Contains(got.GetPassedOver(), "a member no more") {
		t.Errorf("the owner is no member any more: %v, %v", got, err)
	}
}

// An owner whose certificate ended is told with when it did.
func TestExpiredOwnerIsFound(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	mustAssign(t, d, "eu", "data/a")
	end := d.Record(identity.Data, "a").Value.CertifiedUntil()
	d.Advance(end.Sub(d.Clock()) - time.Second)
	look(d)
	gone := func() string {
		found, err := d.C.Parts().Fencing.Domains.Findings(t.Context(), d.State())
		coordinatortest.WantOnlyNil(t, err)
		for _, f := range found {
			if f.GetCode() == string(errcode.DomainOwnerGone) {
				return f.GetSummary()
			}
		}
		return ""
	}
	if got := gone(); got != "" {
		t.Errorf("a second before its certificate ends: %s", got)
	}
	d.Advance(time.Second)
	if got := gone(); !strings.Contains(got, "its certificate ended at "+end.UTC().Format(time.RFC3339)) {
		t.Errorf("when its certificate ended: %q", got)
	}
}
