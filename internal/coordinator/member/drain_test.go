package member_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Drain and undrain: their effects, and what they leave alone.
func TestDrainIsAMarkThatStays(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	before := d.Record(identity.Data, "a").Value
	audited := len(d.Store.Keys(auditlog.Prefix))

	dry, err := d.Members().DrainMember(t.Context(),
		&fealtyv1.DrainMemberRequest{Kind: "data", Name: "a", DryRun: true})
	coordinatortest.WantOnly(t, "dry run", err, "")
	if !dry.GetChanged() || dry.GetMember().GetState() != record.Draining ||
		d.Record(identity.Data, "a").Value.State != record.Active {
		t.Fatalf("a dry run answered %v and left %s", dry, d.Record(identity.Data, "a").Value.State)
	}
	first := coordinatortest.DrainAt(d, t, "a")
	if m := first.GetMember(); !first.GetChanged() || m.GetState() != record.Draining ||
		m.GetDrainReason() != "old rack" || m.GetDrainedBy() == "" || !m.GetDrainingSince().AsTime().Equal(d.Clock()) {
		t.Fatalf("drain answered %v", first)
	}
	version := d.Record(identity.Data, "a").Version
	if again := coordinatortest.DrainAt(d, t, "a"); again.GetChanged() || d.Record(identity.Data, "a").Version != version {
		t.Fatalf("draining twice wrote something: %v", again)
	}
	if n := len(d.Store.Keys(auditlog.Prefix)); n != audited+1 {
		t.Fatalf("%d audit entries, want one more than %d", n, audited)
	}

	// It works on, and stays marked: renewing, rejoining, after a restart, and as
	// another machine under its name.
	draining := func(when string) {
		t.Helper()
		if rec := d.Record(identity.Data, "a").Value; rec.State != record.Draining || rec.Drain.Reason != "old rack" ||
			!slices.Equal(rec.Domains, before.Domains) {
			t.Fatalf("%s: state %s, mark %+v, domains %v", when, rec.State, rec.Drain, rec.Domains)
		}
	}
	coordinatortest.WantOnly(t, "renew", a.Renew(), "")
	draining("renewed")
	coordinatortest.WantOnly(t, "rejoin", a.Rejoin(), "")
	draining("rejoined")
	d.Restart()
	draining("restarted")
	coordinatortest.ReplaceAt(d, t, identity.Data, "a")
	if rec := d.Record(identity.Data, "a").Value; rec.State != record.Replacing {
		t.Fatalf("a replaced member is %s", rec.State)
	}
	d.Joined("a")
	draining("replaced")

	un, err := d.Members().UndrainMember(t.Context(), &fealtyv1.UndrainMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "undrain", err, "")
	if m := un.GetMember(); !un.GetChanged() || m.GetState() != record.Active || m.GetDrainingSince() != nil {
		t.Fatalf("undrain answered %v", un)
	}
	if un, err = d.Members().UndrainMember(t.Context(),
		&fealtyv1.UndrainMemberRequest{Kind: "data", Name: "a"}); err != nil || un.GetChanged() {
		t.Fatalf("undraining twice: %v, %v", un, err)
	}
}

func TestDrainRefusals(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	person := d.Machine()
	coordinatortest.WantOnly(t, "login", coordinatortest.JoinByToken(d, person, &fealtyv1.CreateTokenRequest{Entry: "ops"}),
		"")
	for name, tc := range map[string]struct {
		req  *fealtyv1.DrainMemberRequest
		want errcode.Code
	}{
		"nobody":   {&fealtyv1.DrainMemberRequest{Kind: "data", Name: "z"}, errcode.NotFound},
		"no kind":  {&fealtyv1.DrainMemberRequest{Kind: "datum", Name: "a"}, errcode.RequestField},
		"a person": {&fealtyv1.DrainMemberRequest{Kind: "admin", Name: person.ID.Name()}, errcode.RequestField},
		"a book of words": {&fealtyv1.DrainMemberRequest{Kind: "data", Name: "a",
			Reason: strings.Repeat("x", record.MaxReasonBytes+1)}, errcode.RequestField},
	} {
		before := d.Store.Snapshot()
		_, err := d.Members().DrainMember(t.Context(), tc.req)
		coordinatortest.WantOnly(t, name, err, tc.want)
		if !maps.EqualFunc(before, d.Store.Snapshot(), func(a, b store.Entry) bool { return a.Version == b.Version }) {
			t.Errorf("%s: something was written", name)
		}
	}
}

// A draining data member is about to go: the baseline does without it, and says so.
func TestDrainingMemberIsNotInTheBaseline(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	for _, name := range []string{"a", "b", "c"} {
		d.C.Parts().Membership.Live().Opened(d.Joined(name).ID, "")
	}
	status := func() *fealtyv1.GetStatusResponse {
		t.Helper()
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if b := status().GetBaseline(); !b.GetMet() || b.GetDataMembers() != 3 || b.GetDrainingCount() != 0 {
		t.Fatalf("baseline %v", b)
	}
	coordinatortest.DrainAt(d, t, "b")
	st := status()
	if b := st.GetBaseline(); b.GetMet() || b.GetDataMembers() != 2 ||
		!slices.Equal(b.GetDraining(), []string{"data/b"}) || b.GetDrainingCount() != 1 {
		t.Fatalf("baseline %v", b)
	}
	i := slices.IndexFunc(st.GetFindings(),
		func(f *fealtyv1.Finding) bool { return f.GetCode() == string(errcode.MemberBaseline) })
	if i < 0 || !strings.Contains(st.GetFindings()[i].GetSummary(), "data/b drains") ||
		!strings.Contains(st.GetFindings()[i].GetRemedy(), "fealty member undrain data/b") {
		t.Fatalf("findings %v", st.GetFindings())
	}
	coordinatortest.BanAt(d, t, identity.Data, "b")
	if b := status().GetBaseline(); b.GetDrainingCount() != 0 {
		t.Fatalf("a banned member is waited for: %v", b)
	}
}

// Others are told of a draining member, by what is signed for them.
func TestBootstrapShowsWhoDrains(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	coordinatortest.DrainAt(d, t, "a")
	rec := d.Record(identity.Data, "a")
	d.C.Parts().Membership.Roster().Put(rec.Value, rec.Version)
	if n := d.C.Parts().Membership.Roster().Count(identity.Data); n != 0 {
		t.Errorf("%d active data members, want none", n)
	}
	got := d.C.Parts().Membership.Roster().VisibleTo(rec.Value, 10)
	if len(got) != 1 || got[0].State != record.Draining {
		t.Fatalf("visible: %+v", got)
	}
}

// Removing by a slip takes a second step; what is not at work goes at once.
func TestRemoveOfAMemberAtWork(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine)
		force   bool
		want    errcode.Code
	}{
		{"silent", func(*testing.T, *coordinatortest.Desk, *coordinatortest.Machine) {}, false, ""},
		{"connected", func(_ *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			d.C.Parts().Membership.Live().Opened(a.ID, "")
		}, false,
			errcode.MemberInContact},
		{"connected, forced",
			func(_ *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
				d.C.Parts().Membership.Live().Opened(a.ID, "")
			}, true,
			""},
		{"connected, draining", func(t *testing.T, d *coordinatortest.Desk,
			a *coordinatortest.Machine) {
			d.C.Parts().Membership.Live().Opened(a.ID, "")
			coordinatortest.DrainAt(d, t, "a")
		}, false, ""},
		{"connected, replacing", func(t *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			d.C.Parts().Membership.Live().Opened(a.ID, "")
			coordinatortest.ReplaceAt(d, t, identity.Data, "a")
		}, false, ""},
		{"connected, banned", func(t *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			d.C.Parts().Membership.Live().Opened(a.ID, "")
			coordinatortest.BanAt(d, t, identity.Data, "a")
		}, false, ""},
		{"reported lately", func(_ *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			reported(d, a.ID)
			d.Advance(peer.SilentAfter - time.Second)
		}, false, errcode.MemberInContact},
		{"reported long ago", func(_ *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			reported(d, a.ID)
			d.Advance(peer.SilentAfter)
		}, false, ""},
		{"coordinator just started", func(_ *testing.T, d *coordinatortest.Desk,
			_ *coordinatortest.Machine) {
			d.C.Parts().Membership.Listens(d.Clock())
		}, false, errcode.MemberInContact},
		{"coordinator just started, member expired", func(_ *testing.T, d *coordinatortest.Desk,
			_ *coordinatortest.Machine) {
			d.Advance(26 * time.Hour)
			d.C.Parts().Membership.Listens(d.Clock())
		}, false, ""},
		{"back from recovery mode, in which nobody could report", func(t *testing.T, d *coordinatortest.Desk,
			a *coordinatortest.Machine) {
			reported(d, a.ID)
			outage(t, d, time.Hour)
		}, false, errcode.MemberInContact},
		{"back from recovery mode for long", func(t *testing.T, d *coordinatortest.Desk, a *coordinatortest.Machine) {
			reported(d, a.ID)
			outage(t, d, time.Hour)
			d.Advance(peer.SilentAfter)
		}, false, ""},
		{"owns a domain, forced", func(t *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine) {
			rec := d.Record(identity.Data, "a")
			rec.Value.Domains = []string{"range-7"}
			ch := d.State().Records.NewChange(d.State().HeadVersion)
			ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, true, errcode.MemberOwnsDomains},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			a := d.Joined("a")
			tc.prepare(t, d, a)
			req := &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: tc.force,
				Reason: "rack burnt", DryRun: true}
			_, err := d.Members().RemoveMember(t.Context(), req)
			coordinatortest.WantOnly(t, "dry run", err, tc.want)
			if !d.Record(identity.Data, "a").Exists() {
				t.Fatal("a dry run removed it")
			}
			req.DryRun = false
			_, err = d.Members().RemoveMember(t.Context(), req)
			coordinatortest.WantOnly(t, "remove", err, tc.want)
			if gone := !d.Record(identity.Data, "a").Exists(); gone != (tc.want == "") {
				t.Fatalf("the record is gone: %v", gone)
			}
			if tc.want == "" && !d.C.Parts().Bundle.View().Bundle.Banned(a.ID, coordinatortest.KeyOf(t, a.Key)) {
				t.Fatal("its key is not banned")
			}
		})
	}
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: true})
	coordinatortest.WantOnly(t, "force without a reason", err, errcode.RequestField)
	_, err = d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: true,
		Reason: strings.Repeat("x", record.MaxReasonBytes+1)})
	coordinatortest.WantOnly(t, "force with a book of words", err, errcode.RequestField)
	if !d.Record(identity.Data, "a").Exists() {
		t.Fatal("a refused removal removed it")
	}
}

// outage puts the coordinator into recovery mode for as long, and lets it find back.
func outage(t *testing.T, d *coordinatortest.Desk, lasts time.Duration) {
	t.Helper()
	coordinatortest.WantOnly(t, "recovery mode", d.C.Parts().Moves.Succession.Adopt(t.Context(),
		authority.Recovering(d.State(), errors.New("the keeper is away"))), "")
	d.Advance(lasts)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantPhase(d, "ready", "")
}

// reported opens a stream of id, reports on it, and ends it.
func reported(d *coordinatortest.Desk, id identity.ID) {
	d.C.Parts().Membership.Live().Opened(id, "")
	d.C.Parts().Membership.Live().Reported(id, &fealtyv1.ConnectRequest{}, d.Clock())
	d.C.Parts().Membership.Live().Closed(id, nil, true)
}

// lifeState is what matters of one member to the calls that race over it.
type lifeState struct {
	exists, draining, vacant, banned, contact bool
	key                                       identity.KeyID
}

// lifeCall is one call, and what it does if nothing comes in between: it is the
// specification that races are compared with.
type lifeCall struct {
	name string
	spec func(s lifeState, own, next identity.KeyID) (lifeState, bool)
	run  func(d *coordinatortest.Desk, m *coordinatortest.Machine, own, next coordinatortest.Machine) error
}

func lifeCalls() []lifeCall {
	ctx := context.Background()
	on := func(f func(*lifeState) bool) func(lifeState, identity.KeyID, identity.KeyID) (lifeState, bool) {
		return func(s lifeState, _, _ identity.KeyID) (lifeState, bool) {
			if !s.exists {
				return s, false
			}
			next := s
			if !f(&next) {
				return s, false
			}
			return next, true
		}
	}
	certify := func(s lifeState, own, next identity.KeyID) (lifeState, bool) {
		if !s.exists || s.vacant || s.banned || s.key != own {
			return s, false
		}
		s.key = next
		return s, true
	}
	remove := func(force bool) lifeCall {
		return lifeCall{fmt.Sprintf("remove, force %v", force), on(func(s *lifeState) bool {
			if s.contact && !s.draining && !s.vacant && !s.banned && !force {
				return false
			}
			*s = lifeState{banned: s.banned, contact: s.contact}
			return true
		}), func(d *coordinatortest.Desk, _ *coordinatortest.Machine, _, _ coordinatortest.Machine) error {
			_, err := d.Members().RemoveMember(ctx,
				&fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: force, Reason: "test"})
			return err
		}}
	}
	return []lifeCall{
		{"drain", on(func(s *lifeState) bool { s.draining = true; return true }),
			func(d *coordinatortest.Desk, _ *coordinatortest.Machine, _, _ coordinatortest.Machine) error {
				_, err := d.Members().DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: "a"})
				return err
			}},
		{"undrain", on(func(s *lifeState) bool { s.draining = false; return true }),
			func(d *coordinatortest.Desk, _ *coordinatortest.Machine, _, _ coordinatortest.Machine) error {
				_, err := d.Members().UndrainMember(ctx, &fealtyv1.UndrainMemberRequest{Kind: "data", Name: "a"})
				return err
			}},
		{"renew", certify, func(_ *coordinatortest.Desk, m *coordinatortest.Machine, _,
			next coordinatortest.Machine) error {
			_, err := m.RenewWith(m.Leaf, next.Key)
			return err
		}},
		{"rejoin", certify, func(d *coordinatortest.Desk, m *coordinatortest.Machine, own,
			next coordinatortest.Machine) error {
			side := &coordinatortest.Machine{Desk: d, Key: own.Key, ID: m.ID}
			return side.JoinWith(next.Key, identity.Data, proof.NewSVIDProver(identity.Data, "a", own.Key))
		}},
		remove(false),
		remove(true),
		{"replace", on(func(s *lifeState) bool { s.vacant = true; return true }),
			func(d *coordinatortest.Desk, _ *coordinatortest.Machine, _, _ coordinatortest.Machine) error {
				_, err := d.Members().ReplaceMember(ctx,
					&fealtyv1.ReplaceMemberRequest{Kind: "data", Name: "a", Reason: "test"})
				return err
			}},
		{"ban", func(s lifeState, _, _ identity.KeyID) (lifeState, bool) { s.banned = true; return s, true },
			func(d *coordinatortest.Desk, _ *coordinatortest.Machine, _, _ coordinatortest.Machine) error {
				_, err := d.Members().BanMember(ctx,
					&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "test"})
				return err
			}},
	}
}

// TestRacesOverAMember lets every call be overtaken by every other one between
// its decision and its commit. Both answers and the record that is left must be
// those of the two calls one after the other, in one order or the other.
func TestRacesOverAMember(t *testing.T) {
	t.Parallel()
	// Each pair of calls meets two of the four states, and each call all of them.
	froms := [][]lifeState{{{}, {draining: true, contact: true}}, {{contact: true}, {draining: true}}}
	for i, first := range lifeCalls() {
		for j, second := range lifeCalls() {
			if first.name == "rejoin" && second.name == "rejoin" {
				continue // joins of one member wait for each other on a replica
			}
			for _, from := range froms[(i+j)%2] {
				t.Run(fmt.Sprintf("%s overtaken by %s, draining %v, contact %v", first.name, second.name, from.draining,
					from.contact), func(t *testing.T) {
					d := coordinatortest.PoolDesk(t)
					m := d.Joined("a")
					own := coordinatortest.Machine{Desk: d, Key: m.Key}
					if from.draining {
						coordinatortest.DrainAt(d, t, "a")
					}
					if from.contact {
						d.C.Parts().Membership.Live().Opened(m.ID, "")
					}
					nextA, nextB := *d.Machine(), *d.Machine()
					keyOwn, keyA, keyB := coordinatortest.KeyOf(t, own.Key), coordinatortest.KeyOf(t, nextA.Key),
						coordinatortest.KeyOf(t, nextB.Key)
					from := from
					from.exists, from.key = true, keyOwn

					var errB error
					ran := false
					overtake := func(tx store.Tx) {
						if ran || !slices.ContainsFunc(tx.If,
							func(c store.Condition) bool { return c.Key == record.MemberKey(identity.Data, "a") }) {
							return
						}
						ran = true
						errB = second.run(d, m, own, nextB)
					}
					d.Store.Intercept(overtake)
					errA := first.run(d, m, own, nextA)
					if !ran { // it wrote nothing: then one comes after the other
						d.Store.Intercept(nil)
						errB = second.run(d, m, own, nextB)
					}
					rec := d.Record(identity.Data, "a")
					ban, err := record.Get[record.Ban](t.Context(), d.State().Records,
						record.BanIDKey(identity.Data, "a"))
					if err != nil {
						t.Fatal(err)
					}
					got := lifeState{exists: rec.Exists(), draining: !rec.Value.Drain.At.IsZero(),
						vacant: rec.Value.State == record.Replacing, banned: ban.Exists(), contact: from.contact,
						key: rec.Value.Key}
					ab, okA := first.spec(from, keyOwn, keyA)
					ab, okB := second.spec(ab, keyOwn, keyB)
					ba, okB2 := second.spec(from, keyOwn, keyB)
					ba, okA2 := first.spec(ba, keyOwn, keyA)
					sameAB := got == ab && (errA == nil) == okA && (errB == nil) == okB
					sameBA := got == ba && (errA == nil) == okA2 && (errB == nil) == okB2
					if !sameAB && !sameBA {
						t.Errorf("left %+v, %v, %v; in order it is %+v, %v, %v; the other way %+v, %v, %v", got, errA,
							errB, ab, okA, okB, ba, okA2, okB2)
					}
					for _, err := range []error{errA, errB} {
						if e := errcode.Of(err); err != nil && (e == nil || errors.Is(e, errcode.Internal)) {
							t.Errorf("an answer has no code: %v", err)
						}
					}
				})
			}
		}
	}
}
