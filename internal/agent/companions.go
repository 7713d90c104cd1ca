package agent

import (
	"context"
	"log/slog"
	"slices"

	"github.com/fealty-io/fealty/snapshot"
)

// gives reports whether the node is to hold what h is the header of. What is no
// foundation is a companion of the node_runtime in use: that one lists the scopes, and
// says of which group the node is. Nothing missing, nothing extra.
func (b *beliefs) gives(h snapshot.Header) bool {
	if slices.Contains(foundations, h.ScopeType) {
		return true
	}
	r := b.held[snapshot.ScopeNodeRuntime]
	if r == nil {
		return false
	}
	content, _ := r.v.NodeRuntime()
	if !slices.Contains(content.Companions, h.ScopeType) {
		return false
	}
	if h.Subject == snapshot.GroupSubject(content.Roles, content.Organizations) {
		return true
	}
	// Its own, as long as it is for what the node is now.
	return h.Subject == r.v.Header().Subject && slices.Equal(h.Roles, content.Roles) &&
		!slices.ContainsFunc(h.OrganizationIDs, func(o string) bool { return !slices.Contains(content.Organizations, o) })
}

// lacks returns which companions the node_runtime in use names that the node does not
// hold, but for what failed its trial.
func (b *beliefs) lacks() []snapshot.Scope {
	h := b.held[snapshot.ScopeNodeRuntime]
	if h == nil {
		return nil
	}
	content, _ := h.v.NodeRuntime()
	var out []snapshot.Scope
	for _, scope := range content.Companions {
		if _, failed := b.quarantined(scope); known(scope) && b.held[scope] == nil && !failed {
			out = append(out, scope)
		}
	}
	return out
}

// pruned returns b without what its node_runtime does not give, and which scopes that
// is: a node that lost a role, an organization or an assignment stops using what came
// with it at once. The marks stay.
func (b *beliefs) pruned() (*beliefs, []snapshot.Scope) {
	var gone []snapshot.Scope
	for _, scope := range scopes {
		if h := b.held[scope]; h != nil && !b.gives(h.v.Header()) {
			b, gone = b.without(scope), append(gone, scope)
		}
	}
	return b, gone
}

// concerns reports whether the node minds what becomes of a scope: that is, of the
// foundations and of what its node_runtime names.
func (b *beliefs) concerns(scope snapshot.Scope) bool {
	h := b.held[snapshot.ScopeNodeRuntime]
	if h == nil || !known(scope) || slices.Contains(foundations, scope) {
		return true
	}
	content, _ := h.v.NodeRuntime()
	return slices.Contains(content.Companions, scope)
}

// forgive ends the refusals of what the node is not to hold any more: nothing will take
// the place of what was refused. The caller holds a.activation.
func (a *Agent) forgive(ctx context.Context) {
	b, ended := a.beliefs.Load(), false
	for _, r := range a.status.refusals() {
		if !b.concerns(snapshot.Scope(r.Scope)) {
			ended = a.status.resolved(r.Scope) || ended
			delete(a.early, r.Scope)
		}
	}
	if ended {
		a.keepRefusals(ctx)
	}
}

// drop notes what the node may not hold any more, for finishDrops. It is out of use
// already. The caller holds a.activation.
func (a *Agent) drop(ctx context.Context, gone []snapshot.Scope) {
	for _, scope := range gone {
		a.log.LogAttrs(ctx, slog.LevelInfo, "snapshot dropped, the node_runtime does not give it any more", slog.String("scope", string(scope)))
		if a.status.resolved(string(scope)) {
			a.keepRefusals(ctx)
		}
		delete(a.early, string(scope))
		delete(a.trialSince, scope)
		a.dropping = append(a.dropping, scope)
	}
}

// finishDrops removes from the disk what was dropped. A start would not use it, and
// remove it: what the disk does not do now is done later.
func (a *Agent) finishDrops(ctx context.Context) {
	var left []snapshot.Scope
	b := a.beliefs.Load()
	for _, scope := range a.dropping {
		if b.held[scope] != nil {
			continue // it was given again, and its files are the new ones
		}
		if err := a.store.remove(filesOf(scope)...); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "a dropped snapshot is still on disk, trying again", slog.String("scope", string(scope)), slog.Any("err", err))
			left = append(left, scope)
		}
	}
	a.dropping = left
}

// filesOf names the files of a scope from which it could come back into use.
func filesOf(scope snapshot.Scope) []string {
	return []string{snapshotName(scope, active), snapshotName(scope, previous), snapshotName(scope, pending)}
}
