package scheduler

// BlastPercent is how much of what a tenant has configured may be reclaimed in one cycle;
// one machine may in any case.
const BlastPercent = 5

// Rails say which of them hold. The zero value holds nothing back; [Default] is what a
// program runs with.
type Rails struct {
	// BlastRadius bounds in each cycle what is reclaimed of one tenant, and what is released
	// of all idle machines, to [BlastPercent]. The rest waits for the next cycle, in
	// the order in which it was decided. Preemption by priority is not bounded.
	BlastRadius bool

	// FirstReport reclaims nothing of a tenant that did not report since the process started,
	// and releases nothing while there is such a tenant.
	FirstReport bool

	// FirstListing gives, makes and preempts nothing while a provider was not listed since the
	// process started: the tenants may have there what they seem to lack.
	FirstListing bool

	// Quarantine holds demand, and listings, that drop almost everything: see package
	// quarantine. It holds before the decision; [DemandOptions] take it.
	Quarantine bool

	// Paused executes nothing at all: the kill switch. Everything else goes on, so that it
	// shows what would be done.
	Paused bool
}

// Default returns the rails of a program: all, and not paused.
func Default() Rails {
	return Rails{BlastRadius: true, FirstReport: true, FirstListing: true, Quarantine: true}
}

// Verdict is what the rails say of an action.
type Verdict string

// The verdicts.
const (
	Execute    Verdict = "execute"
	Capped     Verdict = "capped"     // the next cycle comes to it
	Suppressed Verdict = "suppressed" // it waits until its reason is gone
	Noticed    Verdict = "noticed"    // its tenant was told, and has time: see [Board]
)

// Reason says which rail held an action back.
type Reason string

// The reasons.
const (
	BlastRadius  Reason = "blast-radius"
	FirstReport  Reason = "first-report"
	FirstListing Reason = "first-listing"
	Paused       Reason = "paused"
	Grace        Reason = "grace" // of Noticed
)

// Ruling is what the rails say of one action.
type Ruling struct {
	Action  Action
	Verdict Verdict
	Reason  Reason // "" of Execute
	// Would is the verdict that an action would have if nothing were paused.
	Would Verdict
}

// Facts are what the rails go by.
type Facts struct {
	// Configured is how many machines of each tenant are configured.
	Configured map[string]int
	// Idle is how many machines are idle.
	Idle int
	// Reported are the tenants that reported since the process started.
	Reported map[string]bool
	// Unreported is set while a tenant that has machines did not report.
	Unreported bool
	// Unlisted is set until all providers were listed since the process started.
	Unlisted bool
}

// Rule says of each action whether it is executed, in the order of the actions.
func (r Rails) Rule(actions []Action, facts Facts) []Ruling {
	out := make([]Ruling, 0, len(actions))
	reclaimed, released := make(map[string]int), 0
	for _, a := range actions {
		verdict, reason := r.hold(a, facts)
		if verdict == Execute && r.BlastRadius {
			switch a.Kind {
			case Reclaim:
				if reclaimed[a.Tenant] >= Radius(facts.Configured[a.Tenant]) {
					verdict, reason = Capped, BlastRadius
				} else {
					reclaimed[a.Tenant]++
				}
			case Release:
				if released >= Radius(facts.Idle) {
					verdict, reason = Capped, BlastRadius
				} else {
					released++
				}
			}
		}
		ruling := Ruling{Action: a, Verdict: verdict, Reason: reason, Would: verdict}
		if r.Paused {
			ruling.Verdict, ruling.Reason = Suppressed, Paused
		}
		out = append(out, ruling)
	}
	return out
}

// hold says whether an action has to wait, for whatever reason but its number.
func (r Rails) hold(a Action, facts Facts) (Verdict, Reason) {
	switch a.Kind {
	case Reclaim:
		if r.FirstReport && !facts.Reported[a.Tenant] {
			return Suppressed, FirstReport
		}
	case Release:
		if r.FirstReport && facts.Unreported {
			return Suppressed, FirstReport
		}
	case Assign, Create, Preempt:
		if r.FirstListing && facts.Unlisted {
			return Suppressed, FirstListing
		}
		// A machine that another tenant gets is as much a loss.
		if a.Kind == Preempt && r.FirstReport && !facts.Reported[a.Tenant] {
			return Suppressed, FirstReport
		}
	}
	return Execute, ""
}

// Radius is how many of n machines may go in one cycle: max(1, ⌊5% × n⌋).
func Radius(n int) int { return max(1, n/100*BlastPercent+n%100*BlastPercent/100) }
