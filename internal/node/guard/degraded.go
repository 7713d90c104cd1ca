package guard

import (
	"slices"
	"time"

	"github.com/fealty-io/fealty/snapshot"
)

// These can end the time that a node works in degraded mode, beside a snapshot's scope.
const (
	LimitSVID    = "svid"
	LimitMax     = string(MaxBound)
	LimitAllowed = "degraded.allow" // the policy has no degraded mode for services

	LimitIdentity = "identity" // the node's name or key is revoked
	LimitRoles    = "roles"    // one of its roles is
)

// DegradedUntil returns until when the node works if no news come from now on, and what ends
// that first: it is when the guard begins to refuse [ContinueServices]. It is in the
// past if that has happened.
func (f Facts) DegradedUntil() (time.Time, string) {
	rule, _ := ruleOf(ContinueServices)
	end, limit := f.SVIDEnd, LimitSVID
	sooner := func(at time.Time, by string) {
		if at.Before(end) {
			end, limit = at, by
		}
	}
	if f.Withdrawn != "" {
		sooner(f.Word, f.Withdrawn)
	}
	entry := f.Word // in degraded mode already, for being behind
	if !f.Behind {
		entry = f.Entry(rule.Needs)
	}
	for _, scope := range rule.Needs {
		if s, ok := f.Active[scope]; ok {
			sooner(s.Expires, string(scope))
		} else if f.Lists[scope] {
			sooner(f.Word, string(scope)) // without it nothing is believed
		}
	}
	if !slices.Contains(f.Policy.Allow, string(rule.Policy)) {
		sooner(entry, LimitAllowed)
	} else if over := f.End(rule.Bound); over.After(entry) {
		sooner(over, LimitMax)
	} else {
		sooner(entry, LimitMax)
	}
	if !f.Until.IsZero() {
		over := f.Until
		if entry.After(over) {
			over = entry
		}
		sooner(over, string(snapshot.ScopeDegradedModePolicy))
	}
	return end, limit
}

// Entry is when what is held of scopes begins to be degraded, if no news come.
func (f Facts) Entry(scopes []snapshot.Scope) time.Time {
	var first time.Time
	for _, scope := range scopes {
		if s, ok := f.Active[scope]; ok {
			if at := s.Fresh.Add(StaleFor); first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	return first
}

// otherAction is the label of what is not in the table.
const otherAction = "other"

// LabelOf is action as a label: what somebody makes up must not become one.
func LabelOf(action Action) string {
	if _, ok := ruleOf(action); !ok {
		return otherAction
	}
	return string(action)
}
