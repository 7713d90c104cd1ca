package shard_test

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// changing returns a shard whose providers are what the map has when a cycle begins.
func changing(t *testing.T, p *provider, now map[string]shard.Provider) *world {
	t.Helper()
	return run(t, p, func(c *shard.Config) {
		c.Providers = func() map[string]shard.Provider { return maps.Clone(now) }
	})
}

// A shard without a provider knows nothing of who has what: it takes no demand, and acts from the
// cycle on in which it has one.
func TestNoProviderYet(t *testing.T) {
	p := newProvider().with(3, scheduler.Idle, "", 0)
	now := map[string]shard.Provider{}
	w := changing(t, p, now)
	roll := scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1}}
	for range 2 {
		w.step()
		if _, err := w.Report(roll); !errors.Is(err, scheduler.ErrUnready) {
			t.Errorf("without a provider a roll-up is taken: %v", err)
		}
	}
	now["p"] = p.as(1)
	w.step()
	w.report("red", 5, 2)
	if w.step(); p.count(scheduler.Configured, "red") != 2 {
		t.Errorf("with a provider: %q", p.calls())
	}
}

// A start waits for each provider that is there then, whichever others answered and went.
func TestStartWaitsForEach(t *testing.T) {
	p, q := newProvider().with(1, scheduler.Idle, "", 0), newProvider().with(1, scheduler.Idle, "", 0)
	silent := newProvider()
	silent.listing = func(l scheduler.Listing) (scheduler.Listing, error) { return l, errors.New("no") }
	now := map[string]shard.Provider{"p": p.as(1), "q": q.as(1), "silent": silent.as(1)}
	w := changing(t, p, now)
	w.step()
	delete(now, "q")
	w.step()
	roll := scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1}}
	if _, err := w.Report(roll); !errors.Is(err, scheduler.ErrUnready) {
		t.Errorf("a provider was never listed, and a roll-up is taken: %v", err)
	}
	silent.listing = nil
	w.step()
	w.report("red", 5, 1)
}

// A roll-up that comes in the middle of the first cycle is not taken: what works for its tenant is
// not counted yet, so that one which drops all of it would look like any other.
func TestRollUpInTheFirstCycle(t *testing.T) {
	p := newProvider()
	for i := range 20 {
		p.set(scheduler.Machine{MachineKey: scheduler.MachineKey{ID: fmt.Sprint("m", i)}, Profile: "small", State: scheduler.Configured,
			Tenant: "red", Domain: "eu", Priority: 5})
	}
	var w *world
	var once sync.Once
	var outcome scheduler.Outcome
	var err error
	w = run(t, p, func(c *shard.Config) {
		c.Owns = func(string, string) bool {
			once.Do(func() {
				done := make(chan struct{})
				go func() { // as a session does
					defer close(done)
					outcome, err = w.Report(scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1}})
				}()
				<-done
			})
			return true
		}
	})
	w.step()
	if !errors.Is(err, scheduler.ErrUnready) {
		t.Errorf("in the middle of the first cycle it is %q: %v", outcome, err)
	}
	w.key.Number = 1
	if out := w.report("red", 5, 0); out == scheduler.Taken {
		t.Error("after it a roll-up that drops everything is taken")
	}
}

// A provider that is added later is acted at, and one that does not answer yet holds up nobody: a
// shard that knows who has what does not lose that by a provider more.
func TestProviderIsAdded(t *testing.T) {
	p, q := newProvider().with(2, scheduler.Idle, "", 0), newProvider().with(2, scheduler.Idle, "", 0)
	now := map[string]shard.Provider{"p": p.as(1)}
	w := changing(t, p, now)
	w.step()
	w.report("red", 5, 1)
	w.step()
	now["q"] = q.as(1)
	q.listing = func(l scheduler.Listing) (scheduler.Listing, error) { return l, errors.New("not yet") }
	w.report("red", 5, 2)
	if r := w.step(); r.Providers["q"] == nil || p.count(scheduler.Configured, "red") != 2 {
		t.Errorf("%v, %q", r.Providers, p.calls())
	}
	w.report("red", 5, 4)
	q.listing = nil
	w.step()
	q.tick()
	if q.count(scheduler.Configured, "red") != 2 {
		t.Errorf("the provider that was added: %q", q.calls())
	}
}

// The machines of a provider that is taken away are not counted any more, and nothing is sent to
// it; its tenants are given others.
func TestProviderIsRemoved(t *testing.T) {
	p, q := newProvider().with(2, scheduler.Idle, "", 0), newProvider().with(2, scheduler.Configured, "red", 5)
	now := map[string]shard.Provider{"p": p.as(1), "q": q.as(1)}
	w := changing(t, p, now)
	w.step()
	w.report("red", 5, 2)
	if w.step(); len(p.calls())+len(q.calls()) != 0 {
		t.Fatal("the tenant has what it wants")
	}
	delete(now, "q")
	listed := q.cycles()
	w.step()
	w.step()
	if p.count(scheduler.Configured, "red") != 2 || len(q.calls()) != 0 || q.cycles() != listed {
		t.Errorf("asked of the one that stays: %q; of the one that is gone: %q", p.calls(), q.calls())
	}
	if got := w.Capacity("red"); len(got) != 1 || w.Last().Machines[scheduler.Configured] != 2 {
		t.Errorf("the tenant has %+v, %v", got, w.Last().Machines)
	}
	// When it is back it is asked for all.
	now["q"] = q.as(2)
	if w.step(); q.lists[len(q.lists)-1] != "" || w.Last().Machines[scheduler.Configured] != 4 {
		t.Errorf("back again: %q, %v", q.lists, w.Last().Machines)
	}
}

// Another provider under the name of one is asked for all machines; those that were known count
// until it answers, so that nobody is given twice what it wants.
func TestProviderIsReplaced(t *testing.T) {
	p, q := newProvider().with(2, scheduler.Configured, "red", 5), newProvider().with(5, scheduler.Idle, "", 0)
	now := map[string]shard.Provider{"p": p.as(1), "q": q.as(1)}
	w := changing(t, p, now)
	w.step()
	w.report("red", 5, 2)
	w.step()
	now["p"] = p.as(2)
	p.listing = func(l scheduler.Listing) (scheduler.Listing, error) { return l, execute.ErrUnavailable }
	if r := w.step(); r.Machines[scheduler.Configured] != 2 || len(q.calls()) != 0 {
		t.Errorf("while it is silent: %v, %q", r.Machines, q.calls())
	}
	p.listing = nil
	if w.step(); p.lists[len(p.lists)-1] != "" || len(q.calls()) != 0 {
		t.Errorf("it is asked for what changed since %q", p.lists[len(p.lists)-1])
	}
	if w.step(); p.lists[len(p.lists)-1] == "" {
		t.Error("it is asked for all again")
	}
}
