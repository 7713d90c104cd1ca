package shard_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// The summary says what tenants want, may have, have and lack, and for how long they have lacked it; what a quota forbids
// is not lacked.
func TestSummaryOfDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quotas := map[scheduler.Quota]int{{Tenant: "blue", Profile: "small"}: 1}
		p := newProvider().with(3, scheduler.Idle, "", 0).with(1, scheduler.Configured, "green", 1)
		w := run(t, p, func(c *shard.Config) { c.Quotas = func() map[scheduler.Quota]int { return quotas } })
		if s := w.Summary(time.Now()); !s.Last.At.IsZero() || len(s.Demand) != 0 {
			t.Errorf("before the first cycle: %+v", s)
		}
		w.step()
		w.report("red", 5, 4)
		w.report("blue", 9, 3)
		w.step()
		w.step()
		time.Sleep(10 * time.Second)
		s := w.Summary(time.Now())
		type row struct {
			tenant             string
			wanted, quota, has int
			bounded, known     bool
			short              int
			lacks              time.Duration
		}
		var got []row
		for _, n := range s.Demand {
			if n.Profile != "small" {
				t.Errorf("profile %q", n.Profile)
			}
			got = append(got, row{n.Tenant, n.Wanted, n.Quota, n.Has.Configuring + n.Has.Configured, n.Bounded, n.Known,
				n.Short(), n.ShortFor})
		}
		want := []row{
			{"blue", 3, 1, 1, true, true, 0, 0},
			{"green", 0, 0, 1, false, false, 0, 0},
			{"red", 4, 0, 2, false, true, 2, 10 * time.Second},
		}
		if !slices.Equal(got, want) {
			t.Errorf("it says\n%+v, want\n%+v", got, want)
		}
		if s.Last.Profiles["small"][scheduler.Configured]+s.Last.Profiles["small"][scheduler.Configuring] != 4 {
			t.Errorf("machines are %v", s.Last.Profiles)
		}
		w.report("red", 5, 2)
		w.step()
		time.Sleep(time.Second)
		if s := w.Summary(time.Now()); s.Demand[2].ShortFor != 0 || s.Demand[2].Short() != 0 {
			t.Errorf("what it has is what it wants, and it lacks %v", s.Demand[2])
		}
	})
}

// It says for how long the shard is paused and a roll-up is held, and why a cycle was not gone through with.
func TestSummaryOfRails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(20, scheduler.Configured, "red", 5).with(1, scheduler.Idle, "", 0)
		w := run(t, p, nil)
		w.step()
		w.report("red", 5, 20)
		w.step()
		w.Pause(true)
		if w.step(); w.Summary(time.Now()).PausedFor == 0 {
			t.Error("it is paused, and does not say so")
		}
		time.Sleep(3 * time.Second)
		w.step()
		if s := w.Summary(time.Now()); s.PausedFor != 3*time.Second || len(s.Held) != 0 {
			t.Errorf("paused for %v, held %v", s.PausedFor, s.Held)
		}
		w.Pause(false)
		w.report("red", 5, 1) // of twenty
		w.step()
		time.Sleep(2 * time.Second)
		w.step()
		if s := w.Summary(time.Now()); s.PausedFor != 0 || s.Held["red"] != 2*time.Second {
			t.Errorf("paused for %v, held %v", s.PausedFor, s.Held)
		}
		w.report("red", 5, 20)
		if w.step(); len(w.Summary(time.Now()).Held) != 0 {
			t.Error("what was reported anew is held")
		}
		w.disk.Refuse(syscall.EIO)
		w.report("red", 5, 21)
		_, err := w.Step(t.Context())
		if s := w.Summary(time.Now()); err == nil || !errors.Is(s.Last.Problem, err) {
			t.Errorf("the cycle failed with %v, and it says %v", err, s.Last.Problem)
		}
		w.disk.Refuse(nil)
	})
}
