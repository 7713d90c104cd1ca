package member

import (
	"context"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Asking is what members may ask about themselves, and how often each.
type Asking struct {
	Membership *Membership
	Each       *ratelimit.PerKey
	What       string // for refusals
}

// Allow returns "<kind>/<name>" of the caller if it may ask once more now: it presents its newest
// key, as a copy with an older one would ask in its place, and did not ask too often.
func (a Asking) Allow(ctx context.Context) (string, error) {
	peer := identity.FromContext(ctx)
	if err := a.Membership.Presents(ctx, peer); err != nil {
		return "", err
	}
	path := record.PathOf(peer.ID)
	if !a.Each.Allow(path, a.Membership.cfg.Now()) {
		limit, burst := a.Each.Limit()
		return "", errcode.New(errcode.RateLimited, "what", a.What+" of "+path,
			"limit", fmt.Sprintf("%g a second, %d at once", float64(limit), burst))
	}
	return path, nil
}
