package grants_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/signed"
	"github.com/fealty-io/fealty/internal/store"
)

// ask asks a coordinator for a grant, as a member.
func ask(c *coordinator.Coordinator, m *coordinatortest.Machine, newest string) (*fealtyv1.GrantResponse, error) {
	return asking(c, m, &fealtyv1.GrantRequest{Name: m.ID.Name(), Incarnation: fence.NewIncarnation().String(), Newest: newest})
}

func asking(c *coordinator.Coordinator, m *coordinatortest.Machine, req *fealtyv1.GrantRequest) (*fealtyv1.GrantResponse,
	error) {
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	return coordinatortest.Served[fealtyv1.GrantServiceServer](c.Parts().Fencing.Grants.RegisterServices).Grant(ctx, req)
}

func mustAsk(t *testing.T, c *coordinator.Coordinator, m *coordinatortest.Machine, newest string) *fealtyv1.GrantResponse {
	t.Helper()
	got, err := ask(c, m, newest)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// open reads a grant as a receiver does that has nothing but the trust bundle.
func open(t *testing.T, d *coordinatortest.Desk, text string) fence.Grant {
	t.Helper()
	bundle, _, err := d.State().Bundle.Open(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	verified, err := bundle.FenceAuthority(d.Clock).OpenGrant(text)
	if err != nil {
		t.Fatal(err)
	}
	grant, _ := verified.Get()
	return grant
}

func TestGrantsGrow(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a, b := d.Joined("a"), d.Joined("b")
	for want := uint32(1); want <= 3; want++ {
		got := mustAsk(t, d.C, a, "")
		grant := open(t, d, got.GetGrant())
		if got.GetNumber() != want || grant.Number != want || grant.Holder != a.ID.String() ||
			grant.Cluster != coordinatortest.Cluster || grant.AuthorityEpoch != d.State().Head.AuthorityEpoch {
			t.Errorf("%d, %+v, want grant %d of %s", got.GetNumber(), grant, want, a.ID)
		}
	}
	if got := mustAsk(t, d.C, b, ""); got.GetNumber() != 1 {
		t.Errorf("the first grant of another holder is %d", got.GetNumber())
	}
	entries, text := coordinatortest.Audits(d, "grant.give")
	if len(entries) != 4 || entries[0].Target == "" || !strings.Contains(text, "data/a") {
		t.Errorf("the audit log has %d grants: %s", len(entries), text)
	}
	d.Restart()
	if got := mustAsk(t, d.C, a, ""); got.GetNumber() != 4 {
		t.Errorf("after a restart grant %d is given", got.GetNumber())
	}
}

// A holder shows what it was given: a store that lost the record, or went back, gives
// nothing twice. A number that nobody signed shows nothing.
func TestShownGrantIsPassed(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a, b := d.Joined("a"), d.Joined("b")
	mustAsk(t, d.C, a, "")
	newest := mustAsk(t, d.C, a, "")
	ofB := mustAsk(t, d.C, b, "")
	lose := func() { d.Store.Remove(grants.KeyOf(identity.Data, "a")) }
	lose()
	if got := mustAsk(t, d.C, a, newest.GetGrant()); got.GetNumber() != 3 {
		t.Errorf("grant %d is given after a holder showed grant 2", got.GetNumber())
	}
	if got := mustAsk(t, d.C, a, newest.GetGrant()); got.GetNumber() != 4 {
		t.Errorf("grant %d is given to a holder that shows an older one than the record", got.GetNumber())
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := fence.Grant{Cluster: coordinatortest.Cluster, Holder: a.ID.String(), Number: math.MaxUint32,
		AuthorityEpoch: 1}.Sign(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if got := mustAsk(t, d.C, a, forged); got.GetNumber() != 5 {
		t.Errorf("a forged grant moved the next one to %d", got.GetNumber())
	}
	limit := fmt.Sprintf("it has %d bytes, limit %d", signed.MaxStatement+1, signed.MaxStatement)
	for _, tc := range []struct {
		name, shown string
		tooLong     bool // it is refused before it is read
	}{
		{"another holder's", ofB.GetGrant(), false},
		{"no statement", "garbage", false},
		{"no statement, as long as may be", strings.Repeat("x", signed.MaxStatement), false},
		{"too long", strings.Repeat("x", signed.MaxStatement+1), true},
	} {
		_, err := ask(d.C, a, tc.shown)
		coordinatortest.WantOnly(t, tc.name, err, errcode.RequestField)
		if strings.Contains(err.Error(), "limit") != tc.tooLong || tc.tooLong && !strings.Contains(err.Error(), limit) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if got := mustAsk(t, d.C, a, ""); got.GetNumber() != 6 {
		t.Errorf("refusals used up grants: the next one is %d", got.GetNumber())
	}
}

// During a rotation a grant is signed with the key that every receiver knows.
func TestGrantInARotation(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	before, _, err := d.State().Bundle.Open(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	coordinatortest.Rotate(d, time.Hour)
	if _, err := before.FenceAuthority(d.Clock).OpenGrant(mustAsk(t, d.C, a, "").GetGrant()); err != nil {
		t.Errorf("a receiver with the bundle from before the rotation: %v", err)
	}
	open(t, d, mustAsk(t, d.C, a, "").GetGrant())
}

func TestGrantRefused(t *testing.T) {
	t.Parallel()
	good := func(m *coordinatortest.Machine) *fealtyv1.GrantRequest {
		return &fealtyv1.GrantRequest{Name: m.ID.Name(), Incarnation: fence.NewIncarnation().String()}
	}
	for _, tc := range []struct {
		name string
		ask  func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error
		want errcode.Code
	}{
		{"no incarnation", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			_, err := asking(d.C, m, &fealtyv1.GrantRequest{Name: "a"})
			return err
		}, errcode.RequestField},
		{"an incarnation of zeros", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			_, err := asking(d.C, m, &fealtyv1.GrantRequest{Name: "a", Incarnation: strings.Repeat("0", 32)})
			return err
		}, errcode.RequestField},
		{"banned", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			coordinatortest.BanAt(d, t, identity.Data, "a")
			_, err := asking(d.C, m, good(m))
			return err
		}, errcode.JoinBanned},
		{"removed", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			d.C.Parts().Membership.Listens(d.Clock().Add(-time.Hour))
			coordinatortest.RemoveAt(d, t, identity.Data, "a")
			_, err := asking(d.C, m, good(m))
			return err
		}, errcode.RenewEntryGone},
		{"all grants are given", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			s := d.State()
			ch := s.Records.NewChange(s.HeadVersion)
			ch.Put(grants.KeyOf(identity.Data, "a"), 0, grants.Record{Number: math.MaxUint32})
			if _, err := ch.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := asking(d.C, m, good(m))
			return err
		}, errcode.GrantsExhausted},
		{"the store is away", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			d.Store.SetDown(coordinatortest.ErrDown)
			defer d.Store.SetDown(nil)
			_, err := asking(d.C, m, good(m))
			return err
		}, errcode.StoreUnreachable},
		{"too often", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			for range 3 {
				if _, err := asking(d.C, m, good(m)); err != nil {
					return err
				}
			}
			return nil
		}, errcode.RateLimited},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.UnopenedDesk(t)
			if tc.want == errcode.RateLimited {
				d.Alter = func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.001, 2 }
			}
			d.Open()
			coordinatortest.WantOnlyNil(t, d.Set(coordinatortest.PoolEntries))
			err := tc.ask(t, d, d.Joined("a"))
			coordinatortest.WantOnly(t, "it", err, tc.want)
			rec, err := record.Get[grants.Record](t.Context(), d.State().Records, grants.KeyOf(identity.Data, "a"))
			if err != nil {
				t.Fatal(err)
			}
			entries, _ := coordinatortest.Audits(d, "grant.give")
			if counted := int(rec.Value.Number); counted != len(entries) && tc.want != errcode.GrantsExhausted {
				t.Errorf("%d grants are counted, and the audit log has %d", counted, len(entries))
			}
		})
	}
}

// A grant whose record was altered is no grant to count on.
func TestGrantRecordAltered(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	mustAsk(t, d.C, a, "")
	d.Store.Alter(grants.KeyOf(identity.Data, "a"), func(v []byte) []byte { v[len(v)-2] ^= 1; return v })
	_, err := ask(d.C, a, "")
	coordinatortest.WantOnly(t, "a record that was altered", err, errcode.StoreForged)
}

// A ban that is made between the decision and the commit wins.
func TestGrantOvertakenByABan(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	banned := false
	d.Store.Intercept(func(tx store.Tx) {
		for _, w := range tx.Put {
			if w.Key == grants.KeyOf(identity.Data, "a") && !banned {
				banned = true
				coordinatortest.BanAt(d, t, identity.Data, "a")
			}
		}
	})
	_, err := ask(d.C, a, "")
	coordinatortest.WantOnly(t, "a grant that a ban overtook", err, errcode.JoinBanned)
	if entries, _ := coordinatortest.Audits(d, "grant.give"); len(entries) != 0 || !banned {
		t.Errorf("banned %v, and %d grants were given", banned, len(entries))
	}
}

// No number is given twice, though answers of the store are lost and two coordinators are
// asked at once (I6).
func TestNoGrantTwice(t *testing.T) {
	t.Parallel()
	for _, loss := range coordinatortest.Losses() {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.ReadyDesk(t, "")
			other := d.Second(coordinatortest.PoolEntries)
			defer other.Close()
			a := d.Joined("a")
			given := make(map[uint32]bool)
			note := func(got *fealtyv1.GrantResponse, err error) {
				t.Helper()
				if err != nil {
					return
				}
				if given[got.GetNumber()] || open(t, d, got.GetGrant()).Number != got.GetNumber() {
					t.Errorf("grant %d is given twice, or its statement is another", got.GetNumber())
				}
				given[got.GetNumber()] = true
			}
			note(ask(d.C, a, ""))
			d.Store.Lose(loss)
			note(ask(d.C, a, ""))
			d.Store.ForgetLost()
			overtaken := false
			d.Store.Intercept(func(tx store.Tx) {
				for _, w := range tx.Put {
					if w.Key == grants.KeyOf(identity.Data, "a") && !overtaken {
						overtaken = true
						got, err := ask(other, a, "")
						if err != nil {
							t.Error(err)
						}
						note(got, err)
					}
				}
			})
			note(ask(d.C, a, ""))
			d.Store.Intercept(nil)
			note(ask(d.C, a, ""))
			if len(given) < 4 || !overtaken {
				t.Errorf("only %d grants were given; overtaken %v", len(given), overtaken)
			}
		})
	}
}

func TestGrantsOfARestoredName(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	mustAsk(t, d.C, d.Joined("a"), "")
	d.C.Parts().Membership.Listens(d.Clock().Add(-time.Hour))
	coordinatortest.RemoveAt(d, t, identity.Data, "a")
	if got := mustAsk(t, d.C, d.Joined("a"), ""); got.GetNumber() != 2 {
		t.Errorf("a member that takes the name of one before it has grant %d, which that one may have", got.GetNumber())
	}
}

// A copy of a member that shows an older key is given nothing: it would act in the member's
// place.
func TestGrantOfAnOlderKey(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	copied := *a
	for range 3 {
		coordinatortest.WantOnlyNil(t, a.Renew())
	}
	_, err := ask(d.C, &copied, "")
	coordinatortest.WantOnly(t, "a grant of an older key", err, errcode.RenewOlderKey)
	if got := mustAsk(t, d.C, a, ""); got.GetNumber() != 1 {
		t.Errorf("the member has grant %d", got.GetNumber())
	}
}
