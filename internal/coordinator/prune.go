package coordinator

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/store"
)

// Retention of the record families.
const (
	auditRetention = 90 * 24 * time.Hour
	tokenRetention = 7 * 24 * time.Hour // after its end: long enough to answer "expired"
	pruneBatch     = 256
)

// prune removes what its family's retention no longer keeps, every hour.
func (c *Coordinator) prune(ctx context.Context, s *state) error {
	for {
		if err := sleep(ctx, sweepPause); err != nil {
			return err
		}
		if err := c.pruneOnce(ctx, s, c.now()); err != nil {
			return err
		}
	}
}

// pruneOnce removes what is over at now.
func (c *Coordinator) pruneOnce(ctx context.Context, s *state, now time.Time) error {
	tokens, err := list[tokenRecord](ctx, s.records, tokenPrefix)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if now.Sub(t.value.ExpiresAt) > tokenRetention {
			if err := c.dropToken(ctx, s, t); err != nil {
				return err
			}
		}
	}
	return c.dropEntries(ctx, s, now)
}

// dropToken removes a token and what it admitted under.
func (c *Coordinator) dropToken(ctx context.Context, s *state, t versioned[tokenRecord]) error {
	uses, err := c.store.List(ctx, tokenUsePrefix+t.value.ID+"/")
	if err != nil {
		return err
	}
	for len(uses.Entries) > pruneBatch {
		ch := s.records.newChange(s.headVersion)
		for _, e := range uses.Entries[:pruneBatch] {
			ch.delete(e.Key, e.Version)
		}
		if _, err := ch.commit(ctx); err != nil {
			return ignoreConflict(err)
		}
		uses.Entries = uses.Entries[pruneBatch:]
	}
	ch := s.records.newChange(s.headVersion)
	ch.delete(tokenKey(t.value.ID), t.version)
	for _, e := range uses.Entries {
		ch.delete(e.Key, e.Version)
	}
	_, err = ch.commit(ctx)
	return ignoreConflict(err)
}

// dropEntries removes banned keys and audit entries whose time is over.
func (c *Coordinator) dropEntries(ctx context.Context, s *state, now time.Time) error {
	var keys []store.Entry
	banned, err := c.store.List(ctx, banKeyPrefix)
	if err != nil {
		return err
	}
	for _, e := range banned.Entries {
		b, err := open[banRecord](s.records, e)
		if err != nil {
			return err
		}
		if !b.value.Until.IsZero() && now.After(b.value.Until) {
			keys = append(keys, e)
		}
	}
	forgotten := len(keys)
	audit, err := c.store.List(ctx, auditPrefix)
	if err != nil {
		return err
	}
	for _, e := range audit.Entries {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(e.Key, auditPrefix), "-")
		nanos, err := strconv.ParseInt(stamp, 10, 64)
		if err == nil && now.Sub(time.Unix(0, nanos)) > auditRetention {
			keys = append(keys, e)
		}
	}
	for len(keys) > 0 {
		batch := keys[:min(len(keys), pruneBatch)]
		keys = keys[len(batch):]
		ch := s.records.newChange(s.headVersion)
		for _, e := range batch {
			ch.delete(e.Key, e.Version)
		}
		if forgotten > 0 {
			if err := c.touchTrust(ctx, s, ch); err != nil {
				return err
			}
			forgotten -= min(forgotten, len(batch))
		}
		if _, err := ch.commit(ctx); err != nil {
			return ignoreConflict(err)
		}
	}
	return nil
}

// ignoreConflict drops the error of a transaction that somebody else's overtook:
// the next round looks again.
func ignoreConflict(err error) error {
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}
