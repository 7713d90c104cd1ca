// What tests outside of the package reach for, and no program does.
package succession

import (
	"context"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/history"
)

// FromPeersBounded is FromPeers with what begins the time of the peers.
func (c *Succession) FromPeersBounded(ctx context.Context, head history.Hash,
	bound func(context.Context) (context.Context, context.CancelFunc)) error {
	return c.fromPeers(ctx, head, bound)
}

func (c *Succession) Read(ctx context.Context, last *authority.State) (*claim, *authority.State, error) {
	return c.read(ctx, last)
}

func (c *Succession) Resume(ctx context.Context, w *claim) (*authority.State, error) {
	return c.resumeRestore(ctx, w)
}

// Restores reports whether it leads through a restore that is not finished.
func (w *claim) Restores() bool { return w.restore != nil }
