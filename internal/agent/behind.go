package agent

import (
	"context"
	"log/slog"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
)

// fallBehind notes that the authority epoch moved on without this node. The caller
// holds a.activation.
func (a *Agent) fallBehind(ctx context.Context) {
	if *a.behind.Load() {
		return
	}
	a.behind.Store(new(true))
	bundle := a.beliefs.Load().Bundle()
	if bundle == nil {
		return // nothing is permitted
	}
	if err := a.store.WriteSealed(dir.BehindName, state.BehindAt(bundle)); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "that the authority epoch moved on is not kept", slog.Any("err", err))
	}
}
