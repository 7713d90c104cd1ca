package coordinator_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/challenge"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// wantOnly fails unless err is of code, or nil for "".
func wantOnly(t *testing.T, what string, err error, code explain.Code) {
	t.Helper()
	switch {
	case code == "" && err != nil:
		t.Fatalf("%s: %v, want success", what, err)
	case code != "" && !errors.Is(err, code):
		t.Fatalf("%s: %v, want %s", what, err, code)
	}
}

func (d *desk) ban(t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.members().BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: string(kind), Name: name, Reason: "test"})
	wantOnly(t, "ban", err, "")
}

func (d *desk) unban(t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.members().UnbanMember(t.Context(), &fealtyv1.UnbanMemberRequest{Kind: string(kind), Name: name})
	wantOnly(t, "unban", err, "")
}

func (d *desk) replace(t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.members().ReplaceMember(t.Context(),
		&fealtyv1.ReplaceMemberRequest{Kind: string(kind), Name: name, Reason: "test"})
	wantOnly(t, "replace", err, "")
}

func (d *desk) remove(t *testing.T, kind identity.Kind, name string) {
	t.Helper()
	_, err := d.members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: string(kind), Name: name})
	wantOnly(t, "remove", err, "")
}

// byToken is a join of machine m with a new token.
func (d *desk) byToken(m *machine, req *fealtyv1.CreateTokenRequest) error {
	kind := identity.Data
	if req.Entry == "ops" {
		kind = identity.Admin
	}
	return m.join(kind, proof.NewTokenProver(d.token(req)))
}

// What comes of each situation in which somebody asks to be admitted, renewed or
// let go. Each case runs on a cluster of its own; a refusal must leave every
// record of the store but the audit log as it was.
func TestAdmissionCases(t *testing.T) {
	t.Parallel()
	type step = func(t *testing.T, d *desk) error
	named := &fealtyv1.CreateTokenRequest{Entry: "pool", Name: "a"}
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, d *desk) step
		want    explain.Code
	}{
		{"new member", func(t *testing.T, d *desk) step {
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, ""},
		{"name taken, token for it", func(t *testing.T, d *desk) step {
			d.joined("a")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, explain.JoinNameTaken},
		{"own key, another token", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			return func(*testing.T, *desk) error { return d.byToken(m, named) }
		}, explain.JoinNameTaken},
		{"kind of another entry", func(t *testing.T, d *desk) step {
			tok := d.token(named)
			return func(*testing.T, *desk) error { return d.machine().join(identity.Witness, proof.NewTokenProver(tok)) }
		}, explain.JoinKindMismatch},
		{"token of an entry that is gone", func(t *testing.T, d *desk) step {
			tok := d.token(named)
			wantOnly(t, "set", d.set(entriesOf(false)), "")
			return func(*testing.T, *desk) error { return d.machine().join(identity.Data, proof.NewTokenProver(tok)) }
		}, explain.JoinUnauthorized},
		{"banned before it ever joined", func(t *testing.T, d *desk) step {
			d.ban(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, explain.JoinBanned},
		{"ban lifted before it ever joined", func(t *testing.T, d *desk) step {
			d.ban(t, identity.Data, "a")
			d.unban(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, ""},
		{"unban, the old key", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.ban(t, identity.Data, "a")
			d.unban(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(m, named) }
		}, explain.JoinBanned},
		{"unban, the old key's proof", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.ban(t, identity.Data, "a")
			d.unban(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, explain.JoinUnauthorized},
		{"unban, a new key", func(t *testing.T, d *desk) step {
			d.joined("a")
			d.ban(t, identity.Data, "a")
			d.unban(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, ""},
		{"replaced, an older key of the old machine", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			first := m.key
			wantOnly(t, "renew", m.renew(), "")
			d.replace(t, identity.Data, "a")
			return func(*testing.T, *desk) error { m.key = first; return d.byToken(m, named) }
		}, explain.JoinBanned},
		{"replaced, the old machine renews", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.replace(t, identity.Data, "a")
			return func(t *testing.T, d *desk) error {
				next, _ := newKey()
				_, err := renewOver(t.Context(), d.c, identity.Peer{ID: m.id, Key: keyOf(t, m.key)}, mustCSR(t, next))
				return err
			}
		}, explain.RenewEntryGone},
		{"removed, the name is free", func(t *testing.T, d *desk) step {
			d.joined("a")
			d.remove(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, ""},
		{"removed, the old key with a new token", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.remove(t, identity.Data, "a")
			return func(*testing.T, *desk) error { return d.byToken(m, named) }
		}, explain.JoinBanned},
		{"removed, ban of the key forgotten, the spent token again", func(t *testing.T, d *desk) step {
			tok := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Ttl: durationpb.New(29 * 24 * time.Hour)})
			m := d.machine()
			wantOnly(t, "join", m.join(identity.Data, proof.NewTokenProver(tok)), "")
			d.remove(t, identity.Data, m.id.Name())
			d.advance(10 * 24 * time.Hour)
			wantOnly(t, "prune", d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true), "")
			wantOnly(t, "prune", d.c.PruneOnce(t.Context(), d.state(), d.clock()), "")
			if n := len(d.store.keys(record.BanKeyPrefix)); n != 0 {
				t.Fatalf("%d banned keys after ten days", n)
			}
			return func(*testing.T, *desk) error { return m.join(identity.Data, proof.NewTokenProver(tok)) }
		}, explain.TokenSpent},
		{"lost grant, the token revoked since", func(t *testing.T, d *desk) step {
			tok := d.token(named)
			m := d.machine()
			wantOnly(t, "join", m.join(identity.Data, proof.NewTokenProver(tok)), "")
			_, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).RevokeToken(t.Context(),
				&fealtyv1.RevokeTokenRequest{Id: tok.ID})
			wantOnly(t, "revoke", err, "")
			return func(*testing.T, *desk) error { return m.join(identity.Data, proof.NewTokenProver(tok)) }
		}, explain.TokenRevoked},
		{"lost grant, renewed since", func(t *testing.T, d *desk) step {
			tok := d.token(named)
			m := d.machine()
			wantOnly(t, "join", m.join(identity.Data, proof.NewTokenProver(tok)), "")
			first := m.key
			wantOnly(t, "renew", m.renew(), "")
			return func(*testing.T, *desk) error {
				m.key = first
				return m.join(identity.Data, proof.NewTokenProver(tok))
			}
		}, explain.TokenSpent},
		{"rejoin by the last key, while valid", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, ""},
		{"rejoin by the last key, in grace", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.advance(25*time.Hour + 7*24*time.Hour - time.Second)
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, ""},
		{"rejoin by the last key, after grace", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			d.advance(25*time.Hour + 7*24*time.Hour)
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, explain.RejoinGraceOver},
		{"rejoin by an older key, in grace", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			first := m.key
			wantOnly(t, "renew", m.renew(), "")
			d.advance(26 * time.Hour)
			return func(*testing.T, *desk) error { m.key = first; return m.rejoin() }
		}, explain.JoinClone},
		{"rejoin as another kind", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			return func(*testing.T, *desk) error {
				return m.join(identity.Witness, proof.NewSVIDProver(identity.Data, "a", m.key))
			}
		}, explain.JoinKindMismatch},
		{"rejoin, the entry is gone", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			wantOnly(t, "set", d.set(entriesOf(false)), "")
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, explain.JoinUnauthorized},
		{"renewal, the entry is gone", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			wantOnly(t, "set", d.set(entriesOf(false)), "")
			return func(*testing.T, *desk) error { return m.renew() }
		}, explain.RenewEntryGone},
		{"rejoin, the entry is of another kind now", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			wantOnly(t, "set", d.set(strings.Replace(poolEntries, "{name: pool, kind: data",
				"{name: pool, kind: witness", 1)), "")
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, explain.JoinKindMismatch},
		{"renewal, the entry is of another kind now", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			wantOnly(t, "set", d.set(strings.Replace(poolEntries, "{name: pool, kind: data",
				"{name: pool, kind: witness", 1)), "")
			return func(*testing.T, *desk) error { return m.renew() }
		}, explain.JoinKindMismatch},
		{"renewal by an older certificate", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			leaf := m.leaf
			wantOnly(t, "renew", m.renew(), "")
			return func(t *testing.T, d *desk) error {
				next, _ := newKey()
				_, err := m.renewWith(leaf, next)
				return err
			}
		}, explain.RenewOlderKey},
		{"renewal to an older key", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			first := m.key
			wantOnly(t, "renew", m.renew(), "")
			return func(*testing.T, *desk) error { _, err := m.renewWith(m.leaf, first); return err }
		}, explain.RenewOlderKey},
		{"renewal, answer lost, same new key", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			next, _ := newKey()
			if _, err := m.renewWith(m.leaf, next); err != nil {
				t.Fatal(err)
			}
			return func(*testing.T, *desk) error { _, err := m.renewWith(m.leaf, next); return err }
		}, ""},
		{"renewal to a banned key", func(t *testing.T, d *desk) step {
			m, other := d.joined("a"), d.joined("b")
			d.ban(t, identity.Data, "b")
			return func(*testing.T, *desk) error { _, err := m.renewWith(m.leaf, other.key); return err }
		}, explain.JoinBanned},
		{"renewal of a person's session", func(t *testing.T, d *desk) step {
			m := d.machine()
			wantOnly(t, "join", d.byToken(m, &fealtyv1.CreateTokenRequest{Entry: "ops"}), "")
			return func(*testing.T, *desk) error { return m.renew() }
		}, explain.RenewEntryGone},
		{"rejoin to a new key, proven by a key that is banned under another name", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			wantOnly(t, "join as b", d.byToken(m, &fealtyv1.CreateTokenRequest{Entry: "pool", Name: "b"}), "")
			d.ban(t, identity.Data, "a")
			next, _ := newKey()
			return func(*testing.T, *desk) error {
				return m.joinWith(next, identity.Data, proof.NewSVIDProver(identity.Data, "b", m.key))
			}
		}, explain.JoinBanned},
		{"renewal with a bad request", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			return func(t *testing.T, d *desk) error {
				_, err := renewOver(t.Context(), d.c, identity.Peer{ID: m.id, Key: keyOf(t, m.key)}, []byte("garbage"))
				return err
			}
		}, explain.JoinBadCSR},
		{"too many renewals", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			for range record.MaxLiveKeys {
				wantOnly(t, "renew", m.renew(), "")
			}
			return func(*testing.T, *desk) error { return m.renew() }
		}, explain.RateLimited},
		{"entry full", func(t *testing.T, d *desk) step {
			for range 2 {
				wantOnly(t, "join", d.byToken(d.machine(), &fealtyv1.CreateTokenRequest{Entry: "small"}), "")
			}
			return func(*testing.T, *desk) error {
				return d.byToken(d.machine(), &fealtyv1.CreateTokenRequest{Entry: "small"})
			}
		}, explain.JoinEntryFull},
		{"entry was full, one was removed", func(t *testing.T, d *desk) step {
			var m *machine
			for range 2 {
				m = d.machine()
				wantOnly(t, "join", d.byToken(m, &fealtyv1.CreateTokenRequest{Entry: "small"}), "")
			}
			d.remove(t, identity.Data, m.id.Name())
			return func(*testing.T, *desk) error {
				return d.byToken(d.machine(), &fealtyv1.CreateTokenRequest{Entry: "small"})
			}
		}, ""},
		{"entry got its maximum after its members", func(t *testing.T, d *desk) step {
			d.joined("a")
			d.joined("b")
			wantOnly(t, "set", d.set(strings.Replace(poolEntries, "{name: pool,", "{name: pool, max_members: 2,",
				1)), "")
			return func(*testing.T, *desk) error {
				return d.byToken(d.machine(), &fealtyv1.CreateTokenRequest{Entry: "pool"})
			}
		}, explain.JoinEntryFull},
		{"entry lost and regained its maximum, members left in between", func(t *testing.T, d *desk) step {
			limited := strings.Replace(poolEntries, "{name: pool,", "{name: pool, max_members: 1,", 1)
			wantOnly(t, "set", d.set(limited), "")
			d.joined("a")
			wantOnly(t, "set", d.set(poolEntries), "")
			d.remove(t, identity.Data, "a")
			wantOnly(t, "set", d.set(limited), "")
			return func(*testing.T, *desk) error { return d.byToken(d.machine(), named) }
		}, ""},
		{"session that is over, in what would be grace", func(t *testing.T, d *desk) step {
			m := d.machine()
			wantOnly(t, "join", d.byToken(m, &fealtyv1.CreateTokenRequest{Entry: "ops"}), "")
			d.advance(8*time.Hour + time.Second)
			return func(*testing.T, *desk) error { return m.rejoin() }
		}, explain.RejoinGraceOver},
		{"name of a session that is over", func(t *testing.T, d *desk) step {
			ops := &fealtyv1.CreateTokenRequest{Entry: "ops", Name: "alice", Ttl: durationpb.New(24 * time.Hour)}
			wantOnly(t, "join", d.byToken(d.machine(), ops), "")
			tok := d.token(ops)
			wantOnly(t, "early", d.machine().join(identity.Admin, proof.NewTokenProver(tok)), explain.JoinNameTaken)
			d.advance(8*time.Hour + time.Second)
			return func(*testing.T, *desk) error { return d.machine().join(identity.Admin, proof.NewTokenProver(tok)) }
		}, ""},
		{"leave by an older certificate", func(t *testing.T, d *desk) step {
			m := d.joined("a")
			leaf := m.leaf
			wantOnly(t, "renew", m.renew(), "")
			return func(t *testing.T, d *desk) error {
				ctx := identity.NewContext(t.Context(), identity.Peer{ID: m.id, Leaf: leaf, Key: identity.KeyOf(leaf)})
				_, err := served[fealtyv1.AdmissionServiceServer](d.c.Rooms().Admission.RegisterServices).Leave(ctx,
					&fealtyv1.LeaveRequest{Name: "a"})
				return err
			}
		}, explain.RenewOlderKey},
		{"token with the name of another entry", func(t *testing.T, d *desk) step {
			return func(t *testing.T, d *desk) error {
				_, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(t.Context(),
					&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "small"})
				return err
			}
		}, explain.TokenRequest},
		{"ban of a coordinator", func(t *testing.T, d *desk) step {
			return func(t *testing.T, d *desk) error {
				_, err := d.members().BanMember(t.Context(),
					&fealtyv1.BanMemberRequest{Kind: "coordinator", Name: "coordinator-1", Reason: "test"})
				return err
			}
		}, explain.RequestField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := testDesk(t)
			do := tc.prepare(t, d)
			before := d.store.snapshot()
			err := do(t, d)
			wantOnly(t, tc.name, err, tc.want)
			if tc.want == "" {
				return
			}
			for k, e := range d.store.snapshot() {
				if e.Version != before[k].Version && !strings.HasPrefix(k, admission.TokenPrefix) &&
					!strings.HasPrefix(k, auditlog.Prefix) {
					t.Errorf("a refusal changed %s", k)
				}
			}
		})
	}
}

func mustCSR(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := ca.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// A proof by an SVID key that was good when it was verified, and is not any more
// when the transaction is decided: the member renewed in between.
func TestProofIsComparedWithTheRecordThatItChanges(t *testing.T) {
	d := testDesk(t)
	owner := d.joined("a")
	binding := make([]byte, 32)
	rand.Read(binding)
	ch := challenge.New(binding)
	req := joinRequest(t, ch, owner.key, identity.Data, proof.NewSVIDProver(identity.Data, "a", owner.key))
	proven := 0
	d.c.Faults().Arm("join.proven", func() error {
		if proven++; proven == 1 {
			return owner.renew()
		}
		return nil
	})
	_, err := d.c.Rooms().Admission.Join(t.Context(), ch, req)
	wantOnly(t, "the proof of before", err, explain.JoinClone)
	if proven != 1 {
		t.Errorf("it was decided %d times", proven)
	}
	if rec := d.record(identity.Data, "a"); rec.Value.Key != keyOf(t, owner.key) {
		t.Fatal("the record is not that of the owner")
	}
}

// Whoever deletes records of the store, which needs no seed, lifts no ban: the
// bundle in force goes on, no other one is made, and none after a restart.
func TestDeletedRecordsLiftNoBan(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"trust/ban/", record.BanIDPrefix, record.BanKeyPrefix, bundle.StateKey,
		bundle.Prefix} {
		t.Run(prefix, func(t *testing.T) {
			d := testDesk(t)
			m, other := d.joined("a"), d.joined("b")
			d.ban(t, identity.Data, "a")
			version := d.c.Rooms().Bundle.View().Version
			for _, key := range d.store.keys(prefix) {
				d.store.alter(key, func([]byte) []byte { return nil })
			}
			wantOnly(t, "rejoin", m.rejoin(), explain.JoinBanned)
			next, _ := newKey()
			_, err := renewOver(t.Context(), d.c, identity.Peer{ID: m.id, Key: keyOf(t, m.key)}, mustCSR(t, next))
			wantOnly(t, "renew", err, explain.JoinBanned)
			wantOnly(t, "renewal of another member", other.renew(), "")
			if err := d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true); !errors.Is(err, store.ErrForged) {
				t.Errorf("a bundle of what is left: %v", err)
			}
			if v := d.c.Rooms().Bundle.View(); v.Version != version || !v.Bundle.Banned(m.id, keyOf(t, m.key)) {
				t.Error("the bundle in force changed")
			}
			_, err = d.members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: "b", Reason: "test"})
			wantOnly(t, "a ban on top of it", err, explain.StoreForged)
			d.restart()
			d.wantPhase("recovery", "trust state")
		})
	}
}

// What a manifest calls by another name now neither renews nor rejoins by the old.
func TestNameGivenToAnotherKey(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	rec := d.record(identity.Data, "a")
	public, _, err := ed25519.GenerateKey(nil)
	wantOnly(t, "generate", err, "")
	k, err := manifest.NewKey(public)
	wantOnly(t, "key", err, "")
	rec.Value.ProofType, rec.Value.Selectors = proof.TypeKey, []string{"key:" + k.String()}
	named := func(name string) { // the manifest calls that key name
		wantOnly(t, "set", d.set(poolEntries+fmt.Sprintf("  - {name: %s, kind: data, match: [\"key:%s\"]}\n", name,
			k)), "")
	}
	named("a")
	ch := d.state().Records.NewChange(d.state().HeadVersion)
	ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
	_, err = ch.Commit(t.Context())
	wantOnly(t, "put", err, "")
	wantOnly(t, "rejoin", m.rejoin(), "")
	wantOnly(t, "renew", m.renew(), "")
	named("c")
	wantOnly(t, "rejoin by the old name", m.rejoin(), explain.JoinUnauthorized)
	wantOnly(t, "renewal of the old name", m.renew(), explain.RenewEntryGone)
}

// A ban that is committed between the look at the records and the transaction
// wins: nothing is certified after it.
func TestBanWinsTheRace(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"identity", "key"} {
		for _, act := range []string{"join", "rejoin", "renew"} {
			t.Run(act+", ban of the "+what, func(t *testing.T) {
				d := testDesk(t)
				m := d.machine()
				tok := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "a"})
				if act != "join" {
					wantOnly(t, "join", m.join(identity.Data, proof.NewTokenProver(tok)), "")
				}
				next, err := newKey()
				if err != nil {
					t.Fatal(err)
				}
				key := record.BanIDKey(identity.Data, "a")
				switch {
				case what == "key" && act == "join":
					key = record.BanKeyKey(keyOf(t, m.key))
				case what == "key":
					key = record.BanKeyKey(keyOf(t, next))
				}
				d.store.intercept(func(store.Tx) {
					d.store.intercept(nil)
					ch := d.state().Records.NewChange(d.state().HeadVersion)
					ch.Put(key, 0, record.Ban{Reason: "test", Until: d.clock().Add(time.Hour)})
					if _, err := ch.Commit(context.Background()); err != nil {
						t.Error(err)
					}
				})
				switch act {
				case "join":
					err = m.join(identity.Data, proof.NewTokenProver(tok))
				case "rejoin":
					err = m.joinWith(next, identity.Data, proof.NewSVIDProver(identity.Data, "a", m.key))
				case "renew":
					_, err = m.renewWith(m.leaf, next)
				}
				wantOnly(t, act, err, explain.JoinBanned)
			})
		}
	}
}

// A replaced member's name goes to the next machine with its domains.
func TestReplaceKeepsDomains(t *testing.T) {
	d := testDesk(t)
	d.joined("a")
	rec := d.record(identity.Data, "a")
	rec.Value.Domains = []string{"range-7"}
	ch := d.state().Records.NewChange(d.state().HeadVersion)
	ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := d.members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a"})
	wantOnly(t, "remove", err, explain.MemberOwnsDomains)
	d.replace(t, identity.Data, "a")
	next := d.joined("a")
	after := d.record(identity.Data, "a").Value
	if !slices.Equal(after.Domains, []string{"range-7"}) || after.Incarnation != keyOf(t, next.key) {
		t.Fatalf("after the replacement the record is %+v", after)
	}
}

// Many removals in a day do not fill the bundle: they are put off while there is
// still room for bans, and a ban gets through even when there is none.
func TestBundleKeepsRoomForBans(t *testing.T) {
	d := deskWith(t, poolEntries, func(c *coordinator.Config) { c.Limit(100, 0, 0) })
	victim, spare := d.joined("victim"), d.joined("spare")
	have := 0
	fill := func(n int) {
		t.Helper()
		ch := d.state().Records.NewChange(d.state().HeadVersion)
		var delta bundle.Delta
		for ; have < n; have++ {
			delta.Keys = append(delta.Keys, bundle.KeyBan{Key: testKey(have), CertEnd: d.clock().Add(20 * time.Hour)})
			ch.Put(record.BanKeyKey(testKey(have)), 0,
				record.Ban{Reason: "filler", Until: d.clock().Add(1000 * time.Hour),
					CertEnd: d.clock().Add(20 * time.Hour)})
		}
		if err := d.c.Rooms().Bundle.Touch(t.Context(), d.state(), ch, delta, bundle.ForBans); err != nil {
			t.Fatal(err)
		}
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fill(75)
	_, err := d.members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "spare"})
	wantOnly(t, "a removal without room", err, explain.RateLimited)
	fill(100)
	d.ban(t, identity.Data, "victim")
	if !d.c.Rooms().Bundle.View().Bundle.Banned(victim.id, keyOf(t, victim.key)) {
		t.Fatal("the ban is not in force")
	}
	_, err = d.members().UnbanMember(t.Context(), &fealtyv1.UnbanMemberRequest{Kind: "data", Name: "victim"})
	wantOnly(t, "lifting a ban whose keys have no room", err, explain.RateLimited)
	// A day later the fillers' certificates have ended.
	d.advance(21 * time.Hour)
	wantOnly(t, "refresh", d.c.Rooms().Bundle.Refresh(t.Context(), d.state(), true), "")
	d.unban(t, identity.Data, "victim")
	if !d.c.Rooms().Bundle.View().Bundle.Banned(victim.id, keyOf(t, victim.key)) {
		t.Fatal("the key of a member whose ban was lifted is not banned")
	}
	d.remove(t, identity.Data, spare.id.Name())
}

// No bundle changes without a version, and no version has two contents.
func TestBundleVersions(t *testing.T) {
	t.Parallel()
	d := testDesk(t)
	seen := make(map[[2]uint64]snapshot.Digest)
	look := func(what string) {
		t.Helper()
		in, err := d.c.Rooms().Bundle.Ensure(t.Context(), d.state())
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Duration{0, time.Hour, 100 * time.Hour} {
			v, err := d.state().Bundle.Sign(in, d.clock().Add(at))
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
		d.joined(fmt.Sprintf("node-%d", i))
	}
	d.ban(t, identity.Data, "node-0")
	look("ban")
	d.remove(t, identity.Data, "node-1")
	look("remove")
	d.replace(t, identity.Data, "node-2")
	look("replace")
	d.unban(t, identity.Data, "node-0")
	look("unban")
	for range 12 {
		d.advance(20 * time.Hour)
		look("wait")
		wantOnly(t, "prune", d.c.PruneOnce(t.Context(), d.state(), d.clock()), "")
		look("prune")
	}
	wantOnly(t, "set", d.set(entriesOf(false)), "")
	look("set")
	if n := len(d.store.keys(record.BanKeyPrefix)); n != 0 {
		t.Fatalf("%d banned keys are kept after ten days", n)
	}
}

// What is signed again for a member has a version of its own, whatever the
// membership is by then.
func TestBootstrapIsNeverEquivocated(t *testing.T) {
	d := testDesk(t)
	a := d.joined("node-a")
	d.joined("node-b")
	one, err := d.c.Rooms().Delivery.BootstrapAgain(t.Context(), a.id)
	if err != nil {
		t.Fatal(err)
	}
	d.joined("node-c")
	two, err := d.c.Rooms().Delivery.BootstrapAgain(t.Context(), a.id)
	if err != nil {
		t.Fatal(err)
	}
	versions := make(map[string]bool)
	for _, m := range []*fealtyv1.SignedSnapshot{a.grant.GetNodeBootstrap(), one, two} {
		signed, err := snapshot.Unmarshal(m.GetEnvelope())
		if err != nil {
			t.Fatal(err)
		}
		var h struct {
			Version string `json:"config_version"`
		}
		if err := json.Unmarshal(signed.Header, &h); err != nil || h.Version == "" {
			t.Fatalf("header %s: %v", signed.Header, err)
		}
		if versions[h.Version] {
			t.Fatalf("version %s was given twice", h.Version)
		}
		versions[h.Version] = true
	}
	wantOnly(t, "set", d.set(entriesOf(false)), "")
	_, err = d.c.Rooms().Delivery.BootstrapAgain(t.Context(), a.id)
	wantOnly(t, "without an entry", err, explain.RenewEntryGone)
}

// A store that is out of reach: calls fail with the reason, and nothing is
// acknowledged; afterwards everything goes on.
func TestStoreOutage(t *testing.T) {
	d := testDesk(t)
	m := d.joined("a")
	tok := d.token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	before := d.store.snapshot()
	d.store.setDown(errors.New("disk on fire at /secret/path"))
	calls := map[string]func() error{
		"join":   func() error { return d.machine().join(identity.Data, proof.NewTokenProver(tok)) },
		"rejoin": func() error { return m.rejoin() },
		"renew":  func() error { return m.renew() },
		"ban": func() error {
			_, err := d.members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"})
			return err
		},
		"remove": func() error {
			_, err := d.members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a"})
			return err
		},
		"token": func() error {
			_, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			return err
		},
		"set": func() error { return d.set(entriesOf(false)) },
	}
	for name, call := range calls {
		err := call()
		if !errors.Is(err, explain.StoreUnreachable) {
			t.Errorf("%s: %v, want %s", name, err, explain.StoreUnreachable)
		}
		if s := explain.Of(err); s != nil && strings.Contains(s.What+s.Why+s.Do, "/secret/path") {
			t.Errorf("%s tells its caller of our disk: %v", name, err)
		}
	}
	// A full disk is told from an outage: only space helps.
	d.store.setDown(fmt.Errorf("commit to /secret/path: %w", store.ErrFull))
	for name, call := range calls {
		err := call()
		if !errors.Is(err, explain.StoreFull) {
			t.Errorf("%s on a full disk: %v, want %s", name, err, explain.StoreFull)
		}
		if s := explain.Of(err); s != nil && strings.Contains(s.What+s.Why+s.Do, "/secret/path") {
			t.Errorf("%s tells its caller of our disk: %v", name, err)
		}
	}
	d.c.Rooms().Authority.Look(context.Background())
	if phase, _ := d.c.Phase(); phase != "ready" {
		t.Errorf("an outage made the coordinator %s", phase)
	}
	d.store.setDown(nil)
	for k, e := range d.store.snapshot() {
		if e.Version != before[k].Version {
			t.Errorf("%s was written", k)
		}
	}
	wantOnly(t, "renew afterwards", m.renew(), "")
}
