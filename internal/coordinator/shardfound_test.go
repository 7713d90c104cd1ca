package coordinator_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// What a shard reports is found once it lasts, what it reported is found missing once it is old, and what is told elsewhere,
// or follows from a pause, is not told again.
func TestFoundOfShards(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	type edit func(m *fealtyv1.Member, p *fealtyv1.Process, r *fealtyv1.ShardReport)
	old := func(_ *fealtyv1.Member, p *fealtyv1.Process, _ *fealtyv1.ShardReport) {
		p.ReportAge = durationpb.New(peer.SilentAfter + time.Second)
	}
	lacks := func(d time.Duration) edit {
		return func(_ *fealtyv1.Member, _ *fealtyv1.Process, r *fealtyv1.ShardReport) {
			r.Short, r.ShortFor, r.ShortOf = 2, durationpb.New(d), "2 machines of profile web for acme"
		}
	}
	holds := func(d time.Duration) edit {
		return func(_ *fealtyv1.Member, _ *fealtyv1.Process, r *fealtyv1.ShardReport) {
			r.Held, r.HeldFor, r.HeldOf = 1, durationpb.New(d), "acme"
		}
	}
	paused := func(_ *fealtyv1.Member, p *fealtyv1.Process, r *fealtyv1.ShardReport) {
		p.Paused, r.PausedByInstruction, r.PausedFor = true, true, durationpb.New(14*time.Minute)
	}
	calledLongAgo := func(_ *fealtyv1.Member, p *fealtyv1.Process, _ *fealtyv1.ShardReport) {
		p.LastCall = timestamppb.New(now.Add(-time.Hour))
	}
	owns := func(m *fealtyv1.Member, _ *fealtyv1.Process, _ *fealtyv1.ShardReport) { m.Domains = []string{"eu"} }
	for _, tt := range []struct {
		name       string
		edits      []edit
		unanswered []string
		want       string // "code: a part of the summary"; "": nothing
	}{
		{"all is well", nil, nil, ""},
		{"it lacks machines just now", []edit{lacks(time.Minute)}, nil, ""},
		{"it lacks machines for long", []edit{lacks(6 * time.Minute)}, nil,
			"FE-P108: it lacks 2 machines of profile web for acme, the first for 6m"},
		{"it holds demand just now", []edit{holds(time.Second)}, nil, ""},
		{"it holds demand for long", []edit{holds(2 * time.Minute)}, nil, "FE-P109: that of acme, the first for 2m"},
		{"it is paused", []edit{paused}, nil, "FE-P103: it is paused, by an instruction, for 14m 1s now, and said so last at 2030-01-01T00:00:00Z"},
		{"it is paused, and lacks machines and holds demand since", []edit{paused, lacks(time.Hour), holds(time.Hour)}, nil, "FE-P103: it is paused"},
		{"it reports no more", []edit{old, calledLongAgo}, nil, "FE-P107: its last report is 2m 1s old"},
		{"it calls, and reports no more", []edit{old, owns}, nil, "FE-P107: its last report is 2m 1s old"},
		{"it reports no more, and lacked machines", []edit{old, lacks(time.Hour)}, nil, "FE-P107: its last report"},
		{"it reports no more, and its domains tell so", []edit{old, calledLongAgo, owns}, nil, ""},
		{"it reports no more here, and others did not answer", []edit{old}, []string{"coordinator-2"}, ""},
		{"it reports no more, and drains", []edit{old, func(m *fealtyv1.Member, _ *fealtyv1.Process, _ *fealtyv1.ShardReport) {
			m.State = record.Draining
		}}, nil, ""},
		{"it reports no more, and is banned", []edit{old, lacks(time.Hour), func(m *fealtyv1.Member, _ *fealtyv1.Process, _ *fealtyv1.ShardReport) {
			m.Banned = true
		}}, nil, ""},
		{"it never reported, as releases before did", []edit{func(_ *fealtyv1.Member, p *fealtyv1.Process, _ *fealtyv1.ShardReport) {
			p.Report, p.ReportAge = nil, nil
		}}, nil, ""},
	} {
		r := &fealtyv1.ShardReport{Number: 1, Every: durationpb.New(5 * time.Second)}
		p := &fealtyv1.Process{LastCall: timestamppb.New(now), Report: r, ReportAge: durationpb.New(time.Second)}
		m := &fealtyv1.Member{Kind: "shard", Name: "eu-1", State: record.Active, SvidNotAfter: timestamppb.New(now.Add(time.Hour)),
			Live: &fealtyv1.Live{Connected: true, Process: p}}
		for _, edit := range tt.edits {
			edit(m, p, r)
		}
		found := coordinator.Findings(&fealtyv1.GetStatusResponse{Contacts: &fealtyv1.Contacts{Unanswered: tt.unanswered}},
			[]*fealtyv1.Member{m}, "", now, now.Add(-time.Hour))
		code, part, _ := strings.Cut(tt.want, ": ")
		switch {
		case tt.want == "" && len(found) == 0:
		case tt.want == "" || len(found) != 1 || found[0].GetCode() != code || !strings.Contains(found[0].GetSummary(), part) ||
			!strings.Contains(found[0].GetSummary(), "shard/eu-1"):
			t.Errorf("%s: found is %v, want %q", tt.name, found, tt.want)
		}
	}
	// Of many it is one finding.
	var many []*fealtyv1.Member
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		many = append(many, &fealtyv1.Member{Kind: "shard", Name: name, State: record.Active, SvidNotAfter: timestamppb.New(now.Add(time.Hour)),
			Live: &fealtyv1.Live{Connected: true, Process: &fealtyv1.Process{LastCall: timestamppb.New(now), ReportAge: durationpb.New(time.Second),
				Report: &fealtyv1.ShardReport{ShortFor: durationpb.New(time.Hour), ShortOf: "1 machine"}}}})
	}
	found := coordinator.Findings(&fealtyv1.GetStatusResponse{}, many, "", now, now.Add(-time.Hour))
	if len(found) != 1 || found[0].GetCode() != string(errcode.ShardShort) || !strings.Contains(found[0].GetSummary(), "and 2 more") {
		t.Errorf("of five found is %v", found)
	}
}
