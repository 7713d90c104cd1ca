package agent

import (
	"context"
	"log/slog"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/snapshot"
)

// forgive ends the refusals of what the node is not to hold any more: nothing will take
// the place of what was refused. The caller holds a.activation.
func (a *Agent) forgive(ctx context.Context) {
	b, ended := a.beliefs.Load(), false
	for _, r := range a.status.Refusals() {
		if !b.Concerns(snapshot.Scope(r.Scope)) {
			ended = a.status.Resolved(r.Scope) || ended
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
		if a.status.Resolved(string(scope)) {
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
		if b.Held[scope] != nil {
			continue // it was given again, and its files are the new ones
		}
		if err := a.store.Remove(dir.FilesOf(scope)...); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "a dropped snapshot is still on disk, trying again", slog.String("scope", string(scope)), slog.Any("err", err))
			left = append(left, scope)
		}
	}
	a.dropping = left
}
