package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/snapshot"
)

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
	revoked := b.Revocations()
	for _, scope := range state.Scopes {
		h := b.Held[scope]
		if scope == snapshot.ScopeTrustBundle || h == nil {
			continue
		}
		trust := a.self().Trust(b)
		if v, err := a.again(scope, h.Raw, trust, b); err == nil {
			b = b.With(scope, &state.Held{Verified: v, Raw: h.Raw}) // the same, with the keys that count now
			continue
		}
		switch {
		case revoked.Distrusts(h.Verified):
			b = b.Without(scope)
			delete(a.trialSince, scope)
			detail := "the key that signed it is revoked, and nothing takes its place yet"
			if raw, err := a.store.Read(dir.SnapshotName(scope, dir.Previous), snapshot.MaxSigned); err == nil {
				if v, err := a.again(scope, raw, trust, b); err == nil {
					b = b.With(scope, &state.Held{Verified: v, Raw: raw})
					detail = "the key that signed it is revoked: the one before is in use again"
				}
			}
			changed = append(changed, scope)
			r := state.Refusal{Scope: string(scope), Reason: string(snapshotform.ReasonSigner), Detail: detail, At: a.now().UTC()}
			a.metrics.rejected.WithLabelValues(r.Scope, r.Reason).Inc()
			a.log.LogAttrs(ctx, slog.LevelError, "snapshot not used any more", slog.String("scope", r.Scope), slog.String("reason", r.Reason),
				slog.String("code", string(explain.SnapshotRefused)), slog.String("detail", detail))
			if a.status.Refused(r) {
				a.keepRefusals(ctx)
			}
		case scope == snapshot.ScopeNodeBootstrap && b.Terms() != h:
			// It was overtaken, and would only be refused at the next start: a coordinator
			// sends another one.
			b = b.Without(scope)
			if err := a.store.Remove(dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous)); err != nil {
				a.log.LogAttrs(ctx, slog.LevelWarn, "an overtaken node_bootstrap is not removed", slog.Any("err", err))
			}
		}
	}
	b, gone := b.Pruned()
	a.beliefs.Store(b)
	if len(gone) > 0 {
		a.log.LogAttrs(ctx, slog.LevelInfo, "snapshots not used without the node_runtime that gave them", slog.Any("scopes", gone))
	}
	a.derive(ctx) // also for what is revoked by name
	a.changed(append(changed, gone...)...)
	a.kickReport()
}

// again verifies what was in use once more.
func (a *Agent) again(scope snapshot.Scope, raw []byte, trust snapshot.Trust, b *state.Beliefs) (*snapshot.Verified, error) {
	signed, err := snapshot.Unmarshal(raw)
	if err != nil {
		return nil, err
	}
	v, err := snapshot.Recheck(signed, trust, b.Marks, a.now())
	if err == nil && v.Header().ScopeType != scope {
		err = fmt.Errorf("%w: it is of scope %s", dir.ErrDamaged, v.Header().ScopeType)
	}
	return v, err
}
