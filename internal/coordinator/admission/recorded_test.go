package admission_test

import (
	"errors"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// A follower of the members has dropped the record of one that was removed: it is told
// that it is banned, and not that the store cannot be reached, as if it might come back.
func TestOutageTellsWhoWasRemoved(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	removed, other := d.Joined("removed"), d.Joined("other")
	coordinatortest.RemoveAt(d, t, identity.Data, "removed")
	for _, path := range []string{"data/removed", "data/other"} {
		d.C.Parts().Membership.Roster().Remove(path, d.Store.Version(history.HeadKey)+1<<40)
	}
	d.Store.SetDown(coordinatortest.ErrDown)
	coordinatortest.WantOnly(t, "a removed member", coordinatortest.RenewPastGuard(d, removed), errcode.JoinBanned)
	coordinatortest.WantOnly(t, "one that is not known here", coordinatortest.RenewPastGuard(d, other),
		errcode.StoreUnreachable)
}

// The answer to a renewal is lost, and the store is back when the member asks with its
// key of before: no second machine is suspected, and the next renewal goes through.
func TestRecordedKeyAfterLostAnswer(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	next, err := coordinatortest.NewKey()
	coordinatortest.WantOnlyNil(t, err)
	d.Store.Lose(coordinatortest.LostForGood, coordinatortest.Answered)
	if _, err := a.RenewWith(a.Leaf, next); !errors.Is(err, errcode.StoreOutcomeUnknown) {
		t.Fatalf("a lost answer: %v", err)
	}
	coordinatortest.WantOnly(t, "the key of before", coordinatortest.RenewRecorded(a), errcode.StoreBusy)
	if n := counted(t, d, "fealty_clone_alarms_total"); n != 0 {
		t.Errorf("%v alarms of a clone", n)
	}
	chain, err := a.RenewWith(a.Leaf, next)
	coordinatortest.WantOnlyNil(t, err)
	a.Key = next
	coordinatortest.WantOnlyNil(t, a.Adopt(chain))
	coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(a)) // with the store in reach it is a renewal like any other
}

func counted(t *testing.T, d *coordinatortest.Desk, name string) float64 {
	t.Helper()
	families, err := d.C.Registry().Gather()
	coordinatortest.WantOnlyNil(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// A removal or a ban that is durable counts at once, though the store goes away before
// the bundle says so. One that was not written counts for nothing.
func TestOutageBehindABan(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{false, true} {
		d := coordinatortest.PoolDesk(t)
		a, b := d.Joined("a"), d.Joined("b")
		withdraw := func(name string) error {
			if remove {
				_, err := d.Members().RemoveMember(t.Context(),
					&fealtyv1.RemoveMemberRequest{Kind: "data", Name: name, Force: true, Reason: "x"})
				return err
			}
			_, err := d.Members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "x"})
			return err
		}
		d.Store.Intercept(func(store.Tx) { d.Store.FailAfter(1) }) // the commit is the last answer
		if err := withdraw("a"); err == nil {
			t.Fatal("the bundle was made without a store")
		}
		d.Store.Intercept(nil)
		if rec, ok := d.C.Parts().Membership.Roster().Find("data/a"); !ok || d.C.Parts().Bundle.Bans(a.ID, rec.Key) {
			t.Fatal("this shows nothing: the bundle knows already, or the member is not known")
		}
		if err := coordinatortest.RenewPastGuard(d, a); !errors.Is(err, errcode.StoreUnreachable) {
			t.Errorf("remove %v: its member is certified again: %v", remove, err)
		}
		coordinatortest.WantOutage(t, "a ban in the outage", withdraw("b"), errcode.StoreUnreachable)
		coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(b))
		d.Store.SetDown(nil)
		coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(), false))
		if d.C.Parts().Bundle.Withdrawn("data/a") || !d.C.Parts().Bundle.Bans(a.ID, coordinatortest.KeyOf(t, a.Key)) {
			t.Errorf("remove %v: after the outage it is not in the bundle", remove)
		}
	}
}

// The bundle is looked at between a ban and its commit, as happens every few seconds.
// The record read then does not show the ban, so it says nothing about it.
func TestOutageBehindABanUnderWay(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Store.Intercept(func(store.Tx) {
		d.Store.Intercept(nil)
		coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(), false))
		d.Store.FailAfter(1) // the commit is the last answer
	})
	if _, err := d.Members().BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"}); err == nil {
		t.Fatal("the bundle was made without a store")
	}
	if err := coordinatortest.RenewPastGuard(d, a); !errors.Is(err, errcode.StoreUnreachable) {
		t.Errorf("a member whose ban is durable is certified again: %v", err)
	}
	d.Store.SetDown(nil)
	coordinatortest.WantOnlyNil(t, d.C.Parts().Bundle.Refresh(t.Context(), d.State(), false))
	if d.C.Parts().Bundle.Withdrawn("data/a") || !d.C.Parts().Bundle.Bans(a.ID, coordinatortest.KeyOf(t, a.Key)) {
		t.Error("after the outage it is not in the bundle")
	}
}

// seal is the write of a record, as another coordinator makes it.
func seal(d *coordinatortest.Desk, t *testing.T, key string, value any) store.Write {
	t.Helper()
	w, err := d.State().Records.Seal(key, value)
	coordinatortest.WantOnlyNil(t, err)
	return w
}

// The content of a full store decides, though this coordinator heard nothing of it: who
// was banned, removed or renewed elsewhere, and under which head.
func TestFullStoreIsObeyed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine)
		want   errcode.Code
	}{
		{"its identity is banned", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			w := seal(d, t, record.BanIDKey(identity.Data, "a"), record.Ban{Reason: "x", By: "y", At: d.Clock()})
			d.Store.Write(w.Key, w.Value)
		}, errcode.JoinBanned},
		{"its key is banned", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			w := seal(d, t, record.BanKeyKey(coordinatortest.KeyOf(t, m.Key)), record.Ban{Reason: "x", By: "y",
				At: d.Clock()})
			d.Store.Write(w.Key, w.Value)
		}, errcode.JoinBanned},
		{"it was removed", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			d.Store.Alter(record.MemberKey(identity.Data, "a"), func([]byte) []byte { return nil })
		}, errcode.RenewEntryGone},
		{"it was renewed elsewhere", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			rec := d.Record(identity.Data, "a").Value
			next, err := coordinatortest.NewKey()
			coordinatortest.WantOnlyNil(t, err)
			rec.Rekey(coordinatortest.KeyOf(t, next), d.Clock().Add(time.Hour), d.Clock(), time.Hour)
			w := seal(d, t, record.MemberKey(identity.Data, "a"), rec)
			d.Store.Write(w.Key, w.Value)
		}, errcode.StoreBusy}, // the newer key may be its own; see renewRecorded
		{"its record is altered", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) {
			d.Store.Alter(record.MemberKey(identity.Data, "a"), func(b []byte) []byte { b[len(b)-2] ^= 1; return b })
		}, errcode.StoreForged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m := d.Joined("a")
			d.Store.SetFull(true)
			coordinatortest.WantOnlyNil(t, coordinatortest.RenewRecorded(m))
			tt.change(t, d, m)
			coordinatortest.WantOnly(t, "its recorded key", coordinatortest.RenewPastGuard(d, m), tt.want)
		})
	}
}

// Between the look at the record and the attempt to write it, something happens that the
// refused transaction would have met: it is looked for after the refusal.
func TestFullStoreIsLookedAtLast(t *testing.T) {
	ban := record.Ban{Reason: "x", By: "y"}
	for name, tt := range map[string]struct {
		key   func(m *coordinatortest.Machine) string
		value any // nil: what is there, under another version
		want  errcode.Code
	}{
		"its identity is banned": {func(*coordinatortest.Machine) string {
			return record.BanIDKey(identity.Data,
				"a")
		}, ban,
			errcode.JoinBanned},
		"its key is banned": {func(m *coordinatortest.Machine) string {
			return record.BanKeyKey(coordinatortest.KeyOf(m.Desk.T, m.Key))
		}, ban,
			errcode.JoinBanned},
		"another head is in force": {func(*coordinatortest.Machine) string { return history.HeadKey }, nil,
			errcode.StoreBusy},
		"its record is another one": {func(*coordinatortest.Machine) string {
			return record.MemberKey(identity.Data,
				"a")
		},
			nil,
			errcode.StoreBusy},
	} {
		t.Run(name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m := d.Joined("a")
			key := tt.key(m)
			value := d.Store.Snapshot()[key].Value
			if tt.value != nil {
				value = seal(d, t, key, tt.value).Value
			}
			d.Store.SetFull(true)
			d.Store.WhenFull(func() { d.Store.Write(key, value) })
			coordinatortest.WantOnly(t, "its recorded key", coordinatortest.RenewPastGuard(d, m), tt.want)
		})
	}
}
