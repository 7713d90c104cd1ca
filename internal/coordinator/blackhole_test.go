//go:build linux

package coordinator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/postgres"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/internal/store/sealed"
	"github.com/fealty-io/fealty/test/wait"
)

// swallowedPatience ends a call that would wait for the store for ever, far beyond what it may take on a busy
// machine. Each may wait for authority.StorePatience, whatever swallowedTimeout is, which bounds an
// answer of this store, and of a list six times that.
const (
	swallowedPatience = 3 * time.Minute
	swallowedTimeout  = 4 * time.Second
)

// The network to PostgreSQL swallows what is said, on connections there are and on those
// to come, and nobody is told: under running coordinators, one of which leads. Every call
// ends by name in bounded time, known members are certified on, nobody is admitted,
// nothing changes, readiness says so, and no seed is lost. When the network is back the
// same processes lead and admit again.
func TestNetworkSwallowsPostgres(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	database := server.Database(t)
	way := pgtest.NewProxy(t, server.Addr())
	direct, err := postgres.Open(t.Context(), server.URL(database), postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { coordinatortest.WantOnlyNil(t, direct.Close()) }()
	open := func() (st store.Store) {
		// A machine that is busy with other tests may take longer to connect than a call of
		// this store may.
		wait.UntilNil(t, "the store is opened", func() (err error) {
			st, err = postgres.Open(context.Background(), server.URLVia(way.Addr(), database),
				postgres.Options{Timeout: swallowedTimeout})
			return err
		})
		return st
	}
	all := coordinatortest.CoordinatorsWith(t, open, func(cfg *coordinator.Config) {
		cfg.Timing.Lease, cfg.Timing.Beat, cfg.Timing.MaxHeadAge = election.DefaultLease/2, election.DefaultBeat/2,
			5*time.Minute
	})
	t.Cleanup(way.Heal) // so that a test that failed ends

	_, term, _ := coordinatortest.AwaitLeader(t, all...)
	var known []*swallowed
	for i, f := range all {
		known = append(known, newSwallowed(f, string(rune('a'+i))))
	}
	for _, f := range all {
		for _, k := range known {
			coordinatortest.AwaitTold(f, "data/"+k.name)
		}
	}
	head := all[0].State().Head

	way.BlackHole()
	before := withoutBeats(t, direct)
	for _, f := range all {
		coordinatortest.AwaitSeen(f, func(l *fealtyv1.Leader) bool { return l.GetTerm() == 0 })
		if _, _, ok := f.C.Parts().Election.Leading(); ok {
			t.Error("it leads, and reaches no store")
		}
	}
	// At first nobody knows how long that lasts.
	everywhere(known, func(k *swallowed) { k.calls(t); k.wantProbe(t, true, "ok", "failing", "degraded") })
	for _, f := range all {
		f.Advance(authority.DegradedAfter)
	}
	everywhere(known, func(k *swallowed) { k.calls(t); k.wantProbe(t, true, "degraded") })
	for _, f := range all {
		f.Advance(5 * time.Minute)
	}
	everywhere(known, func(k *swallowed) {
		k.wantProbe(t, false, "degraded")
		k.named(t, "a renewal of the recorded key, too late", errcode.StoreUnreachable, k.again)
	})
	if after := withoutBeats(t, direct); !slices.EqualFunc(before, after, func(a, b store.Entry) bool {
		return a.Key == b.Key && a.Version == b.Version && bytes.Equal(a.Value, b.Value)
	}) {
		t.Errorf("the store was written: %d entries, and %d before", len(after), len(before))
	}

	way.Heal()
	leader, next, _ := coordinatortest.AwaitLeader(t, all...)
	if next < term {
		t.Errorf("term %d comes after %d", next, term)
	}
	for _, k := range known {
		k.awaitProbe(t)
		if s := k.n.Fleet.State(); s.Phase != authority.Ready || s.Secrets == nil ||
			s.Head.Hash != head.Hash {
			t.Errorf("after the outage it is %v at %d, and was at %d: %s", s.Phase, s.Head.Index, head.Index, s.Reason)
		}
		if err := k.n.Renew(true); err != nil {
			t.Errorf("a renewal after the outage: %v", err)
		}
		if err := k.n.Fleet.Node().Join(identity.Data, k.prover); err != nil {
			t.Errorf("a join after the outage, by the token that was refused in it: %v", err)
		}
	}
	leader.Member("after")
	for _, f := range all {
		coordinatortest.AwaitTold(f, "data/after")
	}
	coordinatortest.AwaitAgreed(t, 0, all...)
	coordinatortest.WantOneLeader(t, all...)
	for _, k := range known {
		k.awaitAudit(t, direct)
	}
}

// withoutBeats returns what is written of members, bans, tokens and the history.
func withoutBeats(t *testing.T, st store.Store) (out []store.Entry) {
	t.Helper()
	all, err := st.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all.Entries {
		if slices.ContainsFunc([]string{record.MemberPrefix, bundle.Prefix, admission.TokenPrefix,
			admission.TokenUsePrefix,
			record.CountPrefix, sealed.Prefix, desired.Prefix, "history/"},
			func(p string) bool { return strings.HasPrefix(e.Key, p) }) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		t.Fatal("nothing is written")
	}
	return out
}

// swallowed is a coordinator in the outage, a member that it knows, and those who ask
// it. They ask over connections that were opened before: who asks needs no store.
type swallowed struct {
	name   string // of the member
	n      *coordinatortest.Node
	prover proof.Prover // of somebody who is not a member
	people *coordinatortest.Clients
	member *coordinatortest.Clients
	leads  fealtyv1.LeaderServiceClient
	signed *fealtyv1.SetManifestRequest
}

func newSwallowed(f *coordinatortest.Fleet, name string) *swallowed {
	f.T.Helper()
	k := &swallowed{name: name, n: f.Member(name), people: f.Local(), leads: coordinatortest.LeaderClient(f)}
	k.member = coordinatortest.NewClients(k.n.Conn())
	k.prover = proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}))
	k.signed = &fealtyv1.SetManifestRequest{Manifest: f.Manifest("  - {name: more, kind: witness, match: " +
		"[\"token:more\"]}\n"), Reason: "test"}
	f.Sign(k.signed, f.State().Head.Hash)
	return k
}

func everywhere(all []*swallowed, do func(*swallowed)) {
	var running sync.WaitGroup
	for _, k := range all {
		running.Go(func() { do(k) })
	}
	running.Wait()
}

// again renews the key that is recorded, as an agent does that was told that a new one
// cannot be recorded.
func (k *swallowed) again(ctx context.Context) error {
	csr, err := pki.NewCSR(k.n.Key)
	if err != nil {
		return err
	}
	resp, err := k.member.Admission.Renew(ctx, &fealtyv1.RenewRequest{Name: k.name, Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return k.n.Adopt(resp.GetChain())
}

// calls makes one call of each kind, all at once.
func (k *swallowed) calls(t *testing.T) {
	t.Helper()
	name := k.name
	var running sync.WaitGroup
	refused := map[string]func(context.Context) error{
		"a renewal with a new key": func(ctx context.Context) error {
			key, err := coordinatortest.NewKey()
			if err != nil {
				return err
			}
			csr, err := pki.NewCSR(key)
			if err != nil {
				return err
			}
			_, err = k.member.Admission.Renew(ctx, &fealtyv1.RenewRequest{Name: name, Csr: csr})
			return err
		},
		"leaving": func(ctx context.Context) error {
			_, err := k.member.Admission.Leave(ctx, &fealtyv1.LeaveRequest{Name: name})
			return err
		},
		"a join": func(context.Context) error { return k.n.Fleet.Node().Join(identity.Data, k.prover) },
		"a manifest": func(ctx context.Context) error {
			_, err := k.people.Manifest.SetManifest(ctx, k.signed)
			return err
		},
		"a ban": func(ctx context.Context) error {
			_, err := k.people.Member.BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "x"})
			return err
		},
		"a drain": func(ctx context.Context) error {
			_, err := k.people.Member.DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: name})
			return err
		},
		"a removal": func(ctx context.Context) error {
			_, err := k.people.Member.RemoveMember(ctx,
				&fealtyv1.RemoveMemberRequest{Kind: "data", Name: name, Force: true, Reason: "x"})
			return err
		},
		"a token": func(ctx context.Context) error {
			_, err := k.people.Token.CreateToken(ctx, &fealtyv1.CreateTokenRequest{Entry: "pool"})
			return err
		},
		"the tokens": func(ctx context.Context) error {
			_, err := k.people.Token.ListTokens(ctx, &fealtyv1.ListTokensRequest{})
			return err
		},
		"a transfer": func(ctx context.Context) error {
			_, err := k.leads.TransferLeader(ctx, &fealtyv1.TransferLeaderRequest{})
			return err
		},
	}
	for what, call := range refused {
		running.Go(func() { k.named(t, what, errcode.StoreUnreachable, call) })
	}
	for what, call := range map[string]func(context.Context) error{
		"a renewal of the recorded key": func(ctx context.Context) error {
			return k.again(ctx)
		},
		"the members": func(ctx context.Context) error {
			list, err := k.people.Member.ListMembers(ctx, &fealtyv1.ListMembersRequest{})
			if err == nil && (len(list.GetMembers()) == 0 || list.GetKnownAt() == nil) {
				t.Errorf("%d members, known at %v", len(list.GetMembers()), list.GetKnownAt())
			}
			return err
		},
		"status": func(ctx context.Context) error {
			st, err := k.people.Status.GetStatus(ctx, &fealtyv1.GetStatusRequest{})
			if err == nil && !slices.ContainsFunc(st.GetFindings(),
				func(f *fealtyv1.Finding) bool { return f.GetCode() == string(errcode.StoreUnreachable) }) {
				t.Errorf("status finds %v", st.GetFindings())
			}
			return err
		},
	} {
		running.Go(func() { k.named(t, what, "", call) })
	}
	running.Wait()
}

// named fails unless the call ends by itself while the store is silent, with this code. By how much each waits
// is what package timeout and the tests of its time hold.
func (k *swallowed) named(t *testing.T, what string, want errcode.Code, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), swallowedPatience)
	defer cancel()
	err := call(ctx)
	if ctx.Err() != nil {
		t.Errorf("%s at the coordinator of %s does not end: %v", what, k.name, err)
		return
	}
	if got := errcode.Of(err); err != nil && got.Code != want || err == nil && want != "" {
		t.Errorf("%s at the coordinator of %s: %v, want %q", what, k.name, err, want)
	}
}

// wantProbe fails unless readiness is as told, and the coordinator lives and has its keys.
func (k *swallowed) wantProbe(t *testing.T, ok bool, stores ...string) {
	t.Helper()
	h := k.n.Fleet.C.Health()
	if a := h.Readiness(); a.OK != ok || !slices.Contains(stores, a.Store) {
		t.Errorf("readiness: %+v, want %v and the store %v", a, ok, stores)
	}
	// A clock that was moved counts as a stuck one until the next self-check.
	wait.UntilNil(t, "it lives", func() error {
		if a := k.n.Fleet.C.Health().Liveness(); !a.OK {
			return fmt.Errorf("liveness: %+v", a)
		}
		return nil
	})
	if s := k.n.Fleet.State(); s.Phase != authority.Ready || s.Secrets == nil {
		t.Errorf("it is %v: %s", s.Phase, s.Reason)
	}
}

// awaitProbe waits until readiness says that all is well.
func (k *swallowed) awaitProbe(t *testing.T) {
	t.Helper()
	wait.UntilNil(t, "it is ready", func() error {
		if a := k.n.Fleet.C.Health().Readiness(); !a.OK || a.Store != "ok" {
			return fmt.Errorf("readiness: %+v", a)
		}
		return nil
	})
}

// awaitAudit waits until the store has what was certified without it.
func (k *swallowed) awaitAudit(t *testing.T, st store.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), coordinatortest.LeadPatience)
	defer cancel()
	for ctx.Err() == nil {
		now, err := st.List(ctx, auditlog.Prefix)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(now.Entries, func(e store.Entry) bool {
			var a record.AuditEntry
			return json.Unmarshal(e.Value, &a) == nil && a.Action == "member.renew.outage" &&
				a.Actor == k.n.ID.String() && a.Fields["cause"] == string(errcode.StoreUnreachable)
		}) {
			return
		}
		for _, err := range st.Changes(ctx, auditlog.Prefix, now.Revision) {
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			break
		}
	}
	t.Errorf("the audit log does not tell what was certified for %s", k.n.ID)
}
