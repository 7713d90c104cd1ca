package coordinator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/snapshot"
)

// The outcome of each situation in which somebody asks to be admitted, renewed or
// let go. Each case runs on a cluster of its own; a refusal must leave every record
// of the store but the audit log as it was.
func TestAdmissionCases(t *testing.T) {
	t.Parallel()
	type step = func(t *testing.T, d *coordinatortest.Desk) error
	named := &fealtyv1.CreateTokenRequest{Entry: "pool", Name: "a"}
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, d *coordinatortest.Desk) step
		want    errcode.Code
	}{
		{"new member", func(t *testing.T, d *coordinatortest.Desk) step {
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, ""},
		{"name taken, token for it", func(t *testing.T, d *coordinatortest.Desk) step {
			d.Joined("a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, errcode.JoinNameTaken},
		{"own key, another token", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			return func(*testing.T, *coordinatortest.Desk) error { return coordinatortest.JoinByToken(d, m, named) }
		}, errcode.JoinNameTaken},
		{"kind of another entry", func(t *testing.T, d *coordinatortest.Desk) step {
			tok := d.Token(named)
			return func(*testing.T, *coordinatortest.Desk) error {
				return d.Machine().Join(identity.Witness, proof.NewTokenProver(tok))
			}
		}, errcode.JoinKindMismatch},
		{"token of an entry that is gone", func(t *testing.T, d *coordinatortest.Desk) step {
			tok := d.Token(named)
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
			return func(*testing.T, *coordinatortest.Desk) error {
				return d.Machine().Join(identity.Data, proof.NewTokenProver(tok))
			}
		}, errcode.JoinUnauthorized},
		{"banned before it ever joined", func(t *testing.T, d *coordinatortest.Desk) step {
			coordinatortest.BanAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, errcode.JoinBanned},
		{"ban lifted before it ever joined", func(t *testing.T, d *coordinatortest.Desk) step {
			coordinatortest.BanAt(d, t, identity.Data, "a")
			coordinatortest.UnbanAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, ""},
		{"unban, the old key", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.BanAt(d, t, identity.Data, "a")
			coordinatortest.UnbanAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error { return coordinatortest.JoinByToken(d, m, named) }
		}, errcode.JoinBanned},
		{"unban, the old key's proof", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.BanAt(d, t, identity.Data, "a")
			coordinatortest.UnbanAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, errcode.JoinUnauthorized},
		{"unban, a new key", func(t *testing.T, d *coordinatortest.Desk) step {
			d.Joined("a")
			coordinatortest.BanAt(d, t, identity.Data, "a")
			coordinatortest.UnbanAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, ""},
		{"replaced, an older key of the old machine", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			first := m.Key
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			coordinatortest.ReplaceAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error {
				m.Key = first
				return coordinatortest.JoinByToken(d, m,
					named)
			}
		}, errcode.JoinBanned},
		{"replaced, the old machine renews", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.ReplaceAt(d, t, identity.Data, "a")
			return func(t *testing.T, d *coordinatortest.Desk) error {
				next, _ := coordinatortest.NewKey()
				_, err := coordinatortest.RenewOver(t.Context(), d.C, identity.Peer{ID: m.ID,
					Key: coordinatortest.KeyOf(t, m.Key)}, coordinatortest.MustCSR(t, next))
				return err
			}
		}, errcode.RenewEntryGone},
		{"removed, the name is free", func(t *testing.T, d *coordinatortest.Desk) step {
			d.Joined("a")
			coordinatortest.RemoveAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, ""},
		{"removed, the old key with a new token", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.RemoveAt(d, t, identity.Data, "a")
			return func(*testing.T, *coordinatortest.Desk) error { return coordinatortest.JoinByToken(d, m, named) }
		}, errcode.JoinBanned},
		{"removed, ban of the key forgotten, the spent token again", func(t *testing.T, d *coordinatortest.Desk) step {
			tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Ttl: durationpb.New(29 * 24 * time.Hour)})
			m := d.Machine()
			coordinatortest.WantOnly(t, "join", m.Join(identity.Data, proof.NewTokenProver(tok)), "")
			coordinatortest.RemoveAt(d, t, identity.Data, m.ID.Name())
			d.Advance(10 * 24 * time.Hour)
			coordinatortest.WantOnly(t, "prune", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
			coordinatortest.WantOnly(t, "prune", d.C.PruneOnce(t.Context(), d.State(), d.Clock()), "")
			if n := len(d.Store.Keys(record.BanKeyPrefix)); n != 0 {
				t.Fatalf("%d banned keys after ten days", n)
			}
			return func(*testing.T, *coordinatortest.Desk) error {
				return m.Join(identity.Data, proof.NewTokenProver(
					tok))
			}
		}, errcode.TokenSpent},
		{"lost grant, the token revoked since", func(t *testing.T, d *coordinatortest.Desk) step {
			tok := d.Token(named)
			m := d.Machine()
			coordinatortest.WantOnly(t, "join", m.Join(identity.Data, proof.NewTokenProver(tok)), "")
			_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
				d.C.Parts().Admission.RegisterServices).RevokeToken(
				t.Context(),
				&fealtyv1.RevokeTokenRequest{Id: tok.ID})
			coordinatortest.WantOnly(t, "revoke", err, "")
			return func(*testing.T, *coordinatortest.Desk) error {
				return m.Join(identity.Data, proof.NewTokenProver(
					tok))
			}
		}, errcode.TokenRevoked},
		{"lost grant, renewed since", func(t *testing.T, d *coordinatortest.Desk) step {
			tok := d.Token(named)
			m := d.Machine()
			coordinatortest.WantOnly(t, "join", m.Join(identity.Data, proof.NewTokenProver(tok)), "")
			first := m.Key
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			return func(*testing.T, *coordinatortest.Desk) error {
				m.Key = first
				return m.Join(identity.Data, proof.NewTokenProver(tok))
			}
		}, errcode.TokenSpent},
		{"rejoin by the last key, while valid", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, ""},
		{"rejoin by the last key, in grace", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			d.Advance(25*time.Hour + 7*24*time.Hour - time.Second)
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, ""},
		{"rejoin by the last key, after grace", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			d.Advance(25*time.Hour + 7*24*time.Hour)
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, errcode.RejoinGraceOver},
		{"rejoin by an older key, in grace", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			first := m.Key
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			d.Advance(26 * time.Hour)
			return func(*testing.T, *coordinatortest.Desk) error { m.Key = first; return m.Rejoin() }
		}, errcode.JoinClone},
		{"rejoin as another kind", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			return func(*testing.T, *coordinatortest.Desk) error {
				return m.Join(identity.Witness, proof.NewSVIDProver(identity.Data, "a", m.Key))
			}
		}, errcode.JoinKindMismatch},
		{"rejoin, the entry is gone", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, errcode.JoinUnauthorized},
		{"renewal, the entry is gone", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Renew() }
		}, errcode.RenewEntryGone},
		{"rejoin, the entry is of another kind now", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
				"{name: pool, kind: data",
				"{name: pool, kind: witness", 1)), "")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, errcode.JoinKindMismatch},
		{"renewal, the entry is of another kind now", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries,
				"{name: pool, kind: data",
				"{name: pool, kind: witness", 1)), "")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Renew() }
		}, errcode.JoinKindMismatch},
		{"renewal by an older certificate", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			leaf := m.Leaf
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			return func(t *testing.T, d *coordinatortest.Desk) error {
				next, _ := coordinatortest.NewKey()
				_, err := m.RenewWith(leaf, next)
				return err
			}
		}, errcode.RenewOlderKey},
		{"renewal to an older key", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			first := m.Key
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			return func(*testing.T, *coordinatortest.Desk) error { _, err := m.RenewWith(m.Leaf, first); return err }
		}, errcode.RenewOlderKey},
		{"renewal, answer lost, same new key", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			next, _ := coordinatortest.NewKey()
			if _, err := m.RenewWith(m.Leaf, next); err != nil {
				t.Fatal(err)
			}
			return func(*testing.T, *coordinatortest.Desk) error { _, err := m.RenewWith(m.Leaf, next); return err }
		}, ""},
		{"renewal to a banned key", func(t *testing.T, d *coordinatortest.Desk) step {
			m, other := d.Joined("a"), d.Joined("b")
			coordinatortest.BanAt(d, t, identity.Data, "b")
			return func(*testing.T, *coordinatortest.Desk) error {
				_, err := m.RenewWith(m.Leaf,
					other.Key)
				return err
			}
		}, errcode.JoinBanned},
		{"renewal of a person's session", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Machine()
			coordinatortest.WantOnly(t, "join", coordinatortest.JoinByToken(d, m, &fealtyv1.CreateTokenRequest{Entry: "ops"}),
				"")
			return func(*testing.T, *coordinatortest.Desk) error { return m.Renew() }
		}, errcode.RenewEntryGone},
		{"rejoin to a new key, proven by a key that is banned under another name",
			func(t *testing.T, d *coordinatortest.Desk) step {
				m := d.Joined("a")
				coordinatortest.WantOnly(t, "join as b",
					coordinatortest.JoinByToken(d, m, &fealtyv1.CreateTokenRequest{Entry: "pool",
						Name: "b"}), "")
				coordinatortest.BanAt(d, t, identity.Data, "a")
				next, _ := coordinatortest.NewKey()
				return func(*testing.T, *coordinatortest.Desk) error {
					return m.JoinWith(next, identity.Data, proof.NewSVIDProver(identity.Data, "b", m.Key))
				}
			}, errcode.JoinBanned},
		{"renewal with a bad request", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			return func(t *testing.T, d *coordinatortest.Desk) error {
				_, err := coordinatortest.RenewOver(t.Context(), d.C, identity.Peer{ID: m.ID,
					Key: coordinatortest.KeyOf(t, m.Key)}, []byte("garbage"))
				return err
			}
		}, errcode.JoinBadCSR},
		{"too many renewals", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			for range record.MaxLiveKeys {
				coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			}
			return func(*testing.T, *coordinatortest.Desk) error { return m.Renew() }
		}, errcode.RateLimited},
		{"entry full", func(t *testing.T, d *coordinatortest.Desk) step {
			for range 2 {
				coordinatortest.WantOnly(t, "join", coordinatortest.JoinByToken(d, d.Machine(),
					&fealtyv1.CreateTokenRequest{Entry: "small"}), "")
			}
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), &fealtyv1.CreateTokenRequest{Entry: "small"})
			}
		}, errcode.JoinEntryFull},
		{"entry was full, one was removed", func(t *testing.T, d *coordinatortest.Desk) step {
			var m *coordinatortest.Machine
			for range 2 {
				m = d.Machine()
				coordinatortest.WantOnly(t, "join",
					coordinatortest.JoinByToken(d, m, &fealtyv1.CreateTokenRequest{Entry: "small"}), "")
			}
			coordinatortest.RemoveAt(d, t, identity.Data, m.ID.Name())
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), &fealtyv1.CreateTokenRequest{Entry: "small"})
			}
		}, ""},
		{"entry got its maximum after its members", func(t *testing.T, d *coordinatortest.Desk) step {
			d.Joined("a")
			d.Joined("b")
			coordinatortest.WantOnly(t, "set", d.Set(strings.Replace(coordinatortest.PoolEntries, "{name: pool,",
				"{name: pool, max_members: 2,",
				1)), "")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), &fealtyv1.CreateTokenRequest{Entry: "pool"})
			}
		}, errcode.JoinEntryFull},
		{"entry lost and regained its maximum, members left in between", func(t *testing.T,
			d *coordinatortest.Desk) step {
			limited := strings.Replace(coordinatortest.PoolEntries, "{name: pool,", "{name: pool, max_members: 1,", 1)
			coordinatortest.WantOnly(t, "set", d.Set(limited), "")
			d.Joined("a")
			coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries), "")
			coordinatortest.RemoveAt(d, t, identity.Data, "a")
			coordinatortest.WantOnly(t, "set", d.Set(limited), "")
			return func(*testing.T, *coordinatortest.Desk) error {
				return coordinatortest.JoinByToken(d, d.Machine(), named)
			}
		}, ""},
		{"session that is over, in what would be grace", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Machine()
			coordinatortest.WantOnly(t, "join", coordinatortest.JoinByToken(d, m, &fealtyv1.CreateTokenRequest{Entry: "ops"}),
				"")
			d.Advance(8*time.Hour + time.Second)
			return func(*testing.T, *coordinatortest.Desk) error { return m.Rejoin() }
		}, errcode.RejoinGraceOver},
		{"name of a session that is over", func(t *testing.T, d *coordinatortest.Desk) step {
			ops := &fealtyv1.CreateTokenRequest{Entry: "ops", Name: "alice", Ttl: durationpb.New(24 * time.Hour)}
			coordinatortest.WantOnly(t, "join", coordinatortest.JoinByToken(d, d.Machine(), ops), "")
			tok := d.Token(ops)
			coordinatortest.WantOnly(t, "early", d.Machine().Join(identity.Admin, proof.NewTokenProver(tok)),
				errcode.JoinNameTaken)
			d.Advance(8*time.Hour + time.Second)
			return func(*testing.T, *coordinatortest.Desk) error {
				return d.Machine().Join(identity.Admin, proof.NewTokenProver(tok))
			}
		}, ""},
		{"leave by an older certificate", func(t *testing.T, d *coordinatortest.Desk) step {
			m := d.Joined("a")
			leaf := m.Leaf
			coordinatortest.WantOnly(t, "renew", m.Renew(), "")
			return func(t *testing.T, d *coordinatortest.Desk) error {
				ctx := identity.NewContext(t.Context(), identity.Peer{ID: m.ID, Leaf: leaf, Key: identity.KeyOf(leaf)})
				_, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](
					d.C.Parts().Admission.RegisterServices).Leave(ctx,
					&fealtyv1.LeaveRequest{Name: "a"})
				return err
			}
		}, errcode.RenewOlderKey},
		{"token with the name of another entry", func(t *testing.T, d *coordinatortest.Desk) step {
			return func(t *testing.T, d *coordinatortest.Desk) error {
				_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
					d.C.Parts().Admission.RegisterServices).CreateToken(
					t.Context(),
					&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "small"})
				return err
			}
		}, errcode.TokenRequest},
		{"ban of a coordinator", func(t *testing.T, d *coordinatortest.Desk) step {
			return func(t *testing.T, d *coordinatortest.Desk) error {
				_, err := d.Members().BanMember(t.Context(),
					&fealtyv1.BanMemberRequest{Kind: "coordinator", Name: "coordinator-1", Reason: "test"})
				return err
			}
		}, errcode.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			do := tc.prepare(t, d)
			before := d.Store.Snapshot()
			err := do(t, d)
			coordinatortest.WantOnly(t, tc.name, err, tc.want)
			if tc.want == "" {
				return
			}
			for k, e := range d.Store.Snapshot() {
				if e.Version != before[k].Version && !strings.HasPrefix(k, admission.TokenPrefix) &&
					!strings.HasPrefix(k, auditlog.Prefix) {
					t.Errorf("a refusal changed %s", k)
				}
			}
		})
	}
}

// Many removals in a day do not fill the bundle: they are put off while there is
// still room for bans, and a ban gets through even when there is none.
func TestBundleKeepsRoomForBans(t *testing.T) {
	d := coordinatortest.ReadyDeskWith(t, coordinatortest.PoolEntries, func(c *coordinator.Config) {
		c.Limit(100, 0,
			0)
	})
	victim, spare := d.Joined("victim"), d.Joined("spare")
	have := 0
	fill := func(n int) {
		t.Helper()
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		var delta bundle.Delta
		for ; have < n; have++ {
			delta.Keys = append(delta.Keys,
				bundle.KeyBan{Key: coordinatortest.KeyNumber(have), CertEnd: d.Clock().Add(20 * time.Hour)})
			ch.Put(record.BanKeyKey(coordinatortest.KeyNumber(have)), 0,
				record.Ban{Reason: "filler", Until: d.Clock().Add(1000 * time.Hour),
					CertEnd: d.Clock().Add(20 * time.Hour)})
		}
		if err := d.C.Parts().Bundle.Touch(t.Context(), d.State(), ch, delta, bundle.ForBans); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fill(75)
	_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "spare"})
	coordinatortest.WantOnly(t, "a removal without room", err, errcode.RateLimited)
	fill(100)
	coordinatortest.BanAt(d, t, identity.Data, "victim")
	if !d.C.Parts().Bundle.View().Bundle.Banned(victim.ID, coordinatortest.KeyOf(t, victim.Key)) {
		t.Fatal("the ban is not in force")
	}
	_, err = d.Members().UnbanMember(t.Context(), &fealtyv1.UnbanMemberRequest{Kind: "data", Name: "victim"})
	coordinatortest.WantOnly(t, "lifting a ban whose keys have no room", err, errcode.RateLimited)
	// A day later the fillers' certificates have ended.
	d.Advance(21 * time.Hour)
	coordinatortest.WantOnly(t, "refresh", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
	coordinatortest.UnbanAt(d, t, identity.Data, "victim")
	if !d.C.Parts().Bundle.View().Bundle.Banned(victim.ID, coordinatortest.KeyOf(t, victim.Key)) {
		t.Fatal("the key of a member whose ban was lifted is not banned")
	}
	coordinatortest.RemoveAt(d, t, identity.Data, spare.ID.Name())
}

// No bundle changes without a version, and no version has two contents.
func TestBundleVersions(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	seen := make(map[[2]uint64]snapshot.Digest)
	look := func(what string) {
		t.Helper()
		in, err := d.C.Parts().Bundle.Ensure(t.Context(), d.State())
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Duration{0, time.Hour, 100 * time.Hour} {
			v, err := d.State().Bundle.Sign(in, d.Clock().Add(at))
			if err != nil {
				t.Fatal(err)
			}
			key := [2]uint64{v.Epoch, v.Version}
			if old, ok := seen[key]; ok && old != v.ContentHash {
				t.Fatalf("%s: version %d of epoch %d has two contents", what, v.Version, v.Epoch)
			}
			seen[key] = v.ContentHash
		}
	}
	for i := range 6 {
		d.Joined(fmt.Sprintf("node-%d", i))
	}
	coordinatortest.BanAt(d, t, identity.Data, "node-0")
	look("ban")
	coordinatortest.RemoveAt(d, t, identity.Data, "node-1")
	look("remove")
	coordinatortest.ReplaceAt(d, t, identity.Data, "node-2")
	look("replace")
	coordinatortest.UnbanAt(d, t, identity.Data, "node-0")
	look("unban")
	for range 12 {
		d.Advance(20 * time.Hour)
		look("wait")
		coordinatortest.WantOnly(t, "prune", d.C.PruneOnce(t.Context(), d.State(), d.Clock()), "")
		look("prune")
	}
	coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.EntriesOf(false)), "")
	look("set")
	if n := len(d.Store.Keys(record.BanKeyPrefix)); n != 0 {
		t.Fatalf("%d banned keys are kept after ten days", n)
	}
}

// A banned member does not come back by its certificate, also when grace and the ban of
// its keys are long over.
func TestX509BannedForGood(t *testing.T) {
	d := coordinatortest.ReadyDesk(t, coordinatortest.PoolEntries)
	pki := pkitest.NewPKI(t, "corp", d.Clock)
	if err := d.Set(coordinatortest.CorpEntries(pki)); err != nil {
		t.Fatal(err)
	}
	m := d.Machine()
	if err := m.Join(identity.Data, coordinatortest.CorpProver(t, pki,
		coordinatortest.CommonName("node-c"))); err != nil {
		t.Fatal(err)
	}
	coordinatortest.BanAt(d, t, identity.Data, "c")
	d.Advance(60 * 24 * time.Hour)
	if err := d.C.PruneOnce(t.Context(), d.State(), d.Clock()); err != nil {
		t.Fatal(err)
	}
	again := d.Machine()
	again.Claims = "c"
	coordinatortest.WantCode(t, again.Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName("node-c"))),
		errcode.JoinBanned)
	coordinatortest.WantCode(t, d.Machine().Join(identity.Data,
		coordinatortest.CorpProver(t, pki, coordinatortest.CommonName(
			"node-c"))),
		errcode.JoinBanned)
}
