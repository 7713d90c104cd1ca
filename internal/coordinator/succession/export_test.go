// Inside the package: what its tests reach for has no other door.
package succession

import (
	"context"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
)

func (c *Succession) Read(ctx context.Context, last *authority.State) (*claim, *authority.State, error) {
	return c.read(ctx, last)
}

func (c *Succession) Resume(ctx context.Context, w *claim) (*authority.State, error) {
	return c.resumeRestore(ctx, w)
}

// Restores reports whether it leads through a restore that is not finished.
func (w *claim) Restores() bool { return w.restore != nil }
