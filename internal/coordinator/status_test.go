package coordinator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// A state that many members share is one finding.
func TestFindingsFold(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	now := d.Clock()
	st := &fealtyv1.GetStatusResponse{Baseline: &fealtyv1.Baseline{Met: true}}
	for n := range 12 {
		var members []*fealtyv1.Member
		for i := range n {
			members = append(members, &fealtyv1.Member{Kind: "data", Name: fmt.Sprintf("n-%02d", i),
				State: record.Active, SvidNotAfter: timestamppb.New(now.Add(time.Hour))})
		}
		got := coordinator.Findings(st, members, "nodes", now, now.Add(-time.Hour))
		if n <= finding.FoldAbove {
			if len(got) != n {
				t.Errorf("%d silent members are %d findings", n, len(got))
			}
			continue
		}
		if len(got) != 1 || got[0].GetCode() != string(errcode.MemberSilent) || !strings.Contains(got[0].GetSummary(),
			fmt.Sprintf("data/n-00, data/n-01, data/n-02, and %d more", n-finding.FoldAbove)) {
			t.Errorf("%d silent members: %v", n, got)
		}
	}
	// A coordinator that just started knows nothing yet, and says nothing.
	if got := coordinator.Findings(st, []*fealtyv1.Member{{Kind: "data", Name: "a", State: record.Active,
		SvidNotAfter: timestamppb.New(now.Add(time.Hour))}}, "nodes", now, now); len(got) != 0 {
		t.Errorf("just started: %v", got)
	}
}

// A member that is connected and says for a minute that what it holds is not fresh is a
// finding, and one whose clock is behind too; both end with the report that says otherwise.
func TestStaleMembersAndWrongClocksAreFound(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	s := d.C.Parts().Membership.Live().Opened(a.ID, "")
	found := func(want ...errcode.Code) {
		t.Helper()
		m := &fealtyv1.Member{Kind: "data", Name: "a", State: record.Active,
			SvidNotAfter: timestamppb.New(d.Clock().Add(time.Hour)), Live: d.C.Parts().Membership.Live().Message(a.ID)}
		var got []errcode.Code
		for _, f := range coordinator.Findings(&fealtyv1.GetStatusResponse{}, []*fealtyv1.Member{m}, "nodes", d.Clock(),
			d.Clock()) {
			got = append(got, errcode.Code(f.GetCode()))
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %v, want %v", got, want)
		}
	}
	says := func(freshness string, behind time.Duration) {
		r := &fealtyv1.ConnectRequest{Held: []*fealtyv1.HeldSnapshot{{Scope: "node_runtime", Freshness: freshness},
			{Scope: "node_bootstrap"}}}
		if behind != 0 {
			r.ClockBehind = durationpb.New(behind)
		}
		d.C.Parts().Membership.Live().Reported(a.ID, r, d.Clock())
	}
	says("fresh", 0)
	found()
	for _, freshness := range []string{"stale", "degraded", "expired"} {
		says(freshness, 0)
		found() // it is sent what is newer now
		d.Advance(coordinator.StaleAfter)
		says(freshness, 0)
		found(errcode.MemberStale)
		says("fresh", 0)
		found()
	}
	says("fresh", 3*time.Minute)
	found(errcode.MemberClock)
	says("fresh", -time.Minute)
	found()
	says("stale", 3*time.Minute)
	d.Advance(coordinator.StaleAfter)
	found(errcode.MemberStale, errcode.MemberClock)
	d.C.Parts().Membership.Live().Closed(a.ID, s, true)
	found() // what it said last is not so any more, for all that is known
}

// Status says when the store last confirmed the head, which a store that fails
// does not move; of the authority it says as much without the store as with it.
func TestStatusTellsTheAgeOfTheHead(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	status := func() *fealtyv1.GetStatusResponse {
		t.Helper()
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	long := time.Now().Add(-time.Hour)
	d.C.Parts().Head.Put(d.State(), long)
	if !d.C.Parts().Head.HeadHolds(t.Context()) {
		t.Fatal("the head is not ours")
	}
	well := status()
	if at := well.GetHeadConfirmedAt().AsTime(); !at.Equal(d.C.Now()()) {
		t.Errorf("the head was confirmed at %v, and status says %v", d.C.Now()(), at)
	}
	d.C.Parts().Head.Put(d.State(), long)
	d.Store.SetDown(errors.New("down"))
	d.C.Parts().Head.HeadHolds(t.Context())
	st := status()
	if at := st.GetHeadConfirmedAt().AsTime(); !at.Equal(long) {
		t.Errorf("without a store the head seems confirmed at %v, want %v", at, long)
	}
	if st.GetStoreLatency() != nil || !st.GetRootNotAfter().AsTime().Equal(well.GetRootNotAfter().AsTime()) ||
		!st.GetMeshCaNotAfter().AsTime().Equal(well.GetMeshCaNotAfter().AsTime()) {
		t.Errorf("without a store: %v", st)
	}
}

// The end of the last root of an operator's PKI is told a month before, and when it is over: after
// it nobody joins by a certificate.
func TestEndOfTheLastOperatorRootIsFound(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	d := coordinatortest.ReadyDesk(t, coordinatortest.CorpEntries(pki))
	end := pki.Root.Cert.NotAfter
	if got := coordinatortest.CounterOf(d.C.Registry(), "fealty_operator_roots_not_after_seconds"); int64(got) != end.Unix() {
		t.Errorf("the metric is %v, want %d", got, end.Unix())
	}
	for _, tt := range []struct {
		before   time.Duration
		severity string // empty: no finding
	}{
		{31 * 24 * time.Hour, ""},
		{29 * 24 * time.Hour, finding.Warning},
		{-time.Minute, finding.Critical},
	} {
		d.Mu.Lock()
		d.Now = end.Add(-tt.before)
		d.Mu.Unlock()
		found := coordinatortest.FindingsAt(d, t, errcode.OperatorRootsEnd)
		switch {
		case tt.severity == "" && len(found) == 0:
		case len(found) != 1 || found[0].GetSeverity() != tt.severity ||
			!strings.Contains(found[0].GetSummary(), end.UTC().Format(time.RFC3339)):
			t.Errorf("%v before its end: %v, want %q", tt.before, found, tt.severity)
		}
	}
}

// What a baseline that is not met says while some members are unknown is a lower bound, and while nobody
// can join it advises no token.
func TestWordsOfABaselineThatIsNotMet(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tc := range []struct {
		name     string
		b        *fealtyv1.Baseline
		entry    string
		summary  string
		advises  []string
		withouts []string
	}{
		{"all are known", &fealtyv1.Baseline{Needed: 3, DataMembers: 1, Connected: 1}, "nodes", ": 1 data member is connected, 3",
			[]string{"fealty token create --entry nodes"}, []string{"not heard"}},
		{"some are unknown", &fealtyv1.Baseline{Needed: 3, DataMembers: 2, Unknown: 2}, "nodes", ": at least 0 data members are",
			[]string{"fealty token create --entry nodes"}, []string{"not heard"}},
		{"some are not heard", &fealtyv1.Baseline{Needed: 3, DataMembers: 2, Connected: 1}, "nodes", ": 1 data member is",
			[]string{"fealty member list", "fealty token create --entry nodes"}, nil},
		{"enough are not heard", &fealtyv1.Baseline{Needed: 3, DataMembers: 3, Connected: 1}, "nodes", ": 1 data member is",
			[]string{"fealty member list"}, []string{"token create"}},
		{"nobody can join", &fealtyv1.Baseline{Needed: 3, DataMembers: 1, Connected: 1}, "", ": 1 data member is",
			[]string{"mend the store first"}, []string{"token create"}},
		{"nobody can join, and some are not heard", &fealtyv1.Baseline{Needed: 3, DataMembers: 2, Connected: 1}, "",
			": 1 data member is", []string{"fealty member list", "before the store is mended"}, []string{"token create"}},
		{"nobody can join, and one drains", &fealtyv1.Baseline{Needed: 3, DataMembers: 2, Connected: 2, DrainingCount: 1,
			Draining: []string{"data/a"}}, "", "data/a drains and does not count", []string{"mend the store first"},
			[]string{"token create", "undrain"}},
	} {
		tc.b.State = string(peer.NotMet)
		got := coordinator.Findings(&fealtyv1.GetStatusResponse{Baseline: tc.b}, nil, tc.entry, now, now)
		if len(got) != 1 || !strings.Contains(got[0].GetSummary(), tc.summary) {
			t.Fatalf("%s: found %v", tc.name, got)
		}
		for _, part := range tc.advises {
			if !strings.Contains(got[0].GetRemedy(), part) {
				t.Errorf("%s: %q is without %q", tc.name, got[0].GetRemedy(), part)
			}
		}
		for _, part := range tc.withouts {
			if strings.Contains(got[0].GetRemedy(), part) {
				t.Errorf("%s: %q has %q", tc.name, got[0].GetRemedy(), part)
			}
		}
	}
}
