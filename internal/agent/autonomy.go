package agent

import (
	"errors"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// What can end the time that a node works alone, beside a snapshot's scope.
const (
	limitSVID    = "svid"
	limitMax     = string(maxBound)
	limitAllowed = "degraded.allow" // the policy has no degraded mode for services

	limitIdentity = "identity" // the node's name or key is revoked
	limitRoles    = "roles"    // one of its roles is
)

// alone returns until when the node works if no news come from now on, and what ends
// that first: it is when the guard begins to refuse [ContinueServices]. It is in the
// past if that has happened.
func (f facts) alone() (time.Time, string) {
	rule, _ := ruleOf(ContinueServices)
	end, limit := f.svidEnd, limitSVID
	sooner := func(at time.Time, by string) {
		if at.Before(end) {
			end, limit = at, by
		}
	}
	if f.withdrawn != "" {
		sooner(f.word, f.withdrawn)
	}
	entry := f.word // in degraded mode already, for being behind
	if !f.behind {
		entry = f.entry(rule.needs)
	}
	for _, scope := range rule.needs {
		if s, ok := f.held[scope]; ok {
			sooner(s.expires, string(scope))
		} else if f.lists[scope] {
			sooner(f.word, string(scope)) // without it nothing is believed
		}
	}
	if !slices.Contains(f.policy.allow, string(rule.policy)) {
		sooner(entry, limitAllowed)
	} else if over := f.end(rule.bound); over.After(entry) {
		sooner(over, limitMax)
	} else {
		sooner(entry, limitMax)
	}
	if !f.until.IsZero() {
		over := f.until
		if entry.After(over) {
			over = entry
		}
		sooner(over, string(snapshot.ScopeDegradedModePolicy))
	}
	return end, limit
}

// entry is when what is held of scopes begins to be degraded, if no news come.
func (f facts) entry(scopes []snapshot.Scope) time.Time {
	var first time.Time
	for _, scope := range scopes {
		if s, ok := f.held[scope]; ok {
			if at := s.fresh.Add(staleFor); first.IsZero() || at.Before(first) {
				first = at
			}
		}
	}
	return first
}

// facts are what the guard decides by now.
func (a *Agent) facts() facts { return a.factsOf(a.beliefs.Load()) }

// factsOf are those of a node that believes b. What they come from is decisive, but for
// contact, which does not make a node degraded.
func (a *Agent) factsOf(b *beliefs) facts {
	known := a.known.Load()
	if known == nil || known.of != b {
		known = &factsOfBeliefs{b, b.facts()}
		a.known.Store(known)
	}
	svid, f := a.svid.Load(), known.facts
	leaf := svid.leaf()
	f.contact, f.behind, f.svidEnd = a.status.view().connected, *a.behind.Load(), leaf.NotAfter
	if b.contact.Banned(a.me.ID, svid.key.id) {
		f.withdrawn = limitIdentity
	}
	// Whoever certified this node was there.
	if leaf.NotBefore.After(f.word) {
		f.word = leaf.NotBefore
	}
	return f
}

// factsOfBeliefs are the facts that beliefs give. Making them takes as long as there are
// revocations, and anybody on the machine may ask the guard all the time.
type factsOfBeliefs struct {
	of    *beliefs
	facts facts
}

// facts are those that what is held gives. Nobody changes them.
func (b *beliefs) facts() facts {
	f := facts{
		held: make(map[snapshot.Scope]standing, len(b.held)), lists: map[snapshot.Scope]bool{snapshot.ScopeTrustBundle: true}, missing: b.revocationsMissing(),
	}
	f.policy, f.until = b.policy()
	if b.roleGone() {
		f.withdrawn = limitRoles
	}
	if b.terms() == nil {
		f.lists[snapshot.ScopeNodeRuntime] = true
	}
	for _, scope := range b.companions() {
		f.lists[scope] = true
	}
	for scope, h := range b.held {
		header := h.v.Header()
		at := header.IssuedAt
		if record, ok := h.v.Record(); ok {
			at = record.IssuedAt
		}
		if at.After(f.word) {
			f.word = at
		}
		switch s := (standing{fresh: h.v.FreshUntil(), expires: header.ExpiresAt}); {
		case b.given(scope):
			f.held[scope] = s
		case scope == snapshot.ScopeNodeBootstrap:
			f.spent = &s
		}
	}
	return f
}

// roleGone reports whether one of the roles that the node has is revoked.
func (b *beliefs) roleGone() bool {
	h := b.terms()
	if h == nil {
		return false
	}
	header := h.v.Header()
	me, _, _ := header.Subject.Node()
	return b.revocations().Withdraws(me, header.Roles)
}

// companions are the scopes that the node is to hold besides those that every node
// has, by its node_runtime.
func (b *beliefs) companions() []snapshot.Scope {
	if h := b.held[snapshot.ScopeNodeRuntime]; h != nil {
		runtime, _ := h.v.NodeRuntime()
		return runtime.Companions
	}
	return nil
}

// given reports whether what is held of scope is the node's to use: that of a
// node_bootstrap is not once a node_runtime took its place, nor that of a scope that
// its node_runtime does not list.
func (b *beliefs) given(scope snapshot.Scope) bool {
	h := b.held[scope]
	switch scope {
	case snapshot.ScopeTrustBundle, snapshot.ScopeNodeRuntime:
		return h != nil
	case snapshot.ScopeNodeBootstrap:
		return h != nil && b.terms() == h
	}
	return h != nil && b.gives(h.v.Header())
}

// policy is what the node may do in degraded mode, and when the snapshot that
// narrowed it ends; zero without one. The manifest is the ceiling, which the node's
// terms carry; what is revoked of it is gone. Where the node is to hold a
// degraded_mode_policy and has none, the base alone is left.
func (b *beliefs) policy() (degradedPolicy, time.Time) {
	ceiling := b.degraded()
	p := degradedPolicy{allow: slices.Clone(ceiling.Allow), max: ceiling.Max, routeTTL: ceiling.RouteTTL, sessionTTL: ceiling.Max}
	revoked := b.revocations()
	p.allow = slices.DeleteFunc(p.allow, func(name string) bool { return revoked.Revokes(snapshotform.RevokedPermission, name) })
	if !slices.Contains(b.companions(), snapshot.ScopeDegradedModePolicy) {
		return p, time.Time{}
	}
	h := b.held[snapshot.ScopeDegradedModePolicy]
	if h == nil {
		return p.base(), time.Time{}
	}
	by, _ := h.v.DegradedModePolicy()
	return p.narrowed(degradedPolicy{by.Allow, by.Max, by.RouteTTL, by.SessionTTL}), h.v.Header().ExpiresAt
}

// revocationsMissing reports whether the newest record names other revocations than
// the trust bundle in use has. A bundle that was signed later has more, not fewer:
// they only accumulate.
func (b *beliefs) revocationsMissing() bool {
	var newest *snapshot.Record
	for _, h := range b.held {
		if r, ok := h.v.Record(); ok && (newest == nil || r.AuthorityEpoch > newest.AuthorityEpoch || r.AuthorityEpoch == newest.AuthorityEpoch && r.Generation > newest.Generation) {
			newest = &r
		}
	}
	h := b.held[snapshot.ScopeTrustBundle]
	if newest == nil || h == nil || h.v.Header().IssuedAt.After(newest.IssuedAt) {
		return false // without a bundle in use nothing is permitted anyway
	}
	bundle, _ := h.v.TrustBundle()
	own, err := bundle.Revocations()
	return err != nil || own != newest.Revocations
}

// alone returns until when the node works without news, and what ends it.
func (a *Agent) alone() (time.Time, string) { return a.facts().alone() }

// Permit decides whether this node, or a service on it, may do action now; nil
// permits it. A refusal is a [*RefusedError], and counted. Out of contact with the
// cluster what is not in the table is refused.
func (a *Agent) Permit(action Action) error {
	err := a.facts().permit(action, a.now())
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		a.metrics.refused.WithLabelValues(labelOf(action), refused.Reason).Inc()
	}
	a.degraded.count(action, err == nil)
	return err
}

// otherAction is the label of what is not in the table.
const otherAction = "other"

// labelOf is action as a label: what somebody makes up must not become one.
func labelOf(action Action) string {
	if _, ok := ruleOf(action); !ok {
		return otherAction
	}
	return string(action)
}
