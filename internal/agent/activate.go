package agent

import (
	"context"

	"github.com/fealty-io/fealty/internal/node/state"
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
	lost, before, err := a.node.Take(ctx, from, offers)
	// One that is behind, or lies, has links too: the next may have those that are missing.
	for _, address := range a.addresses() {
		if err != nil || !lost || ctx.Err() != nil {
			break
		}
		if a.linksAt(ctx, address) == nil {
			lost, before, err = a.node.Take(ctx, from, offers)
		}
	}
	if before != nil {
		a.show(ctx, before)
	}
	return err
}
