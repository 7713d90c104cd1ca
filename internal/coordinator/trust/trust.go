// Package trust changes what the fleet trusts: it rotates config keys and the mesh CA key, takes
// revocations and emergency statements, and learns of those that a restore lost from the members
// that hold them. See docs/explanation/trust.md.
package trust

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// Pauses of what follows the trust state.
const (
	// PollPause bounds how long a change of another replica goes unseen.
	PollPause = 5 * time.Second
	// confirmPause is between a report that may confirm a new key and the look at all of them.
	confirmPause = 200 * time.Millisecond
)

// Config is what a Trust is made of.
type Config struct {
	Self       *authority.Enrolment
	Head       *authority.Head
	Bundle     *current.Current
	Election   *election.Election
	Membership *member.Membership
	StoreGuard *storeguard.Guard
	Store      store.Store
	Faults     *failpoint.Points
	Limiter    *ratelimit.Sources
	Readers    *ratelimit.Readers
	Refusals   *ratelimit.LogSampler
	Log        *slog.Logger
	Now        func() time.Time

	// RotateMesh puts another mesh CA key into force, and returns the state then; of a dry
	// run, the state that it would follow.
	RotateMesh func(ctx context.Context, dryRun bool, reason, by string) (*authority.State, error)
}

// Trust changes what the fleet trusts.
type Trust struct {
	cfg Config

	presenting   *ratelimit.Locks   // held by who takes a presented bundle in
	keyConfirmed watch.Signal       // a member may have confirmed a config key: it is to be looked at soon
	presenters   *ratelimit.Limiter // of trust bundles of before a restore
}

// New returns a [Trust] that was shown nothing yet.
func New(cfg Config) *Trust {
	return &Trust{cfg: cfg, presenting: ratelimit.NewLocks(), presenters: newPresenters()}
}

// LookAtKeys says that a member may have confirmed a config key: it is to be looked at soon.
func (c *Trust) LookAtKeys() { c.keyConfirmed.Notify() }

// trustServer serves TrustService.
type trustServer struct {
	fealtyv1.UnimplementedTrustServiceServer
	c *Trust
}

// RegisterServices registers the services that change what the fleet trusts.
func (c *Trust) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterTrustServiceServer(to, trustServer{c: c})
	fealtyv1.RegisterRestoreServiceServer(to, restoreServer{c: c})
}

// Follow keeps the bundle up with the store until ctx ends: at once on a
// notice or a change, and every few seconds in case a notice was lost.
func (c *Trust) Follow(ctx context.Context, s *authority.State) error {
	changed, stop := watch.Key(ctx, c.cfg.Store, bundle.StateKey)
	defer stop()
	for {
		due, confirmed := c.cfg.Bundle.Due(), c.keyConfirmed.Wait()
		if err := c.cfg.StoreGuard.UntilWhole(ctx); err != nil {
			return err
		}
		// A head that moved ends this state, and with it ctx.
		err := c.cfg.Bundle.Refresh(ctx, s, true)
		if err == nil {
			err = c.FollowRotation(ctx, s)
		}
		if err != nil && !c.cfg.Head.Conflicts(ctx, err) {
			return err
		}
		if _, err := watch.Wait(ctx, PollPause, due, changed, confirmed); err != nil {
			return err
		}
		select {
		case <-confirmed:
			// The others wait for what one coordinator hears; of many that confirm at
			// once one look is enough.
			if err := watch.Sleep(ctx, confirmPause); err != nil {
				return err
			}
		default:
		}
	}
}
