package coordinator

import (
	"context"
	"log/slog"
	"time"

	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
)

// Retention of the record families.
const (
	auditRetention = 90 * 24 * time.Hour
	maxClockJump   = 5 * time.Minute
)

// prune removes what its family's retention no longer keeps, every hour, while this
// coordinator leads. A clock
// that jumped is waited out: what is forgotten by a wrong one is forgotten for good,
// bans among it.
//
// Sealed copies of the seed that are for nobody go at once with a new head, or leader.
func (c *Coordinator) prune(ctx context.Context, s *authority.State) error {
	for {
		led := c.parts.Election.Changed()
		if _, _, ok := c.parts.Election.Leading(); ok {
			if err := c.pruneWhileLeading(ctx, s, led); err != nil {
				return err
			}
			continue
		}
		if err := watch.Event(ctx, led); err != nil {
			return err
		}
	}
}

// pruneWhileLeading prunes until ended is closed.
func (c *Coordinator) pruneWhileLeading(ctx context.Context, s *authority.State, ended <-chan struct{}) error {
	if err := c.parts.Secrets.Shares.Drop(ctx, s); err != nil {
		return err
	}
	for {
		wall, steady := c.now(), time.Now()
		t := time.NewTimer(bundle.SweepPause)
		select {
		case <-t.C:
		case <-ended:
			t.Stop()
			return nil
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		now := c.now()
		if jump := now.Round(0).Sub(wall.Round(0)) - time.Since(steady); jump.Abs() > maxClockJump {
			c.log.LogAttrs(ctx, slog.LevelWarn, "the clock jumped: nothing is pruned before it is steady for an hour",
				slog.Duration("jump", jump))
			continue
		}
		if err := c.pruneOnce(ctx, s, now); err != nil {
			return err
		}
	}
}

// pruneOnce removes what is over at now.
func (c *Coordinator) pruneOnce(ctx context.Context, s *authority.State, now time.Time) error {
	if err := c.parts.Admission.Prune(ctx, s, now); err != nil {
		return err
	}
	if err := c.parts.Membership.Prune(ctx, s, now); err != nil {
		return err
	}
	lead := func() *record.Change { return c.parts.Election.NewChange(s) }
	if err := c.parts.Bundle.Prune(ctx, s, now, lead); err != nil {
		return err
	}
	if err := c.parts.Secrets.OwnerRecovery.Drop(ctx, s); err != nil {
		return err
	}
	if err := c.parts.Announcement.Drop(ctx, s, now); err != nil {
		return err
	}
	return c.dropAudit(ctx, s, now)
}

// dropAudit removes audit entries that are kept no longer: those of releases before chains,
// and then those behind checkpoints, once a newer checkpoint says that they are over.
func (c *Coordinator) dropAudit(ctx context.Context, s *authority.State, now time.Time) error {
	before := now.Add(-auditRetention)
	err := auditlogstore.Old(ctx, c.store, before,
		func(over []store.Entry) error { return c.parts.Election.Drop(ctx, s, over) })
	if err != nil {
		return err
	}
	return record.IgnoreConflict(c.parts.Audit.Drop(ctx, s, before))
}
