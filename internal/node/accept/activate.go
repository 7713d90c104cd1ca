package accept

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

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// Take is Take with what is here. It reports whether links of the history are
// missing, and the trust bundle that one of a restored history took the place of.
func (n *Node) Take(ctx context.Context, from state.Origin, offers []state.Offer) (lost bool,
	before *state.ActiveSnapshot, err error) {
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return false, nil, err
	}
	defer release()
	err = n.takeHeld(ctx, from, offers, false)
	lost, before = n.arrival.lost, n.arrival.overtaken
	n.arrival.lost, n.arrival.overtaken = false, nil
	return lost, before, err
}

// takeHeld is Take for who holds n.activation, for the first time or again.
func (n *Node) takeHeld(ctx context.Context, from state.Origin, offers []state.Offer, again bool) error {
	offers = slices.Clone(offers)
	slices.SortStableFunc(offers, func(x, y state.Offer) int {
		return cmp.Compare(state.OrderOf(x.Scope),
			state.OrderOf(y.Scope))
	})
	b := n.trustState.Load()
	var batch []state.AcceptedSnapshot
	for _, o := range offers {
		signed, err := snapshot.Unmarshal(o.Raw)
		var d state.Decision
		if err == nil {
			d, err = judge(n.Self(), n.Clock, b, signed)
		}
		if err == nil && from != state.ByCoordinator && b.Doubts(d.V.Header().ScopeType) {
			err = &snapshot.RejectedError{
				Scope: d.V.Header().ScopeType, Check: 9, Reason: snapshot.ReasonUnrecorded,
				Detail: "the marks of what was accepted are lost, and only a coordinator can say what holds now",
			}
		}
		if err != nil {
			if n.trustAhead(o.Raw) {
				continue // of the root that the node is on its way to
			}
			n.arrival.lost = n.arrival.lost || errors.Is(err, history.ErrNoTrail)
			refused := state.RefusalOf(o.Scope, err, n.Clock.Now())
			if scope := snapshot.Scope(refused.Scope); again && state.Waits(scope, snapshot.Reason(refused.Reason)) &&
				b.Overtook(scope, signed) {
				continue
			}
			n.refuse(ctx, refused, err, state.Early{From: from, Offer: o})
			if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && from == state.ByCoordinator &&
				o.Scope == string(snapshot.ScopeTrustBundle) && r.Reason == snapshot.ReasonVersion {
				n.arrival.overtaken = b.Active[snapshot.ScopeTrustBundle] // who gives an older one is shown this one
			}
			continue
		}
		if !d.News {
			continue
		}
		if d = d.Probation(b, n.status.View().Connected, n.Clock.Now()); d.Barred && !d.Raised {
			continue // as before
		}
		raw := bytes.Clone(o.Raw)
		batch, b = append(batch, state.AcceptedSnapshot{Decision: d, Raw: raw}), d.After(b, raw)
		if slices.Contains(state.Foundations, d.V.Header().ScopeType) {
			if err := n.settle(ctx, from, batch); err != nil {
				return err
			}
			batch, b = nil, n.trustState.Load()
		}
	}
	return n.settle(ctx, from, batch)
}

// judge decides at the node's time. If that is ahead of the machine's because the
// future was signed, a bundle of a newer epoch is what mends it: such a one is judged
// by the machine's clock as well.
func judge(me state.Self, clock *Clock, b *state.TrustState, s *snapshot.Signed) (state.Decision, error) {
	d, err := state.Decide(me, b, s, clock.Now())
	if r, ok := errors.AsType[*snapshot.RejectedError](err); !ok || r.Reason != internalsnapshot.ReasonValidity {
		return d, err
	}
	again, wrong := state.Decide(me, b, s, clock.Wall())
	if wrong == nil && again.V.Header().ScopeType == snapshot.ScopeTrustBundle &&
		again.V.Header().AuthorityEpoch > state.NewestEpoch(b.Marks) {
		return again, nil
	}
	return d, err
}

// settle activates a batch, and sees to what follows from that.
func (n *Node) settle(ctx context.Context, from state.Origin, batch []state.AcceptedSnapshot) error {
	if len(batch) == 0 {
		return nil
	}
	if err := n.activate(ctx, from, batch); err != nil {
		for _, t := range batch {
			n.log.LogAttrs(ctx, slog.LevelError, "snapshot not kept, the one in use stays",
				slog.String("scope", string(t.V.Header().ScopeType)), slog.String("reason", err.Error()))
			if bundle, ok := t.V.TrustBundle(); ok {
				// A full disk must not keep a ban from taking effect: for connections it
				// does so now, and for good when it could be kept.
				if trust, err := bundle.IdentityWith(n.trustState.Load().Stated()); err == nil {
					_ = n.source.Trust(trust)
				}
			}
		}
		return fmt.Errorf("%w: %w", state.ErrStorage, err)
	}
	for _, t := range batch {
		if t.Barred {
			n.tellQuarantine(ctx, n.trustState.Load(), t.V.Header().ScopeType)
		}
	}
	switch batch[len(batch)-1].V.Header().ScopeType {
	case snapshot.ScopeTrustBundle:
		n.reports.Renew() // it may have waited for this bundle
	case snapshot.ScopeNodeRuntime:
	default:
		return nil
	}
	// Offers that came before what they need get a second look.
	waiting := n.arrival.early
	n.arrival.early = nil
	var err error
	for _, scope := range slices.Sorted(maps.Keys(waiting)) {
		e := waiting[scope]
		if err = n.takeHeld(ctx, e.From, []state.Offer{e.Offer}, true); err != nil {
			break
		}
	}
	// It revokes what it revokes, whatever became of the others.
	if batch[len(batch)-1].V.Header().ScopeType == snapshot.ScopeTrustBundle {
		n.reconsider(ctx)
	}
	return err
}

// activate puts decisions into use, in the order that a crash needs: pending,
// marks, active, and then memory. They were decided one after the other, so that
// the last has the ledger of all. The caller holds n.activation.
func (n *Node) activate(ctx context.Context, from state.Origin, batch []state.AcceptedSnapshot) error {
	if len(batch) == 0 {
		return nil
	}
	for _, t := range batch {
		if t.Renewal || t.Barred {
			continue // until it is in place the bytes that it renews are as good
		}
		if err := n.store.Write(dir.SnapshotName(t.V.Header().ScopeType, dir.Pending), t.Raw); err != nil {
			return err
		}
	}
	b := n.trustState.Load()
	if slices.ContainsFunc(batch, func(t state.AcceptedSnapshot) bool { return t.Raised }) {
		// From here on it is accepted, in memory even if the disk fails: what is lower
		// must not come in afterwards.
		b = b.WithLedger(batch[len(batch)-1].Ledger)
		b.Arriving = true
		n.trustState.Store(b)
		n.owed.marksDirty = true
		defer n.arrived()
	}
	if n.owed.marksDirty {
		if err := n.store.WriteLedger(b.Ledger); err != nil {
			return err
		}
		n.owed.marksDirty = false
	}
	if n.Clock.Learn(b.Marks) {
		n.Clock.Keep(ctx)
	}
	if err := n.Faults.Hit("activate.after-marks"); err != nil {
		return err
	}
	var changed []snapshot.Scope
	// All that is in place is in use, also if the disk does not take the rest.
	defer func() {
		n.arrived()
		n.finishDrops(ctx)
		n.files.derive(ctx)
		n.reports.Changed(changed...)
	}()
	for _, t := range batch {
		if t.Barred {
			continue
		}
		gone, err := n.place(ctx, t)
		if err != nil {
			return err
		}
		scope := t.V.Header().ScopeType
		n.files.receipts[scope] = state.Receipt{At: n.Clock.Now(), From: from}
		changed = append(append(changed, gone...), scope)
	}
	return nil
}

// arrived ends an activation, however it ended.
func (n *Node) arrived() {
	if b := n.trustState.Load(); b.Arriving {
		next := *b
		next.Arriving = false
		n.trustState.Store(&next)
	}
}

// place puts one snapshot into use that the marks on disk know, and returns the scopes
// that the node does not hold any more because of it.
func (n *Node) place(ctx context.Context, t state.AcceptedSnapshot) ([]snapshot.Scope, error) {
	b, header := n.trustState.Load(), t.V.Header()
	scope := header.ScopeType
	// A newer record over the same header takes no version's place: the one before
	// stays the previous one.
	var old []byte
	level := slog.LevelInfo
	_, probation := b.OnTrial(scope)
	switch h := b.Active[scope]; {
	case b.InUse(t.V):
		level = slog.LevelDebug
	case h == nil:
	case probation && h.Verified.Header().ContentHash == header.ContentHash:
		// Nor does another header over content that is on trial: what it would fall back
		// to stays.
	default:
		old = h.Raw
	}
	if err := n.store.Place(scope, t.Raw, old); err != nil {
		return nil, err
	}
	next := b.With(scope, &state.ActiveSnapshot{Verified: t.V, Raw: t.Raw})
	if bundle, ok := t.V.TrustBundle(); ok {
		trust, err := bundle.IdentityWith(next.Stated())
		if err != nil {
			return nil, fmt.Errorf("the trust bundle trusts nobody: %w", err)
		}
		next.Contact = trust
		if err := n.source.Trust(trust); err != nil {
			return nil, err
		}
	}
	var gone []snapshot.Scope
	if scope == snapshot.ScopeNodeRuntime {
		next, gone = next.Pruned()
	}
	n.trustState.Store(next)
	if t.Restored {
		n.arrival.overtaken = b.Active[scope]
		n.log.LogAttrs(ctx, slog.LevelWarn,
			"the signers of the cluster restored it from a backup; this node goes on with it",
			slog.Uint64("authority_epoch", header.AuthorityEpoch))
	}
	if scope == snapshot.ScopeTrustBundle {
		n.Autonomy.behind.Store(new(false)) // whoever is ahead of this one too will show again
	}
	if trial, ok := next.OnTrial(scope); ok && trial.Header == t.V.HeaderDigest().String() {
		n.Trials.Since[scope] = time.Now()
		state.Notify(n.Trials.Changed)
	}
	n.accepted(ctx, scope)
	n.drop(ctx, gone)
	if scope == snapshot.ScopeNodeRuntime {
		n.forgive(ctx)
	}
	n.log.LogAttrs(ctx, level, "snapshot in use", slog.String("scope", string(scope)),
		slog.Uint64("authority_epoch", header.AuthorityEpoch), slog.Uint64("config_version", header.ConfigVersion))
	return gone, nil
}

// refuse records that a snapshot was not accepted. It is kept if it proves that its
// signer lies, or if what it needs may follow.
func (n *Node) refuse(ctx context.Context, r state.Refusal, cause error, e state.Early) {
	if state.Waits(snapshot.Scope(r.Scope), snapshot.Reason(r.Reason)) {
		if n.arrival.early == nil {
			n.arrival.early = make(map[string]state.Early, len(state.Scopes))
		}
		n.arrival.early[r.Scope] = e
	}
	n.note(ctx, r, cause, e.Offer)
}

// note records a refusal, with what was refused if that proves that its signer lies.
func (n *Node) note(ctx context.Context, r state.Refusal, cause error, o state.Offer) {
	scope := snapshot.Scope(r.Scope)
	n.reports.Rejected(r.Scope, r.Reason)
	if rejected, ok := errors.AsType[*snapshot.RejectedError](cause); ok && rejected.Ahead {
		n.fallBehind(ctx)
	}
	level := slog.LevelWarn
	if r.Reason == string(snapshot.ReasonEquivocation) {
		level = slog.LevelError
		if state.Known(scope) {
			if err := n.store.Write(dir.SnapshotName(scope, dir.Refused), o.Raw); err != nil {
				n.log.LogAttrs(ctx, slog.LevelError, "evidence not kept", slog.String("scope", r.Scope),
					slog.Any("err", err))
			}
		}
	}
	n.log.LogAttrs(ctx, level, "snapshot refused, the one in use stays", slog.String("scope", r.Scope),
		slog.String("reason", r.Reason), slog.String("source", o.Giver),
		slog.String("code", string(errcode.SnapshotRefused)), slog.String("detail", r.Detail))
	write := n.status.Refused(r)
	if write {
		n.keepRefusals(ctx)
	}
	n.reports.Report()
}

// accepted ends the refusal of a scope: something newer is in use.
func (n *Node) accepted(ctx context.Context, scope snapshot.Scope) {
	if n.status.Resolved(string(scope)) {
		n.keepRefusals(ctx)
	}
	n.reports.Report()
}

// keepRefusals makes the reasons durable. Losing them costs a person a hint, so
// that a failure is logged and no more.
func (n *Node) keepRefusals(ctx context.Context) {
	if err := n.store.WriteSealed(dir.RefusalsName, n.status.Refusals()); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "refusals not kept", slog.Any("err", err))
	}
}

// fallBehind notes that the authority epoch moved on without this node. The caller
// holds n.activation.
func (n *Node) fallBehind(ctx context.Context) {
	if *n.Autonomy.behind.Load() {
		return
	}
	n.Autonomy.behind.Store(new(true))
	bundle := n.trustState.Load().Bundle()
	if bundle == nil {
		return // nothing is permitted
	}
	if err := n.store.WriteSealed(dir.BehindName, state.BehindAt(bundle)); err != nil {
		n.log.LogAttrs(ctx, slog.LevelWarn, "that the authority epoch moved on is not kept", slog.Any("err", err))
	}
}

// CheckHeader verifies the header of what came without its content; nil if there is
// nothing new in it. Errors are a [*snapshot.RejectedError].
func CheckHeader(me state.Self, b *state.TrustState, signed *snapshot.Signed, now time.Time) (
	*snapshot.Checked, error) {
	trust := me.Trust(b)
	checked, err := snapshot.VerifyHeader(signed, trust, b.Marks, now)
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok && r.Reason == snapshot.ReasonUnchanged {
		// Accepted before. If it is not in use, something kept it from being used.
		checked, err = snapshot.RecheckHeader(signed, trust, b.Marks, now)
		if err == nil && b.Uses(checked) {
			return nil, nil
		}
		if err == nil {
			if _, barred := b.Barred(checked.Header().ScopeType, checked.Header().ContentHash); barred {
				return nil, nil // it failed its trial, and nothing of it is used
			}
		}
	}
	if err == nil {
		err = state.Vouched(b, checked.Header().ScopeType)
	}
	return checked, err
}

// ContentAtHand returns the content of scope with this hash, if it is in use or on
// disk, else nil.
func ContentAtHand(store *state.Store, b *state.TrustState, scope snapshot.Scope, hash snapshot.Digest) []byte {
	if h := b.Active[scope]; h != nil && h.Verified.Header().ContentHash == hash {
		return []byte(h.Verified.ContentJSON())
	}
	for _, place := range []string{dir.Active, dir.Previous} {
		raw, err := store.Read(dir.SnapshotName(scope, place), internalsnapshot.MaxSigned)
		if err != nil {
			continue
		}
		if s, err := snapshot.Unmarshal(raw); err == nil && snapshot.DigestOf(s.Content) == hash {
			return s.Content
		}
	}
	return nil
}

// Decline records that what came without its content was not taken.
func (n *Node) Decline(ctx context.Context, r state.Refusal, cause error, o state.Offer) error {
	release, err := n.Activation.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	n.note(ctx, r, cause, o)
	return nil
}
