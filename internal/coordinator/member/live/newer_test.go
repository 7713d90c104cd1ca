package live_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
)

// Of what two coordinators heard of a shard the newest report of the newest process counts, whichever of both the process
// called last, and the messages of others are not changed.
func TestNewerReport(t *testing.T) {
	heard := func(incarnation string, called int, report uint64) *fealtyv1.Live {
		p := &fealtyv1.Process{Incarnation: incarnation, Epoch: 1, LastCall: timestamppb.New(now.Add(time.Duration(called) * time.Second))}
		if report > 0 {
			p.Report = &fealtyv1.ShardReport{Number: report}
		}
		return &fealtyv1.Live{Process: p}
	}
	for _, tt := range []struct {
		name        string
		a, b        *fealtyv1.Live
		incarnation string
		report      uint64
	}{
		{"both reported, one called later", heard("x", 1, 5), heard("x", 2, 4), "x", 5},
		{"the one that it called later heard the newer one", heard("x", 1, 4), heard("x", 2, 5), "x", 5},
		{"one heard no report", heard("x", 1, 5), heard("x", 2, 0), "x", 5},
		{"a newer process said nothing yet", heard("x", 1, 5), heard("y", 2, 0), "y", 0},
		{"a newer process began anew", heard("x", 1, 5), heard("y", 2, 1), "y", 1},
		{"one heard nothing", heard("x", 1, 5), nil, "x", 5},
		{"nobody heard anything", nil, nil, "", 0},
	} {
		for _, swap := range []bool{false, true} {
			a, b := tt.a, tt.b
			if swap {
				a, b = b, a
			}
			before := [2]*fealtyv1.Live{proto.CloneOf(a), proto.CloneOf(b)}
			got := live.Newer(a, b).GetProcess()
			if got.GetIncarnation() != tt.incarnation || got.GetReport().GetNumber() != tt.report {
				t.Errorf("%s, swapped %v: %v", tt.name, swap, got)
			}
			if !proto.Equal(a, before[0]) || !proto.Equal(b, before[1]) {
				t.Errorf("%s, swapped %v: a message was changed", tt.name, swap)
			}
		}
	}
}
