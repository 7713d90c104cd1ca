package status

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
)

// server answers as a coordinator of this release does or, with earlier set, as one of a release before it.
type server struct {
	fealtyv1.StatusServiceClient
	now     time.Time
	members []*fealtyv1.Member
	earlier bool
	asked   []*fealtyv1.GetStatusRequest
}

func (s *server) GetStatus(_ context.Context, req *fealtyv1.GetStatusRequest, _ ...grpc.CallOption) (*fealtyv1.GetStatusResponse, error) {
	s.asked = append(s.asked, req)
	size, first := int(req.GetPageSize()), req.GetPageToken() == ""
	out := &fealtyv1.GetStatusResponse{}
	if first {
		out = &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Now: timestamppb.New(s.now),
			StartedAt: timestamppb.New(s.now), Baseline: &fealtyv1.Baseline{}}
	}
	if first && !s.earlier {
		out.Counts = condition.Count(s.members, s.now)
		if req.GetNeedSomebody() {
			need := condition.NeedSomebody(s.members, s.now)
			out.Members = need[:min(len(need), size)]
			return out, nil
		}
	}
	from, _ := strconv.Atoi(req.GetPageToken())
	to := min(from+size, len(s.members))
	if out.Members = s.members[from:to]; to < len(s.members) {
		out.NextPageToken = strconv.Itoa(to)
	}
	return out, nil
}

// What people see is the same, whether the coordinator tells of all members or of those that need somebody and how many
// there are; one that can is asked once. What programs read has all members.
func TestShortFormShowsWhatTheLongOneDoes(t *testing.T) {
	now := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	rapid.Check(t, func(r *rapid.T) {
		one := func(what string, all ...string) string { return rapid.SampledFrom(all).Draw(r, what) }
		in := func(what string, all ...time.Duration) *timestamppb.Timestamp {
			return timestamppb.New(now.Add(rapid.SampledFrom(all).Draw(r, what)))
		}
		var members []*fealtyv1.Member
		for i := range rapid.IntRange(0, 60).Draw(r, "members") {
			m := &fealtyv1.Member{Kind: one("kind", "data", "shard", "admin", "coordinator"), Name: fmt.Sprint("n-", i),
				State: one("state", "active", "draining", "replacing"), Banned: one("ban", "no", "no", "yes") == "yes",
				SvidNotAfter: in("end", time.Hour, 0, -time.Hour),
				Contact:      one("contact", "connected", "connected", "not heard", "unknown", "")}
			if one("heard", "yes", "yes", "no") == "yes" {
				m.Live = &fealtyv1.Live{Connected: m.Contact == "connected", LastReport: in("report", 0, -time.Hour),
					Held: []*fealtyv1.HeldVersion{{Freshness: one("freshness", "fresh", "stale", "")}}}
				if one("alone", "yes", "no") == "yes" {
					m.Live.AutonomousUntil, m.Live.AutonomyLimit = in("alone until", time.Minute, time.Hour, -time.Minute), "svid"
				}
				if one("clock", "right", "right", "behind") == "behind" {
					m.Live.ClockBehind = durationpb.New(time.Minute)
				}
			}
			members = append(members, m)
		}
		shown := func(s *server, as term.Format) (string, []*fealtyv1.Member) {
			st, err := getShown(t.Context(), s, as)
			if err != nil {
				r.Fatal(err)
			}
			var out bytes.Buffer
			page := &term.Page{W: &out, Width: 120, Wide: as == term.Wide, Called: func(s string) string { return s }, Program: "fealty"}
			if err := showStatus(page, st); err != nil {
				r.Fatal(err)
			}
			return out.String(), st.GetMembers()
		}
		of := &server{now: now, members: members}
		earlier := &server{now: now, members: members, earlier: true}
		got, sent := shown(of, term.TableFormat)
		if want, _ := shown(earlier, term.TableFormat); got != want {
			r.Errorf("shown is\n%s\nand by a coordinator of an earlier release\n%s", got, want)
		}
		if len(of.asked) != 1 || len(sent) > client.ShownMembers {
			r.Errorf("%d members came in %d answers", len(sent), len(of.asked))
		}
		if n := len(earlier.asked); n > 2 {
			r.Errorf("a coordinator of an earlier release is asked %d times for %d members", n, len(members))
		}
		for _, as := range []term.Format{term.Wide, term.JSON, term.YAML} {
			for _, s := range []*server{of, earlier} {
				if _, all := shown(s, as); !slices.EqualFunc(all, members, func(a, b *fealtyv1.Member) bool { return proto.Equal(a, b) }) {
					r.Errorf("as %s %d of %d members come", as, len(all), len(members))
				}
			}
		}
	})
}
