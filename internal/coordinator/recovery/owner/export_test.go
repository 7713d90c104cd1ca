// What tests outside of the package reach for, and no program does.
package owner

import (
	"context"

	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

const (
	OpenPrefix    = openPrefix
	RecoveryBurst = recoveryBurst
)

var (
	Key     = recoveryKey
	OpenKey = openKey
)

// Current is the attempt that is open, or nil.
func (c *OwnerRecovery) Current() *Attempt { return c.recoveries.current() }

func (c *OwnerRecovery) Collected(ctx context.Context, g *Attempt) ([]string, []keyring.Share, error) {
	return c.gathered(ctx, g)
}

func (g *Attempt) Open(owner string, data []byte) (keyring.Share, error) { return g.open(owner, data) }

func (g *Attempt) Head() *recovery.Head { return g.head }

func (g *Attempt) History() *history.History { return g.history }

// Brought are the owners whose shares are in.
func (g *Attempt) Brought() []string { return g.shares.Brought() }

// Places are those of owners that bring their shares.
func (c *OwnerRecovery) Places() *ratelimit.Limiter { return c.recoveries.owners }
