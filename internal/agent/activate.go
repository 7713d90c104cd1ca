package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// held is a snapshot that is in use: what was verified, and the bytes that were.
type held struct {
	v   *snapshot.Verified
	raw []byte
}

// ledger is what the node must not forget. It is immutable.
type ledger struct {
	// marks are the newest that was accepted.
	marks snapshot.Marks

	// unconfirmed are the scopes of which the marks were lost and no coordinator has
	// said yet what holds now: what the marks know of them is a floor, and nothing of
	// them on disk is used. Sorted.
	unconfirmed []snapshot.Scope

	// revocations is the digest of what the trust bundle that was accepted last revokes;
	// blank if none was. It outlives damage of that bundle.
	revocations string

	trials     []trial       // of what is in use on trial
	quarantine []quarantined // what failed its trial, the last ones at the end
}

// doubts reports whether the marks of scope are a floor alone.
func (l ledger) doubts(scope snapshot.Scope) bool { return slices.Contains(l.unconfirmed, scope) }

// confirmed returns l for a node that heard from a coordinator what holds of scope.
func (l ledger) confirmed(scope snapshot.Scope) ledger {
	l.unconfirmed = slices.DeleteFunc(slices.Clone(l.unconfirmed), func(s snapshot.Scope) bool { return s == scope })
	return l
}

// knowing returns l for a node that accepted v, of whatever scope.
func (l ledger) knowing(v *snapshot.Verified) ledger {
	if digest := revocationsOf(v); digest != "" {
		l.revocations = digest
	}
	return l
}

// takesBack reports whether v is a trust bundle that revokes something else than the
// newest that was accepted: the one before may trust what that one revoked.
func (l ledger) takesBack(v *snapshot.Verified) bool {
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

// beliefs is what the node holds true. It is immutable.
type beliefs struct {
	// held is what is in use, by scope. A scope without an entry has nothing that
	// may be used.
	held map[snapshot.Scope]*held

	// stale is a genuine trust bundle that may not be used any more, or not yet: it
	// expired, or nobody said that it still holds. It bans whom it bans, and opens
	// the way to a coordinator; it vouches for no other snapshot. Nil beside a
	// bundle in use.
	stale *snapshot.Verified

	ledger

	// emergencies are the statements of the signers that are in force here, and
	// statements the same as they were handed in.
	emergencies []*snapshot.Emergency
	statements  [][]byte

	// contact is what connections are verified by.
	contact *identity.Bundle

	// links are the newest transitions of the history that were heard of, unverified.
	links [][]byte

	// arriving: the marks are those of what is put in place right now. Until it is,
	// what it overtakes is as good as it was.
	arriving bool
}

func (b *beliefs) with(scope snapshot.Scope, h *held) *beliefs {
	next := *b
	next.held = maps.Clone(b.held)
	if next.held == nil {
		next.held = make(map[snapshot.Scope]*held, 1)
	}
	next.held[scope] = h
	if scope == snapshot.ScopeTrustBundle {
		next.stale = nil
	}
	return &next
}

func (b *beliefs) without(scope snapshot.Scope) *beliefs {
	next := *b
	next.held = maps.Clone(b.held)
	delete(next.held, scope)
	return &next
}

func (b *beliefs) withLedger(l ledger) *beliefs {
	next := *b
	next.ledger = l
	return &next
}

// inUse reports whether the very snapshot v is in use.
func (b *beliefs) inUse(v *snapshot.Verified) bool {
	h := b.held[v.Header().ScopeType]
	return h != nil && h.v.HeaderDigest() == v.HeaderDigest()
}

// upToDate reports whether the very snapshot v is in use, under a record as new as v's.
func (b *beliefs) upToDate(v *snapshot.Verified) bool {
	h := b.held[v.Header().ScopeType]
	return h != nil && h.v.HeaderDigest() == v.HeaderDigest() && compareVerified(v, h.v) <= 0
}

// bootstrap returns the content of the node_bootstrap in use.
func (b *beliefs) bootstrap() (snapshot.NodeBootstrap, bool) {
	if h := b.held[snapshot.ScopeNodeBootstrap]; h != nil {
		return b.own(h).NodeBootstrap()
	}
	return snapshot.NodeBootstrap{}, false
}

// termsOfJoin returns the content of the node_bootstrap while it is the terms.
func (b *beliefs) termsOfJoin() (snapshot.NodeBootstrap, bool) {
	if h := b.terms(); h != nil {
		return b.own(h).NodeBootstrap()
	}
	return snapshot.NodeBootstrap{}, false
}

// standing returns what is said of the state of id, the node itself: by its
// node_runtime or, until there is one, its node_bootstrap. "": a thin node's
// bootstrap tells of no members, itself included.
func (b *beliefs) standing(id identity.ID) string {
	if h := b.held[snapshot.ScopeNodeRuntime]; h != nil {
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

// terms returns what says what the node is: its node_runtime, and until it accepted
// the first of an authority epoch its node_bootstrap; nil without both. A node_runtime that is damaged or
// expired does not bring back what the bootstrap said: it may have taken that away.
func (b *beliefs) terms() *held {
	if h := b.held[snapshot.ScopeNodeRuntime]; h != nil {
		return h
	}
	h := b.held[snapshot.ScopeNodeBootstrap]
	if h == nil {
		return nil
	}
	header := h.v.Header()
	if mark, ok := b.marks.Get(snapshot.ScopeNodeRuntime, header.Subject); ok && mark.AuthorityEpoch >= header.AuthorityEpoch && !b.arriving {
		return nil
	}
	return h
}

// coordinators returns the addresses that the node was told: those of its
// node_runtime in use, else of its node_bootstrap. Where to ask is no right, so that
// an overtaken bootstrap will do.
func (b *beliefs) coordinators() []string {
	if h := b.held[snapshot.ScopeNodeRuntime]; h != nil {
		r, _ := b.own(h).NodeRuntime()
		return r.Coordinators
	}
	boot, _ := b.bootstrap()
	return boot.Coordinators
}

// degraded returns the ceiling of what the node may do out of reach, by the terms in
// use; zero, which is nothing, without.
func (b *beliefs) degraded() snapshot.DegradedPolicy {
	if h := b.held[snapshot.ScopeNodeRuntime]; h != nil {
		if r, _ := b.own(h).NodeRuntime(); r.Degraded != nil {
			return *r.Degraded
		}
		return snapshot.DegradedPolicy{}
	}
	boot, _ := b.termsOfJoin()
	return boot.Degraded
}

// staleFor is how long a snapshot without news is stale before it is degraded.
const staleFor = time.Hour

// freshness returns the state of scope at now; "" without a snapshot in use, and of
// a node_bootstrap whose place a node_runtime took.
func (b *beliefs) freshness(scope snapshot.Scope, now time.Time) snapshot.Freshness {
	h := b.held[scope]
	if h == nil || scope == snapshot.ScopeNodeBootstrap && b.terms() != h {
		return ""
	}
	return h.v.Freshness(now, staleFor)
}

// rank orders the states, the best first.
func rank(f snapshot.Freshness) int {
	return slices.Index([]snapshot.Freshness{snapshot.Fresh, snapshot.Stale, snapshot.Degraded, snapshot.Expired}, f)
}

// ready says why the node is not ready at now, or "": it needs a trust bundle that
// is in use and in date.
func (b *beliefs) ready(now time.Time) string {
	h := b.held[snapshot.ScopeTrustBundle]
	if h == nil {
		return "there is no trust bundle in use"
	}
	if end := h.v.Header().ExpiresAt; !now.Before(end) {
		return "the trust bundle expired at " + end.Format(time.RFC3339)
	}
	return ""
}

// decision is what to do with a snapshot that was received and is genuine.
type decision struct {
	v *snapshot.Verified
	// ledger is to be made durable before v is used, if raised.
	ledger ledger
	raised bool
	// news is false for what is in use already.
	news bool
	// renewal is true for a newer record over the very header that is in use: the
	// bytes on disk stay good without it.
	renewal bool
	// barred is true for what is accepted and not used: its content failed a trial.
	barred bool
	// restored is true for a trust bundle of a history that was restored from a backup.
	restored bool
}

// after returns b with what d decided.
func (d decision) after(b *beliefs, raw []byte) *beliefs {
	if d.barred {
		return b.withLedger(d.ledger)
	}
	return b.withLedger(d.ledger).with(d.v.Header().ScopeType, &held{d.v, raw})
}

// decide judges received bytes at now. It is pure. Errors are a
// [*snapshot.RejectedError] or match snapshot.ErrMalformed: nothing changes then.
//
// What the marks know already and is not in use was accepted before, and something
// kept it from being used: a crash, a damaged file, lost marks. It is judged as at
// start, and moves no marks.
func decide(me self, b *beliefs, s *snapshot.Signed, now time.Time) (decision, error) {
	trust := me.trust(b)
	v, err := snapshot.Verify(s, trust, b.marks, now)
	if err == nil {
		err = vouched(b, v.Header().ScopeType)
	}
	if err == nil {
		err = given(b, v.Header())
	}
	restored := false
	if err == nil {
		restored, err = b.leadsOn(v)
	}
	if err == nil {
		marks, err := snapshot.Accept(b.marks, v)
		if err != nil {
			return decision{}, err
		}
		next := b.ledger.confirmed(v.Header().ScopeType).knowing(v)
		next.marks = marks
		return decision{v: v, ledger: next, raised: true, news: true, renewal: b.inUse(v), restored: restored}, nil
	}
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshot.ReasonUnchanged {
		return decision{}, err
	}
	v, err = snapshot.Recheck(s, trust, b.marks, now)
	if err == nil {
		err = vouched(b, v.Header().ScopeType)
	}
	if err == nil {
		err = given(b, v.Header())
	}
	if err != nil {
		return decision{}, err
	}
	scope := v.Header().ScopeType
	return decision{v: v, ledger: b.ledger.confirmed(scope).knowing(v), raised: b.doubts(scope), news: !b.upToDate(v), renewal: b.inUse(v)}, nil
}

// given refuses what the node is not to hold.
func given(b *beliefs, h snapshot.Header) error {
	if b.gives(h) {
		return nil
	}
	return &snapshot.RejectedError{Scope: h.ScopeType, Check: 10, Reason: snapshotform.ReasonGrants, Detail: "no node_runtime in use gives it to this node"}
}

// vouched refuses what only a stale trust bundle speaks for: it keeps out what it
// bans, and may list a key that was revoked since. A newer bundle is judged on its
// own signature.
func vouched(b *beliefs, scope snapshot.Scope) error {
	if scope == snapshot.ScopeTrustBundle || b.held[snapshot.ScopeTrustBundle] != nil {
		return nil
	}
	return &snapshot.RejectedError{Scope: scope, Check: 4, Reason: snapshotform.ReasonSigner, Detail: "no trust bundle is in use that lists its signer"}
}

// refusal is one snapshot that was not accepted.
type refusal struct {
	Scope  string    `json:"scope"`
	Reason string    `json:"reason"`
	Detail string    `json:"detail"`
	At     time.Time `json:"at"`
}

// refusalOf words err as the refusal of a snapshot that came as scope.
func refusalOf(scope string, err error, now time.Time) refusal {
	r := refusal{Scope: scope, Reason: "malformed", Detail: clip(err.Error(), maxDetailBytes), At: now.UTC()}
	if rejected, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		r.Reason, r.Detail = string(rejected.Reason), clip(rejected.Detail, maxDetailBytes)
		if known(rejected.Scope) {
			r.Scope = string(rejected.Scope)
		}
	}
	if !known(snapshot.Scope(r.Scope)) {
		r.Scope = "other" // a label: what a sender makes up must not become one
	}
	return r
}

// maxDetailBytes bounds a refusal's sentence.
const maxDetailBytes = 512

// errStorage is matched when a snapshot is good and could not be kept.
var errStorage = errors.New("the snapshot could not be kept")

// origin says who gave the node a snapshot. Its bytes are verified all the same.
type origin string

const (
	// byCoordinator: over a connection on which it proved itself just now. Only it
	// can say what holds to a node that lost its marks.
	byCoordinator origin = "coordinator"
	// byGrant: a coordinator's, with a join or a rejoin.
	byGrant origin = "grant"
)

// offer is a snapshot that somebody gives to the node.
type offer struct {
	scope string // what the giver calls it: a hint
	raw   []byte // the encoding, with its content whole
}

// early is an offer that may be good once what it needs is there.
type early struct {
	from origin
	offer
}

// take is takeAll of one snapshot, from a coordinator.
func (a *Agent) take(ctx context.Context, scope string, raw []byte) error {
	return a.takeAll(ctx, byCoordinator, offer{scope, raw})
}

// takeAll verifies and activates what the node was offered. A refusal is recorded
// and is no error: the next one may be good. The error is one of the disk, and
// matches errStorage; what was in use stays in use.
//
// Of several the marks are written once, if the order allows it: what says what the
// others are judged by is in use before them.
func (a *Agent) takeAll(ctx context.Context, from origin, offers ...offer) error {
	lost, before, err := a.takeOnce(ctx, from, offers)
	// One that is behind, or lies, has links too: the next may have those that are missing.
	for _, address := range a.addresses() {
		if err != nil || !lost || ctx.Err() != nil {
			break
		}
		if a.linksAt(ctx, address) == nil {
			lost, before, err = a.takeOnce(ctx, from, offers)
		}
	}
	if before != nil {
		a.show(ctx, before)
	}
	return err
}

// takeOnce is takeAll with what is here. It reports whether links of the history are
// missing, and the trust bundle that one of a restored history took the place of.
func (a *Agent) takeOnce(ctx context.Context, from origin, offers []offer) (lost bool, before *held, err error) {
	release, err := a.activation.acquire(ctx)
	if err != nil {
		return false, nil, err
	}
	defer release()
	err = a.takeHeld(ctx, from, offers, false)
	lost, before = a.lost, a.overtaken
	a.lost, a.overtaken = false, nil
	return lost, before, err
}

// takeHeld is takeAll for who holds a.activation, for the first time or again.
func (a *Agent) takeHeld(ctx context.Context, from origin, offers []offer, again bool) error {
	offers = slices.Clone(offers)
	slices.SortStableFunc(offers, func(x, y offer) int { return cmp.Compare(orderOf(x.scope), orderOf(y.scope)) })
	b := a.beliefs.Load()
	var batch []taken
	for _, o := range offers {
		signed, err := snapshot.Unmarshal(o.raw)
		var d decision
		if err == nil {
			d, err = a.judge(b, signed)
		}
		if err == nil && from != byCoordinator && b.doubts(d.v.Header().ScopeType) {
			err = &snapshot.RejectedError{
				Scope: d.v.Header().ScopeType, Check: 9, Reason: snapshot.ReasonUnrecorded,
				Detail: "the marks of what was accepted are lost, and only a coordinator can say what holds now",
			}
		}
		if err != nil {
			if a.trustAhead(o.raw) {
				continue // of the root that the node is on its way to
			}
			a.lost = a.lost || errors.Is(err, history.ErrNoTrail)
			refused := refusalOf(o.scope, err, a.now())
			if scope := snapshot.Scope(refused.Scope); again && waits(scope, snapshot.Reason(refused.Reason)) && b.overtook(scope, signed) {
				continue
			}
			a.refuse(ctx, refused, err, early{from, o})
			if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && from == byCoordinator && o.scope == string(snapshot.ScopeTrustBundle) && r.Reason == snapshot.ReasonVersion {
				a.overtaken = b.held[snapshot.ScopeTrustBundle] // who gives an older one is shown this one
			}
			continue
		}
		if !d.news {
			continue
		}
		if d = d.probation(b, a.status.view().connected, a.now()); d.barred && !d.raised {
			continue // as before
		}
		raw := bytes.Clone(o.raw)
		batch, b = append(batch, taken{d, raw}), d.after(b, raw)
		if slices.Contains(foundations, d.v.Header().ScopeType) {
			if err := a.settle(ctx, from, batch); err != nil {
				return err
			}
			batch, b = nil, a.beliefs.Load()
		}
	}
	return a.settle(ctx, from, batch)
}

// judge decides at the node's time. If that is ahead of the machine's because the
// future was signed, a bundle of a newer epoch is what mends it: such a one is judged
// by the machine's clock as well.
func (a *Agent) judge(b *beliefs, s *snapshot.Signed) (decision, error) {
	d, err := decide(a.self(), b, s, a.now())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshotform.ReasonValidity {
		return d, err
	}
	again, wrong := decide(a.self(), b, s, a.clock.wall())
	if wrong == nil && again.v.Header().ScopeType == snapshot.ScopeTrustBundle && again.v.Header().AuthorityEpoch > newestEpoch(b.marks) {
		return again, nil
	}
	return d, err
}

// settle activates a batch, and sees to what follows from that.
func (a *Agent) settle(ctx context.Context, from origin, batch []taken) error {
	if len(batch) == 0 {
		return nil
	}
	if err := a.activate(ctx, from, batch); err != nil {
		for _, t := range batch {
			a.log.LogAttrs(ctx, slog.LevelError, "snapshot not kept, the one in use stays", slog.String("scope", string(t.v.Header().ScopeType)), slog.String("reason", err.Error()))
			if bundle, ok := t.v.TrustBundle(); ok {
				// A full disk must not keep a ban from taking effect: for connections it
				// does so now, and for good when it could be kept.
				if trust, err := bundle.IdentityWith(a.beliefs.Load().stated()); err == nil {
					_ = a.source.Trust(trust)
				}
			}
		}
		return fmt.Errorf("%w: %w", errStorage, err)
	}
	for _, t := range batch {
		if t.barred {
			a.tellQuarantine(ctx, a.beliefs.Load(), t.v.Header().ScopeType)
		}
	}
	switch batch[len(batch)-1].v.Header().ScopeType {
	case snapshot.ScopeTrustBundle:
		a.kickRenewal() // it may have waited for this bundle
	case snapshot.ScopeNodeRuntime:
	default:
		return nil
	}
	// What came before what it needs gets a second look.
	waiting := a.early
	a.early = nil
	var err error
	for _, scope := range slices.Sorted(maps.Keys(waiting)) {
		e := waiting[scope]
		if err = a.takeHeld(ctx, e.from, []offer{e.offer}, true); err != nil {
			break
		}
	}
	// Whatever became of the others: what it revokes is revoked.
	if batch[len(batch)-1].v.Header().ScopeType == snapshot.ScopeTrustBundle {
		a.reconsider(ctx)
	}
	return err
}

// activate puts decisions into use, in the order that a crash needs: pending,
// marks, active, and then memory. They were decided one after the other, so that
// the last has the ledger of all. The caller holds a.activation.
func (a *Agent) activate(ctx context.Context, from origin, batch []taken) error {
	if len(batch) == 0 {
		return nil
	}
	for _, t := range batch {
		if t.renewal || t.barred {
			continue // until it is in place the bytes that it renews are as good
		}
		if err := a.store.write(snapshotName(t.v.Header().ScopeType, pending), t.raw); err != nil {
			return err
		}
	}
	b := a.beliefs.Load()
	if slices.ContainsFunc(batch, func(t taken) bool { return t.raised }) {
		// From here on it is accepted, in memory even if the disk fails: what is lower
		// must not come in afterwards.
		b = b.withLedger(batch[len(batch)-1].ledger)
		b.arriving = true
		a.beliefs.Store(b)
		a.marksDirty = true
		defer a.arrived()
	}
	if a.marksDirty {
		if err := a.store.writeLedger(b.ledger); err != nil {
			return err
		}
		a.marksDirty = false
	}
	if a.clock.learn(b.marks) {
		a.keepClock(ctx)
	}
	if err := a.faults.Hit("activate.after-marks"); err != nil {
		return err
	}
	var changed []snapshot.Scope
	// What is in place is in use, also if the disk does not take the rest.
	defer func() {
		a.arrived()
		a.finishDrops(ctx)
		a.derive(ctx)
		a.changed(changed...)
	}()
	for _, t := range batch {
		if t.barred {
			continue
		}
		gone, err := a.place(ctx, t)
		if err != nil {
			return err
		}
		scope := t.v.Header().ScopeType
		a.receipts[scope] = receipt{a.now(), from}
		changed = append(append(changed, gone...), scope)
	}
	return nil
}

// arrived ends an activation, however it ended.
func (a *Agent) arrived() {
	if b := a.beliefs.Load(); b.arriving {
		next := *b
		next.arriving = false
		a.beliefs.Store(&next)
	}
}

// place puts one snapshot into use that the marks on disk know, and returns the scopes
// that the node does not hold any more because of it.
func (a *Agent) place(ctx context.Context, t taken) ([]snapshot.Scope, error) {
	b, header := a.beliefs.Load(), t.v.Header()
	scope := header.ScopeType
	// A newer record over the same header takes no version's place: the one before
	// stays the previous one.
	var old []byte
	level := slog.LevelInfo
	_, probation := b.onTrial(scope)
	switch h := b.held[scope]; {
	case b.inUse(t.v):
		level = slog.LevelDebug
	case h == nil:
	case probation && h.v.Header().ContentHash == header.ContentHash:
		// Nor does another header over content that is on trial: what it would fall back
		// to stays.
	default:
		old = h.raw
	}
	if err := a.store.place(scope, t.raw, old); err != nil {
		return nil, err
	}
	next := b.with(scope, &held{t.v, t.raw})
	if bundle, ok := t.v.TrustBundle(); ok {
		trust, err := bundle.IdentityWith(next.stated())
		if err != nil {
			return nil, fmt.Errorf("the trust bundle trusts nobody: %w", err)
		}
		next.contact = trust
		if err := a.source.Trust(trust); err != nil {
			return nil, err
		}
	}
	var gone []snapshot.Scope
	if scope == snapshot.ScopeNodeRuntime {
		next, gone = next.pruned()
	}
	a.beliefs.Store(next)
	if t.restored {
		a.overtaken = b.held[scope]
		a.log.LogAttrs(ctx, slog.LevelWarn, "the signers of the cluster restored it from a backup; this node goes on with it", slog.Uint64("authority_epoch", header.AuthorityEpoch))
	}
	if scope == snapshot.ScopeTrustBundle {
		a.behind.Store(new(false)) // whoever is ahead of this one too will show again
	}
	if trial, ok := next.onTrial(scope); ok && trial.Header == t.v.HeaderDigest().String() {
		a.trialSince[scope] = time.Now()
		poke(a.trialKick)
	}
	a.accepted(ctx, scope)
	a.drop(ctx, gone)
	if scope == snapshot.ScopeNodeRuntime {
		a.forgive(ctx)
	}
	a.log.LogAttrs(ctx, level, "snapshot in use", slog.String("scope", string(scope)),
		slog.Uint64("authority_epoch", header.AuthorityEpoch), slog.Uint64("config_version", header.ConfigVersion))
	return gone, nil
}

// refuse records that a snapshot was not accepted. It is kept if it proves that its
// signer lies, or if what it needs may follow.
func (a *Agent) refuse(ctx context.Context, r refusal, cause error, e early) {
	if waits(snapshot.Scope(r.Scope), snapshot.Reason(r.Reason)) {
		if a.early == nil {
			a.early = make(map[string]early, len(scopes))
		}
		a.early[r.Scope] = e
	}
	a.note(ctx, r, cause, e.raw)
}

// note records a refusal, with raw if it proves that its signer lies.
func (a *Agent) note(ctx context.Context, r refusal, cause error, raw []byte) {
	scope := snapshot.Scope(r.Scope)
	a.metrics.rejected.WithLabelValues(r.Scope, r.Reason).Inc()
	if rejected, ok := errors.AsType[*snapshot.RejectedError](cause); ok && rejected.Ahead {
		a.fallBehind(ctx)
	}
	level := slog.LevelWarn
	if errors.Is(cause, snapshot.ErrEquivocation) {
		level = slog.LevelError
		if known(scope) {
			if err := a.store.write(snapshotName(scope, refused), raw); err != nil {
				a.log.LogAttrs(ctx, slog.LevelError, "evidence not kept", slog.String("scope", r.Scope), slog.Any("err", err))
			}
		}
	}
	a.log.LogAttrs(ctx, level, "snapshot refused, the one in use stays", slog.String("scope", r.Scope), slog.String("reason", r.Reason),
		slog.String("code", string(explain.SnapshotRefused)), slog.String("detail", r.Detail))
	write := a.status.refused(r)
	if write {
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// waits reports whether a snapshot that was refused for reason may be good under a
// trust bundle, or a node_runtime, that is on its way.
func waits(scope snapshot.Scope, reason snapshot.Reason) bool {
	switch reason {
	case snapshotform.ReasonSignature, snapshotform.ReasonSigner, snapshotform.ReasonEpoch:
		return known(scope) && scope != snapshot.ScopeTrustBundle
	case snapshotform.ReasonSubject, snapshotform.ReasonGrants:
		return known(scope) && !slices.Contains(foundations, scope)
	}
	return false
}

// overtook reports whether the snapshot in use of a scope is newer than s claims to be. Then
// nobody waits for s any more. A refusal that it met before is not told again: that one would
// stay in the status until a still newer snapshot comes.
func (b *beliefs) overtook(scope snapshot.Scope, s *snapshot.Signed) bool {
	h := b.held[scope]
	if h == nil {
		return false
	}
	claims, err := s.Claims()
	if err != nil {
		return false
	}
	is, has := claims.Header, h.v.Header()
	return is.ScopeType == scope && (is.AuthorityEpoch < has.AuthorityEpoch || is.AuthorityEpoch == has.AuthorityEpoch && is.ConfigVersion < has.ConfigVersion)
}

// accepted ends the refusal of a scope: something newer is in use.
func (a *Agent) accepted(ctx context.Context, scope snapshot.Scope) {
	if a.status.resolved(string(scope)) {
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// keepRefusals makes the reasons durable. Losing them costs a person a hint, so
// that a failure is logged and no more.
func (a *Agent) keepRefusals(ctx context.Context) {
	if err := a.store.writeSealed(refusalsName, a.status.refusals()); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "refusals not kept", slog.Any("err", err))
	}
}
