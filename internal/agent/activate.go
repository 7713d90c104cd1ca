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

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// take is takeAll of one snapshot, from a coordinator.
func (a *Agent) take(ctx context.Context, scope string, raw []byte) error {
	return a.takeAll(ctx, state.ByCoordinator, state.Offer{Scope: scope, Raw: raw})
}

// takeAll verifies and activates what the node was offered. A refusal is recorded
// and is no error: the next one may be good. The error is one of the disk, and
// matches errStorage; what was in use stays in use.
//
// Of several the marks are written once, if the order allows it: what says what the
// others are judged by is in use before them.
func (a *Agent) takeAll(ctx context.Context, from state.Origin, offers ...state.Offer) error {
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
func (a *Agent) takeOnce(ctx context.Context, from state.Origin, offers []state.Offer) (lost bool, before *state.Held, err error) {
	release, err := a.activation.Acquire(ctx)
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
func (a *Agent) takeHeld(ctx context.Context, from state.Origin, offers []state.Offer, again bool) error {
	offers = slices.Clone(offers)
	slices.SortStableFunc(offers, func(x, y state.Offer) int { return cmp.Compare(state.OrderOf(x.Scope), state.OrderOf(y.Scope)) })
	b := a.beliefs.Load()
	var batch []state.Taken
	for _, o := range offers {
		signed, err := snapshot.Unmarshal(o.Raw)
		var d state.Decision
		if err == nil {
			d, err = a.judge(b, signed)
		}
		if err == nil && from != state.ByCoordinator && b.Doubts(d.V.Header().ScopeType) {
			err = &snapshot.RejectedError{
				Scope: d.V.Header().ScopeType, Check: 9, Reason: snapshot.ReasonUnrecorded,
				Detail: "the marks of what was accepted are lost, and only a coordinator can say what holds now",
			}
		}
		if err != nil {
			if a.trustAhead(o.Raw) {
				continue // of the root that the node is on its way to
			}
			a.lost = a.lost || errors.Is(err, history.ErrNoTrail)
			refused := state.RefusalOf(o.Scope, err, a.now())
			if scope := snapshot.Scope(refused.Scope); again && state.Waits(scope, snapshot.Reason(refused.Reason)) && b.Overtook(scope, signed) {
				continue
			}
			a.refuse(ctx, refused, err, state.Early{From: from, Offer: o})
			if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && from == state.ByCoordinator && o.Scope == string(snapshot.ScopeTrustBundle) && r.Reason == snapshot.ReasonVersion {
				a.overtaken = b.Held[snapshot.ScopeTrustBundle] // who gives an older one is shown this one
			}
			continue
		}
		if !d.News {
			continue
		}
		if d = d.Probation(b, a.status.View().Connected, a.now()); d.Barred && !d.Raised {
			continue // as before
		}
		raw := bytes.Clone(o.Raw)
		batch, b = append(batch, state.Taken{Decision: d, Raw: raw}), d.After(b, raw)
		if slices.Contains(state.Foundations, d.V.Header().ScopeType) {
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
func (a *Agent) judge(b *state.Beliefs, s *snapshot.Signed) (state.Decision, error) {
	d, err := state.Decide(a.self(), b, s, a.now())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != snapshotform.ReasonValidity {
		return d, err
	}
	again, wrong := state.Decide(a.self(), b, s, a.clock.Wall())
	if wrong == nil && again.V.Header().ScopeType == snapshot.ScopeTrustBundle && again.V.Header().AuthorityEpoch > state.NewestEpoch(b.Marks) {
		return again, nil
	}
	return d, err
}

// settle activates a batch, and sees to what follows from that.
func (a *Agent) settle(ctx context.Context, from state.Origin, batch []state.Taken) error {
	if len(batch) == 0 {
		return nil
	}
	if err := a.activate(ctx, from, batch); err != nil {
		for _, t := range batch {
			a.log.LogAttrs(ctx, slog.LevelError, "snapshot not kept, the one in use stays", slog.String("scope", string(t.V.Header().ScopeType)), slog.String("reason", err.Error()))
			if bundle, ok := t.V.TrustBundle(); ok {
				// A full disk must not keep a ban from taking effect: for connections it
				// does so now, and for good when it could be kept.
				if trust, err := bundle.IdentityWith(a.beliefs.Load().Stated()); err == nil {
					_ = a.source.Trust(trust)
				}
			}
		}
		return fmt.Errorf("%w: %w", state.ErrStorage, err)
	}
	for _, t := range batch {
		if t.Barred {
			a.tellQuarantine(ctx, a.beliefs.Load(), t.V.Header().ScopeType)
		}
	}
	switch batch[len(batch)-1].V.Header().ScopeType {
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
		if err = a.takeHeld(ctx, e.From, []state.Offer{e.Offer}, true); err != nil {
			break
		}
	}
	// Whatever became of the others: what it revokes is revoked.
	if batch[len(batch)-1].V.Header().ScopeType == snapshot.ScopeTrustBundle {
		a.reconsider(ctx)
	}
	return err
}

// activate puts decisions into use, in the order that a crash needs: pending,
// marks, active, and then memory. They were decided one after the other, so that
// the last has the ledger of all. The caller holds a.activation.
func (a *Agent) activate(ctx context.Context, from state.Origin, batch []state.Taken) error {
	if len(batch) == 0 {
		return nil
	}
	for _, t := range batch {
		if t.Renewal || t.Barred {
			continue // until it is in place the bytes that it renews are as good
		}
		if err := a.store.Write(dir.SnapshotName(t.V.Header().ScopeType, dir.Pending), t.Raw); err != nil {
			return err
		}
	}
	b := a.beliefs.Load()
	if slices.ContainsFunc(batch, func(t state.Taken) bool { return t.Raised }) {
		// From here on it is accepted, in memory even if the disk fails: what is lower
		// must not come in afterwards.
		b = b.WithLedger(batch[len(batch)-1].Ledger)
		b.Arriving = true
		a.beliefs.Store(b)
		a.marksDirty = true
		defer a.arrived()
	}
	if a.marksDirty {
		if err := a.store.WriteLedger(b.Ledger); err != nil {
			return err
		}
		a.marksDirty = false
	}
	if a.clock.Learn(b.Marks) {
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
		if t.Barred {
			continue
		}
		gone, err := a.place(ctx, t)
		if err != nil {
			return err
		}
		scope := t.V.Header().ScopeType
		a.receipts[scope] = state.Receipt{At: a.now(), From: from}
		changed = append(append(changed, gone...), scope)
	}
	return nil
}

// arrived ends an activation, however it ended.
func (a *Agent) arrived() {
	if b := a.beliefs.Load(); b.Arriving {
		next := *b
		next.Arriving = false
		a.beliefs.Store(&next)
	}
}

// place puts one snapshot into use that the marks on disk know, and returns the scopes
// that the node does not hold any more because of it.
func (a *Agent) place(ctx context.Context, t state.Taken) ([]snapshot.Scope, error) {
	b, header := a.beliefs.Load(), t.V.Header()
	scope := header.ScopeType
	// A newer record over the same header takes no version's place: the one before
	// stays the previous one.
	var old []byte
	level := slog.LevelInfo
	_, probation := b.OnTrial(scope)
	switch h := b.Held[scope]; {
	case b.InUse(t.V):
		level = slog.LevelDebug
	case h == nil:
	case probation && h.Verified.Header().ContentHash == header.ContentHash:
		// Nor does another header over content that is on trial: what it would fall back
		// to stays.
	default:
		old = h.Raw
	}
	if err := a.store.Place(scope, t.Raw, old); err != nil {
		return nil, err
	}
	next := b.With(scope, &state.Held{Verified: t.V, Raw: t.Raw})
	if bundle, ok := t.V.TrustBundle(); ok {
		trust, err := bundle.IdentityWith(next.Stated())
		if err != nil {
			return nil, fmt.Errorf("the trust bundle trusts nobody: %w", err)
		}
		next.Contact = trust
		if err := a.source.Trust(trust); err != nil {
			return nil, err
		}
	}
	var gone []snapshot.Scope
	if scope == snapshot.ScopeNodeRuntime {
		next, gone = next.Pruned()
	}
	a.beliefs.Store(next)
	if t.Restored {
		a.overtaken = b.Held[scope]
		a.log.LogAttrs(ctx, slog.LevelWarn, "the signers of the cluster restored it from a backup; this node goes on with it", slog.Uint64("authority_epoch", header.AuthorityEpoch))
	}
	if scope == snapshot.ScopeTrustBundle {
		a.behind.Store(new(false)) // whoever is ahead of this one too will show again
	}
	if trial, ok := next.OnTrial(scope); ok && trial.Header == t.V.HeaderDigest().String() {
		a.trialSince[scope] = time.Now()
		state.Poke(a.trialKick)
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
func (a *Agent) refuse(ctx context.Context, r state.Refusal, cause error, e state.Early) {
	if state.Waits(snapshot.Scope(r.Scope), snapshot.Reason(r.Reason)) {
		if a.early == nil {
			a.early = make(map[string]state.Early, len(state.Scopes))
		}
		a.early[r.Scope] = e
	}
	a.note(ctx, r, cause, e.Raw)
}

// note records a refusal, with raw if it proves that its signer lies.
func (a *Agent) note(ctx context.Context, r state.Refusal, cause error, raw []byte) {
	scope := snapshot.Scope(r.Scope)
	a.metrics.rejected.WithLabelValues(r.Scope, r.Reason).Inc()
	if rejected, ok := errors.AsType[*snapshot.RejectedError](cause); ok && rejected.Ahead {
		a.fallBehind(ctx)
	}
	level := slog.LevelWarn
	if errors.Is(cause, snapshot.ErrEquivocation) {
		level = slog.LevelError
		if state.Known(scope) {
			if err := a.store.Write(dir.SnapshotName(scope, dir.Refused), raw); err != nil {
				a.log.LogAttrs(ctx, slog.LevelError, "evidence not kept", slog.String("scope", r.Scope), slog.Any("err", err))
			}
		}
	}
	a.log.LogAttrs(ctx, level, "snapshot refused, the one in use stays", slog.String("scope", r.Scope), slog.String("reason", r.Reason),
		slog.String("code", string(explain.SnapshotRefused)), slog.String("detail", r.Detail))
	write := a.status.Refused(r)
	if write {
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// accepted ends the refusal of a scope: something newer is in use.
func (a *Agent) accepted(ctx context.Context, scope snapshot.Scope) {
	if a.status.Resolved(string(scope)) {
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// keepRefusals makes the reasons durable. Losing them costs a person a hint, so
// that a failure is logged and no more.
func (a *Agent) keepRefusals(ctx context.Context) {
	if err := a.store.WriteSealed(dir.RefusalsName, a.status.Refusals()); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "refusals not kept", slog.Any("err", err))
	}
}
