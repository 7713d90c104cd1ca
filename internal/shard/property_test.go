package shard_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// course is a shard whose tenants, provider and disk do what they like.
type course struct {
	*world
	t      *rapid.T
	quotas map[scheduler.Quota]int
	wants  map[string]int
	told   map[string]bool // tenants that reported
	paused bool
	at     time.Time // by hand
	disk   error
	notes  []execute.Entry
}

// Cycle and Append make the course its shard's journal, which fails as the disk does.
func (c *course) Cycle(entries []execute.Entry) []execute.Entry { return entries }

func (c *course) Append(entries []execute.Entry) (int, error) {
	if len(entries) == 0 || c.disk == nil {
		c.notes = append(c.notes, entries...)
		return len(entries), nil
	}
	n := len(entries) / 2
	c.notes = append(c.notes, entries[:n]...)
	return n, c.disk
}

// Now is the shard's clock.
func (c *course) Now() time.Time { return c.at }

// Tenants say, providers fail and people switch as they like: no tenant has more than its
// quota, loses more to reclaims in a cycle than its part, or anything before it has
// reported or while the shard is paused; nothing is done that the journal does not say; and
// when all is well again, demand is met.
func TestWhateverHappens(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newProvider().with(20, scheduler.Configured, "red", 1).with(10, scheduler.Configured, "blue", 1).
			with(10, scheduler.Idle, "", 0).with(10, scheduler.Speculative, "", 0)
		c := &course{t: rt, at: time.Unix(1_800_000_000, 0), wants: make(map[string]int), told: make(map[string]bool), quotas: map[scheduler.Quota]int{
			{Tenant: "red", Profile: "small"}: rapid.IntRange(20, 22).Draw(rt, "quota")}}
		c.world = run(t, p, func(cfg *shard.Config) {
			cfg.Quotas = func() map[scheduler.Quota]int { return c.quotas }
			cfg.Now, cfg.Journal = c.Now, c
			cfg.Policy.Release = rapid.Bool().Draw(rt, "release")
		})
		if err := c.cycle(); err != nil {
			rt.Fatal(err)
		}
		tenants := rapid.SampledFrom([]string{"red", "blue"})
		calls := rapid.SampledFrom([]error{nil, execute.ErrUnavailable, execute.ErrRejected, execute.ErrNotFound, errors.New("what")})
		rt.Repeat(map[string]func(*rapid.T){
			"cycle": func(*rapid.T) { _ = c.cycle() },
			"again": func(*rapid.T) { _ = c.cycle() },
			"tick":  func(*rapid.T) { p.tick() },
			"demand": func(rt *rapid.T) {
				c.say(tenants.Draw(rt, "tenant"), int32(rapid.IntRange(1, 3).Draw(rt, "priority")), rapid.IntRange(0, 30).Draw(rt, "count"))
			},
			"pause": func(rt *rapid.T) {
				c.paused = rapid.Bool().Draw(rt, "paused")
				c.Pause(c.paused)
			},
			"calls": func(rt *rapid.T) {
				err := calls.Draw(rt, "answer")
				p.answering = func(string, execute.Order) error { return err }
			},
			"answers": func(rt *rapid.T) {
				err := calls.Draw(rt, "lost")
				p.lost = func(string, execute.Order) error { return err }
			},
			"listing": func(rt *rapid.T) {
				err := rapid.SampledFrom([]error{nil, errors.New("no")}).Draw(rt, "answer")
				empty := rapid.IntRange(0, 3).Draw(rt, "empty") == 0
				p.listing = func(l scheduler.Listing) (scheduler.Listing, error) {
					if empty {
						return scheduler.Listing{Full: true}, err
					}
					return l, err
				}
			},
			"disk": func(rt *rapid.T) { c.disk = rapid.SampledFrom([]error{nil, errors.New("full")}).Draw(rt, "disk") },
			"time": func(rt *rapid.T) {
				c.at = c.at.Add(time.Duration(rapid.IntRange(1, 60).Draw(rt, "seconds")) * time.Second)
			},
		})
		c.settles()
	})
}

func (c *course) say(tenant string, priority int32, n int) {
	c.key.Number++
	r := scheduler.RollUp{Tenant: tenant, Key: c.key}
	if n > 0 {
		r.Rows = []scheduler.DemandRow{{Profile: "small", Priority: priority, Count: n}}
	}
	switch outcome, err := c.Report(r); {
	case err != nil:
		c.t.Fatal(err)
	case outcome == scheduler.Taken:
		c.wants[tenant], c.told[tenant] = n, true
	}
}

// cycle does one cycle, and looks at what it did.
func (c *course) cycle() error {
	before := map[string]int{"red": c.p.count(scheduler.Configured, "red"), "blue": c.p.count(scheduler.Configured, "blue")}
	c.p.calls()
	r, err := c.Step(c.t.Context())
	lost := make(map[string]int)
	for _, result := range r.Results {
		switch a := result.Action; a.Kind {
		case scheduler.Reclaim:
			lost[a.Tenant]++
		case scheduler.Preempt:
			if !c.told[a.Tenant] {
				c.t.Fatalf("%s did not report, and loses %+v", a.Tenant, a)
			}
		}
	}
	for tenant, n := range lost {
		// The shard may go by an older listing.
		if seen := max(r.Machines[scheduler.Configured], before[tenant]); n > scheduler.Radius(seen) || !c.told[tenant] {
			c.t.Fatalf("%s loses %d of %d, and reported: %v", tenant, n, seen, c.told[tenant])
		}
	}
	if calls := c.p.calls(); c.paused && len(calls) > 0 {
		c.t.Fatalf("paused, and does %q", calls)
	}
	for _, state := range []scheduler.State{scheduler.Configured, scheduler.Configuring, scheduler.Draining} {
		lost["has"] += c.p.count(state, "red")
	}
	if limit := c.quotas[scheduler.Quota{Tenant: "red", Profile: "small"}]; lost["has"] > limit {
		c.t.Fatalf("red has %d of %d", lost["has"], limit)
	}
	if r.Executed(execute.Fenced) > 0 {
		c.t.Fatalf("the only shard is fenced: %+v", r.Results)
	}
	return err
}

// settles has all be well again, and looks whether demand is met, and the journal whole.
func (c *course) settles() {
	c.p.answering, c.p.lost, c.p.listing, c.paused, c.disk = nil, nil, nil, false, nil
	c.Pause(false)
	for _, tenant := range []string{"red", "blue"} {
		for range 3 { // whatever was held is confirmed
			c.say(tenant, 1, 10)
		}
	}
	for range 100 {
		c.at = c.at.Add(time.Minute)
		if err := c.cycle(); err != nil {
			c.t.Fatal(err)
		}
		c.p.tick()
		last := c.Last()
		moving := 0
		for state, n := range last.Machines {
			if state.Transitional() {
				moving += n
			}
		}
		if len(last.Rulings)+moving == 0 {
			break
		}
	}
	for _, tenant := range []string{"red", "blue"} {
		if got := c.p.count(scheduler.Configured, tenant); got != 10 {
			c.t.Fatalf("%s has %d, and wants 10: %+v", tenant, got, c.Last())
		}
	}
	begun := make(map[string]int)
	for _, e := range c.notes {
		switch name := fmt.Sprint(e.Kind, e.Machine, e.Operation); e.Outcome {
		case execute.Begun:
			begun[name]++
		case execute.Capped, execute.Suppressed, execute.Noticed:
		default:
			if begun[name]--; begun[name] < 0 {
				c.t.Fatalf("%+v has an outcome, and never began", e)
			}
		}
	}
	for name, n := range begun {
		if n != 0 {
			c.t.Fatalf("%s began, and has no outcome", name)
		}
	}
}
