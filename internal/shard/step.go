package shard

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/shard/execute"
	"github.com/fealty-io/fealty/internal/shard/scheduler"
)

// Step is one cycle. The report says what happened as far as it went.
//
// Errors: that of the journal, and nothing was executed that is not in it; what fenced the
// process, in this cycle or before: it does nothing any more.
func (s *Shard) Step(ctx context.Context) (report Report, err error) {
	if err := s.pool.Err(); err != nil {
		return Report{}, err
	}
	report = Report{At: s.cfg.Now(), Paused: s.paused.Load()}
	defer func() {
		report.Took, report.Problem = max(0, s.cfg.Now().Sub(report.At)), err
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case !report.Paused:
			s.pausedAt = time.Time{}
		case s.pausedAt.IsZero():
			s.pausedAt = report.At
		}
		s.book.Cycle() // with the lock, as [Shard.Changed] promises
		s.last = report
		close(s.changed)
		s.changed = make(chan struct{})
	}()
	s.follow()
	s.list(ctx, &report)
	in, facts := s.look(&report)
	held := s.cfg.Rails
	held.Paused = report.Paused
	report.Rulings = held.Rule(scheduler.Decide(in), facts)
	s.notify(&report)

	// The last outcomes are in the journal before anything more is done.
	if err := s.pay(); err != nil {
		return report, fmt.Errorf("shard: what the last cycle did could not be written down, and nothing is done "+
			"before that: %w", err)
	}
	var actions []scheduler.Action
	entries := make([]execute.Entry, 0, len(report.Rulings))
	for _, r := range report.Rulings {
		e := entryOf(r.Action)
		if e.Outcome, e.Reason = string(r.Verdict), string(r.Reason); r.Verdict == scheduler.Execute {
			actions = append(actions, r.Action)
			e.Outcome = execute.Begun
		}
		entries = append(entries, e)
	}
	entries = s.cfg.Journal.Cycle(entries)
	if written, err := s.cfg.Journal.Append(entries); err != nil {
		// Those entries say that something is about to be done, and it is not.
		for _, e := range entries[:written] {
			if e.Outcome == execute.Begun {
				e.Outcome = string(execute.PutOff)
				s.owed = append(s.owed, e)
			}
		}
		return report, fmt.Errorf("shard: what was decided could not be written down, and nothing of it was done: %w",
			err)
	}
	report.Results = s.pool.Execute(ctx, actions)
	for _, r := range report.Results {
		e := entryOf(r.Action)
		e.Outcome = string(r.Outcome)
		if r.Err != nil {
			e.Error = r.Err.Error()
		}
		s.owed = append(s.owed, e)
	}
	s.tell(ctx, &report)
	if err := s.pay(); err != nil {
		return report, fmt.Errorf("shard: what was done could not be written down: the next cycle does it first: %w",
			err)
	}
	return report, s.pool.Err()
}

// pay writes down the outcomes that the journal does not have yet.
func (s *Shard) pay() error {
	written, err := s.cfg.Journal.Append(s.owed)
	if s.owed = s.owed[written:]; len(s.owed) == 0 {
		s.owed = nil
	}
	return err
}

func entryOf(a scheduler.Action) execute.Entry {
	return execute.Entry{Kind: string(a.Kind), Machine: a.Machine.String(), Tenant: a.Tenant, For: a.For,
		Profile: a.Profile,
		Domain:  a.Domain, Priority: a.Priority, Operation: a.Operation}
}

// notify tells tenants of machines that they are about to lose, and keeps back what they
// have time for.
func (s *Shard) notify(report *Report) {
	var execute []scheduler.Action
	var places []int
	for i, r := range report.Rulings {
		if r.Verdict == scheduler.Execute {
			execute, places = append(execute, r.Action), append(places, i)
		}
	}
	for i, due := range s.notices.Due(execute, report.At) {
		if !due {
			r := &report.Rulings[places[i]]
			r.Verdict, r.Reason = scheduler.Noticed, scheduler.Grace
		}
	}
}

// follow takes the providers that there are now. One that is not among them any more is forgotten,
// with its machines.
func (s *Shard) follow() {
	next := maps.Clone(s.cfg.Providers())
	if maps.Equal(next, s.providers) {
		return
	}
	s.inventory.Retain(func(name string) bool { return next[name] != nil })
	for name := range s.listed {
		if next[name] == nil {
			delete(s.listed, name)
		}
	}
	for name, p := range next {
		if was := s.providers[name]; was != nil && was != p {
			s.inventory.Relist(name)
		}
	}
	use := make(map[string]execute.Provider, len(next))
	for name, p := range next {
		use[name] = p
	}
	s.pool.Use(use)
	s.providers = next
}

// list has all providers list their machines, at once.
func (s *Shard) list(ctx context.Context, report *Report) {
	type answer struct {
		name    string
		listing scheduler.Listing
		err     error
	}
	answers := make(chan answer, len(s.providers))
	var asking sync.WaitGroup
	for name, p := range s.providers {
		since := s.inventory.Revision(name)
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			l, err := p.List(ctx, since)
			answers <- answer{name, l, err}
		})
	}
	asking.Wait()
	close(answers)
	s.inventory.Begin()
	report.Providers = make(map[string]error)
	for a := range answers {
		if a.err == nil {
			_, a.err = s.inventory.Reconcile(a.name, a.listing)
		}
		if a.err != nil {
			report.Providers[a.name] = a.err
			s.cfg.Log.WarnContext(ctx, "a provider's machines are left alone in this cycle", "provider", a.name, "err",
				a.err)
			continue
		}
		s.listed[a.name] = true
	}
	s.pool.Retain(func(k scheduler.MachineKey) bool { return s.inventory.Get(k) != nil })
}

// look puts together what is decided about, and what the rails go by.
func (s *Shard) look(report *Report) (scheduler.Input, scheduler.Facts) {
	in := scheduler.Input{Machines: make([]*scheduler.Machine, 0, s.inventory.Len()), Demand: s.book.Rows(),
		Held: make(map[scheduler.MachineKey]struct{}), Silent: s.inventory.Silent(), Policy: s.cfg.Policy}
	if s.cfg.Quotas != nil {
		in.Quotas = s.cfg.Quotas()
	}
	// One that comes later holds up nobody: what it has was not counted before either.
	ready := s.complete || len(s.providers) > 0 && len(s.listed) == len(s.providers)
	s.complete = ready
	facts := scheduler.Facts{Configured: make(map[string]int), Reported: make(map[string]bool), Unlisted: !ready}
	for tenant := range in.Demand {
		facts.Reported[tenant] = true
	}
	holds := s.pool.Holds(report.At)
	report.Machines, report.Profiles = make(map[scheduler.State]int), make(map[string]map[scheduler.State]int)
	tally := scheduler.NewTallies()
	for m := range s.inventory.All() {
		report.Machines[m.State]++
		if report.Profiles[m.Profile] == nil {
			report.Profiles[m.Profile] = make(map[scheduler.State]int)
		}
		report.Profiles[m.Profile][m.State]++
		switch m.State {
		case scheduler.Idle:
			facts.Idle++
		case scheduler.Configured:
			facts.Configured[m.Tenant]++
		}
		if m.Tenant != "" && !facts.Reported[m.Tenant] {
			facts.Unreported = true
		}
		tally.Add(m)
		hold, held := holds[m.MachineKey]
		if held || !s.owns(m) {
			in.Held[m.MachineKey] = struct{}{}
		}
		// An action that may have been done counts as done, so that nobody gets two for one.
		if held && hold.Doubt && m.State == hold.Action.Kind.From() {
			after := hold.Action.After(*m)
			m = &after
		}
		in.Machines = append(in.Machines, m)
	}
	if ready {
		s.tellUnknown(in)
	}
	tallies := tally.ByTenant()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Together: a roll-up is judged by what its tenant has.
	s.noteLocked(report.At, &in, tallies, ready)
	return in, facts
}

// tellUnknown logs profiles of quotas that no machine has, once each for as long as it is so: a quota with a
// slip in its name bounds nothing, and nobody but a shard knows which profiles there are.
func (s *Shard) tellUnknown(in scheduler.Input) {
	known := make(map[string]bool)
	for _, m := range in.Machines {
		known[m.Profile] = true
	}
	unknown := make(map[string]bool)
	for q := range in.Quotas {
		if !known[q.Profile] {
			unknown[q.Profile] = true
		}
	}
	for _, profile := range sorted(unknown) {
		if !s.unknown[profile] {
			s.cfg.Log.Warn("a quota is of a profile that no provider has machines of: it bounds nothing", "profile",
				profile, "known", strings.Join(sorted(known), " "))
		}
	}
	s.unknown = unknown
}

// tell logs what needs somebody's attention.
func (s *Shard) tell(ctx context.Context, report *Report) {
	type failed struct {
		outcome execute.Outcome
		domain  string // of Moved
	}
	first, counts := make(map[failed]execute.Result), make(map[failed]int)
	for _, r := range report.Results {
		if r.Outcome == execute.Executed || r.Outcome == execute.PutOff {
			continue
		}
		f := failed{outcome: r.Outcome}
		if r.Outcome == execute.Moved {
			f.domain = r.Action.Domain
		}
		if counts[f]++; counts[f] == 1 {
			first[f] = r
		}
	}
	for f, r := range first {
		log := s.cfg.Log.With("actions", counts[f], "first", r.Action.Machine.String(), "kind", string(r.Action.Kind),
			"err", r.Err)
		switch f.outcome {
		case execute.Fenced:
			log.ErrorContext(ctx, "this process was fenced and acts no more: look for another process with its "+
				"identity")
		case execute.Moved:
			log.ErrorContext(ctx, "a domain belongs to somebody else, and nothing is done in it any more", "domain",
				f.domain)
		default:
			log.WarnContext(ctx, "actions failed, and their machines are left alone for a while", "outcome",
				string(f.outcome))
		}
	}
	if took := s.cfg.Now().Sub(report.At); took > max(s.cfg.Every, time.Second) {
		s.cfg.Log.WarnContext(ctx, "a cycle took longer than the pause between two", "took", took, "actions",
			len(report.Results))
	}
}
