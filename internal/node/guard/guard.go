package guard

import (
	"slices"
	"sync"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Action names something that a node or a service on it wants to do.
type Action string

// These actions go on out of contact where the policy allows it.
const (
	ContinueServices    = Action(manifest.ContinueServices)    // run the services that are assigned
	PreserveRoutes      = Action(manifest.PreserveRoutes)      // use the routes that are known
	PreserveSessions    = Action("preserve_sessions")          // keep sessions of clients that are open
	ReconnectPeers      = Action(manifest.ReconnectPeers)      // look for active, warm and bootstrap peers
	ValidatePeers       = Action(manifest.ValidatePeers)       // judge peers by the local trust bundle
	UseStorageEndpoints = Action(manifest.UseStorageEndpoints) // fetch snapshots from the storage endpoints
	ReportLater         = Action(manifest.ReportLater)         // keep what happened, and report it afterwards
)

// These actions take records that are no older than announced.
const (
	StartServices  Action = "start_services"  // that do not run yet: they may be somebody else's by now
	ResolveSecrets Action = "resolve_secrets" // of a reference that was not resolved yet
	AdmitSessions  Action = "admit_sessions"  // of clients that have none yet
)

// No node does these out of contact, whatever a policy says. In contact it is for a
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
	ByPolicy  class = "policy"    // in degraded mode: the policy, within its bounds
	byRecord  class = "record"    // a record that is fresh or stale
	ByContact class = "forbidden" // a coordinator in reach, and a fresh record
)

// actionRule is a row of the guard's table.
type actionRule struct {
	Action Action
	Class  class
	// Policy is the permission that allows it in degraded mode; of class byPolicy alone.
	Policy manifest.Permission
	// Needs are the scopes that it lives by: without them, or after their end, there is
	// nothing to act on.
	Needs []snapshot.Scope
	// Bound ends it in degraded mode. Blank: nothing does but the scopes' ends. So it is
	// for what ends the mode itself: a node that is alone for too long must find back.
	Bound bound
	// risk marks what does harm if somebody was revoked since: it is refused where the
	// node cannot know.
	risk bool
	Why  string
}

// bound is what of a policy ends an action.
type bound string

const (
	NoBound      bound = ""
	MaxBound     bound = "degraded.max"
	RouteBound   bound = "degraded.route_ttl"
	sessionBound bound = "degraded.session_ttl"
)

// Terms are the scopes that say who is trusted and what the node is, and more. They
// are needed by all that acts on what the node was told. A node_bootstrap counts as
// long as no node_runtime took its place.
func Terms(more ...snapshot.Scope) []snapshot.Scope {
	return append([]snapshot.Scope{snapshot.ScopeTrustBundle, snapshot.ScopeNodeRuntime, snapshot.ScopeNodeBootstrap},
		more...)
}

// ActionRules returns the table. An action that is not in it is unknown.
func ActionRules() []actionRule { return slices.Clone(rules()) }

// rules is the table, which is made once: each decision of the guard looks into it. Nobody changes it.
var rules = sync.OnceValue(func() []actionRule {
	return []actionRule{
		{ContinueServices, ByPolicy, manifest.ContinueServices, Terms(snapshot.ScopeServiceAssignment), MaxBound, false,
			"what runs keeps running"},
		{PreserveRoutes, ByPolicy, manifest.PreserveRoutes, Terms(snapshot.ScopeRoutePolicy), RouteBound, false,
			"routes are known, and may have moved"},
		{PreserveSessions, ByPolicy, manifest.ContinueServices, Terms(snapshot.ScopeQoSPolicy), sessionBound, false,
			"a session that is open goes on with its service"},
		{ReconnectPeers, ByPolicy, manifest.ReconnectPeers, nil, NoBound, false, "it is a way back"},
		{ValidatePeers, ByPolicy, manifest.ValidatePeers, Terms(), MaxBound, true,
			"the local bundle knows roots and bans"},
		{UseStorageEndpoints, ByPolicy, manifest.UseStorageEndpoints, []snapshot.Scope{snapshot.ScopeStorageDirectory},
			NoBound, false, "it is a way back, and what comes from there is verified"},
		{ReportLater, ByPolicy, manifest.ReportLater, nil, NoBound, false, "it writes down what happened"},

		{StartServices, byRecord, "", Terms(snapshot.ScopeServiceAssignment), NoBound, true,
			"it may be somebody else's by now"},
		{ResolveSecrets, byRecord, "", Terms(snapshot.ScopeServiceAssignment), NoBound, true,
			"it may have been taken away since"},
		{AdmitSessions, byRecord, "", Terms(), NoBound, true, "who is let in may have been revoked since"},

		{ApproveEnrollment, ByContact, "", nil, NoBound, true, "who may join is for the cluster to say"},
		{IssueCertificates, ByContact, "", nil, NoBound, true, "a node vouches for nobody"},
		{AssignRoles, ByContact, "", nil, NoBound, true, "what a member is, is for the cluster to say"},
		{ChangeClusterPolicy, ByContact, "", nil, NoBound, true, "a part of the cluster does not rule it"},
		{ChangeOrganizationPolicy, ByContact, "", nil, NoBound, true, "nor an organization"},
		{RotateTrustRoots, ByContact, "", nil, NoBound, true, "trust comes from the root and the signers alone"},
		{PromotePartition, ByContact, "", nil, NoBound, true, "the other part may be working too"},
		{FetchUnrelatedSecrets, ByContact, "", nil, NoBound, true, "an outage gives nobody more than it had"},
		{CreateServiceAuthority, ByContact, "", nil, NoBound, true,
			"authority beyond the scope comes from the scope's signer"},
	}
})

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
	for _, r := range rules() {
		out = append(out, ActionRow{r.Action, string(r.Class), string(r.Policy), slices.Clone(r.Needs), string(r.Bound),
			r.risk, r.Why})
	}
	return out
}

// ScopeAction returns the action that a consumer of scope takes part in: once that is
// refused, the agent gives the scope no more. Blank: it is given until it expires.
func ScopeAction(scope snapshot.Scope) Action {
	action, _ := PartOf(scope)
	return action
}

func ruleOf(action Action) (actionRule, bool) {
	if i := slices.IndexFunc(rules(), func(r actionRule) bool { return r.Action == action }); i >= 0 {
		return rules()[i], true
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

// RefusalReason says why the guard refuses. It is a metric label.
type RefusalReason string

const (
	ForbiddenAction    RefusalReason = "forbidden"           // for coordinators to decide, and none is in reach
	UnknownAction      RefusalReason = "unknown_action"      // for want of a row, whatever the node is in contact with
	NeedsRecord        RefusalReason = "needs_record"        // it takes a record that is fresh or stale
	NotAllowed         RefusalReason = "not_allowed"         // the policy does not list it
	BoundOver          RefusalReason = "bound_over"          // its time is over
	IdentityOver       RefusalReason = "identity_over"       // the node's certificate ended
	Withdrawn          RefusalReason = "revoked"             // the node's identity, its key, or one of its roles is
	ScopeMissing       RefusalReason = "scope_missing"       // nothing of a scope that it needs may be used
	ScopeExpired       RefusalReason = "scope_expired"       // what there was of it expired
	RevocationsUnknown RefusalReason = "revocations_unknown" // and it is of high risk
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

func (e *RefusedError) explain() *errcode.Error {
	about := []any{"action", string(e.Action), "state", string(e.State), "partition", string(e.Partition), "reason",
		e.Reason}
	switch RefusalReason(e.Reason) {
	case UnknownAction:
		var names []string
		for _, r := range rules() {
			names = append(names, string(r.Action))
		}
		if guess := humanize.Suggest(string(e.Action), names); guess != "" {
			about = append(about, "guess", guess)
		}
		return errcode.New(errcode.ActionUnknown, about...)
	case NotAllowed:
		return errcode.New(errcode.ActionNotAllowed, about...)
	case Withdrawn:
		return errcode.New(errcode.ActionBoundOver,
			append(about, "bound", "this node's "+e.Bound, "ended", "was revoked")...)
	case BoundOver, IdentityOver, ScopeExpired, ScopeMissing:
		about = append(about, "bound", e.Bound)
		if !e.Ended.IsZero() {
			about = append(about, "ended", "ended at "+e.Ended.UTC().Format(time.RFC3339))
		}
		return errcode.New(errcode.ActionBoundOver, about...)
	}
	return errcode.New(errcode.ActionNeedsContact, about...)
}

// Standing is what is known of one scope.
type Standing struct {
	Fresh   time.Time // until when
	Expires time.Time
}

func (s Standing) state(now time.Time) snapshot.Freshness {
	return snapshot.Freshness(internalsnapshot.FreshnessAt(s.Fresh, s.Expires, now, StaleFor))
}

// DegradedPolicy is what a node may do in degraded mode, and for how long.
type DegradedPolicy struct {
	Allow                     []string
	Max, RouteTTL, SessionTTL time.Duration
}

// Narrowed returns what both p and by allow. So whatever by says, it never widens p.
func (p DegradedPolicy) Narrowed(by DegradedPolicy) DegradedPolicy {
	return DegradedPolicy{
		Allow: slices.DeleteFunc(slices.Clone(p.Allow),
			func(name string) bool { return !slices.Contains(by.Allow, name) }),
		Max:        min(p.Max, by.Max),
		RouteTTL:   min(p.RouteTTL, by.RouteTTL),
		SessionTTL: min(p.SessionTTL, by.SessionTTL),
	}
}

// Base returns what is left of p where what narrows it is not known: the ways back,
// which no bound ends.
func (p DegradedPolicy) Base() DegradedPolicy {
	return p.Narrowed(DegradedPolicy{Allow: []string{string(ReconnectPeers), string(ReportLater)}})
}

// Facts are all that the guard decides by, beside the time. They change only with
// what the node holds, and with its stream.
type Facts struct {
	Contact bool // a stream to a coordinator stands

	// Active is what may be used, by scope; lists are the scopes that it should hold.
	Active map[snapshot.Scope]Standing
	Lists  map[snapshot.Scope]bool
	// Spent is a node_bootstrap whose place a node_runtime took: it says nothing of what
	// the node is, and can be read until it ends. Nil: there is none.
	Spent *Standing

	// Policy rules in degraded mode. If a snapshot narrowed it, until is that snapshot's
	// end, from when on nothing but the base is left; else it is zero.
	Policy DegradedPolicy
	Until  time.Time

	// Word is the time of the newest word of the cluster: when the newest of what the
	// node holds was signed. The bounds of the policy count from it.
	Word    time.Time
	SVIDEnd time.Time

	// Withdrawn says what of the node itself is revoked, as a bound; "": nothing. Then
	// it acts on nothing that it was told.
	Withdrawn string

	Behind bool // a newer authority epoch was seen than that of the trust bundle
	// revocations are known to be missing: the newest record names others than the
	// trust bundle has.
	Missing bool
}

// state is the worst of scopes; fresh without any. A scope that is to be held and
// is not counts as expired.
func (f Facts) state(scopes []snapshot.Scope, now time.Time) (worst snapshot.Freshness, by snapshot.Scope) {
	worst = snapshot.Fresh
	for _, scope := range scopes {
		s, ok := f.Active[scope]
		if !ok && !f.Lists[scope] {
			continue // it has none, by what it was told
		}
		state := snapshot.Expired
		if ok {
			state = s.state(now)
		}
		if Rank(state) > Rank(worst) {
			worst, by = state, scope
		}
	}
	return worst, by
}

// Overall is the state of the node: that of what it cannot do without.
func (f Facts) Overall(now time.Time) snapshot.Freshness {
	state, _ := f.state(Terms(), now)
	return state
}

// Partition is how the node stands to the rest of the cluster.
func (f Facts) Partition(now time.Time) Partition {
	switch {
	case f.Behind:
		return EpochBehind
	case f.Overall(now) != snapshot.Fresh:
		return RecordStale
	}
	return Connected
}

// Degraded reports whether the policy of degraded mode is what rules at now.
func (f Facts) Degraded(now time.Time) bool {
	return f.Behind || Rank(f.Overall(now)) >= Rank(snapshot.Degraded)
}

// PolicyAt is the policy of degraded mode at now.
func (f Facts) PolicyAt(now time.Time) DegradedPolicy {
	if !f.Until.IsZero() && !now.Before(f.Until) {
		return f.Policy.Base()
	}
	return f.Policy
}

// End is when b ends an action in degraded mode.
func (f Facts) End(b bound) time.Time {
	switch b {
	case RouteBound:
		return f.Word.Add(min(f.Policy.Max, f.Policy.RouteTTL))
	case sessionBound:
		return f.Word.Add(min(f.Policy.Max, f.Policy.SessionTTL))
	}
	return f.Word.Add(f.Policy.Max)
}

// unsure reports whether somebody may be revoked without the node knowing: it lacks
// what its newest record names, or is behind, or that record is older than the node
// may be alone.
func (f Facts) unsure(now time.Time) bool {
	return f.Missing || f.Behind || f.Overall(now) != snapshot.Fresh && !now.Before(f.Word.Add(f.PolicyAt(now).Max))
}

// Permit decides on action at now; nil permits it. It is pure. A refusal is a
// [*RefusedError].
//
// In contact, which is a stream to a coordinator and a fresh record, what is
// forbidden here passes: it is for the coordinator to refuse. What is unknown is
// refused always: a name with a slip in it would pass in contact, and nobody would
// notice before the outage that the guard is for.
func (f Facts) Permit(action Action, now time.Time) error {
	rule, known := ruleOf(action)
	state, by := f.state(rule.Needs, now)
	if !known || rule.Class == ByContact {
		state = f.Overall(now)
	}
	refuse := func(r RefusalReason) *RefusedError {
		return &RefusedError{Action: action, State: state, Partition: f.Partition(now), Reason: string(r)}
	}
	ended := func(r RefusalReason, bound string, at time.Time) error {
		e := refuse(r)
		e.Bound, e.Ended = bound, at
		return e
	}
	switch {
	case !known:
		return refuse(UnknownAction)
	case rule.Class == ByContact:
		if !f.Contact || f.Partition(now) != Connected {
			return refuse(ForbiddenAction)
		}
	case f.Withdrawn != "" && slices.Contains(rule.Needs, snapshot.ScopeTrustBundle):
		return ended(Withdrawn, f.Withdrawn, time.Time{})
	case state == snapshot.Expired:
		if s, ok := f.Active[by]; ok {
			return ended(ScopeExpired, string(by), s.Expires)
		}
		return ended(ScopeMissing, string(by), time.Time{})
	case slices.Contains(rule.Needs, snapshot.ScopeTrustBundle) && !now.Before(f.SVIDEnd):
		return ended(IdentityOver, LimitSVID, f.SVIDEnd)
	case rule.Class == byRecord && (f.Degraded(now) || state == snapshot.Degraded):
		return refuse(NeedsRecord)
	case rule.Class == ByPolicy && (f.Degraded(now) || state == snapshot.Degraded):
		if !slices.Contains(f.PolicyAt(now).Allow, string(rule.Policy)) {
			return refuse(NotAllowed)
		}
		if rule.Bound != NoBound && !now.Before(f.End(rule.Bound)) {
			return ended(BoundOver, string(rule.Bound), f.End(rule.Bound))
		}
	}
	if rule.risk && f.unsure(now) {
		return refuse(RevocationsUnknown)
	}
	return nil
}

// PartOf says which action a consumer of a scope takes part in: once that is refused,
// the scope is not given any more. Scopes without a row are given until they expire.
func PartOf(scope snapshot.Scope) (Action, bool) {
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

// Gives decides whether what is held of scope is given to those who act on it; nil
// gives it. It is pure. A refusal is a [*RefusedError].
func (f Facts) Gives(scope snapshot.Scope, now time.Time) error {
	action, ok := PartOf(scope)
	if !ok {
		action = useScope
	}
	s, held := f.Active[scope]
	if scope == snapshot.ScopeNodeBootstrap && f.Spent != nil {
		s, held = *f.Spent, true
	}
	switch {
	case !held:
		return &RefusedError{Action: action, State: snapshot.Expired, Partition: f.Partition(now),
			Reason: string(ScopeMissing), Bound: string(scope)}
	case !now.Before(s.Expires):
		return &RefusedError{Action: action, State: snapshot.Expired, Partition: f.Partition(now),
			Reason: string(ScopeExpired), Bound: string(scope), Ended: s.Expires}
	case !ok:
		return nil
	}
	return f.Permit(action, now)
}

// StaleFor is how long a snapshot without news is stale before it is degraded.
const StaleFor = time.Hour

// Rank orders the states, the best first.
func Rank(f snapshot.Freshness) int {
	return slices.Index([]snapshot.Freshness{snapshot.Fresh, snapshot.Stale, snapshot.Degraded, snapshot.Expired}, f)
}
