package coordinator

import (
	"context"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditstore"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

// Retention of the record families.
const (
	auditRetention = 90 * 24 * time.Hour
	tokenRetention = 7 * 24 * time.Hour // after its end: long enough to answer "expired"
	maxClockJump   = 5 * time.Minute
)

// prune removes what its family's retention no longer keeps, every hour, while this
// coordinator leads. A clock
// that jumped is waited out: what is forgotten by a wrong one is forgotten for good,
// bans among it.
//
// What the store holds of the seed for nobody goes at once with a new head, or leader.
func (c *Coordinator) prune(ctx context.Context, s *authority.State) error {
	for {
		led := c.election.Changed()
		if _, _, ok := c.election.Leading(); ok {
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
	if err := c.authority.dropSecrets(ctx, s); err != nil {
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
	tokens, err := record.List[tokenRecord](ctx, s.Records, tokenPrefix)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if now.Sub(t.Value.ExpiresAt) > tokenRetention {
			if err := c.dropToken(ctx, s, t); err != nil {
				return err
			}
		}
	}
	if err := c.dropSessions(ctx, s, now); err != nil {
		return err
	}
	if err := c.dropBans(ctx, s, now); err != nil {
		return err
	}
	if err := c.ownerrecovery.dropGathered(ctx, s); err != nil {
		return err
	}
	if err := c.peerrecovery.dropReplicas(ctx, s, now); err != nil {
		return err
	}
	return c.dropAudit(ctx, s, now)
}

// dropSessions removes the records of people's sessions that are over, so that
// logins do not add up.
func (c *Coordinator) dropSessions(ctx context.Context, s *authority.State, now time.Time) error {
	for _, kind := range []identity.Kind{identity.Admin, identity.Readonly} {
		recs, err := record.List[record.Member](ctx, s.Records, record.MemberPrefix+string(kind)+"/")
		if err != nil {
			return err
		}
		for _, r := range recs {
			if now.Before(r.Value.CertifiedUntil().Add(lifetimes.CertMargin)) {
				continue
			}
			ch := c.election.NewChange(s)
			ch.Delete(record.MemberKey(kind, r.Value.Name), r.Version)
			if err := c.membership.recount(ctx, s, ch, r.Value.Entry, ""); err != nil {
				return err
			}
			if _, err := ch.Commit(ctx); record.IgnoreConflict(err) != nil {
				return err
			}
		}
	}
	return nil
}

// dropToken removes a token and what it admitted under.
func (c *Coordinator) dropToken(ctx context.Context, s *authority.State, t record.Versioned[tokenRecord]) error {
	uses, err := c.store.List(ctx, tokenUsePrefix+t.Value.ID+"/")
	if err != nil {
		return err
	}
	for len(uses.Entries) > record.PruneBatch {
		ch := c.election.NewChange(s)
		for _, e := range uses.Entries[:record.PruneBatch] {
			ch.Delete(e.Key, e.Version)
		}
		if _, err := ch.Commit(ctx); err != nil {
			return record.IgnoreConflict(err)
		}
		uses.Entries = uses.Entries[record.PruneBatch:]
	}
	ch := c.election.NewChange(s)
	ch.Delete(tokenKey(t.Value.ID), t.Version)
	for _, e := range uses.Entries {
		ch.Delete(e.Key, e.Version)
	}
	_, err = ch.Commit(ctx)
	return record.IgnoreConflict(err)
}

// dropBans forgets banned keys whose time is over. One that the bundle lists is
// never among them.
func (c *Coordinator) dropBans(ctx context.Context, s *authority.State, now time.Time) error {
	for {
		in, err := c.bundle.Read(ctx, s)
		if err != nil {
			return err
		}
		ch := c.election.NewChange(s)
		var d bundle.Delta
		for _, b := range in.BannedKeys {
			if now.After(b.Until) && !in.State.Value.AsOf.Before(b.CertEnd) && len(d.Forget) < record.PruneBatch {
				ch.Delete(record.BanKeyKey(b.Key), b.Version)
				d.Forget = append(d.Forget, b.Key)
			}
		}
		if len(d.Forget) == 0 {
			return nil
		}
		if err := c.bundle.Touch(ctx, s, ch, d, bundle.ForBans); err != nil {
			return err
		}
		if _, err := ch.Commit(ctx); err != nil {
			return record.IgnoreConflict(err)
		}
		c.bundle.LookAgain()
	}
}

// dropAudit removes audit entries that are kept no longer: those of releases before chains,
// and then those behind checkpoints, once a newer checkpoint says that they are over.
func (c *Coordinator) dropAudit(ctx context.Context, s *authority.State, now time.Time) error {
	before := now.Add(-auditRetention)
	err := auditstore.Old(ctx, c.store, before,
		func(over []store.Entry) error { return c.election.Drop(ctx, s, over) })
	if err != nil {
		return err
	}
	return record.IgnoreConflict(c.audit.Drop(ctx, s, before))
}
