package domains_test

import (
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// A silent owner's domain passes on when its lease is over by both clocks, however wrong they
// go, and not before. An owner that is asked to let go is given no more time.
func TestSilentOwner(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a, b := d.Joined("a"), d.Joined("b")
	lease := max(d.State().Manifest.Degraded.Max, domains.MinLease)
	first := mustAssign(t, d, "eu", "data/a")
	polled := func(m *coordinatortest.Machine) []*fealtyv1.OwnedDomain {
		t.Helper()
		resp, err := serverOf(d.C).PollAssignments(as(m), &fealtyv1.PollAssignmentsRequest{Name: m.ID.Name()})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetDomains()
	}
	if got := polled(a); len(got) != 1 || got[0].GetLease().AsDuration() != lease {
		t.Fatalf("it owns %v, want a lease of %v", got, lease)
	}
	leases := d.C.Parts().Fencing.Domains.NewLeases()
	look := func(l *domains.Leases) {
		t.Helper()
		if err := l.Look(t.Context(), d.State()); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody is waited for that was not asked to let go.
	look(leases)
	d.Pass(2 * domains.Wait(lease))
	look(leases)
	if got := polled(a); len(got) != 1 {
		t.Fatal("it lost what nobody wanted")
	}
	mustAssign(t, d, "eu", "data/b")
	if got := polled(a); len(got) != 1 || got[0].GetLease() != nil || !got[0].GetRelease() {
		t.Errorf("while it is to let go it owns %v", got)
	}
	// The clock of dates decides nothing.
	d.Advance(10 * domains.Wait(lease))
	certify(d, "b", d.Clock().Add(time.Hour))
	look(leases)
	d.Pass(domains.Wait(lease) - time.Nanosecond)
	look(leases)
	if got := polled(b); len(got) != 0 {
		t.Fatalf("before the lease was over the next one owns %v", got)
	}
	// A leader that was not there waits anew.
	d.Pass(time.Nanosecond)
	look(d.C.Parts().Fencing.Domains.NewLeases())
	if got := polled(b); len(got) != 0 {
		t.Fatalf("with a leader that waited for nothing the next one owns %v", got)
	}
	look(leases)
	got := polled(b)
	if len(got) != 1 || got[0].GetOwnership() != first.GetOwnership()+1 || len(polled(a)) != 0 {
		t.Fatalf("after the lease the next one owns %v", got)
	}
	if _, text := coordinatortest.Audits(d, "domain.lapse"); !strings.Contains(text, "data/b") {
		t.Errorf("the audit log: %s", text)
	}
	if release(t, d, a, "eu", first.GetOwnership()) {
		t.Error("its late word let go of what another one owns")
	}
}

// A record that a release before leases wrote says none: its owner is told the one of the manifest,
// and as much is waited for.
func TestRecordWithoutALease(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Joined("b")
	mustAssign(t, d, "eu", "data/a")
	mustAssign(t, d, "eu", "data/b")
	s := d.State()
	have, err := record.Get[domains.Record](t.Context(), s.Records, domains.KeyOf("eu"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(moving bool) {
		t.Helper()
		have, err := record.Get[domains.Record](t.Context(), s.Records, domains.KeyOf("eu"))
		if err != nil {
			t.Fatal(err)
		}
		have.Value.Lease, have.Value.Moving = 0, moving
		ch := s.Records.NewChange(s.HeadVersion)
		ch.Put(domains.KeyOf("eu"), have.Version, have.Value)
		if _, err := ch.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	lease := have.Value.Lease
	write(false)
	resp, err := serverOf(d.C).PollAssignments(as(a), &fealtyv1.PollAssignmentsRequest{Name: "a"})
	if err != nil || len(resp.GetDomains()) != 1 || resp.GetDomains()[0].GetLease().AsDuration() != lease {
		t.Errorf("it is told %v, %v, want a lease of %v", resp, err, lease)
	}
	write(true)
	leases := d.C.Parts().Fencing.Domains.NewLeases()
	for _, after := range []time.Duration{0, domains.Wait(lease) - 1} {
		d.Pass(after)
		if err := leases.Look(t.Context(), d.State()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	if err != nil || got.GetDomain().GetOwner() != "data/a" {
		t.Errorf("before the lease was over: %v, %v", got, err)
	}
}

// A wait begins anew with each ownership: a domain that came back to its owner, and moves
// again, is not taken from it by the wait of before.
func TestWaitIsOfOneOwnership(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.Joined("b")
	first := mustAssign(t, d, "eu", "data/a")
	leases := d.C.Parts().Fencing.Domains.NewLeases()
	mustAssign(t, d, "eu", "data/b")
	if err := leases.Look(t.Context(), d.State()); err != nil {
		t.Fatal(err)
	}
	mustAssign(t, d, "eu", "data/a") // back, under the next ownership once it let go
	release(t, d, a, "eu", first.GetOwnership())
	mustAssign(t, d, "eu", "data/b")
	d.Pass(2 * domains.Wait(d.State().Manifest.Degraded.Max))
	if err := leases.Look(t.Context(), d.State()); err != nil {
		t.Fatal(err)
	}
	got, err := serverOf(d.C).GetDomain(t.Context(), &fealtyv1.GetDomainRequest{Name: "eu"})
	if err != nil || got.GetDomain().GetOwner() != "data/a" {
		t.Errorf("%v, %v", got, err)
	}
}

// Clocks that go 5% wrong, each in its own direction, never make the leader pass a domain on
// while its owner believes that it owns it.
func TestWaitCoversClocks(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{0, time.Second, domains.MinLease, 24 * time.Hour, 30 * 24 * time.Hour} {
		owner := float64(max(lease, domains.MinLease)) / 0.95
		leader := float64(domains.Wait(lease)) / 1.05
		if leader < owner {
			t.Errorf("of a lease of %v the owner may act %v, and the leader waits %v", lease, time.Duration(owner),
				time.Duration(leader))
		}
	}
}
