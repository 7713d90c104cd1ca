package state

import (
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/node/guard"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// TrustFacts are the facts that a trust state gives. Making them takes as long as there are
// revocations, and anybody on the machine may ask the guard all the time.
type TrustFacts struct {
	Of    *TrustState
	Facts guard.Facts
}

// Facts are those that the active snapshots give. Nobody changes them.
func (b *TrustState) Facts() guard.Facts {
	f := guard.Facts{
		Active: make(map[snapshot.Scope]guard.Standing, len(b.Active)),
		Lists:  map[snapshot.Scope]bool{snapshot.ScopeTrustBundle: true}, Missing: b.revocationsMissing(),
	}
	f.Policy, f.Until = b.Policy()
	if b.roleGone() {
		f.Withdrawn = guard.LimitRoles
	}
	if b.Terms() == nil {
		f.Lists[snapshot.ScopeNodeRuntime] = true
	}
	for _, scope := range b.assignedScopes() {
		f.Lists[scope] = true
	}
	for scope, h := range b.Active {
		header := h.Verified.Header()
		at := header.IssuedAt
		if record, ok := h.Verified.Record(); ok {
			at = record.IssuedAt
		}
		if at.After(f.Word) {
			f.Word = at
		}
		switch s := (guard.Standing{Fresh: h.Verified.FreshUntil(), Expires: header.ExpiresAt}); {
		case b.given(scope):
			f.Active[scope] = s
		case scope == snapshot.ScopeNodeBootstrap:
			f.Spent = &s
		}
	}
	return f
}

// roleGone reports whether one of the roles that the node has is revoked.
func (b *TrustState) roleGone() bool {
	h := b.Terms()
	if h == nil {
		return false
	}
	header := h.Verified.Header()
	me, _, _ := header.Subject.Node()
	return b.Revocations().Withdraws(me, header.Roles)
}

// assignedScopes are the scopes that the node is to hold besides those that every node
// has, by its node_runtime.
func (b *TrustState) assignedScopes() []snapshot.Scope {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		runtime, _ := h.Verified.NodeRuntime()
		return runtime.Companions
	}
	return nil
}

// given reports whether what is held of scope is the node's to use: that of a
// node_bootstrap is not once a node_runtime took its place, nor that of a scope that
// its node_runtime does not list.
func (b *TrustState) given(scope snapshot.Scope) bool {
	h := b.Active[scope]
	switch scope {
	case snapshot.ScopeTrustBundle, snapshot.ScopeNodeRuntime:
		return h != nil
	case snapshot.ScopeNodeBootstrap:
		return h != nil && b.Terms() == h
	}
	return h != nil && b.gives(h.Verified.Header())
}

// Policy is what the node may do in degraded mode, and when the snapshot that
// narrowed it ends; zero without one. The manifest is the ceiling, which the node's
// terms carry; what is revoked of it is gone. Where the node is to hold a
// degraded_mode_policy and has none, the base alone is left.
func (b *TrustState) Policy() (guard.DegradedPolicy, time.Time) {
	ceiling := b.Degraded()
	p := guard.DegradedPolicy{Allow: slices.Clone(ceiling.Allow), Max: ceiling.Max, RouteTTL: ceiling.RouteTTL,
		SessionTTL: ceiling.Max}
	revoked := b.Revocations()
	p.Allow = slices.DeleteFunc(p.Allow,
		func(name string) bool { return revoked.Revokes(internalsnapshot.RevokedPermission, name) })
	if !slices.Contains(b.assignedScopes(), snapshot.ScopeDegradedModePolicy) {
		return p, time.Time{}
	}
	h := b.Active[snapshot.ScopeDegradedModePolicy]
	if h == nil {
		return p.Base(), time.Time{}
	}
	by, _ := h.Verified.DegradedModePolicy()
	return p.Narrowed(guard.DegradedPolicy{Allow: by.Allow, Max: by.Max, RouteTTL: by.RouteTTL,
		SessionTTL: by.SessionTTL}), h.Verified.Header().ExpiresAt
}

// revocationsMissing reports whether the newest record names other revocations than
// the trust bundle in use has. A bundle that was signed later has more, not fewer:
// they only accumulate.
func (b *TrustState) revocationsMissing() bool {
	var newest *snapshot.Record
	for _, h := range b.Active {
		if r, ok := h.Verified.Record(); ok &&
			(newest == nil || r.AuthorityEpoch > newest.AuthorityEpoch ||
				r.AuthorityEpoch == newest.AuthorityEpoch && r.Generation > newest.Generation) {
			newest = &r
		}
	}
	h := b.Active[snapshot.ScopeTrustBundle]
	if newest == nil || h == nil || h.Verified.Header().IssuedAt.After(newest.IssuedAt) {
		return false // without a bundle in use nothing is permitted anyway
	}
	bundle, _ := h.Verified.TrustBundle()
	own, err := bundle.Revocations()
	return err != nil || own != newest.Revocations
}
