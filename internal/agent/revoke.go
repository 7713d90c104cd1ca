package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

// bundle returns the newest trust bundle that is known, be it one that may not be used
// any more; nil without any.
func (b *beliefs) bundle() *snapshot.Verified {
	if h := b.held[snapshot.ScopeTrustBundle]; h != nil {
		return h.v
	}
	return b.stale
}

// revocations are all that the node must not rely on.
func (b *beliefs) revocations() snapshot.Revocations {
	return snapshot.RevocationsOf(b.bundle(), b.emergencies...)
}

// stated are what statements of the signers revoke, beyond any bundle.
func (b *beliefs) stated() snapshot.Revocations {
	return snapshot.RevocationsOf(nil, b.emergencies...)
}

// effective returns what the node me may rely on of h: its content without what is
// revoked. Whoever acts on content asks for it; what is verified, kept and passed on is
// h itself.
func (b *beliefs) effective(h *held, me identity.ID) *snapshot.Verified {
	return snapshot.Effective(h.v, b.revocations(), me)
}

// own is effective for a scope whose subject is a node: this one.
func (b *beliefs) own(h *held) *snapshot.Verified {
	me, _, _ := h.v.Header().Subject.Node()
	return b.effective(h, me)
}

// reconsider looks again at what is in use, by what is believed now. What only a
// revoked key signed is not used any more: the one before takes its place if it stands
// on another key, or nothing does. What stands on a key that left in a rotation stays:
// what the next one signs is under way. What stood beside a node_runtime that is not used
// any more goes with it: nothing says that the node is to hold it. Nothing changes on
// disk but what others read; a start comes to the same verdict. The caller holds
// a.activation.
func (a *Agent) reconsider(ctx context.Context) {
	b := a.beliefs.Load()
	var changed []snapshot.Scope
	revoked := b.revocations()
	for _, scope := range scopes {
		h := b.held[scope]
		if scope == snapshot.ScopeTrustBundle || h == nil {
			continue
		}
		trust := a.self().trust(b)
		if v, err := a.again(scope, h.raw, trust, b); err == nil {
			b = b.with(scope, &held{v, h.raw}) // the same, with the keys that count now
			continue
		}
		switch {
		case revoked.Distrusts(h.v):
			b = b.without(scope)
			delete(a.trialSince, scope)
			detail := "the key that signed it is revoked, and nothing takes its place yet"
			if raw, err := a.store.read(snapshotName(scope, previous), snapshot.MaxSigned); err == nil {
				if v, err := a.again(scope, raw, trust, b); err == nil {
					b = b.with(scope, &held{v, raw})
					detail = "the key that signed it is revoked: the one before is in use again"
				}
			}
			changed = append(changed, scope)
			r := refusal{Scope: string(scope), Reason: string(snapshotform.ReasonSigner),
				Detail: detail, At: a.now().UTC()}
			a.metrics.rejected.WithLabelValues(r.Scope, r.Reason).Inc()
			a.log.LogAttrs(ctx, slog.LevelError, "snapshot not used any more", slog.String("scope", r.Scope), slog.String("reason", r.Reason),
				slog.String("code", string(explain.SnapshotRefused)), slog.String("detail", detail))
			if a.status.refused(r) {
				a.keepRefusals(ctx)
			}
		case scope == snapshot.ScopeNodeBootstrap && b.terms() != h:
			// It was overtaken, and would only be refused at the next start: a coordinator
			// sends another one.
			b = b.without(scope)
			if err := a.store.remove(snapshotName(scope, active), snapshotName(scope, previous)); err != nil {
				a.log.LogAttrs(ctx, slog.LevelWarn, "an overtaken node_bootstrap is not removed", slog.Any("err", err))
			}
		}
	}
	b, gone := b.pruned()
	a.beliefs.Store(b)
	if len(gone) > 0 {
		a.log.LogAttrs(ctx, slog.LevelInfo, "snapshots not used without the node_runtime that gave them", slog.Any("scopes", gone))
	}
	a.derive(ctx) // also for what is revoked by name
	a.changed(append(changed, gone...)...)
	a.kickReport()
}

// again verifies what was in use once more.
func (a *Agent) again(scope snapshot.Scope, raw []byte, trust snapshot.Trust, b *beliefs) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	v, err := snapshot.Recheck(signed, trust, b.marks, a.now())
	if err == nil && v.Header().ScopeType != scope {
		err = fmt.Errorf("%w: it is of scope %s", errDamaged, v.Header().ScopeType)
	}
	return v, err
}
