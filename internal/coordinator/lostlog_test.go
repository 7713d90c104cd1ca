package coordinator_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A member that says that its log is lost is a finding of status, is shown so, and is counted, until a report says
// otherwise or nobody hears it any more. An agent of an earlier release says nothing of it.
func TestLostLogOfAMemberIsFound(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	live := d.C.Parts().Membership.Live()
	want := func(what, problem string) {
		t.Helper()
		st, err := d.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var found []*fealtyv1.Finding
		for _, f := range st.GetFindings() {
			if f.GetCode() == string(errcode.LogFailing) {
				found = append(found, f)
			}
		}
		count := 0
		if problem != "" {
			count = 1
		}
		if len(found) != count || count == 1 && (found[0].GetSeverity() != finding.Warning || found[0].GetRemedy() == "" ||
			found[0].GetSummary() != "standard error of the agent of data/a does not take its log: "+problem+
				", since 2030-01-02T03:04:05Z; 7 lines were left out") {
			t.Errorf("%s: status finds %v", what, found)
		}
		if n := coordinatortest.CounterOf(d.C.Registry(), "fealty_agents_log_failing"); n != float64(count) {
			t.Errorf("%s: fealty_agents_log_failing is %v", what, n)
		}
		got, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if l := got.GetMember().GetLive(); l.GetConnected() && (l.GetLogProblem() != problem ||
			(l.GetLogProblemSince() != nil || l.GetLogDropped() != 0) != (problem != "")) {
			t.Errorf("%s: the member is shown with %v", what, l)
		}
	}
	since := timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	says := func(problem string) {
		live.Reported(a.ID, &fealtyv1.ConnectRequest{LogProblem: problem, LogProblemSince: since, LogDropped: 7}, d.Clock())
	}
	s := live.Opened(a.ID, "")
	live.Reported(a.ID, &fealtyv1.ConnectRequest{}, d.Clock())
	want("one that does not say", "")
	says("it is closed")
	want("one whose log is lost", "it is closed")
	says("")
	want("one that writes again", "")
	says(strings.Repeat("x", 100_000))
	if l := live.Message(a.ID); len(l.GetLogProblem()) > 1000 {
		t.Errorf("%d bytes of what it says are kept", len(l.GetLogProblem()))
	}
	says("it is closed")
	live.Closed(a.ID, s, true)
	want("heard no more", "")
}

// Many members whose logs are lost are one finding.
func TestManyLostLogsAreOneFinding(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var members []*fealtyv1.Member
	for i := range finding.FoldAbove + 2 {
		members = append(members, &fealtyv1.Member{Kind: "data", Name: fmt.Sprint("n-", i), State: record.Active,
			SvidNotAfter: timestamppb.New(now.Add(time.Hour)), Live: &fealtyv1.Live{Connected: true, LogProblem: "it is closed"}})
	}
	got := coordinator.Findings(&fealtyv1.GetStatusResponse{}, members, "nodes", now, now)
	if len(got) != 1 || got[0].GetCode() != string(errcode.LogFailing) || !strings.Contains(got[0].GetSummary(),
		"the agents of data/n-0, data/n-1, data/n-2, and 2 more") || !strings.Contains(got[0].GetSummary(), "the first of them") {
		t.Errorf("found %v", got)
	}
}
