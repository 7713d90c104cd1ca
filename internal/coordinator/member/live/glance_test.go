package live_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
)

// A glance calls a member well if and only if one coordinator hears it, and its whole message says nothing that is for
// somebody to look at; what the glance tells of it then is what the message does.
func TestGlanceIsOfTheMessage(t *testing.T) {
	id, err := identity.New("test.example", identity.Data, "a")
	if err != nil {
		t.Fatal(err)
	}
	above := func(h *fealtyv1.HeldVersion) bool { return h.GetConfigVersion() > 100 }
	wells := 0
	testlane.Checks(t, 2000, 20_000)
	rapid.Check(t, func(r *rapid.T) {
		rarely := func(what string) bool { return rapid.IntRange(0, 5).Draw(r, what) == 0 }
		var elapsed time.Duration
		l := live.New(func() time.Duration { return elapsed })
		report := func() *fealtyv1.ConnectRequest {
			out := &fealtyv1.ConnectRequest{}
			for _, scope := range snapshot.Scopes()[:rapid.IntRange(0, 3).Draw(r, "held")] {
				h := &fealtyv1.HeldSnapshot{Scope: string(scope), ConfigVersion: 1, Freshness: string(snapshot.Fresh)}
				if rarely("stale") {
					h.Freshness = string(snapshot.Stale)
				}
				if rarely("unsaid") {
					h.Freshness = ""
				}
				if rarely("above") {
					h.ConfigVersion = 101
				}
				out.Held = append(out.Held, h)
			}
			if rarely("behind") {
				out.ClockBehind = durationpb.New(time.Minute)
			}
			if rarely("log") {
				out.LogProblem = "no space"
			}
			if rapid.Bool().Draw(r, "says until when") {
				out.AutonomousUntil, out.AutonomyLimit = timestamppb.New(now.Add(time.Hour)), "degraded.max"
			}
			return out
		}
		hears := func(l *live.Members) {
			switch rapid.SampledFrom([]string{"", "open", "open", "closed", "polls", "polled"}).Draw(r, "stream") {
			case "open":
				l.Opened(id, "")
			case "closed":
				defer l.Closed(id, l.Opened(id, ""), true)
			case "polls":
				elapsed = time.Hour
				l.Polls(id, time.Minute)
			case "polled":
				l.Polls(id, time.Minute)
				elapsed = time.Hour
			}
			for range rapid.IntRange(0, 2).Draw(r, "reports") {
				l.Reported(id, report(), now.Add(time.Duration(rapid.IntRange(0, 2).Draw(r, "at"))*time.Second))
			}
			if rarely("called") {
				l.Called(id, fence.Epoch(1), "", now.Add(time.Duration(rapid.IntRange(0, 2).Draw(r, "at"))*time.Second))
				l.SaysPaused(id, rapid.Bool().Draw(r, "paused"))
			}
		}
		hears(l)
		var elsewhere *fealtyv1.Live
		if rapid.Bool().Draw(r, "heard elsewhere") {
			other := live.New(func() time.Duration { return elapsed })
			hears(other)
			if elsewhere = other.Message(id); elsewhere != nil && rapid.Bool().Draw(r, "of an earlier release") {
				elsewhere.StaleSince = nil
			}
		}
		here := l.Message(id)
		glances := l.Glances(nil, []identity.ID{id}, above)
		got, well := glances[0].Well(elsewhere, above)
		msg := live.Newer(here, elsewhere)
		want := here.GetConnected() != elsewhere.GetConnected() && msg.GetStaleSince() == nil && msg.GetClockBehind() == nil &&
			msg.GetLogProblem() == "" && !here.GetProcess().GetPaused() && !elsewhere.GetProcess().GetPaused() &&
			!slices.ContainsFunc(msg.GetHeld(), func(h *fealtyv1.HeldVersion) bool {
				return above(h) || h.GetFreshness() != "" && h.GetFreshness() != string(snapshot.Fresh)
			})
		if well != want {
			r.Fatalf("well is %v, of %v", well, msg)
		}
		if well && (!msg.GetConnected() || msg.GetProcess().GetPaused() ||
			got.AloneUntil.AsTime() != msg.GetAutonomousUntil().AsTime() || got.AloneLimit != msg.GetAutonomyLimit()) {
			r.Fatalf("at a glance %v, and the message is %v", got, msg)
		}
		if well {
			wells++
		}
	})
	if wells == 0 {
		t.Error("nobody was well")
	}
}
