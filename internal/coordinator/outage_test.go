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
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/test/testlane"
)

// runs runs the loops of the desk's coordinator, in a bubble, until the returned function is
// called. It returns once they follow the members.
func runs(d *coordinatortest.Desk, t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context) error{d.C.FollowState, d.C.Parts().Moves.Succession.Follow,
		d.C.Parts().Auditing.Run, d.C.Watchdog} {
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
		"fails": {begin: func(m *coordinatortest.MemStore) { m.SetDown(coordinatortest.ErrDown) },
			end:  func(m *coordinatortest.MemStore) { m.SetDown(nil) },
			code: errcode.StoreUnreachable, store: "degraded", removed: errcode.JoinBanned,
			older: errcode.RenewOlderKey},
		"hangs": {begin: func(m *coordinatortest.MemStore) { m.SetHanging(true); m.SetDown(coordinatortest.ErrDown) },
			end: func(m *coordinatortest.MemStore) {
				m.SetDown(
					nil)
			}, code: errcode.StoreUnreachable, store: "degraded",
			removed: errcode.JoinBanned, older: errcode.RenewOlderKey},
		"full": {begin: func(m *coordinatortest.MemStore) { m.SetFull(true) },
			end:  func(m *coordinatortest.MemStore) { m.SetFull(false) },
			code: errcode.StoreFull, store: "full", removed: errcode.RenewEntryGone,
			older: errcode.StoreBusy, read: true},
		"gone": {begin: func(m *coordinatortest.MemStore) { m.SetRefusing(coordinatortest.RefusedFor(store.FileGone)) },
			end: func(m *coordinatortest.MemStore) {
				m.SetRefusing(
					nil)
			}, code: errcode.StoreRefuses, store: "file-gone",
			removed: errcode.RenewEntryGone, older: errcode.StoreBusy, read: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testOutage(t, o) })
		})
	}
}

// storeOutage is a way in which a store fails, and how it is told.
type storeOutage struct {
	begin, end func(*coordinatortest.MemStore)
	code       errcode.Code
	store      string       // in the answer of readiness
	removed    errcode.Code // of a member that was removed
	older      errcode.Code // of the key before the last one; see renewRecorded
	read       bool         // what is read is what is so
}

func testOutage(t *testing.T, o storeOutage) {
	d := coordinatortest.NewDesk(t)
	d.Mu.Lock()
	d.Now = time.Time{} // the bubble's
	d.Mu.Unlock()
	if err := d.Set(coordinatortest.PoolEntries); err != nil {
		t.Fatal(err)
	}
	d.C.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter))
	stop := runs(d, t)
	defer func() { stop(); coordinatortest.WantOnlyNil(t, d.C.Close()) }()
	known := []*coordinatortest.Machine{d.Joined("a"), d.Joined("b"), d.Joined("c")}
	coordinatortest.WantOnlyNil(t, known[1].Renew())
	banned, removed, clone := d.Joined("banned"), d.Joined("removed"), d.Joined("cloned")
	copied := *clone
	coordinatortest.WantOnlyNil(t, clone.Renew())
	coordinatortest.BanAt(d, t, identity.Data, "banned")
	coordinatortest.RemoveAt(d, t, identity.Data, "removed")
	coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(),
		false)) // as the trust loop goes on trying
	spare := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	time.Sleep(time.Minute)
	synctest.Wait() // a checkpoint of the audit log is due at this very moment, and is no write of the outage

	const shown = 5 // members; the one that was removed is gone
	before, head := d.Store.Snapshot(), d.State().Head.Hash
	began := time.Now()
	o.begin(d.Store)
	looks := []time.Duration{time.Minute, 3 * time.Minute, 6 * time.Minute, 10 * time.Minute, 0}
	if testlane.Rounds(true, false) {
		looks = slices.Delete(looks, 2, 4)
	}
	for _, until := range looks {
		for _, m := range known {
			coordinatortest.WantOutage(t, m.ID.Name()+" with a new key", m.Renew(), o.code)
			if err := coordinatortest.RenewRecorded(m); err != nil {
				t.Fatalf("%v into the outage, %s: %v", time.Since(began), m.ID.Name(), err)
			}
			if end := recordedEnd(d, m).Add(coordinator.DefaultMaxHeadAge); m.Leaf.NotAfter.After(end) {
				t.Errorf("%s is certified until %v, want at most %v", m.ID.Name(), m.Leaf.NotAfter, end)
			}
		}
		wantCut(t, "a banned member", coordinatortest.RenewRecorded(banned))
		coordinatortest.WantOnly(t, "a banned member past the guard", coordinatortest.RenewPastGuard(d, banned),
			errcode.JoinBanned)
		wantCut(t, "a removed member", coordinatortest.RenewRecorded(removed))
		coordinatortest.WantOnly(t, "a removed member past the guard", coordinatortest.RenewPastGuard(d, removed), o.removed)
		coordinatortest.WantOnly(t, "an older key", coordinatortest.RenewRecorded(&copied), o.older)
		coordinatortest.WantOutage(t, "a join", d.Machine().Join(identity.Data, proof.NewTokenProver(spare)), o.code)
		coordinatortest.WantOutage(t, "a return", known[0].Rejoin(), o.code)
		coordinatortest.WantOutage(t, "a manifest",
			d.Set(coordinatortest.PoolEntries+"  - {name: more, kind: witness, match: [\"token:more\"]}\n"), o.code)
		_, err := d.Members().BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"})
		coordinatortest.WantOutage(t, "a ban", err, o.code)
		time.Sleep(until - time.Since(began))
	}
	if d.State().Phase != authority.Ready || d.State().Head.Hash != head {
		t.Fatalf("after the outage it is %v at %v", d.State().Phase, d.State().Head.Hash)
	}
	if a := d.C.Health().Readiness(); !a.OK || a.Store != o.store {
		t.Errorf("readiness in the outage: %+v", a)
	}
	if a := d.C.Health().Liveness(); !a.OK {
		t.Errorf("liveness in the outage: %+v", a)
	}
	for key, e := range d.Store.Snapshot() {
		if old := before[key]; !bytes.Equal(old.Value, e.Value) {
			t.Errorf("%s was written in the outage", key)
		}
	}
	list, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
	if err != nil || len(list.GetMembers()) != shown || (list.GetKnownAt() == nil) != o.read ||
		list.GetKnownAt().AsTime().After(began) {
		t.Errorf("members in the outage: %d known at %v, %v", len(list.GetMembers()), list.GetKnownAt(), err)
	}
	for _, m := range list.GetMembers() {
		if m.GetBanned() != (m.GetName() == "banned") {
			t.Errorf("%s is banned: %v", m.GetName(), m.GetBanned())
		}
	}
	if got, err := d.Members().GetMember(t.Context(),
		&fealtyv1.GetMemberRequest{Kind: "data", Name: "a"}); err != nil || (got.GetKnownAt() == nil) != o.read ||
		got.GetMember().GetKeyId() != coordinatortest.KeyOf(t, known[0].Key).String() {
		t.Errorf("a member in the outage: %v, %v", got, err)
	}
	_, err = d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "nobody"})
	if !o.read {
		coordinatortest.WantOutage(t, "a member that is not known", err, o.code)
	}
	st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
		&fealtyv1.GetStatusRequest{})
	if err != nil || len(st.GetMembers()) != shown || (st.GetStoreLatency() != nil) != o.read ||
		!slices.ContainsFunc(st.GetFindings(),
			func(f *fealtyv1.Finding) bool { return f.GetCode() == string(o.code) }) {
		t.Errorf("status in the outage: %d members, %v, %v", len(st.GetMembers()), st.GetFindings(), err)
	}
	if _, err := coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{}); err != nil {
		t.Errorf("config in the outage: %v", err)
	}

	o.end(d.Store)
	time.Sleep(time.Minute)
	if a := d.C.Health().Readiness(); !a.OK || a.Store != "ok" {
		t.Errorf("readiness after the outage: %+v", a)
	}
	if n := d.C.Parts().Auditing.Waiting(); n != 0 {
		t.Errorf("%d audit entries still wait", n)
	}
	if entries, _ := coordinatortest.Audits(d, "member.renew.outage"); len(entries) < 9 ||
		entries[0].Fields["not_after"] == "" ||
		entries[0].Fields["key"] == "" || entries[0].At.Before(began) {
		t.Errorf("%d audit entries of the outage: %v", len(entries), entries[:min(1, len(entries))])
	}
	for _, m := range known {
		coordinatortest.WantOnlyNil(t, m.Renew())
	}
	if err := d.Machine().Join(identity.Data, proof.NewTokenProver(spare)); err != nil {
		t.Errorf("a join after the outage: %v", err)
	}
}

// recordedEnd is until when the member is certified as its record says.
func recordedEnd(d *coordinatortest.Desk, m *coordinatortest.Machine) time.Time {
	rec, ok := d.C.Parts().Membership.Roster().Find("data/" + m.ID.Name())
	if !ok {
		d.T.Fatalf("%s is not known", m.ID.Name())
	}
	return rec.NotAfter
}

// After max_head_age nothing is certified and nothing is read, until the store is back.
func TestOutageEnds(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Store.SetDown(coordinatortest.ErrDown)
	d.Advance(coordinator.DefaultMaxHeadAge)
	coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(a))
	d.Advance(time.Second)
	coordinatortest.WantOnly(t, "too late", coordinatortest.RenewRecorded(a), errcode.StoreUnreachable)
	_, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{})
	coordinatortest.WantOnly(t, "members, too late", err, errcode.StoreUnreachable)
	_, err = d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "a member, too late", err, errcode.StoreUnreachable)
	_, err = coordinatortest.ConfigAt(d).ListConfig(t.Context(), &fealtyv1.ListConfigRequest{})
	coordinatortest.WantOnly(t, "config, too late", err, errcode.StoreUnreachable)
	st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
		&fealtyv1.GetStatusRequest{})
	if err != nil || len(st.GetMembers()) != 0 || st.GetBaseline() != nil {
		t.Errorf("status, too late: %v, %v", st, err)
	}
	d.Store.SetDown(nil)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.WantOnlyNil(t, a.Renew())
}

// A banned key is listed for as long as a certificate over it can be valid that an
// outage made, by whichever coordinator, though no record knows it.
func TestOutageCertificatesEndBeforeBans(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Advance(a.Leaf.NotAfter.Sub(d.Clock()) - time.Minute) // about to end
	d.C.Parts().Moves.Succession.Look(t.Context())
	d.Store.SetDown(coordinatortest.ErrDown)
	coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(a))
	d.Advance(coordinator.DefaultMaxHeadAge)
	coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(a))
	end := a.Leaf.NotAfter
	d.Store.SetDown(nil)
	d.C.Parts().Moves.Succession.Look(t.Context())
	coordinatortest.RemoveAt(d, t, identity.Data, "a")
	ban, err := record.Get[record.Ban](t.Context(), d.State().Records, record.BanKeyKey(coordinatortest.KeyOf(t,
		a.Key)))
	if err != nil || ban.Value.CertEnd.Before(end.Add(time.Hour)) {
		t.Errorf("the key is listed until %v, and a certificate over it ends at %v: %v", ban.Value.CertEnd, end, err)
	}
}

// A coordinator that is cut off certifies the key that it knows. The member renews
// elsewhere meanwhile, as often as it may, so that its record forgets that key, and is
// removed: the key is banned for as long as that certificate can be valid.
func TestOutageCertificateIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(
		t, "  - {name: pool, kind: data, match: [\"token:pool\"], svid_ttl: 1h}\ndegraded: {max: 10m}\n")
	a := d.Joined("a")
	stale, ok := d.C.Parts().Membership.Roster().Find("data/a")
	if !ok {
		t.Fatal("it is not known")
	}
	// Until then the other one certifies it, asked a minute before the record says that it ends.
	until := stale.NotAfter.Add(min(time.Hour-time.Minute, coordinator.DefaultMaxHeadAge, record.StretchOf(
		time.Hour)))
	refused := 0
	for d.Advance(time.Minute); d.Clock().Before(until.Add(-2 * time.Minute)); d.Advance(time.Minute) {
		switch err := a.Renew(); {
		case errors.Is(err, errcode.RateLimited):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("it may renew as often as it likes")
	}
	coordinatortest.RemoveAt(d, t, identity.Data, "a")
	ban, err := record.Get[record.Ban](t.Context(), d.State().Records, record.BanKeyKey(stale.Key))
	if err != nil || ban.Value.CertEnd.Before(until) {
		t.Errorf("the key is listed until %v, and a certificate over it ends at %v: %v", ban.Value.CertEnd, until, err)
	}
}

// The outage begins in the middle of each call, after each of its questions to the
// store. For any fate of the call: the keys are there, a member that it was not
// about is certified on, and when the store is back everything works.
func TestOutageInTheMiddle(t *testing.T) {
	t.Parallel()
	type call struct {
		name string
		run  func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, tok proof.JoinToken) error
	}
	for _, call := range []call{
		{"join", func(t *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine, tok proof.JoinToken) error {
			return d.Machine().Join(identity.Data, proof.NewTokenProver(tok))
		}},
		{"renew", func(_ *testing.T, _ *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			return m.Renew()
		}},
		{"rejoin", func(_ *testing.T, _ *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			return m.Rejoin()
		}},
		{"token", func(t *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
				d.C.Parts().Admission.RegisterServices).CreateToken(
				t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			return err
		}},
		{"ban", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := d.Members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: m.ID.Name(), Reason: "x"})
			return err
		}},
		{"drain", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := d.Members().DrainMember(t.Context(),
				&fealtyv1.DrainMemberRequest{Kind: "data", Name: m.ID.Name()})
			return err
		}},
		{"remove", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := d.Members().RemoveMember(t.Context(),
				&fealtyv1.RemoveMemberRequest{Kind: "data", Name: m.ID.Name(), Force: true, Reason: "x"})
			return err
		}},
		{"leave", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, _ proof.JoinToken) error {
			ctx := identity.NewContext(t.Context(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
			_, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](
				d.C.Parts().Admission.RegisterServices).Leave(ctx,
				&fealtyv1.LeaveRequest{Name: m.ID.Name()})
			return err
		}},
		{"config", func(_ *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := coordinatortest.PutAt(d, "kind: degraded\nname: less\nmax: 1s")
			return err
		}},
		{"rotate", func(t *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine, _ proof.JoinToken) error {
			_, err := coordinatortest.TrustService(d).RotateConfigKey(t.Context(), &fealtyv1.RotateConfigKeyRequest{})
			return err
		}},
		{"set", func(_ *testing.T, d *coordinatortest.Desk, _ *coordinatortest.Machine, _ proof.JoinToken) error {
			return d.Set(coordinatortest.PoolEntries + "  - {name: more, kind: witness, match: [\"token:more\"]}\n")
		}},
	} {
		t.Run(call.name, func(t *testing.T) {
			for n := 0; ; n++ {
				d := coordinatortest.PoolDesk(t)
				m, other := d.Joined("m"), d.Joined("other")
				tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
				d.Store.FailAfter(n)
				err := call.run(t, d, m, tok)
				cut := d.Store.IsDown()
				if !cut && err != nil {
					t.Fatalf("with the store in reach: %v", err)
				}
				if s := d.State().Ready(); s == nil || s.Secrets == nil {
					t.Fatalf("cut after %d: the keys are gone", n)
				}
				d.Store.SetDown(coordinatortest.ErrDown)
				if err := coordinatortest.RenewRecorded(other); err != nil && d.State().Phase == authority.Ready {
					t.Errorf("cut after %d: another member in the outage: %v", n, err)
				}
				d.Store.SetDown(nil)
				d.C.Parts().Moves.Succession.Look(t.Context())
				if phase := d.State().Phase; phase != authority.Ready {
					t.Errorf("cut after %d: it is %v after the outage: %s", n, phase, d.State().Reason)
				}
				if err := other.Renew(); err != nil {
					t.Errorf("cut after %d: another member after the outage: %v", n, err)
				}
				if !cut {
					if n == 0 {
						t.Fatal("it asks the store nothing")
					}
					return
				}
				if d.C.Close() != nil {
					t.Fatal("close")
				}
			}
		})
	}
}

func wantCut(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, coordinatortest.ErrCut) {
		t.Errorf("%s: %v, want %v", what, err, coordinatortest.ErrCut)
	}
}

// A coordinator that starts while its store does not answer says that it is the store,
// whatever it reads first, so that its supervisor starts it again.
func TestStartWithoutTheStore(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Store.SetDown(coordinatortest.ErrDown)
	if _, err := d.Another("another"); !errors.Is(err, errcode.StoreUnreachable) ||
		!errors.Is(err, coordinatortest.ErrDown) {
		t.Errorf("started without a store: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := coordinator.Unreadable(ctx, coordinatortest.ErrDown); err != coordinatortest.ErrDown {
		t.Errorf("who was stopped: %v", err)
	}
}
