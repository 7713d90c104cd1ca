package coordinator_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// prunable returns a desk, and for each family of records one that is over at the desk's
// time and one that is not yet, by a moment.
func prunable(t *testing.T) (d *coordinatortest.Desk, over, kept map[string]string) {
	t.Helper()
	d = coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
	over, kept = map[string]string{}, map[string]string{}
	at := d.Clock().Add(120 * 24 * time.Hour) // what time it will be
	until := func(end time.Time) {
		t.Helper()
		d.Advance(end.Sub(d.Clock()))
	}

	// A banned key is forgotten when no certificate over it can be valid.
	m := d.Joined("lost")
	coordinatortest.RemoveAt(d, t, identity.Data, "lost")
	over["banned key"] = record.BanKeyKey(coordinatortest.KeyOf(t, m.Key))

	// A session is over when its certificate has ended, and what clocks may differ.
	login := func(name string) string {
		t.Helper()
		m := d.Machine()
		coordinatortest.WantOnly(t, "log in", m.Join(identity.Admin,
			proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "ops", Name: name}))), "")
		return record.MemberKey(identity.Admin, name)
	}
	over["session"] = login("old")

	// A token answers "expired" for a week after its end.
	token := func(end time.Duration) string {
		t.Helper()
		tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 2, Ttl: durationpb.New(time.Hour)})
		coordinatortest.WantOnly(t, "join", d.Machine().Join(identity.Data, proof.NewTokenProver(tok)), "")
		until(at.Add(end))
		return tok.ID
	}
	until(at.Add(-admission.TokenRetention - time.Hour - time.Second))
	id := token(-admission.TokenRetention - time.Hour + time.Second)
	over["token"], over["use of a token"] = admission.TokenKey(id), d.Store.Keys(admission.TokenUsePrefix + id + "/")[0]
	id = token(-time.Minute)
	kept["token"], kept["use of a token"] = admission.TokenKey(id), d.Store.Keys(admission.TokenUsePrefix + id + "/")[0]
	kept["session"] = login("new")
	m = d.Joined("lost-2")
	coordinatortest.RemoveAt(d, t, identity.Data, "lost-2")
	kept["banned key"] = record.BanKeyKey(coordinatortest.KeyOf(t, m.Key))
	until(at)

	audit := func(age time.Duration) string {
		key := fmt.Sprintf("%s%020d-x", auditlog.Prefix, at.Add(-age).UnixNano())
		d.Store.Write(key, []byte("{}"))
		return key
	}
	over["audit entry"], over["audit entry of a year ago"] = audit(coordinator.AuditRetention+time.Second),
		audit(365*24*time.Hour)
	kept["audit entry"] = audit(coordinator.AuditRetention - time.Second)
	over["coordinator's word of itself"] = peer.Prefix + "rubbish"
	d.Store.Write(over["coordinator's word of itself"], []byte("rubbish"))
	over["gathered share"] = owner.Prefix + "a/b"
	d.Store.Write(over["gathered share"], []byte("share"))
	return d, over, kept
}

// Each family of records is kept as long as it says and no longer, and each deletion is
// on the condition that this coordinator leads.
func TestPruning(t *testing.T) {
	d, over, kept := prunable(t)
	has := func(key string) bool { return slices.Contains(d.Store.Keys(""), key) }
	for name, key := range over {
		if !has(key) {
			t.Fatalf("%s: %s is not there", name, key)
		}
	}
	coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
	term, condition, ok := d.C.Parts().Election.Leading()
	if !ok {
		t.Fatal("it does not lead")
	}

	// A deposed leader that does not know it deletes nothing: the store refuses it.
	e := d.Store.Snapshot()[election.TermKey]
	d.Store.Write(election.TermKey, e.Value)
	coordinatortest.WantOnly(t, "prune when deposed", d.C.PruneOnce(t.Context(), d.State(), d.Clock()), "")
	// One that knows does not ask the store.
	d.C.Parts().Election.Deposed(store.Revision(term))
	d.Store.Intercept(func(tx store.Tx) { t.Errorf("it writes %v, and deletes %v", tx.Put, tx.Delete) })
	coordinatortest.WantOnly(t, "prune when not leading", d.C.PruneOnce(t.Context(), d.State(), d.Clock()), "")
	d.Store.Intercept(nil)
	for name, key := range over {
		if !has(key) {
			t.Errorf("%s: gone by the hand of who does not lead", name)
		}
	}

	d.Lead(d.C)
	if _, condition, ok = d.C.Parts().Election.Leading(); !ok {
		t.Fatal("it does not lead again")
	}
	d.Store.Intercept(func(tx store.Tx) {
		if !slices.Contains(tx.If, condition) {
			t.Errorf("%v is deleted on the conditions %v", tx.Delete, tx.If)
		}
	})
	coordinatortest.WantOnly(t, "prune", d.C.PruneOnce(t.Context(), d.State(), d.Clock()), "")
	d.Store.Intercept(nil)
	for name, key := range over {
		if has(key) {
			t.Errorf("%s: %s is still there", name, key)
		}
	}
	for name, key := range kept {
		if !has(key) {
			t.Errorf("%s: %s is gone", name, key)
		}
	}
}

// A leader prunes each hour, and not while its clock jumps: what a wrong clock forgets
// is forgotten for good.
func TestPruningWaitsForTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, over, _ := prunable(t)
		gone := func() bool { return !slices.Contains(d.Store.Keys(""), over["token"]) }
		var jump atomic.Int64
		origin, began := d.Clock(), time.Now()
		d.C.SetNow(func() time.Time { return origin.Add(time.Since(began) + time.Duration(jump.Load())) })
		done := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(done)
			_ = d.C.PruneWhileLeading(t.Context(), d.State(), ended)
		}()
		for _, by := range []time.Duration{48 * time.Hour, -24 * time.Hour, -24 * time.Hour} {
			synctest.Wait()
			jump.Add(int64(by))
			time.Sleep(bundle.SweepPause)
			synctest.Wait()
			if gone() {
				t.Fatalf("it pruned right after its clock jumped by %v", by)
			}
		}
		jump.Add(int64(time.Minute)) // a step that any clock may make
		time.Sleep(bundle.SweepPause)
		synctest.Wait()
		if !gone() {
			t.Error("it does not prune after an hour of a steady clock")
		}
		close(ended)
		<-done
	})
}
