package agent

import (
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// This file is the guard of degraded mode: what a node, and a service on it, may do
// while what it holds gets old. It decides and does nothing else. Whether somebody
// can be reached plays no part in how old that is: a node that gets new records from
// a mirror is not degraded, and one that holds a stream to a coordinator which has
// nothing new to say is.

// Action names something that a node or a service on it wants to do.
type Action string

// What goes on out of contact where the policy allows it.
const (
	ContinueServices    = Action(manifest.ContinueServices)    // run the services that are assigned
	PreserveRoutes      = Action(manifest.PreserveRoutes)      // use the routes that are known
	PreserveSessions    = Action("preserve_sessions")          // keep sessions of clients that are open
	ReconnectPeers      = Action(manifest.ReconnectPeers)      // look for active, warm and bootstrap peers
	ValidatePeers       = Action(manifest.ValidatePeers)       // judge peers by the local trust bundle
	UseStorageEndpoints = Action(manifest.UseStorageEndpoints) // fetch snapshots from the storage endpoints
	ReportLater         = Action(manifest.ReportLater)         // keep what happened, and report it afterwards
)

// What takes records that are no older than announced.
const (
	StartServices  Action = "start_services"  // that do not run yet: they may be somebody else's by now
	ResolveSecrets Action = "resolve_secrets" // of a reference that was not resolved yet
	AdmitSessions  Action = "admit_sessions"  // of clients that have none yet
)

// What no node does out of contact, whatever a policy says. In contact it is for a
// coordinator to decide on who asks it.
const (
	ApproveEnrollment        Action = "approve_enrollment"
	IssueCertificates        Action = "issue_certificates"
	AssignRoles              Action = "assign_roles"
	ChangeClusterPolicy      Action = "change_cluster_policy"
	ChangeOrganizationPolicy Action = "change_organization_policy"
	RotateTrustRoots         Action = "rotate_trust_roots"
	PromotePartition         Action = "promote_partition"
	FetchUnrelatedSecrets    Action = "fetch_unrelated_secrets"
	CreateServiceAuthority   Action = "create_service_authority"
)

// class says what an action takes.
type class string

const (
	byPolicy  class = "policy"    // in degraded mode: the policy, within its bounds
	byRecord  class = "record"    // a record that is fresh or stale
	byContact class = "forbidden" // a coordinator in reach, and a fresh record
)

// actionRule is a row of the guard's table.
type actionRule struct {
	action Action
	class  class
	// policy is the permission that allows it in degraded mode; of class byPolicy alone.
	policy manifest.Permission
	// needs are the scopes that it lives by: without them, or after their end, there is
	// nothing to act on.
	needs []snapshot.Scope
	// bound ends it in degraded mode. Blank: nothing does but the scopes' ends. So it is
	// for what ends the mode itself: a node that is alone for too long must find back.
	bound bound
	// risk marks what does harm if somebody was revoked since: it is refused where the
	// node cannot know.
	risk bool
	why  string
}

// bound is what of a policy ends an action.
type bound string

const (
	noBound      bound = ""
	maxBound     bound = "degraded.max"
	routeBound   bound = "degraded.route_ttl"
	sessionBound bound = "degraded.session_ttl"
)

// terms are the scopes that say who is trusted and what the node is, and more. They
// are needed by all that acts on what the node was told. A node_bootstrap counts as
// long as no node_runtime took its place.
func terms(more ...snapshot.Scope) []snapshot.Scope {
	return append([]snapshot.Scope{snapshot.ScopeTrustBundle, snapshot.ScopeNodeRuntime, snapshot.ScopeNodeBootstrap}, more...)
}

// actionRules returns the table. What is not in it is unknown.
func actionRules() []actionRule {
	return []actionRule{
		{ContinueServices, byPolicy, manifest.ContinueServices, terms(snapshot.ScopeServiceAssignment), maxBound, false, "what runs keeps running"},
		{PreserveRoutes, byPolicy, manifest.PreserveRoutes, terms(snapshot.ScopeRoutePolicy), routeBound, false, "routes are known, and may have moved"},
		{PreserveSessions, byPolicy, manifest.ContinueServices, terms(snapshot.ScopeQoSPolicy), sessionBound, false, "a session that is open goes on with its service"},
		{ReconnectPeers, byPolicy, manifest.ReconnectPeers, nil, noBound, false, "it is a way back"},
		{ValidatePeers, byPolicy, manifest.ValidatePeers, terms(), maxBound, true, "the local bundle knows roots and bans"},
		{UseStorageEndpoints, byPolicy, manifest.UseStorageEndpoints, []snapshot.Scope{snapshot.ScopeStorageDirectory}, noBound, false, "it is a way back, and what comes from there is verified"},
		{ReportLater, byPolicy, manifest.ReportLater, nil, noBound, false, "it writes down what happened"},

		{StartServices, byRecord, "", terms(snapshot.ScopeServiceAssignment), noBound, true, "it may be somebody else's by now"},
		{ResolveSecrets, byRecord, "", terms(snapshot.ScopeServiceAssignment), noBound, true, "it may have been taken away since"},
		{AdmitSessions, byRecord, "", terms(), noBound, true, "who is let in may have been revoked since"},

		{ApproveEnrollment, byContact, "", nil, noBound, true, "who may join is for the cluster to say"},
		{IssueCertificates, byContact, "", nil, noBound, true, "a node vouches for nobody"},
		{AssignRoles, byContact, "", nil, noBound, true, "what a member is, is for the cluster to say"},
		{ChangeClusterPolicy, byContact, "", nil, noBound, true, "a part of the cluster does not rule it"},
		{ChangeOrganizationPolicy, byContact, "", nil, noBound, true, "nor an organization"},
		{RotateTrustRoots, byContact, "", nil, noBound, true, "trust comes from the root and the signers alone"},
		{PromotePartition, byContact, "", nil, noBound, true, "the other part may be working too"},
		{FetchUnrelatedSecrets, byContact, "", nil, noBound, true, "an outage gives nobody more than it had"},
		{CreateServiceAuthority, byContact, "", nil, noBound, true, "authority beyond the scope comes from the scope's signer"},
	}
}

// ActionRow is a row of the guard's table, for the documentation.
type ActionRow struct {
	Action Action
	// Class is "policy", "record" or "forbidden": what it takes where there is no news.
	Class  string
	Policy string           // the permission that allows it in degraded mode
	Needs  []snapshot.Scope // without which, or after whose end, it is refused
	Bound  string           // of the policy, that ends it
	Risk   bool             // refused where revocations are not known
	Why    string
}

// ActionRows returns the guard's table.
func ActionRows() []ActionRow {
	var out []ActionRow
	for _, r := range actionRules() {
		out = append(out, ActionRow{r.action, string(r.class), string(r.policy), slices.Clone(r.needs), string(r.bound), r.risk, r.why})
	}
	return out
}

// ScopeAction returns the action that a consumer of scope takes part in: once that is
// refused, the agent gives the scope no more. Blank: it is given until it expires.
func ScopeAction(scope snapshot.Scope) Action {
	action, _ := partOf(scope)
	return action
}

func ruleOf(action Action) (actionRule, bool) {
	rules := actionRules()
	if i := slices.IndexFunc(rules, func(r actionRule) bool { return r.action == action }); i >= 0 {
		return rules[i], true
	}
	return actionRule{}, false
}

// Partition is how a node stands to the rest of its cluster, by what is signed.
type Partition string

const (
	Connected   Partition = "connected"    // its newest record is fresh
	RecordStale Partition = "record_stale" // it is older than announced
	EpochBehind Partition = "epoch_behind" // the authority epoch moved on without it
)

// refusalReason says why the guard refuses. It is a metric label.
type refusalReason string

const (
	forbiddenAction    refusalReason = "forbidden"           // for coordinators to decide, and none is in reach
	unknownAction      refusalReason = "unknown_action"      // likewise, for want of a row
	needsRecord        refusalReason = "needs_record"        // it takes a record that is fresh or stale
	notAllowed         refusalReason = "not_allowed"         // the policy does not list it
	boundOver          refusalReason = "bound_over"          // its time is over
	identityOver       refusalReason = "identity_over"       // the node's certificate ended
	withdrawn          refusalReason = "revoked"             // the node's identity, its key, or one of its roles is
	scopeMissing       refusalReason = "scope_missing"       // nothing of a scope that it needs may be used
	scopeExpired       refusalReason = "scope_expired"       // what there was of it expired
	revocationsUnknown refusalReason = "revocations_unknown" // and it is of high risk
)

// RefusedError says why an action is not permitted. It unwraps to the error with a
// code that says so to a person.
type RefusedError struct {
	Action    Action
	State     snapshot.Freshness // of what the action lives by
	Partition Partition
	Reason    string
	// Bound is what ended it, and Ended when, if something did: a bound of the policy, a
	// scope, "svid", or what is revoked: "identity" or "roles".
	Bound string
	Ended time.Time
}

func (e *RefusedError) Error() string { return e.explain().Error() }

// Unwrap returns the refusal as it is told.
func (e *RefusedError) Unwrap() error { return e.explain() }

func (e *RefusedError) explain() *explain.Error {
	about := []any{"action", string(e.Action), "state", string(e.State), "partition", string(e.Partition), "reason", e.Reason}
	switch refusalReason(e.Reason) {
	case notAllowed:
		return explain.New(explain.ActionNotAllowed, about...)
	case withdrawn:
		return explain.New(explain.ActionBoundOver, append(about, "bound", "this node's "+e.Bound, "ended", "was revoked")...)
	case boundOver, identityOver, scopeExpired, scopeMissing:
		about = append(about, "bound", e.Bound)
		if !e.Ended.IsZero() {
			about = append(about, "ended", "ended at "+stamp(e.Ended))
		}
		return explain.New(explain.ActionBoundOver, about...)
	}
	return explain.New(explain.ActionNeedsContact, about...)
}

// standing is what is known of one scope.
type standing struct {
	fresh   time.Time // until when
	expires time.Time
}

func (s standing) state(now time.Time) snapshot.Freshness {
	return snapshot.FreshnessAt(s.fresh, s.expires, now, staleFor)
}

// degradedPolicy is what a node may do in degraded mode, and for how long.
type degradedPolicy struct {
	allow                     []string
	max, routeTTL, sessionTTL time.Duration
}

// narrowed returns what both p and by allow. So whatever by says, it never widens p.
func (p degradedPolicy) narrowed(by degradedPolicy) degradedPolicy {
	return degradedPolicy{
		allow:      slices.DeleteFunc(slices.Clone(p.allow), func(name string) bool { return !slices.Contains(by.allow, name) }),
		max:        min(p.max, by.max),
		routeTTL:   min(p.routeTTL, by.routeTTL),
		sessionTTL: min(p.sessionTTL, by.sessionTTL),
	}
}

// base returns what is left of p where what narrows it is not known: the ways back,
// which no bound ends.
func (p degradedPolicy) base() degradedPolicy {
	return p.narrowed(degradedPolicy{allow: []string{string(ReconnectPeers), string(ReportLater)}})
}

// facts are all that the guard decides by, beside the time. They change only with
// what the node holds, and with its stream.
type facts struct {
	contact bool // a stream to a coordinator stands

	// held is what may be used, by scope; lists are the scopes that it should hold.
	held  map[snapshot.Scope]standing
	lists map[snapshot.Scope]bool
	// spent is a node_bootstrap whose place a node_runtime took: it says nothing of what
	// the node is, and can be read until it ends. Nil: there is none.
	spent *standing

	// policy rules in degraded mode. If a snapshot narrowed it, until is that snapshot's
	// end, from when on nothing but the base is left; else it is zero.
	policy degradedPolicy
	until  time.Time

	// word is the time of the newest word of the cluster: when the newest of what the
	// node holds was signed. The bounds of the policy count from it.
	word    time.Time
	svidEnd time.Time

	// withdrawn says what of the node itself is revoked, as a bound; "": nothing. Then
	// it acts on nothing that it was told.
	withdrawn string

	behind bool // a newer authority epoch was seen than that of the trust bundle
	// revocations are known to be missing: the newest record names others than the
	// trust bundle has.
	missing bool
}

// state is the worst of scopes; fresh without any. A scope that is to be held and
// is not counts as expired.
func (f facts) state(scopes []snapshot.Scope, now time.Time) (worst snapshot.Freshness, by snapshot.Scope) {
	worst = snapshot.Fresh
	for _, scope := range scopes {
		s, ok := f.held[scope]
		if !ok && !f.lists[scope] {
			continue // it has none, by what it was told
		}
		state := snapshot.Expired
		if ok {
			state = s.state(now)
		}
		if rank(state) > rank(worst) {
			worst, by = state, scope
		}
	}
	return worst, by
}

// overall is the state of the node: that of what it cannot do without.
func (f facts) overall(now time.Time) snapshot.Freshness {
	state, _ := f.state(terms(), now)
	return state
}

// partition is how the node stands to the rest of the cluster.
func (f facts) partition(now time.Time) Partition {
	switch {
	case f.behind:
		return EpochBehind
	case f.overall(now) != snapshot.Fresh:
		return RecordStale
	}
	return Connected
}

// degraded reports whether the policy of degraded mode is what rules at now.
func (f facts) degraded(now time.Time) bool {
	return f.behind || rank(f.overall(now)) >= rank(snapshot.Degraded)
}

// policyAt is the policy of degraded mode at now.
func (f facts) policyAt(now time.Time) degradedPolicy {
	if !f.until.IsZero() && !now.Before(f.until) {
		return f.policy.base()
	}
	return f.policy
}

// end is when b ends an action in degraded mode.
func (f facts) end(b bound) time.Time {
	switch b {
	case routeBound:
		return f.word.Add(min(f.policy.max, f.policy.routeTTL))
	case sessionBound:
		return f.word.Add(min(f.policy.max, f.policy.sessionTTL))
	}
	return f.word.Add(f.policy.max)
}

// unsure reports whether somebody may be revoked without the node knowing: it lacks
// what its newest record names, or is behind, or that record is older than the node
// may be alone.
func (f facts) unsure(now time.Time) bool {
	return f.missing || f.behind || f.overall(now) != snapshot.Fresh && !now.Before(f.word.Add(f.policyAt(now).max))
}

// permit decides on action at now; nil permits it. It is pure. A refusal is a
// [*RefusedError].
//
// In contact, which is a stream to a coordinator and a fresh record, what is
// forbidden or unknown here passes: it is for the coordinator to refuse.
func (f facts) permit(action Action, now time.Time) error {
	rule, known := ruleOf(action)
	state, by := f.state(rule.needs, now)
	if !known || rule.class == byContact {
		state = f.overall(now)
	}
	refuse := func(r refusalReason) *RefusedError {
		return &RefusedError{Action: action, State: state, Partition: f.partition(now), Reason: string(r)}
	}
	ended := func(r refusalReason, bound string, at time.Time) error {
		e := refuse(r)
		e.Bound, e.Ended = bound, at
		return e
	}
	switch {
	case rule.class == byContact || !known:
		if !f.contact || f.partition(now) != Connected {
			if !known {
				return refuse(unknownAction)
			}
			return refuse(forbiddenAction)
		}
	case f.withdrawn != "" && slices.Contains(rule.needs, snapshot.ScopeTrustBundle):
		return ended(withdrawn, f.withdrawn, time.Time{})
	case state == snapshot.Expired:
		if s, ok := f.held[by]; ok {
			return ended(scopeExpired, string(by), s.expires)
		}
		return ended(scopeMissing, string(by), time.Time{})
	case slices.Contains(rule.needs, snapshot.ScopeTrustBundle) && !now.Before(f.svidEnd):
		return ended(identityOver, limitSVID, f.svidEnd)
	case rule.class == byRecord && (f.degraded(now) || state == snapshot.Degraded):
		return refuse(needsRecord)
	case rule.class == byPolicy && (f.degraded(now) || state == snapshot.Degraded):
		if !slices.Contains(f.policyAt(now).allow, string(rule.policy)) {
			return refuse(notAllowed)
		}
		if rule.bound != noBound && !now.Before(f.end(rule.bound)) {
			return ended(boundOver, string(rule.bound), f.end(rule.bound))
		}
	}
	if rule.risk && f.unsure(now) {
		return refuse(revocationsUnknown)
	}
	return nil
}

// partOf says which action a consumer of a scope takes part in: once that is refused,
// the scope is not given any more. Scopes without a row are given until they expire.
func partOf(scope snapshot.Scope) (Action, bool) {
	switch scope {
	case snapshot.ScopeServiceAssignment:
		return ContinueServices, true
	case snapshot.ScopeRoutePolicy:
		return PreserveRoutes, true
	case snapshot.ScopeQoSPolicy:
		return PreserveSessions, true
	case snapshot.ScopePeerDirectory:
		return ReconnectPeers, true
	case snapshot.ScopeStorageDirectory:
		return UseStorageEndpoints, true
	}
	return "", false
}

// useScope is the action of a refusal of a scope that no action of the table stands
// for.
const useScope Action = "use_scope"

// gives decides whether what is held of scope is given to those who act on it; nil
// gives it. It is pure. A refusal is a [*RefusedError].
func (f facts) gives(scope snapshot.Scope, now time.Time) error {
	action, ok := partOf(scope)
	if !ok {
		action = useScope
	}
	s, held := f.held[scope]
	if scope == snapshot.ScopeNodeBootstrap && f.spent != nil {
		s, held = *f.spent, true
	}
	switch {
	case !held:
		return &RefusedError{Action: action, State: snapshot.Expired, Partition: f.partition(now), Reason: string(scopeMissing), Bound: string(scope)}
	case !now.Before(s.expires):
		return &RefusedError{Action: action, State: snapshot.Expired, Partition: f.partition(now), Reason: string(scopeExpired), Bound: string(scope), Ended: s.expires}
	case !ok:
		return nil
	}
	return f.permit(action, now)
}
