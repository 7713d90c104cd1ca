package shard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/shard"
	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
	"github.com/fealty-io/fealty/test/testlane"
)

// From nothing to what is wanted, and to what is wanted then; each step is in the journal.
func TestDemandBecomesMachines(t *testing.T) {
	p := newProvider().with(6, scheduler.Speculative, "", 0)
	w := run(t, p, func(c *shard.Config) { c.Policy.Release = true })
	w.step()
	w.report("red", 5, 4)
	for range 2 {
		w.step()
	}
	if got := p.count(scheduler.Configured, "red"); got != 4 {
		t.Fatalf("red has %d", got)
	}
	w.report("red", 5, 1)
	for range 8 {
		w.step()
	}
	if red, made := p.count(scheduler.Configured, "red"), p.count(scheduler.Speculative, ""); red != 1 || made != 5 {
		t.Fatalf("red has %d, and %d are given back", red, made)
	}
	before := p.calls()
	if r := w.step(); len(r.Rulings) != 0 || len(p.calls()) != 0 {
		t.Errorf("demand is met, and there is more to do: %+v", r.Rulings)
	}
	if len(before) != 4+4+3+3 {
		t.Errorf("asked for %q", before)
	}
	said := w.said()
	for name, want := range map[string]int{"create begun": 4, "create executed": 4, "assign begun": 4,
		"assign executed": 4,
		"reclaim begun":   3, "reclaim executed": 3, "reclaim capped blast-radius": 2, "release executed": 3} {
		if said[name] != want {
			t.Errorf("the journal has %d of %q, want %d", said[name], name, want)
		}
	}
}

// A tenant whose operator says that it wants nothing loses nothing before it said so three
// times, and 5% in a cycle then.
func TestWipe(t *testing.T) {
	p := newProvider().with(1000, scheduler.Configured, "red", 5)
	w := run(t, p, nil)
	w.step()
	if got := w.report("red", 5, 1000); got != scheduler.Taken {
		t.Fatal(got)
	}
	w.step()
	for i := range 2 {
		if got := w.report("red", 0, 0); got != scheduler.Held {
			t.Fatal(got)
		}
		w.step()
		if got := p.calls(); len(got) != 0 {
			t.Fatalf("after %d roll-ups: %q", i+1, got)
		}
	}
	if got := w.report("red", 0, 0); got != scheduler.Taken {
		t.Fatal(got)
	}
	for left := 1000; left > 100; {
		w.step()
		lost := left - p.count(scheduler.Configured, "red")
		if most := max(1, left*5/100); lost > most || lost == 0 {
			t.Fatalf("of %d %d are lost in a cycle, want %d", left, lost, most)
		}
		left -= lost
	}
	// The operator is itself again: what is left stays, and the rest comes back.
	w.report("red", 5, 1000)
	for range 3 {
		w.step()
	}
	if got := p.count(scheduler.Configured, "red"); got != 1000 {
		t.Errorf("red has %d again", got)
	}
}

// Three empty roll-ups are three, whenever in a cycle each comes, if the next one comes after [shard.Shard.Changed]
// said that the cycle was over.
func TestWipeWhileCyclesEnd(t *testing.T) {
	w := run(t, newProvider(), nil)
	w.step()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := w.Step(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for range testlane.Rounds(300, 5000) {
		if got := w.report("red", 5, 10); got != scheduler.Taken {
			t.Errorf("ten are wanted: %v", got)
		}
		for _, want := range []scheduler.Outcome{scheduler.Held, scheduler.Held, scheduler.Taken} {
			<-w.Changed()
			if got := w.report("red", 0, 0); got != want {
				t.Errorf("nothing is wanted: %v, want %v", got, want)
			}
		}
		<-w.Changed()
	}
	close(stop)
	<-stopped
}

// The same at the start of the process, which remembers no roll-up: what is there is what
// an empty one is held against.
func TestWipeAfterAStart(t *testing.T) {
	p := newProvider().with(1000, scheduler.Configured, "red", 5)
	w := run(t, p, nil)
	if _, err := w.Report(scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1}}); !errors.Is(err,
		scheduler.ErrUnready) {
		t.Errorf("before anybody knows what there is: %v", err)
	}
	w.step()
	for _, want := range []scheduler.Outcome{scheduler.Held, scheduler.Held, scheduler.Taken} {
		w.step()
		if got := p.count(scheduler.Configured, "red"); got != 1000 {
			t.Fatalf("red has %d", got)
		}
		if got := w.report("red", 0, 0); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	w.step()
	if got := p.count(scheduler.Configured, "red"); got != 950 {
		t.Errorf("red has %d", got)
	}
}

// When paused a shard shows what it would do, and does nothing; the switch needs nobody.
func TestPaused(t *testing.T) {
	p := newProvider().with(100, scheduler.Configured, "red", 5).with(1, scheduler.Idle, "", 0)
	w := run(t, p, func(c *shard.Config) { c.Rails.Paused = true })
	w.step()
	w.report("blue", 5, 1)
	for range 3 {
		w.step()
		w.report("red", 0, 0)
	}
	r := w.step()
	would := make(map[scheduler.Verdict]int)
	for _, ruling := range r.Rulings {
		would[ruling.Would]++
	}
	if !r.Paused || r.Ruled(scheduler.Suppressed) != 101 || would[scheduler.Execute] != 6 || would[scheduler.Capped] != 95 ||
		len(r.Results) != 0 || len(p.calls()) != 0 {
		t.Errorf("%d are suppressed, would be %v; %q", r.Ruled(scheduler.Suppressed), would, p.calls())
	}
	w.Pause(false)
	if r = w.step(); r.Executed(execute.Executed) != 6 {
		t.Errorf("when it goes on: %+v", r.Results)
	}
	w.Pause(true)
	p.calls()
	if w.step(); len(p.calls()) != 0 {
		t.Error("paused again, and it goes on")
	}
}

// Silence is no demand for nothing: who did not report since the start loses nothing, to
// nobody.
func TestSilentTenant(t *testing.T) {
	p := newProvider().with(1000, scheduler.Configured, "red", 0)
	w := run(t, p, nil)
	w.step()
	w.report("blue", 9, 1000)
	for range 20 {
		w.step()
	}
	if got := p.calls(); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if said := w.said(); said["reclaim suppressed first-report"] != 1000 || len(said) != 1 {
		t.Errorf("the journal says %v", said)
	}
}

// A provider that does not answer, or with nonsense, is left alone, and others go on.
func TestProviderThatDoesNotAnswer(t *testing.T) {
	for name, answer := range map[string]func(scheduler.Listing) (scheduler.Listing, error){
		"an error": func(l scheduler.Listing) (scheduler.Listing, error) { return l, errors.New("no") },
		"a broken one": func(l scheduler.Listing) (scheduler.Listing, error) {
			l.Machines[0].State = "?"
			l.Full = true
			return l, nil
		},
		"an empty one": func(l scheduler.Listing) (scheduler.Listing, error) {
			return scheduler.Listing{Full: true},
				nil
		},
		"of another name": func(l scheduler.Listing) (scheduler.Listing,
			error) {
			l.Machines[0].Provider = "x"
			return l, nil
		},
	} {
		p, q := newProvider().with(20, scheduler.Configured, "red", 5), newProvider().with(20, scheduler.Idle, "", 0)
		w := run(t, p, func(c *shard.Config) { c.Providers = both(c, "q", q.as(1)) })
		w.step()
		w.report("red", 5, 20)
		w.step()
		p.set(p.machines["m0"])
		p.listing = answer
		check := func() {
			t.Helper()
			if r := w.step(); len(r.Providers) != 1 || r.Providers["p"] == nil ||
				r.Machines[scheduler.Configured] < 20 || len(p.calls()) != 0 {
				t.Errorf("%s: %v, %v", name, r.Providers, r.Machines)
			}
			q.tick()
		}
		w.report("red", 5, 22)
		if check(); q.count(scheduler.Configured, "red") != 2 {
			t.Errorf("%s: red has %d of the other", name, q.count(scheduler.Configured, "red"))
		}
		w.report("red", 5, 10)
		check()
		p.listing = nil
		if w.step().Executed(execute.Executed) != 1 || p.lists[p.cycles()-1] != "" && name != "an error" {
			t.Errorf("%s: it answers again, after %q: %q", name, p.lists, p.calls())
		}
	}
}

// Nothing is given while a provider was never seen: the tenants may have there what they
// seem to lack.
func TestProviderThatWasNeverSeen(t *testing.T) {
	p, q := newProvider().with(20, scheduler.Configured, "red", 5), newProvider().with(20, scheduler.Idle, "", 0)
	w := run(t, p, func(c *shard.Config) { c.Providers = both(c, "q", q.as(1)) })
	p.listing = func(l scheduler.Listing) (scheduler.Listing, error) { return l, errors.New("no") }
	w.step()
	if _, err := w.Report(scheduler.RollUp{Tenant: "red", Key: scheduler.DemandKey{Run: 1, Number: 1}}); !errors.Is(err,
		scheduler.ErrUnready) {
		t.Errorf("%v", err)
	}
	p.listing = nil
	w.step()
	w.report("red", 5, 20)
	if w.step(); len(q.calls()) != 0 {
		t.Error("red has twice what it wants")
	}
}

// An action that may have been done counts as done: nobody gets two machines for one, and no quota is
// passed.
func TestAnswerIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(5, scheduler.Idle, "", 0)
		w := run(t, p, nil)
		w.step()
		w.report("red", 5, 1)
		p.lost = func(string, execute.Order) error { return execute.ErrUnavailable }
		stale := scheduler.Listing{Revision: "x"} // and the listing does not show it yet
		r := w.step()
		p.listing = func(scheduler.Listing) (scheduler.Listing, error) { return stale, nil }
		if r.Executed(execute.Unavailable) != 1 || len(p.calls()) != 1 {
			t.Fatalf("%+v", r.Results)
		}
		if r = w.step(); len(r.Rulings) != 0 {
			t.Errorf("another one is given: %+v", r.Rulings)
		}
		p.listing, p.lost = nil, nil
		time.Sleep(time.Minute)
		if w.step(); p.count(scheduler.Configured, "red") != 1 || len(p.calls()) != 0 {
			t.Errorf("red has %d", p.count(scheduler.Configured, "red"))
		}
	})
}

// An action that was refused is tried again in later cycles, and less and less often; another machine
// takes its place meanwhile.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(1, scheduler.Idle, "", 0)
		w := run(t, p, nil)
		w.step()
		w.report("red", 5, 1)
		p.answering = func(string, execute.Order) error { return execute.ErrRejected }
		tries := 0
		for range 20 {
			w.step()
			tries += len(p.calls())
			time.Sleep(time.Second)
		}
		if tries != 5 { // at 0, 1, 3, 7 and 15 s
			t.Errorf("%d tries in 20 s", tries)
		}
		p.with(1, scheduler.Idle, "", 0)
		p.answering = nil
		if w.step(); !slices.Equal(p.calls(), []string{"configure m1"}) {
			t.Error("no other machine takes its place")
		}
		// One that went and came back is another one.
		p.listing = func(l scheduler.Listing) (scheduler.Listing, error) {
			l.Removed = []string{"m0"}
			return l, nil
		}
		w.step()
		p.listing = nil
		p.set(p.machines["m0"])
		w.report("red", 5, 2)
		if w.step(); !slices.Equal(p.calls(), []string{"configure m0"}) {
			t.Error("a machine that is new is left alone")
		}
	})
}

// Nothing is done that is not written down, and what was done is written down first.
func TestJournalFails(t *testing.T) {
	p := newProvider().with(2, scheduler.Idle, "", 0)
	w := run(t, p, nil)
	w.step()
	w.report("red", 5, 1)
	w.disk.Refuse(syscall.ENOSPC)
	if _, err := w.Step(t.Context()); !errors.Is(err, syscall.ENOSPC) || len(p.calls()) != 0 {
		t.Errorf("%v, %q", err, p.calls())
	}
	w.disk.Refuse(nil)
	p.answering = func(string, execute.Order) error { w.disk.Refuse(syscall.ENOSPC); return nil }
	if _, err := w.Step(t.Context()); !errors.Is(err, syscall.ENOSPC) || len(p.calls()) != 1 {
		t.Errorf("%v", err)
	}
	w.report("red", 5, 2)
	p.answering = nil
	if _, err := w.Step(t.Context()); !errors.Is(err, syscall.ENOSPC) || len(p.calls()) != 0 {
		t.Errorf("%v", err)
	}
	w.disk.Refuse(nil)
	w.step()
	if said := w.said(); said["assign begun"] != 2 || said["assign executed"] != 2 {
		t.Errorf("the journal says %v", said)
	}
}

// half is a journal that has room for so many entries.
type half struct {
	*execute.Journal
	room int
}

func (h *half) Append(all []execute.Entry) (int, error) {
	n := min(len(all), h.room)
	h.room -= n
	if written, err := h.Journal.Append(all[:n]); err != nil || n == len(all) {
		return written, err
	}
	return n, syscall.ENOSPC
}

// The journal may take any part of a cycle: an action that it says has begun has one outcome.
func TestJournalTakesAPart(t *testing.T) {
	for room := range 9 {
		p := newProvider().with(4, scheduler.Idle, "", 0)
		var h *half
		w := run(t, p, func(c *shard.Config) {
			h = &half{c.Journal.(*execute.Journal), 1000}
			c.Journal = h
		})
		w.step()
		w.report("red", 5, 4)
		h.room = room
		_, err := w.Step(t.Context())
		if done := len(p.calls()); errors.Is(err, syscall.ENOSPC) != (room < 8) || (done > 0) != (room >= 4) {
			t.Errorf("with room for %d: %d calls, %v", room, done, err)
		}
		h.room = 1000
		p.tick()
		w.step()
		w.step()
		said := w.said()
		if begun := said["assign begun"]; said["assign executed"] != 4 || said["assign executed"]+said["assign put-off"] != begun {
			t.Errorf("with room for %d: %v", room, said)
		}
	}
}

// A shard that was fenced does nothing any more, says so, and stays.
func TestFenced(t *testing.T) {
	p := newProvider().with(50, scheduler.Idle, "", 0)
	zombie := run(t, p, func(c *shard.Config) { c.Concurrency = 1 })
	zombie.step()
	zombie.report("red", 5, 40)
	successor := run(t, p, func(c *shard.Config) { c.Providers = both(c, "p", p.as(2)) })
	successor.step()
	successor.report("red", 5, 1)
	successor.step()
	p.calls()
	r, err := zombie.Step(t.Context())
	if !errors.Is(err, fence.ErrEnded) || r.Executed(execute.Fenced) != 1 || r.Executed(execute.PutOff) != 38 {
		t.Errorf("%v: %d fenced, %d put off", err, r.Executed(execute.Fenced), r.Executed(execute.PutOff))
	}
	lists := p.cycles()
	if _, err = zombie.Step(t.Context()); !errors.Is(err, fence.ErrEnded) || len(p.calls()) != 0 ||
		p.cycles() != lists {
		t.Errorf("%v", err)
	}
	select {
	case <-zombie.Fenced():
	default:
		t.Error("nobody is told")
	}
	if said := zombie.said(); said["assign fenced"] != 1 {
		t.Errorf("the journal says %v", said)
	}
	if r := successor.step(); r.Executed(execute.Fenced) != 0 {
		t.Error("the successor is fenced")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := zombie.Run(ctx); !errors.Is(err, fence.ErrEnded) {
		t.Errorf("Run: %v", err)
	}
}

// Quotas are asked for in each cycle.
func TestQuotas(t *testing.T) {
	p := newProvider().with(9, scheduler.Idle, "", 0)
	quota := 2
	w := run(t, p, func(c *shard.Config) {
		c.Quotas = func() map[scheduler.Quota]int {
			return map[scheduler.Quota]int{{Tenant: "red", Profile: "small"}: quota}
		}
	})
	w.step()
	w.report("red", 5, 9)
	for _, quota = range []int{2, 5, 4} {
		for range 3 {
			w.step()
		}
		if got := p.count(scheduler.Configured, "red"); got != quota {
			t.Errorf("red has %d of %d", got, quota)
		}
	}
}

// A quota of a profile that no provider has is told once, with those there are, and again only after it was mended.
func TestQuotaOfAnUnknownProfile(t *testing.T) {
	p := newProvider().with(2, scheduler.Idle, "", 0)
	var log strings.Builder
	profile := "smal"
	w := run(t, p, func(c *shard.Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Quotas = func() map[scheduler.Quota]int {
			return map[scheduler.Quota]int{{Tenant: "red", Profile: profile}: 2, {Tenant: "blue", Profile: profile}: 1}
		}
	})
	for i, row := range []struct {
		profile string
		told    int
	}{{"smal", 1}, {"smal", 1}, {"small", 1}, {"smal", 2}} {
		profile = row.profile
		w.step()
		if got := strings.Count(log.String(), "profile=smal known=small"); got != row.told {
			t.Errorf("cycle %d, of %s: told %d times, want %d:\n%s", i, row.profile, got, row.told, log.String())
		}
	}
}

// A domain that moved on is left alone.
func TestMovedDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(4, scheduler.Idle, "", 0)
		for id, m := range p.machines {
			m.Domain = "d-" + id
			p.set(m)
		}
		w := run(t, p, nil)
		w.step()
		p.answering = func(_ string, o execute.Order) error {
			if o.Domain == "d-m0" {
				return &fence.RefusedError{Reason: fence.ReasonMoved}
			}
			return nil
		}
		w.report("red", 5, 2)
		if r := w.step(); r.Executed(execute.Moved) != 1 || r.Executed(execute.Executed) != 1 {
			t.Errorf("%+v", r.Results)
		}
		p.calls()
		if w.step(); !slices.Equal(p.calls(), []string{"configure m2"}) {
			t.Error("another machine takes its place")
		}
		p.answering = nil
		w.Own("d-m0")
		time.Sleep(time.Second) // until it is not left alone any more after a call that failed
		w.report("red", 5, 3)
		if w.step(); !slices.Equal(p.calls(), []string{"configure m0"}) {
			t.Error("it is owned again, and left alone")
		}
	})
}

// A shard acts on machines of domains that it owns at their provider, and of none. A machine that a
// tenant has elsewhere counts, and stays.
func TestDomainsOfOthers(t *testing.T) {
	p := newProvider().with(2, scheduler.Idle, "", 0).with(2, scheduler.Configured, "red", 5).with(2, scheduler.Idle, "", 0)
	for id, m := range p.machines {
		if id == "m0" || id == "m2" {
			m.Domain = "theirs"
		} else if id != "m5" {
			m.Domain = "ours"
		}
		p.set(m)
	}
	asked := make(map[string]bool)
	owned := map[string]bool{"ours": true}
	w := run(t, p, func(c *shard.Config) {
		c.Owns = func(provider, domain string) bool { asked[provider+"/"+domain] = true; return owned[domain] }
	})
	w.step()
	w.report("red", 5, 5)
	w.step()
	if calls := p.calls(); !slices.Equal(slices.Sorted(slices.Values(calls)),
		[]string{"configure m1", "configure m4", "configure m5"}) {
		t.Errorf("the first demand: %q, %v", calls, asked)
	}
	for range 4 {
		p.tick()
		w.report("red", 5, 1)
		w.step()
	}
	if got := p.calls(); slices.Contains(got, "drain m2") || len(got) == 0 {
		t.Errorf("when less is wanted it asks for %q", got)
	}
	owned["ours"] = false
	w.report("red", 9, 5)
	for range 3 {
		p.tick()
		w.step()
	}
	p.calls()
	if w.step(); slices.ContainsFunc(p.calls(), func(c string) bool { return !strings.HasSuffix(c, " m5") }) {
		t.Error("a domain that was let go is acted upon")
	}
	if len(asked) != 2 {
		t.Errorf("it asked about %v", asked)
	}
}

// Run does a cycle each second, goes on after one that failed, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(1, scheduler.Idle, "", 0)
		w := run(t, p, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		time.Sleep(2500 * time.Millisecond)
		if p.cycles() != 3 {
			t.Errorf("%d cycles in 2.5 s", p.cycles())
		}
		w.disk.Refuse(syscall.EIO)
		w.report("red", 5, 1)
		time.Sleep(2 * time.Second)
		w.disk.Refuse(nil)
		time.Sleep(time.Second)
		if got := p.calls(); !slices.Equal(got, []string{"configure m0"}) || p.cycles() != 6 {
			t.Errorf("%q after %d cycles", got, p.cycles())
		}
		if last := w.Last(); last.Machines[scheduler.Idle] != 1 || last.Executed(execute.Executed) != 1 {
			t.Errorf("the last one: %+v", last)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A tenant is told of what it loses, and has its time, or lets it go; what it wants again
// stays.
func TestNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProvider().with(40, scheduler.Configured, "red", 5)
		w := run(t, p, func(c *shard.Config) { c.Grace = 10 * time.Second })
		w.step()
		w.report("red", 5, 38)
		changed := w.Changed()
		if r := w.step(); r.Ruled(scheduler.Noticed) != 2 || len(w.Notices("red")) != 2 || len(p.calls()) != 0 {
			t.Errorf("%+v", r.Rulings)
		}
		<-changed
		first := w.Notices("red")[0].Machine
		if w.Release("blue", first) || !w.Release("red", first) {
			t.Error("another tenant lets it go")
		}
		if w.step(); !slices.Equal(p.calls(), []string{"drain " + first.ID}) {
			t.Error("it is let go, and stays")
		}
		time.Sleep(10 * time.Second)
		if w.step(); len(p.calls()) != 1 || p.count(scheduler.Configured, "red") != 38 {
			t.Error("its time is over, and it stays")
		}
		w.report("red", 5, 37)
		w.step()
		w.report("red", 5, 38)
		time.Sleep(10 * time.Second)
		if w.step(); len(w.Notices("red")) != 0 || len(p.calls()) != 0 {
			t.Error("it is wanted again, and goes")
		}
		if said := w.said(); said["reclaim noticed grace"] != 3 || said["reclaim executed"] != 2 {
			t.Errorf("the journal says %v", said)
		}
	})
}

func TestConfig(t *testing.T) {
	good := func() shard.Config {
		return shard.Config{Providers: only(newProvider().as(1)), Journal: &execute.Journal{}}
	}
	if _, err := shard.New(good()); err != nil {
		t.Error(err)
	}
	for i, edit := range []func(*shard.Config){
		func(c *shard.Config) { c.Providers = nil },
		func(c *shard.Config) { c.Journal = nil },
		func(c *shard.Config) { c.Every = -1 },
		func(c *shard.Config) { c.Grace = -1 },
		func(c *shard.Config) { c.Concurrency = -1 },
	} {
		cfg := good()
		edit(&cfg)
		if _, err := shard.New(cfg); err == nil {
			t.Errorf("%d: it was taken", i)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newProvider().with(n, scheduler.Configured, "red", 5)
			w := run(b, p, nil)
			w.step()
			w.report("red", 5, n)
			for b.Loop() {
				w.step()
			}
		})
	}
}
