package state

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/guard"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// ActiveSnapshot is a snapshot that is in use: what was verified, and the bytes that were.
type ActiveSnapshot struct {
	Verified *snapshot.Verified
	Raw      []byte
}

// Ledger is what the node must not forget. It is immutable.
type Ledger struct {
	// Marks are the newest that was accepted.
	Marks snapshot.Marks

	// unconfirmed are the scopes of which the marks were lost and no coordinator has
	// said yet what holds now: what the marks know of them is a floor, and nothing of
	// them on disk is used. Sorted.
	unconfirmed []snapshot.Scope

	// revocations is the digest of what the trust bundle that was accepted last revokes;
	// blank if none was. It outlives damage of that bundle.
	revocations string

	Trials     []trial       // of what is in use on trial
	Quarantine []quarantined // what failed its trial, the last ones at the end
}

// Doubts reports whether the marks of scope are a floor alone.
func (l Ledger) Doubts(scope snapshot.Scope) bool { return slices.Contains(l.unconfirmed, scope) }

// confirmed returns l for a node that heard from a coordinator what holds of scope.
func (l Ledger) confirmed(scope snapshot.Scope) Ledger {
	l.unconfirmed = slices.DeleteFunc(slices.Clone(l.unconfirmed), func(s snapshot.Scope) bool { return s == scope })
	return l
}

// knowing returns l for a node that accepted v, of whatever scope.
func (l Ledger) knowing(v *snapshot.Verified) Ledger {
	if digest := revocationsOf(v); digest != "" {
		l.revocations = digest
	}
	return l
}

// takesBack reports whether v is a trust bundle that revokes something else than the
// newest that was accepted: the one before may trust what that one revoked.
func (l Ledger) takesBack(v *snapshot.Verified) bool {
	digest := revocationsOf(v)
	return digest != "" && l.revocations != "" && digest != l.revocations
}

// revocationsOf returns the digest of what v revokes; blank if it is no trust bundle.
func revocationsOf(v *snapshot.Verified) string {
	bundle, ok := v.TrustBundle()
	if !ok {
		return ""
	}
	digest, err := bundle.Revocations()
	if err != nil {
		return ""
	}
	return digest.String()
}

// TrustState is what the node holds to be true. It is immutable.
type TrustState struct {
	// Active is what is in use, by scope. A scope without an entry has nothing that
	// may be used.
	Active map[snapshot.Scope]*ActiveSnapshot

	// Stale is a genuine trust bundle that may not be used any more, or not yet: it
	// expired, or nobody said that it still holds. It bans whom it bans, and opens
	// the way to a coordinator; it vouches for no other snapshot. Nil beside a
	// bundle in use.
	Stale *snapshot.Verified

	Ledger

	// Emergencies are the statements of the signers that are in force here, and
	// statements the same as they were handed in.
	Emergencies []*trust.Emergency
	Statements  [][]byte

	// Contact is what connections are verified by.
	Contact *identity.Bundle

	// Links are the newest transitions of the history that were heard of, unverified.
	Links [][]byte

	// Arriving: the marks are those of what is put in place right now. Until it is,
	// what it overtakes is as good as it was.
	Arriving bool
}

// With returns b with h in use of scope.
func (b *TrustState) With(scope snapshot.Scope, h *ActiveSnapshot) *TrustState {
	next := *b
	next.Active = maps.Clone(b.Active)
	if next.Active == nil {
		next.Active = make(map[snapshot.Scope]*ActiveSnapshot, 1)
	}
	next.Active[scope] = h
	if scope == snapshot.ScopeTrustBundle {
		next.Stale = nil
	}
	return &next
}

// Without returns b with nothing in use of scope.
func (b *TrustState) Without(scope snapshot.Scope) *TrustState {
	next := *b
	next.Active = maps.Clone(b.Active)
	delete(next.Active, scope)
	return &next
}

// WithLedger returns b with l.
func (b *TrustState) WithLedger(l Ledger) *TrustState {
	next := *b
	next.Ledger = l
	return &next
}

// InUse reports whether the very snapshot v is in use.
func (b *TrustState) InUse(v *snapshot.Verified) bool {
	h := b.Active[v.Header().ScopeType]
	return h != nil && h.Verified.HeaderDigest() == v.HeaderDigest()
}

// upToDate reports whether the very snapshot v is in use, under a record as new as v's.
func (b *TrustState) upToDate(v *snapshot.Verified) bool {
	h := b.Active[v.Header().ScopeType]
	return h != nil && h.Verified.HeaderDigest() == v.HeaderDigest() && compareVerified(v, h.Verified) <= 0
}

// Bootstrap returns the content of the node_bootstrap in use.
func (b *TrustState) Bootstrap() (snapshot.NodeBootstrap, bool) {
	if h := b.Active[snapshot.ScopeNodeBootstrap]; h != nil {
		return b.own(h).NodeBootstrap()
	}
	return snapshot.NodeBootstrap{}, false
}

// termsOfJoin returns the content of the node_bootstrap while it is the terms.
func (b *TrustState) termsOfJoin() (snapshot.NodeBootstrap, bool) {
	if h := b.Terms(); h != nil {
		return b.own(h).NodeBootstrap()
	}
	return snapshot.NodeBootstrap{}, false
}

// Standing returns what is said of the state of id, the node itself: by its
// node_runtime or, until there is one, its node_bootstrap. "": a thin node's
// bootstrap tells of no members, itself included.
func (b *TrustState) Standing(id identity.ID) string {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		runtime, _ := b.own(h).NodeRuntime()
		return string(runtime.State)
	}
	content, _ := b.termsOfJoin()
	for _, m := range content.Members {
		if m.ID == id {
			return string(m.State)
		}
	}
	return ""
}

// Terms returns what says what the node is: its node_runtime, and until it accepted
// the first of an authority epoch its node_bootstrap; nil without both. A node_runtime that is damaged or
// expired does not bring back what the bootstrap said: it may have taken that away.
func (b *TrustState) Terms() *ActiveSnapshot {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		return h
	}
	h := b.Active[snapshot.ScopeNodeBootstrap]
	if h == nil {
		return nil
	}
	header := h.Verified.Header()
	if mark, ok := b.Marks.Get(snapshot.ScopeNodeRuntime, header.Subject); ok &&
		mark.AuthorityEpoch >= header.AuthorityEpoch && !b.Arriving {
		return nil
	}
	return h
}

// Coordinators returns the addresses that the node was told: those of its
// node_runtime in use, else of its node_bootstrap. Where to ask is no right, so that
// an overtaken bootstrap will do.
func (b *TrustState) Coordinators() []string {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		r, _ := b.own(h).NodeRuntime()
		return r.Coordinators
	}
	boot, _ := b.Bootstrap()
	return boot.Coordinators
}

// Degraded returns the ceiling of what the node may do out of reach, by the terms in
// use; zero, which is nothing, without.
func (b *TrustState) Degraded() snapshot.DegradedPolicy {
	if h := b.Active[snapshot.ScopeNodeRuntime]; h != nil {
		if r, _ := b.own(h).NodeRuntime(); r.Degraded != nil {
			return *r.Degraded
		}
		return snapshot.DegradedPolicy{}
	}
	boot, _ := b.termsOfJoin()
	return boot.Degraded
}

// Freshness returns the state of scope at now; "" without a snapshot in use, and of
// a node_bootstrap whose place a node_runtime took.
func (b *TrustState) Freshness(scope snapshot.Scope, now time.Time) snapshot.Freshness {
	h := b.Active[scope]
	if h == nil || scope == snapshot.ScopeNodeBootstrap && b.Terms() != h {
		return ""
	}
	return h.Verified.Freshness(now, guard.StaleFor)
}

// Ready says why the node is not ready at now, or "": it needs a trust bundle that
// is in use and in date.
func (b *TrustState) Ready(now time.Time) string {
	h := b.Active[snapshot.ScopeTrustBundle]
	if h == nil {
		return "there is no trust bundle in use"
	}
	if end := h.Verified.Header().ExpiresAt; !now.Before(end) {
		return "the trust bundle expired at " + end.Format(time.RFC3339)
	}
	return ""
}

// Decision is what to do with a snapshot that was received and is genuine.
type Decision struct {
	V *snapshot.Verified
	// Ledger is to be made durable before v is used, if raised.
	Ledger Ledger
	Raised bool
	// News is false for what is in use already.
	News bool
	// Renewal is true for a newer record over the very header that is in use: the
	// bytes on disk stay good without it.
	Renewal bool
	// Barred is true for what is accepted and not used: its content failed a trial.
	Barred bool
	// Restored is true for a trust bundle of a history that was restored from a backup.
	Restored bool
}

// After returns b with what d decided.
func (d Decision) After(b *TrustState, raw []byte) *TrustState {
	if d.Barred {
		return b.WithLedger(d.Ledger)
	}
	return b.WithLedger(d.Ledger).With(d.V.Header().ScopeType, &ActiveSnapshot{d.V, raw})
}

// Decide judges received bytes at now. It is pure. Errors are a
// [*snapshot.RejectedError] or match snapshot.ErrMalformed: nothing changes then.
//
// A header that the marks know already and that is not in use was accepted before,
// and something kept it from being used: a crash, a damaged file, lost marks. It is judged as at
// start, and moves no marks.
func Decide(me Self, b *TrustState, s *snapshot.Signed, now time.Time) (Decision, error) {
	trust := me.Trust(b)
	v, err := snapshot.Verify(s, trust, b.Marks, now)
	if err == nil {
		err = Vouched(b, v.Header().ScopeType)
	}
	if err == nil {
		err = given(b, v.Header())
	}
	restored := false
	if err == nil {
		restored, err = b.leadsOn(v)
	}
	if err == nil {
		marks, err := snapshot.Accept(b.Marks, v)
		if err != nil {
			return Decision{}, err
		}
		next := b.Ledger.confirmed(v.Header().ScopeType).knowing(v)
		next.Marks = marks
		return Decision{V: v, Ledger: next, Raised: true, News: true, Renewal: b.InUse(v), Restored: restored}, nil
	}
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshot.ReasonUnchanged {
		return Decision{}, err
	}
	v, err = snapshot.Recheck(s, trust, b.Marks, now)
	if err == nil {
		err = Vouched(b, v.Header().ScopeType)
	}
	if err == nil {
		err = given(b, v.Header())
	}
	if err != nil {
		return Decision{}, err
	}
	scope := v.Header().ScopeType
	return Decision{V: v, Ledger: b.Ledger.confirmed(scope).knowing(v), Raised: b.Doubts(scope), News: !b.upToDate(v),
		Renewal: b.InUse(v)}, nil
}

// given refuses what the node is not to hold.
func given(b *TrustState, h snapshot.Header) error {
	if b.gives(h) {
		return nil
	}
	return &snapshot.RejectedError{Scope: h.ScopeType, Check: 10, Reason: internalsnapshot.ReasonGrants,
		Detail: "no node_runtime in use gives it to this node"}
}

// Vouched refuses what only a stale trust bundle speaks for: it keeps out what it
// bans, and may list a key that was revoked since. A newer bundle is judged on its
// own signature.
func Vouched(b *TrustState, scope snapshot.Scope) error {
	if scope == snapshot.ScopeTrustBundle || b.Active[snapshot.ScopeTrustBundle] != nil {
		return nil
	}
	return &snapshot.RejectedError{Scope: scope, Check: 4, Reason: internalsnapshot.ReasonSigner,
		Detail: "no trust bundle is in use that lists its signer"}
}

// Refusal is one snapshot that was not accepted.
type Refusal struct {
	Scope  string    `json:"scope"`
	Reason string    `json:"reason"`
	Detail string    `json:"detail"`
	At     time.Time `json:"at"`
}

// RefusalOf words err as the refusal of a snapshot that came as scope.
func RefusalOf(scope string, err error, now time.Time) Refusal {
	r := Refusal{Scope: scope, Reason: "malformed", Detail: Clip(err.Error(), MaxDetailBytes), At: now.UTC()}
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		r.Reason, r.Detail = string(rejected.Reason), Clip(rejected.Detail, MaxDetailBytes)
		if Known(rejected.Scope) {
			r.Scope = string(rejected.Scope)
		}
	}
	if !Known(snapshot.Scope(r.Scope)) {
		r.Scope = "other" // a label: what a sender makes up must not become one
	}
	return r
}

// ErrStorage is matched when a snapshot is good and could not be kept.
var ErrStorage = errors.New("the snapshot could not be kept")

// Origin says who gave the node a snapshot. Its bytes are verified all the same.
type Origin string

const (
	// ByCoordinator: over a connection on which it proved itself just now. Only it
	// can say what holds to a node that lost its marks.
	ByCoordinator Origin = "coordinator"
	// ByGrant: a coordinator's, with a join or a rejoin.
	ByGrant Origin = "grant"
)

// Offer is a snapshot that somebody gives to the node.
type Offer struct {
	Scope string // what the giver calls it: a hint
	Raw   []byte // the encoding, with its content whole
	Giver string // who that is, for people; empty: nobody says
}

// Early is an offer that may be good once what it needs is there.
type Early struct {
	From Origin
	Offer
}

// Waits reports whether a snapshot that was refused for reason may be good under a
// trust bundle, or a node_runtime, that is on its way.
func Waits(scope snapshot.Scope, reason snapshot.Reason) bool {
	switch reason {
	case internalsnapshot.ReasonSignature, internalsnapshot.ReasonSigner, internalsnapshot.ReasonEpoch:
		return Known(scope) && scope != snapshot.ScopeTrustBundle
	case internalsnapshot.ReasonSubject, internalsnapshot.ReasonGrants:
		return Known(scope) && !slices.Contains(Foundations, scope)
	}
	return false
}

// Overtook reports whether the snapshot in use of a scope is newer than s claims to be. Then
// nobody waits for s any more. A refusal that it met before is not told again: that one would
// stay in the status until a still newer snapshot comes.
func (b *TrustState) Overtook(scope snapshot.Scope, s *snapshot.Signed) bool {
	h := b.Active[scope]
	if h == nil {
		return false
	}
	claims, err := s.Claims()
	if err != nil {
		return false
	}
	is, has := claims.Header, h.Verified.Header()
	return is.ScopeType == scope &&
		(is.AuthorityEpoch < has.AuthorityEpoch ||
			is.AuthorityEpoch == has.AuthorityEpoch && is.ConfigVersion < has.ConfigVersion)
}

// gives reports whether the node is to hold what h is the header of. A scope
// that is no foundation is a companion of the node_runtime in use: that one lists the scopes, and
// says of which group the node is. Nothing missing, nothing extra.
func (b *TrustState) gives(h snapshot.Header) bool {
	if slices.Contains(Foundations, h.ScopeType) {
		return true
	}
	r := b.Active[snapshot.ScopeNodeRuntime]
	if r == nil {
		return false
	}
	content, _ := r.Verified.NodeRuntime()
	if !slices.Contains(content.Companions, h.ScopeType) {
		return false
	}
	if h.Subject == snapshot.GroupSubject(content.Roles, content.Organizations) {
		return true
	}
	// Its own, as long as it is for what the node is now.
	return h.Subject == r.Verified.Header().Subject && slices.Equal(h.Roles, content.Roles) &&
		!slices.ContainsFunc(h.OrganizationIDs,
			func(o string) bool { return !slices.Contains(content.Organizations, o) })
}

// Lacks returns which companions the node_runtime in use names that the node does not
// hold, but for what failed its trial.
func (b *TrustState) Lacks() []snapshot.Scope {
	h := b.Active[snapshot.ScopeNodeRuntime]
	if h == nil {
		return nil
	}
	content, _ := h.Verified.NodeRuntime()
	var out []snapshot.Scope
	for _, scope := range content.Companions {
		if _, failed := b.Quarantined(scope); Known(scope) && b.Active[scope] == nil && !failed {
			out = append(out, scope)
		}
	}
	return out
}

// Pruned returns b without what its node_runtime does not give, and which scopes that
// is: a node that lost a role, an organization or an assignment stops using what came
// with it at once. The marks stay.
func (b *TrustState) Pruned() (*TrustState, []snapshot.Scope) {
	var gone []snapshot.Scope
	for _, scope := range Scopes {
		if h := b.Active[scope]; h != nil && !b.gives(h.Verified.Header()) {
			b, gone = b.Without(scope), append(gone, scope)
		}
	}
	return b, gone
}

// Concerns reports whether the node minds what becomes of a scope: that is, of the
// foundations and of what its node_runtime names.
func (b *TrustState) Concerns(scope snapshot.Scope) bool {
	h := b.Active[snapshot.ScopeNodeRuntime]
	if h == nil || !Known(scope) || slices.Contains(Foundations, scope) {
		return true
	}
	content, _ := h.Verified.NodeRuntime()
	return slices.Contains(content.Companions, scope)
}

// Bundle returns the newest trust bundle that is known, be it one that may not be used
// any more; nil without any.
func (b *TrustState) Bundle() *snapshot.Verified {
	if h := b.Active[snapshot.ScopeTrustBundle]; h != nil {
		return h.Verified
	}
	return b.Stale
}

// Revocations are all that the node must not rely on.
func (b *TrustState) Revocations() snapshot.Revocations {
	return trust.RevocationsOf(b.Bundle(), b.Emergencies...)
}

// Stated are what statements of the signers revoke, beyond any bundle.
func (b *TrustState) Stated() snapshot.Revocations {
	return trust.RevocationsOf(nil, b.Emergencies...)
}

// Effective returns what the node me may rely on of h: its content without what is
// revoked. A caller that acts on content asks for it; h itself is verified, kept and
// passed on.
func (b *TrustState) Effective(h *ActiveSnapshot, me identity.ID) *snapshot.Verified {
	return h.Verified.Effective(b.Revocations(), me)
}

// own is effective for a scope whose subject is a node: this one.
func (b *TrustState) own(h *ActiveSnapshot) *snapshot.Verified {
	me, _, _ := h.Verified.Header().Subject.Node()
	return b.Effective(h, me)
}
