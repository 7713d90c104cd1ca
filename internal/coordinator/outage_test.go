package coordinator_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// again asks for the recorded key, as an agent does that was told that a new one cannot
// be recorded. The guard of a listener comes first.
func (m *machine) again() error {
	m.d.t.Helper()
	if !m.d.clock().Before(m.leaf.NotAfter) || m.d.c.Rooms().Bundle.View().Bundle.Banned(m.id, identity.KeyOf(m.leaf)) {
		return errCut
	}
	csr, err := ca.NewCSR(m.key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.id, Leaf: m.leaf, Key: identity.KeyOf(m.leaf)})
	resp, err := served[fealtyv1.AdmissionServiceServer](m.d.c.Rooms().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.id.Name(), Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return m.adopt(resp.GetChain())
}

// runs runs the loops of the desk's coordinator, in a bubble, until the returned function is
// called. It returns once they follow the members: this store tells of no change later, so a
// member that joins while they are listed would be unknown to the end.
func (d *desk) runs(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context) error{d.c.FollowState, d.c.Rooms().Authority.FollowHead,
		d.c.Rooms().Auditing.Run, d.c.Pulse} {
		loops.Go(func() {
			if err := loop(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("a loop ended with %v", err)
			}
		})
	}
	synctest.Wait()
	return func() { cancel(); loops.Wait() }
}

// An outage of the store for ten minutes loses no seed, stops no renewal of a known
// member, admits nobody and changes nothing; whether the store fails, answers nobody, or
// answers and takes no writes.
func TestOutage(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]storeOutage{
		"fails": {begin: func(m *memStore) { m.setDown(errDown) }, end: func(m *memStore) { m.setDown(nil) },
			code: explain.StoreUnreachable, store: "degraded", members: 6, removed: explain.JoinBanned,
			older: explain.RenewOlderKey},
		"hangs": {begin: func(m *memStore) { m.setHanging(true); m.setDown(errDown) },
			end: func(m *memStore) { m.setDown(nil) }, code: explain.StoreUnreachable, store: "degraded", members: 6,
			removed: explain.JoinBanned, older: explain.RenewOlderKey},
		"full": {begin: func(m *memStore) { m.setFull(true) }, end: func(m *memStore) { m.setFull(false) },
			code: explain.StoreFull, store: "full", members: 5, removed: explain.RenewEntryGone,
			older: explain.StoreBusy, read: true},
		"gone": {begin: func(m *memStore) { m.setRefusing(refusedFor(store.FileGone)) },
			end: func(m *memStore) { m.setRefusing(nil) }, code: explain.StoreRefuses, store: "file-gone", members: 5,
			removed: explain.RenewEntryGone, older: explain.StoreBusy, read: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOutage(t, o) })
		})
	}
}

// storeOutage is a way in which a store fails, and how it is told.
type storeOutage struct {
	begin, end func(*memStore)
	code       explain.Code
	store      string       // in the answer of readiness
	members    int          // that are shown
	removed    explain.Code // of a member that was removed
	older      explain.Code // of the key before the last one; see renewRecorded
	read       bool         // what is read is what is so
}

func testOutage(t *testing.T, o storeOutage) {
	d := newDesk(t)
	d.mu.Lock()
	d.now = time.Time{} // the bubble's
	d.mu.Unlock()
	if err := d.set(poolEntries); err != nil {
		t.Fatal(err)
	}
	d.c.Rooms().Membership.Listens(d.clock().Add(-replicas.SilentAfter))
	stop := d.runs(t)
	defer func() { stop(); wantOnlyNil(t, d.c.Close()) }()
	known := []*machine{d.joined("a"), d.joined("b"), d.joined("c")}
	wantOnlyNil(t, known[1].renew())
	banned, removed, clone := d.joined("banned"), d.joined("removed"), d.joined("cloned")
	copied := *clone
	wantOnlyNil(t, clone.renew())
	d.ban(t, identity.Data, "banned")
	d.remove(t, identity.Data, "removed")
	wantOnlyNil(t, d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), false)) // as the trust loop goes on trying
	spare := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	time.Sleep(time.Minute)

	before, head := d.store.snapshot(), d.state().Head.Hash
	began := time.Now()
	o.begin(d.store)
	for time.Since(began) < 10*time.Minute {
		for _, m := range known {
			code(t, m.id.Name()+" with a new key", m.renew(), o.code)
			if err := m.again(); err != nil {
				t.Fatalf("%v into the outage, %s: %v", time.Since(began), m.id.Name(), err)
			}
			if end := d.recordedEnd(m).Add(coordinator.DefaultMaxHeadAge); m.leaf.NotAfter.After(end) {
				t.Errorf("%s is certified until %v, want at most %v", m.id.Name(), m.leaf.NotAfter, end)
			}
		}
		wantCut(t, "a banned member", banned.again())
		wantOnly(t, "a banned member past the guard", d.past(banned), explain.JoinBanned)
		wantCut(t, "a removed member", removed.again())
		wantOnly(t, "a removed member past the guard", d.past(removed), o.removed)
		wantOnly(t, "an older key", copied.again(), o.older)
		code(t, "a join", d.machine().join(identity.Data, proof.NewTokenProver(spare)), o.code)
		code(t, "a return", known[0].rejoin(), o.code)
		code(t, "a manifest", d.set(poolEntries+"  - {name: more, kind: witness, match: [\"token:more\"]}\n"), o.code)
		_, err := d.members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"})
		code(t, "a ban", err, o.code)
		time.Sleep(time.Minute)
	}
	if d.state().Phase != authority.Ready || d.state().Head.Hash != head {
		t.Fatalf("after the outage it is %v at %v", d.state().Phase, d.state().Head.Hash)
	}
	if a := d.c.Health().Readiness(); !a.OK || a.Store != o.store {
		t.Errorf("readiness in the outage: %+v", a)
	}
	if a := d.c.Health().Liveness(); !a.OK {
		t.Errorf("liveness in the outage: %+v", a)
	}
	for key, e := range d.store.snapshot() {
		if old := before[key]; !bytes.Equal(old.Value, e.Value) {
			t.Errorf("%s was written in the outage", key)
		}
	}
	list, err := d.members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
	if err != nil || len(list.GetMembers()) != o.members || (list.GetKnownAt() == nil) != o.read ||
		list.GetKnownAt().AsTime().After(began) {
		t.Errorf("members in the outage: %d known at %v, %v", len(list.GetMembers()), list.GetKnownAt(), err)
	}
	for _, m := range list.GetMembers() {
		if m.GetBanned() != (m.GetName() == "banned") {
			t.Errorf("%s is banned: %v", m.GetName(), m.GetBanned())
		}
	}
	if got, err := d.members().GetMember(t.Context(),
		&fealtyv1.GetMemberRequest{Kind: "data", Name: "a"}); err != nil || (got.GetKnownAt() == nil) != o.read ||
		got.GetMember().GetKeyId() != keyOf(t, known[0].key).String() {
		t.Errorf("a member in the outage: %v, %v", got, err)
	}
	_, err = d.members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "nobody"})
	if !o.read {
		code(t, "a member that is not known", err, o.code)
	}
	st, err := coordinator.StatusOf(d.c).GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil || len(st.GetMembers()) != o.members || (st.GetStoreLatency() != nil) != o.read ||
		!slices.ContainsFunc(st.GetFindings(),
			func(f *fealtyv1.Finding) bool { return f.GetCode() == string(o.code) }) {
		t.Errorf("status in the outage: %d members, %v, %v", len(st.GetMembers()), st.GetFindings(), err)
	}
	if _, err := d.config().ListConfig(t.Context(), &fealtyv1.ListConfigRequest{}); err != nil {
		t.Errorf("config in the outage: %v", err)
	}

	o.end(d.store)
	time.Sleep(time.Minute)
	if a := d.c.Health().Readiness(); !a.OK || a.Store != "ok" {
		t.Errorf("readiness after the outage: %+v", a)
	}
	if n := d.c.Rooms().Auditing.Waiting(); n != 0 {
		t.Errorf("%d audit entries still wait", n)
	}
	if entries, _ := d.audits("member.renew.outage"); len(entries) < 9 || entries[0].Fields["not_after"] == "" ||
		entries[0].Fields["key"] == "" || entries[0].At.Before(began) {
		t.Errorf("%d audit entries of the outage: %v", len(entries), entries[:min(1, len(entries))])
	}
	for _, m := range known {
		wantOnlyNil(t, m.renew())
	}
	if err := d.machine().join(identity.Data, proof.NewTokenProver(spare)); err != nil {
		t.Errorf("a join after the outage: %v", err)
	}
}

// past asks as a member does whose connection the guard let through, a moment ago.
func (d *desk) past(m *machine) error {
	csr, err := ca.NewCSR(m.key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.id, Leaf: m.leaf, Key: identity.KeyOf(m.leaf)})
	_, err = served[fealtyv1.AdmissionServiceServer](d.c.Rooms().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.id.Name(), Csr: csr, RecordedKey: true})
	return err
}

// recordedEnd is until when the member is certified as its record says.
func (d *desk) recordedEnd(m *machine) time.Time {
	rec, ok := d.c.Rooms().Membership.Roster().Find("data/" + m.id.Name())
	if !ok {
		d.t.Fatalf("%s is not known", m.id.Name())
	}
	return rec.NotAfter
}

// code fails unless err has this code, or is that of a change whose outcome is unknown
// because the store went away under it.
func code(t *testing.T, what string, err error, want explain.Code) {
	t.Helper()
	if !errors.Is(err, want) && !errors.Is(err, explain.StoreOutcomeUnknown) && !errors.Is(err, errDown) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

// Whoever follows the members has dropped the record of one that was removed: it is told
// that it is banned, and not that the store cannot be reached, as if it might come back.
func TestOutageTellsWhoWasRemoved(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	removed, other := d.joined("removed"), d.joined("other")
	d.remove(t, identity.Data, "removed")
	for _, path := range []string{"data/removed", "data/other"} {
		d.c.Rooms().Membership.Roster().Remove(path, d.store.version(history.HeadKey)+1<<40)
	}
	d.store.setDown(errDown)
	wantOnly(t, "a removed member", d.past(removed), explain.JoinBanned)
	wantOnly(t, "one that is not known here", d.past(other), explain.StoreUnreachable)
}

// After max_head_age nothing is certified and nothing is read, until the store is back.
func TestOutageEnds(t *testing.T) {
	d := testDesk(t)
	a := d.joined("a")
	d.store.setDown(errDown)
	d.advance(coordinator.DefaultMaxHeadAge)
	wantOnlyNil(t, a.again())
	d.advance(time.Second)
	wantOnly(t, "too late", a.again(), explain.StoreUnreachable)
	_, err := d.members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
	wantOnly(t, "members, too late", err, explain.StoreUnreachable)
	_, err = d.members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
	wantOnly(t, "a member, too late", err, explain.StoreUnreachable)
	_, err = d.config().ListConfig(t.Context(), &fealtyv1.ListConfigRequest{})
	wantOnly(t, "config, too late", err, explain.StoreUnreachable)
	st, err := coordinator.StatusOf(d.c).GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil || len(st.GetMembers()) != 0 || st.GetBaseline() != nil {
		t.Errorf("status, too late: %v, %v", st, err)
	}
	d.store.setDown(nil)
	d.c.Rooms().Authority.Look(t.Context())
	wantOnlyNil(t, a.renew())
}

// A banned key is listed for as long as a certificate over it can be valid that an
// outage made, by whichever coordinator, though no record knows it.
func TestOutageCertificatesEndBeforeBans(t *testing.T) {
	d := testDesk(t)
	a := d.joined("a")
	d.advance(a.leaf.NotAfter.Sub(d.clock()) - time.Minute) // about to end
	d.c.Rooms().Authority.Look(t.Context())
	d.store.setDown(errDown)
	wantOnlyNil(t, a.again())
	d.advance(coordinator.DefaultMaxHeadAge)
	wantOnlyNil(t, a.again())
	end := a.leaf.NotAfter
	d.store.setDown(nil)
	d.c.Rooms().Authority.Look(t.Context())
	d.remove(t, identity.Data, "a")
	ban, err := record.Get[record.Ban](t.Context(), d.state().Records, record.BanKeyKey(keyOf(t, a.key)))
	if err != nil || ban.Value.CertEnd.Before(end.Add(time.Hour)) {
		t.Errorf("the key is listed until %v, and a certificate over it ends at %v: %v", ban.Value.CertEnd, end, err)
	}
}

// A coordinator that is cut off certifies the key that it knows. The member renews
// elsewhere meanwhile, as often as it may, so that its record forgets that key, and is
// removed: the key is banned for as long as that certificate can be valid.
func TestOutageCertificateIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := readyDesk(t, "  - {name: pool, kind: data, match: [\"token:pool\"], svid_ttl: 1h}\ndegraded: {max: 10m}\n")
	a := d.joined("a")
	stale, ok := d.c.Rooms().Membership.Roster().Find("data/a")
	if !ok {
		t.Fatal("it is not known")
	}
	// Until then the other one certifies it, asked a minute before the record says that it ends.
	until := stale.NotAfter.Add(min(time.Hour-time.Minute, coordinator.DefaultMaxHeadAge, lifetimes.StretchOf(time.Hour)))
	refused := 0
	for d.advance(time.Minute); d.clock().Before(until.Add(-2 * time.Minute)); d.advance(time.Minute) {
		switch err := a.renew(); {
		case errors.Is(err, explain.RateLimited):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("it may renew as often as it likes")
	}
	d.remove(t, identity.Data, "a")
	ban, err := record.Get[record.Ban](t.Context(), d.state().Records, record.BanKeyKey(stale.Key))
	if err != nil || ban.Value.CertEnd.Before(until) {
		t.Errorf("the key is listed until %v, and a certificate over it ends at %v: %v", ban.Value.CertEnd, until, err)
	}
}

// The answer to a renewal is lost, and the store is back when the member asks with its
// key of before: no second machine is suspected, and the next renewal goes through.
func TestRecordedKeyAfterLostAnswer(t *testing.T) {
	d := testDesk(t)
	a := d.joined("a")
	next, err := newKey()
	wantOnlyNil(t, err)
	d.store.lose(lostForGood, answered)
	if _, err := a.renewWith(a.leaf, next); !errors.Is(err, explain.StoreOutcomeUnknown) {
		t.Fatalf("a lost answer: %v", err)
	}
	wantOnly(t, "the key of before", a.again(), explain.StoreBusy)
	if n := counted(t, d, "fealty_clone_alarms_total"); n != 0 {
		t.Errorf("%v alarms of a clone", n)
	}
	chain, err := a.renewWith(a.leaf, next)
	wantOnlyNil(t, err)
	a.key = next
	wantOnlyNil(t, a.adopt(chain))
	wantOnlyNil(t, a.again()) // with the store in reach it is a renewal like any other
}

func counted(t *testing.T, d *desk, name string) float64 {
	t.Helper()
	families, err := d.c.Registry().Gather()
	wantOnlyNil(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The outage begins in the middle of each call, after each of its questions to the
// store. Whatever became of the call: the keys are there, a member that it was not
// about is certified on, and when the store is back everything works.
func TestOutageInTheMiddle(t *testing.T) {
	t.Parallel()
	type call struct {
		name string
		run  func(t *testing.T, d *desk, m *machine, tok proof.JoinToken) error
	}
	for _, call := range []call{
		{"join", func(t *testing.T, d *desk, _ *machine, tok proof.JoinToken) error {
			return d.machine().join(identity.Data, proof.NewTokenProver(tok))
		}},
		{"renew", func(_ *testing.T, _ *desk, m *machine, _ proof.JoinToken) error { return m.renew() }},
		{"rejoin", func(_ *testing.T, _ *desk, m *machine, _ proof.JoinToken) error { return m.rejoin() }},
		{"token", func(t *testing.T, d *desk, _ *machine, _ proof.JoinToken) error {
			_, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			return err
		}},
		{"ban", func(t *testing.T, d *desk, m *machine, _ proof.JoinToken) error {
			_, err := d.members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: m.id.Name(), Reason: "x"})
			return err
		}},
		{"drain", func(t *testing.T, d *desk, m *machine, _ proof.JoinToken) error {
			_, err := d.members().DrainMember(t.Context(),
				&fealtyv1.DrainMemberRequest{Kind: "data", Name: m.id.Name()})
			return err
		}},
		{"remove", func(t *testing.T, d *desk, m *machine, _ proof.JoinToken) error {
			_, err := d.members().RemoveMember(t.Context(),
				&fealtyv1.RemoveMemberRequest{Kind: "data", Name: m.id.Name(), Force: true, Reason: "x"})
			return err
		}},
		{"leave", func(t *testing.T, d *desk, m *machine, _ proof.JoinToken) error {
			ctx := identity.NewContext(t.Context(), identity.Peer{ID: m.id, Leaf: m.leaf, Key: identity.KeyOf(m.leaf)})
			_, err := served[fealtyv1.AdmissionServiceServer](d.c.Rooms().Admission.RegisterServices).Leave(ctx,
				&fealtyv1.LeaveRequest{Name: m.id.Name()})
			return err
		}},
		{"config", func(_ *testing.T, d *desk, _ *machine, _ proof.JoinToken) error {
			_, err := d.put("kind: degraded\nname: less\nmax: 1s")
			return err
		}},
		{"rotate", func(t *testing.T, d *desk, _ *machine, _ proof.JoinToken) error {
			_, err := d.trustService().RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{})
			return err
		}},
		{"set", func(_ *testing.T, d *desk, _ *machine, _ proof.JoinToken) error {
			return d.set(poolEntries + "  - {name: more, kind: witness, match: [\"token:more\"]}\n")
		}},
	} {
		t.Run(call.name, func(t *testing.T) {
			for n := 0; ; n += everyNth(3) {
				d := testDesk(t)
				m, other := d.joined("m"), d.joined("other")
				tok := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
				d.store.failAfter(n)
				err := call.run(t, d, m, tok)
				cut := d.store.isDown()
				if !cut && err != nil {
					t.Fatalf("with the store in reach: %v", err)
				}
				if s := d.state().Ready(); s == nil || s.Secrets == nil {
					t.Fatalf("cut after %d: the keys are gone", n)
				}
				d.store.setDown(errDown)
				if err := other.again(); err != nil && d.state().Phase == authority.Ready {
					t.Errorf("cut after %d: another member in the outage: %v", n, err)
				}
				d.store.setDown(nil)
				d.c.Rooms().Authority.Look(t.Context())
				if phase := d.state().Phase; phase != authority.Ready {
					t.Errorf("cut after %d: it is %v after the outage: %s", n, phase, d.state().Reason)
				}
				if err := other.renew(); err != nil {
					t.Errorf("cut after %d: another member after the outage: %v", n, err)
				}
				if !cut {
					if n == 0 {
						t.Fatal("it asks the store nothing")
					}
					return
				}
				if d.c.Close() != nil {
					t.Fatal("close")
				}
			}
		})
	}
}

// A removal or a ban that is durable counts at once, though the store goes away before
// the bundle says so. One that was not written counts for nothing.
func TestOutageBehindABan(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{false, true} {
		d := testDesk(t)
		a, b := d.joined("a"), d.joined("b")
		withdraw := func(name string) error {
			if remove {
				_, err := d.members().RemoveMember(t.Context(),
					&fealtyv1.RemoveMemberRequest{Kind: "data", Name: name, Force: true, Reason: "x"})
				return err
			}
			_, err := d.members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "x"})
			return err
		}
		d.store.intercept(func(store.Tx) { d.store.failAfter(1) }) // the commit is the last answer
		if err := withdraw("a"); err == nil {
			t.Fatal("the bundle was made without a store")
		}
		d.store.intercept(nil)
		if rec, ok := d.c.Rooms().Membership.Roster().Find("data/a"); !ok || d.c.Rooms().Bundle.Bans(a.id, rec.Key) {
			t.Fatal("this shows nothing: the bundle knows already, or the member is not known")
		}
		if err := d.past(a); !errors.Is(err, explain.StoreUnreachable) {
			t.Errorf("remove %v: its member is certified again: %v", remove, err)
		}
		code(t, "a ban in the outage", withdraw("b"), explain.StoreUnreachable)
		wantOnlyNil(t, b.again())
		d.store.setDown(nil)
		wantOnlyNil(t, d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), false))
		if d.c.Rooms().Bundle.Withdrawn("data/a") || !d.c.Rooms().Bundle.Bans(a.id, keyOf(t, a.key)) {
			t.Errorf("remove %v: after the outage it is not in the bundle", remove)
		}
	}
}

// The bundle is looked at between a ban and its commit, as happens every few seconds.
// What was read then does not show the ban, so it says nothing about it.
func TestOutageBehindABanUnderWay(t *testing.T) {
	d := testDesk(t)
	a := d.joined("a")
	d.store.intercept(func(store.Tx) {
		d.store.intercept(nil)
		wantOnlyNil(t, d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), false))
		d.store.failAfter(1) // the commit is the last answer
	})
	if _, err := d.members().BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"}); err == nil {
		t.Fatal("the bundle was made without a store")
	}
	if err := d.past(a); !errors.Is(err, explain.StoreUnreachable) {
		t.Errorf("a member whose ban is durable is certified again: %v", err)
	}
	d.store.setDown(nil)
	wantOnlyNil(t, d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), false))
	if d.c.Rooms().Bundle.Withdrawn("data/a") || !d.c.Rooms().Bundle.Bans(a.id, keyOf(t, a.key)) {
		t.Error("after the outage it is not in the bundle")
	}
}

func wantCut(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, errCut) {
		t.Errorf("%s: %v, want %v", what, err, errCut)
	}
}

// A coordinator that starts while its store does not answer says that it is the store,
// whatever it reads first, so that its supervisor starts it again.
func TestStartWithoutTheStore(t *testing.T) {
	d := testDesk(t)
	d.store.setDown(errDown)
	if _, err := d.another("another"); !errors.Is(err, explain.StoreUnreachable) || !errors.Is(err, errDown) {
		t.Errorf("started without a store: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := coordinator.Unreadable(ctx, errDown); err != errDown {
		t.Errorf("who was stopped: %v", err)
	}
}
