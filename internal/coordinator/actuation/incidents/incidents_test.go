package incidents_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/incidents"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

const entries = coordinatortest.PoolEntries + "  - {name: shards, kind: shard, match: [\"token:shards\"], max_members: 9}\n"

func shard(t *testing.T, d *coordinatortest.Desk, name string) *coordinatortest.Machine {
	t.Helper()
	m := d.Machine()
	token := d.Token(&fealtyv1.CreateTokenRequest{Entry: "shards", Name: name})
	if err := m.Join(identity.Shard, proof.NewTokenProver(token)); err != nil {
		t.Fatal(err)
	}
	return m
}

// tell tells a coordinator that a process was fenced.
func tell(c *coordinator.Coordinator, m *coordinatortest.Machine, req *fealtyv1.ReportFencedRequest) (bool, error) {
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf,
		Key: identity.KeyOf(m.Leaf), Addr: "192.0.2.7:1"})
	resp, err := coordinatortest.Served[fealtyv1.IncidentServiceServer](
		c.Parts().Fencing.Incidents.RegisterServices).ReportFenced(ctx, req)
	return resp.GetRecorded(), err
}

func fenced(m *coordinatortest.Machine, process fence.Incarnation) *fealtyv1.ReportFencedRequest {
	return &fealtyv1.ReportFencedRequest{Name: m.ID.Name(), Incarnation: process.String(), Epoch: 1<<32 | 2,
		Problem: "stale"}
}

func mustTell(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine, process fence.Incarnation) bool {
	t.Helper()
	isNew, err := tell(d.C, m, fenced(m, process))
	if err != nil {
		t.Fatal(err)
	}
	return isNew
}

// found are the findings of processes that were fenced.
func found(t *testing.T, d *coordinatortest.Desk) (out []string) {
	t.Helper()
	st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range st.GetFindings() {
		if f.GetCode() == string(errcode.ShardFenced) {
			out = append(out, f.GetSummary())
		}
	}
	return out
}

// A process is an incident once, however often it tells of itself, and to whichever coordinator.
// People are told of it until a day after it did so last.
func TestFencedIsAnIncidentOnce(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	a := shard(t, d, "eu-1")
	process := fence.NewIncarnation()
	if got := found(t, d); len(got) != 0 {
		t.Fatalf("before anything happened: %q", got)
	}
	if !mustTell(t, d, a, process) {
		t.Error("it was known before it told")
	}
	says := found(t, d)
	if len(says) != 1 {
		t.Fatalf("the findings: %q", says)
	}
	for _, want := range []string{"shard/eu-1", process.String(), "epoch 1.2", "192.0.2.7"} {
		if !strings.Contains(says[0], want) {
			t.Errorf("%q is not in the finding %q", want, says[0])
		}
	}
	for range 3 {
		d.Advance(time.Minute)
		if mustTell(t, d, a, process) {
			t.Error("it is new again")
		}
	}
	d.Restart()
	d.Advance(time.Hour)
	if mustTell(t, d, a, process) {
		t.Error("it is new after a restart")
	}
	all, text := coordinatortest.Audits(d, "shard.fenced")
	if len(all) != 1 || !strings.Contains(text, process.String()) || !strings.Contains(text, "stale") {
		t.Errorf("the audit log has %d incidents: %s", len(all), text)
	}
	if !mustTell(t, d, a, fence.NewIncarnation()) {
		t.Error("another process is no incident of its own")
	}
	if all, _ := coordinatortest.Audits(d, "shard.fenced"); len(all) != 2 {
		t.Errorf("the audit log has %d incidents of two processes", len(all))
	}
	d.Advance(incidents.Shown - time.Minute)
	if got := found(t, d); len(got) != 1 {
		t.Errorf("within a day people are told %q", got)
	}
	mustTell(t, d, a, process) // it is there still
	d.Advance(2 * time.Minute)
	if got := found(t, d); len(got) != 1 || !strings.Contains(got[0], process.String()) {
		t.Errorf("a process that is there is told as %q", got)
	}
	d.Advance(incidents.Shown)
	if got := found(t, d); len(got) != 0 {
		t.Errorf("a day after all were silent people are told %q", got)
	}
}

// The memory of incidents is bounded: of each member, and of members that are silent.
func TestIncidentsAreBounded(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	a, b := shard(t, d, "eu-1"), shard(t, d, "eu-2")
	for range incidents.MaxProcesses + 3 {
		d.Advance(time.Minute)
		mustTell(t, d, a, fence.NewIncarnation())
	}
	last := fence.NewIncarnation()
	mustTell(t, d, a, last)
	has := func(name string) incidents.Record {
		t.Helper()
		v, err := record.Get[incidents.Record](t.Context(), d.State().Records, incidents.KeyOf(identity.Shard, name))
		if err != nil {
			t.Fatal(err)
		}
		return v.Value
	}
	if got := has("eu-1").Processes; len(got) != incidents.MaxProcesses ||
		got[len(got)-1].Incarnation != last.String() {
		t.Errorf("of one member are remembered %v", got)
	}
	d.Advance(incidents.Kept + time.Minute)
	mustTell(t, d, b, last)
	if got := has("eu-1"); got.Member != "" || len(has("eu-2").Processes) != 1 {
		t.Errorf("of a member that is silent is remembered %v", got)
	}
}

// Many at once are one finding: it has one cause.
func TestManyAreOneFinding(t *testing.T) {
	t.Parallel()
	d := coordinatortest.ReadyDesk(t, entries)
	for i := range 5 {
		mustTell(t, d, shard(t, d, fmt.Sprintf("eu-%d", i)), fence.NewIncarnation())
	}
	if got := found(t, d); len(got) != 1 || !strings.Contains(got[0], "and 2 more") {
		t.Errorf("the findings: %q", got)
	}
}

func TestReportRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		tell func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error
		want errcode.Code
	}{
		{"no incarnation", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			_, err := tell(d.C, m, &fealtyv1.ReportFencedRequest{Name: "eu-1"})
			return err
		}, errcode.RequestField},
		{"too much text", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			req := fenced(m, fence.NewIncarnation())
			req.Problem = strings.Repeat("x", incidents.MaxProblem+1)
			_, err := tell(d.C, m, req)
			return err
		}, errcode.RequestField},
		{"removed", func(t *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			d.C.Parts().Membership.Listens(d.Clock().Add(-time.Hour))
			coordinatortest.RemoveAt(d, t, identity.Shard, "eu-1")
			_, err := tell(d.C, m, fenced(m, fence.NewIncarnation()))
			return err
		}, errcode.RenewEntryGone},
		{"too often", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			for range 3 {
				if _, err := tell(d.C, m, fenced(m, fence.NewIncarnation())); err != nil {
					return err
				}
			}
			return nil
		}, errcode.RateLimited},
		{"the store is away", func(_ *testing.T, d *coordinatortest.Desk, m *coordinatortest.Machine) error {
			d.Store.SetDown(coordinatortest.ErrDown)
			defer d.Store.SetDown(nil)
			_, err := tell(d.C, m, fenced(m, fence.NewIncarnation()))
			return err
		}, errcode.StoreUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := coordinatortest.UnopenedDesk(t)
			if tc.want == errcode.RateLimited {
				d.Alter = func(c *coordinator.Config) { c.Rates.PerMember, c.Rates.MemberBurst = 0.001, 2 }
			}
			d.Open()
			coordinatortest.WantOnlyNil(t, d.Set(entries))
			err := tc.tell(t, d, shard(t, d, "eu-1"))
			coordinatortest.WantOnly(t, "it", err, tc.want)
			all, _ := coordinatortest.Audits(d, "shard.fenced")
			if want := 0; tc.want != errcode.RateLimited && len(all) != want || len(all) > 2 {
				t.Errorf("the audit log has %d incidents", len(all))
			}
		})
	}
}
