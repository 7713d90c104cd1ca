package admission_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// A proof by an SVID key that was good when it was verified, and is not any more
// when the transaction is decided: the member renewed in between.
func TestProofIsComparedWithTheRecordThatItChanges(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	owner := d.Joined("a")
	binding := make([]byte, 32)
	rand.Read(binding)
	ch := proof.NewChallenge(binding)
	req := coordinatortest.JoinRequest(t, ch, owner.Key, identity.Data, proof.NewSVIDProver(identity.Data, "a",
		owner.Key))
	proven := 0
	d.Faults.Arm("join.proven", func() error {
		if proven++; proven == 1 {
			return owner.Renew()
		}
		return nil
	})
	_, err := d.C.Parts().Admission.Join(t.Context(), ch, req)
	coordinatortest.WantOnly(t, "the proof of before", err, errcode.JoinClone)
	if proven != 1 {
		t.Errorf("it was decided %d times", proven)
	}
	if rec := d.Record(identity.Data, "a"); rec.Value.Key != coordinatortest.KeyOf(t, owner.Key) {
		t.Fatal("the record is not that of the owner")
	}
}

// Deleting records of the store, which needs no seed, lifts no ban: the bundle in
// force goes on, no other one is made, and none after a restart.
func TestDeletedRecordsLiftNoBan(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"trust/ban/", record.BanIDPrefix, record.BanKeyPrefix, bundle.StateKey,
		bundle.Prefix} {
		t.Run(prefix, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			m, other := d.Joined("a"), d.Joined("b")
			coordinatortest.BanAt(d, t, identity.Data, "a")
			version := d.C.Parts().Bundle.View().Version
			for _, key := range d.Store.Keys(prefix) {
				d.Store.Alter(key, func([]byte) []byte { return nil })
			}
			coordinatortest.WantOnly(t, "rejoin", m.Rejoin(), errcode.JoinBanned)
			next, _ := coordinatortest.NewKey()
			_, err := coordinatortest.RenewOver(t.Context(), d.C, identity.Peer{ID: m.ID, Key: coordinatortest.KeyOf(t,
				m.Key)},
				coordinatortest.MustCSR(t, next))
			coordinatortest.WantOnly(t, "renew", err, errcode.JoinBanned)
			coordinatortest.WantOnly(t, "renewal of another member", other.Renew(), "")
			if err := d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true); !errors.Is(err, store.ErrForged) {
				t.Errorf("a bundle of what is left: %v", err)
			}
			if v := d.C.Parts().Bundle.View(); v.Version != version || !v.Bundle.Banned(m.ID, coordinatortest.KeyOf(t,
				m.Key)) {
				t.Error("the bundle in force changed")
			}
			_, err = d.Members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: "b", Reason: "test"})
			coordinatortest.WantOnly(t, "a ban on top of it", err, errcode.StoreForged)
			d.Restart()
			coordinatortest.WantPhase(d, "recovery", "trust state")
		})
	}
}

// A member that the manifest calls by another name now neither renews nor rejoins by
// the old.
func TestNameGivenToAnotherKey(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	rec := d.Record(identity.Data, "a")
	public, _, err := ed25519.GenerateKey(nil)
	coordinatortest.WantOnly(t, "generate", err, "")
	k, err := manifest.NewKey(public)
	coordinatortest.WantOnly(t, "key", err, "")
	rec.Value.ProofType, rec.Value.Selectors = proof.TypeKey, []string{"key:" + k.String()}
	named := func(name string) { // the manifest calls that key name
		coordinatortest.WantOnly(t, "set", d.Set(coordinatortest.PoolEntries+fmt.Sprintf(
			"  - {name: %s, kind: data, match: [\"key:%s\"]}\n",
			name,
			k)), "")
	}
	named("a")
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
	_, err = ch.Commit(t.Context())
	coordinatortest.WantOnly(t, "put", err, "")
	coordinatortest.WantOnly(t, "rejoin", m.Rejoin(), "")
	coordinatortest.WantOnly(t, "renew", m.Renew(), "")
	named("c")
	coordinatortest.WantOnly(t, "rejoin by the old name", m.Rejoin(), errcode.JoinUnauthorized)
	coordinatortest.WantOnly(t, "renewal of the old name", m.Renew(), errcode.RenewEntryGone)
}

// A ban that is committed between the look at the records and the transaction
// wins: nothing is certified after it.
func TestBanWinsTheRace(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"identity", "key"} {
		for _, act := range []string{"join", "rejoin", "renew"} {
			t.Run(act+", ban of the "+what, func(t *testing.T) {
				d := coordinatortest.PoolDesk(t)
				m := d.Machine()
				tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "a"})
				if act != "join" {
					coordinatortest.WantOnly(t, "join", m.Join(identity.Data, proof.NewTokenProver(tok)), "")
				}
				next, err := coordinatortest.NewKey()
				if err != nil {
					t.Fatal(err)
				}
				key := record.BanIDKey(identity.Data, "a")
				switch {
				case what == "key" && act == "join":
					key = record.BanKeyKey(coordinatortest.KeyOf(t, m.Key))
				case what == "key":
					key = record.BanKeyKey(coordinatortest.KeyOf(t, next))
				}
				d.Store.Intercept(func(store.Tx) {
					d.Store.Intercept(nil)
					ch := d.State().Records.NewChange(d.State().HeadVersion)
					ch.Put(key, 0, record.Ban{Reason: "test", Until: d.Clock().Add(time.Hour)})
					if _, err := ch.Commit(context.Background()); err != nil {
						t.Error(err)
					}
				})
				switch act {
				case "join":
					err = m.Join(identity.Data, proof.NewTokenProver(tok))
				case "rejoin":
					err = m.JoinWith(next, identity.Data, proof.NewSVIDProver(identity.Data, "a", m.Key))
				case "renew":
					_, err = m.RenewWith(m.Leaf, next)
				}
				coordinatortest.WantOnly(t, act, err, errcode.JoinBanned)
			})
		}
	}
}

// A replaced member's name goes to the next machine with its domains.
func TestReplaceKeepsDomains(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	d.Joined("a")
	rec := d.Record(identity.Data, "a")
	rec.Value.Domains = []string{"range-7"}
	ch := d.State().Records.NewChange(d.State().HeadVersion)
	ch.Put(record.MemberKey(identity.Data, "a"), rec.Version, rec.Value)
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "remove", err, errcode.MemberOwnsDomains)
	if what := errcode.Of(err).What; !strings.HasSuffix(what, "it owns 1 domain") {
		t.Errorf("it says %q", what)
	}
	coordinatortest.ReplaceAt(d, t, identity.Data, "a")
	next := d.Joined("a")
	after := d.Record(identity.Data, "a").Value
	if !slices.Equal(after.Domains, []string{"range-7"}) || after.Incarnation != coordinatortest.KeyOf(t, next.Key) {
		t.Fatalf("after the replacement the record is %+v", after)
	}
}

// A store that is out of reach: calls fail with the reason, and nothing is
// acknowledged; afterwards everything goes on.
func TestStoreOutage(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	m := d.Joined("a")
	tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	before := d.Store.Snapshot()
	d.Store.SetDown(errors.New("disk on fire at /secret/path"))
	calls := map[string]func() error{
		"join":   func() error { return d.Machine().Join(identity.Data, proof.NewTokenProver(tok)) },
		"rejoin": func() error { return m.Rejoin() },
		"renew":  func() error { return m.Renew() },
		"ban": func() error {
			_, err := d.Members().BanMember(t.Context(),
				&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "x"})
			return err
		},
		"remove": func() error {
			_, err := d.Members().RemoveMember(t.Context(), &fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a"})
			return err
		},
		"token": func() error {
			_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
				d.C.Parts().Admission.RegisterServices).CreateToken(
				t.Context(),
				&fealtyv1.CreateTokenRequest{Entry: "pool"})
			return err
		},
		"set": func() error { return d.Set(coordinatortest.EntriesOf(false)) },
	}
	for name, call := range calls {
		err := call()
		if !errors.Is(err, errcode.StoreUnreachable) {
			t.Errorf("%s: %v, want %s", name, err, errcode.StoreUnreachable)
		}
		if s := errcode.Of(err); s != nil && strings.Contains(s.What+s.Why+s.Do, "/secret/path") {
			t.Errorf("%s tells its caller of our disk: %v", name, err)
		}
	}
	// A full disk is told from an outage: only space helps.
	d.Store.SetDown(fmt.Errorf("commit to /secret/path: %w", store.ErrFull))
	for name, call := range calls {
		err := call()
		if !errors.Is(err, errcode.StoreFull) {
			t.Errorf("%s on a full disk: %v, want %s", name, err, errcode.StoreFull)
		}
		if s := errcode.Of(err); s != nil && strings.Contains(s.What+s.Why+s.Do, "/secret/path") {
			t.Errorf("%s tells its caller of our disk: %v", name, err)
		}
	}
	d.C.Parts().Moves.Succession.Look(context.Background())
	if phase, _ := d.C.Phase(); phase != "ready" {
		t.Errorf("an outage made the coordinator %s", phase)
	}
	d.Store.SetDown(nil)
	for k, e := range d.Store.Snapshot() {
		if e.Version != before[k].Version {
			t.Errorf("%s was written", k)
		}
	}
	coordinatortest.WantOnly(t, "renew afterwards", m.Renew(), "")
}
