package registry_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/registry"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/quota"
	"github.com/fealty-io/fealty/internal/signed/order"
	"github.com/fealty-io/fealty/internal/store"
)

const entries = coordinatortest.PoolEntries +
	"  - {name: shards, kind: shard, match: [\"token:shards\"], max_members: 9}\n"

func serverOf(c *coordinator.Coordinator) fealtyv1.RegistryServiceServer {
	return coordinatortest.Served[fealtyv1.RegistryServiceServer](c.Parts().Fencing.Registry.RegisterServices)
}

func shard(t *testing.T, d *coordinatortest.Desk, name string) *coordinatortest.Machine {
	t.Helper()
	m := d.Machine()
	token := d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards", Name: name})
	if err := m.Join(identity.Shard, proof.NewTokenProver(token)); err != nil {
		t.Fatal(err)
	}
	return m
}

func poll(c *coordinator.Coordinator, m *coordinatortest.Machine, have uint64) (*fealtyv1.PollPlanResponse, error) {
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	return serverOf(c).PollPlan(ctx, &fealtyv1.PollPlanRequest{Name: m.ID.Name(), Have: have})
}

// told is the plan as a shard believes it that has nothing but the trust bundle.
func told(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, have uint64) (order.Document, quota.Plan, bool) {
	t.Helper()
	resp, err := poll(d.C, m, have)
	if err != nil {
		t.Fatal(err)
	}
	bundle, _, err := d.State().Bundle.Open(d.C.Parts().Bundle.View().Signed)
	if err != nil {
		t.Fatal(err)
	}
	said, err := order.OpenDocument(bundle.FenceAuthority(d.Clock), quota.Kind, resp.GetStatement())
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetPlan() == "" {
		return said, quota.Plan{}, false
	}
	if quota.DigestOf([]byte(resp.GetPlan())) != said.Digest {
		t.Errorf("the statement is of another plan than %s", resp.GetPlan())
	}
	plan, err := quota.DecodePlan([]byte(resp.GetPlan()))
	if err != nil {
		t.Fatal(err)
	}
	return said, plan, true
}

func putQuota(d *coordinatortest.Desk, tenant, profile string, n int32) (*fealtyv1.PutQuotaResponse, error) {
	return serverOf(d.C).PutQuota(context.Background(), &fealtyv1.PutQuotaRequest{Tenant: tenant, Profile: profile,
		Machines: n, Reason: "a test"})
}

func putProvider(d *coordinatortest.Desk, name, address string, price *float64) (*fealtyv1.PutProviderResponse, error) {
	return serverOf(d.C).PutProvider(context.Background(), &fealtyv1.PutProviderRequest{Name: name, Address: address,
		PricePerHour: price, Reason: "a test"})
}

// Shards are told all quotas and providers, whole and signed, under a version that grows with each
// change; a shard that has the newest one is told that it has.
func TestShardsAreTold(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	s := shard(t, d, "eu-1")
	floor := d.State().Head.AuthorityEpoch << 32
	first, plan, whole := told(t, d, s, 0)
	if !whole || first.Version != floor || len(plan.Quotas)+len(plan.Providers) != 0 ||
		first.Cluster != coordinatortest.Cluster {
		t.Errorf("before anything was put: %+v, %+v, %v; want version %d", first, plan, whole, floor)
	}
	versions := []uint64{first.Version}
	step := func(err error) quota.Plan {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		last := versions[len(versions)-1]
		said, plan, whole := told(t, d, s, last)
		if !whole || said.Version <= last {
			t.Errorf("after a change version %d came after %d, whole: %v", said.Version, last, whole)
		}
		versions = append(versions, said.Version)
		if again, _, whole := told(t, d, s, said.Version); whole || again != said {
			t.Errorf("a shard that has it is told %+v, whole: %v", again, whole)
		}
		return plan
	}
	_, err := putQuota(d, "acme", "web", 3)
	step(err)
	_, err = putQuota(d, "acme", "db", 0)
	step(err)
	cents := 0.25
	_, err = putProvider(d, "rack-1", "10.0.0.1:7460", nil)
	step(err)
	_, err = putProvider(d, "cloud", "cloud.example.com:7460", &cents)
	step(err)
	_, err = putProvider(d, "rack-1", "10.0.0.2:7460", nil)
	plan = step(err)
	quotas := []quota.Quota{{Tenant: "acme", Profile: "db", Machines: 0}, {Tenant: "acme", Profile: "web", Machines: 3}}
	if !slices.Equal(plan.Quotas, quotas) || len(plan.Providers) != 2 ||
		!plan.Providers[0].Same(quota.Provider{Name: "cloud", Address: "cloud.example.com:7460", Price: &cents}) ||
		!plan.Providers[1].Same(quota.Provider{Name: "rack-1", Address: "10.0.0.2:7460"}) {
		t.Errorf("the shard is told %+v", plan)
	}
	_, err = serverOf(d.C).DeleteQuota(t.Context(), &fealtyv1.DeleteQuotaRequest{Tenant: "acme", Profile: "db"})
	step(err)
	_, err = serverOf(d.C).DeleteProvider(t.Context(), &fealtyv1.DeleteProviderRequest{Name: "cloud"})
	if plan = step(err); len(plan.Quotas) != 1 || len(plan.Providers) != 1 {
		t.Errorf("after both were deleted: %+v", plan)
	}
	// Another process says the same.
	d.Restart()
	if said, _, whole := told(t, d, s, versions[len(versions)-1]); whole || said.Version != versions[len(versions)-1] {
		t.Errorf("after a restart: %+v, whole: %v", said, whole)
	}
}

// A record of before an authority epoch, as a restored backup has one, is newer for shards than all
// that they were told in the epochs before: they would stay with what they know else.
func TestRestoredIsNewer(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	sh := shard(t, d, "eu-1")
	s := d.State()
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(registry.Key, 0, registry.Record{Version: 7, Quotas: []registry.Quota{
		{Quota: quota.Quota{Tenant: "acme", Profile: "web", Machines: 5}}}})
	if _, err := ch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	floor := s.Head.AuthorityEpoch << 32
	said, plan, whole := told(t, d, sh, 7)
	if said.Version != floor || !whole || len(plan.Quotas) != 1 {
		t.Errorf("%+v, %+v, whole: %v; want version %d", said, plan, whole, floor)
	}
	if _, err := putQuota(d, "acme", "web", 6); err != nil {
		t.Fatal(err)
	}
	if said, _, _ = told(t, d, sh, 0); said.Version != floor+1 {
		t.Errorf("the first change after it has version %d, want %d", said.Version, floor+1)
	}
}

// Each change is in the audit log with its reason, once: what is so already, and what is only
// tried, changes nothing.
func TestChangesAreAudited(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	before := maps.Clone(d.Store.Snapshot())
	same := func(what string) {
		t.Helper()
		if after := d.Store.Snapshot(); len(after) != len(before) {
			t.Errorf("%s wrote: %d entries after %d", what, len(after), len(before))
		}
		before = maps.Clone(d.Store.Snapshot())
	}
	r := serverOf(d.C)
	dry, err := r.PutQuota(t.Context(), &fealtyv1.PutQuotaRequest{Tenant: "acme", Profile: "web", Machines: 3, DryRun: true})
	if err != nil || !dry.GetChanged() || dry.GetQuota().GetMachines() != 3 {
		t.Errorf("a quota that is tried: %v, %v", dry, err)
	}
	tried, err := r.PutProvider(t.Context(), &fealtyv1.PutProviderRequest{Name: "p", Address: "a:1", DryRun: true})
	if err != nil || !tried.GetChanged() {
		t.Errorf("a provider that is tried: %v, %v", tried, err)
	}
	same("a dry run")
	q, err := putQuota(d, "acme", "web", 3)
	if err != nil || !q.GetChanged() || q.GetQuota().GetReason() != "a test" {
		t.Errorf("%v, %v", q, err)
	}
	p, err := putProvider(d, "p", "a:1", nil)
	if err != nil || !p.GetChanged() {
		t.Errorf("%v, %v", p, err)
	}
	before = maps.Clone(d.Store.Snapshot())
	if q, err = putQuota(d, "acme", "web", 3); err != nil || q.GetChanged() || q.GetQuota().GetChangedBy() == "" {
		t.Errorf("the same again: %v, %v", q, err)
	}
	if p, err = putProvider(d, "p", "a:1", nil); err != nil || p.GetChanged() {
		t.Errorf("the same again: %v, %v", p, err)
	}
	gone, err := r.DeleteQuota(t.Context(), &fealtyv1.DeleteQuotaRequest{Tenant: "acme", Profile: "web", DryRun: true})
	if err != nil || gone.GetQuota().GetMachines() != 3 {
		t.Errorf("a deletion that is tried: %v, %v", gone, err)
	}
	if _, err = r.DeleteProvider(t.Context(), &fealtyv1.DeleteProviderRequest{Name: "p", DryRun: true}); err != nil {
		t.Error(err)
	}
	same("what changes nothing")
	if _, err = r.DeleteQuota(t.Context(), &fealtyv1.DeleteQuotaRequest{Tenant: "acme", Profile: "web"}); err != nil {
		t.Error(err)
	}
	if _, err = r.DeleteProvider(t.Context(), &fealtyv1.DeleteProviderRequest{Name: "p", Reason: "moved"}); err != nil {
		t.Error(err)
	}
	var said []string
	for _, action := range []string{"quota.put", "quota.delete", "provider.put", "provider.delete"} {
		all, _ := coordinatortest.Audits(d, action)
		for _, e := range all {
			said = append(said, e.Action+" "+e.Target+" "+e.Fields["machines"]+e.Fields["address"]+" "+e.Reason)
		}
	}
	want := []string{"quota.put acme/web 3 a test", "provider.put p a:1 a test", "quota.delete acme/web  ",
		"provider.delete p  moved"}
	slices.Sort(said)
	slices.Sort(want)
	if !slices.Equal(said, want) {
		t.Errorf("the audit log says %q", said)
	}
}

// Nothing of what cannot be is taken; what is full stays as it is, and what is there can be changed.
func TestRefused(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	r, ctx := serverOf(d.C), t.Context()
	bad := func(price float64) *float64 { return &price }
	calls := map[string]func() error{
		"a tenant with a slash": func() error { _, err := putQuota(d, "a/b", "web", 1); return err },
		"no tenant":             func() error { _, err := putQuota(d, "", "web", 1); return err },
		"a blank in a profile":  func() error { _, err := putQuota(d, "acme", "w b", 1); return err },
		"less than none":        func() error { _, err := putQuota(d, "acme", "web", -1); return err },
		"too many":              func() error { _, err := putQuota(d, "acme", "web", math.MaxInt32); return err },
		"no name":               func() error { _, err := putProvider(d, "", "a:1", nil); return err },
		"a name of two words":   func() error { _, err := putProvider(d, "a b", "a:1", nil); return err },
		"no member's name":      func() error { _, err := putProvider(d, "a/b", "a:1", nil); return err },
		"no address":            func() error { _, err := putProvider(d, "a", "", nil); return err },
		"no port":               func() error { _, err := putProvider(d, "a", "host", nil); return err },
		"a price below zero":    func() error { _, err := putProvider(d, "a", "a:1", bad(-1)); return err },
		"no price at all":       func() error { _, err := putProvider(d, "a", "a:1", bad(math.NaN())); return err },
		"a reason too long": func() error {
			_, err := r.PutQuota(ctx, &fealtyv1.PutQuotaRequest{Tenant: "a", Profile: "b", Reason: strings.Repeat("x", 5000)})
			return err
		},
		"deleting what cannot be": func() error {
			_, err := r.DeleteQuota(ctx, &fealtyv1.DeleteQuotaRequest{Tenant: "a/b", Profile: "c"})
			return err
		},
		"deleting no name": func() error {
			_, err := r.DeleteProvider(ctx, &fealtyv1.DeleteProviderRequest{})
			return err
		},
	}
	for name, call := range calls {
		coordinatortest.WantOnly(t, name, call(), errcode.RequestField)
	}
	_, err := r.DeleteQuota(ctx, &fealtyv1.DeleteQuotaRequest{Tenant: "acme", Profile: "web"})
	coordinatortest.WantOnly(t, "a quota that is none", err, errcode.NotFound)
	_, err = r.DeleteProvider(ctx, &fealtyv1.DeleteProviderRequest{Name: "p"})
	coordinatortest.WantOnly(t, "a provider that is none", err, errcode.NotFound)
	if all, err := r.ListQuotas(ctx, &fealtyv1.ListQuotasRequest{}); err != nil || len(all.GetQuotas()) != 0 {
		t.Errorf("after all that: %v, %v", all, err)
	}

	full := registry.Record{Version: 1}
	for i := range quota.MaxQuotas {
		full.Quotas = append(full.Quotas, registry.Quota{Quota: quota.Quota{Tenant: fmt.Sprintf("t%04d", i), Profile: "p"}})
	}
	for i := range quota.MaxProviders {
		full.Providers = append(full.Providers, registry.Provider{Provider: quota.Provider{
			Name: fmt.Sprintf("p%04d", i), Address: "a:1"}})
	}
	s := d.State()
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Put(registry.Key, 0, full)
	if _, err := ch.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = putQuota(d, "acme", "web", 1)
	coordinatortest.WantOnly(t, "one quota too many", err, errcode.RequestField)
	_, err = putProvider(d, "one-more", "a:1", nil)
	coordinatortest.WantOnly(t, "one provider too many", err, errcode.RequestField)
	if got, err := putQuota(d, "t0007", "p", 9); err != nil || !got.GetChanged() {
		t.Errorf("one that is there is not changed: %v, %v", got, err)
	}
	if got, err := putProvider(d, "p0007", "b:1", nil); err != nil || !got.GetChanged() {
		t.Errorf("one that is there is not changed: %v, %v", got, err)
	}
}

// A change that somebody else was first with is made on what is there then.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	overtaken := false
	d.Store.Intercept(func(tx store.Tx) {
		if !overtaken && slices.ContainsFunc(tx.Put, func(w store.Write) bool { return w.Key == registry.Key }) {
			overtaken = true
			if _, err := putProvider(d, "p", "a:1", nil); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := putQuota(d, "acme", "web", 3); err != nil {
		t.Fatal(err)
	}
	s := d.State()
	rec, err := record.Get[registry.Record](t.Context(), s.Records, registry.Key)
	if err != nil || len(rec.Value.Quotas) != 1 || len(rec.Value.Providers) != 1 ||
		rec.Value.Version != s.Head.AuthorityEpoch<<32+2 {
		t.Errorf("%+v, %v", rec.Value, err)
	}
}

// A copy of a shard that shows an older key is told nothing; and nobody asks without end.
func TestPollsAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.UnopenedDesk(t)
	d.Alter = func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.001, 50 }
	d.Open()
	coordinatortest.WantOnlyNil(t, d.Set(entries))
	a := shard(t, d, "eu-1")
	copied := *a
	for range 3 {
		coordinatortest.WantOnlyNil(t, a.Renew())
	}
	_, err := poll(d.C, &copied, 0)
	coordinatortest.WantOnly(t, "a poll of an older key", err, errcode.RenewOlderKey)
	for range 1000 {
		if _, err = poll(d.C, a, 0); err != nil {
			break
		}
	}
	coordinatortest.WantOnly(t, "a thousand polls at once", err, errcode.RateLimited)
}

// A record that was altered in the store is told to nobody, and changed by nobody.
func TestForgedRecord(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	a := shard(t, d, "eu-1")
	if _, err := putQuota(d, "acme", "web", 3); err != nil {
		t.Fatal(err)
	}
	d.Store.Alter(registry.Key, func(v []byte) []byte { v[len(v)-2] ^= 1; return v })
	_, err := poll(d.C, a, 0)
	coordinatortest.WantOnly(t, "a poll", err, errcode.StoreForged)
	_, err = putQuota(d, "acme", "web", 4)
	coordinatortest.WantOnly(t, "a change", err, errcode.StoreForged)
	_, err = serverOf(d.C).ListQuotas(t.Context(), &fealtyv1.ListQuotasRequest{})
	coordinatortest.WantOnly(t, "a list", err, errcode.StoreForged)
}
