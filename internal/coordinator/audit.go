package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/auditstore"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

const (
	// checkpointPause is how often the leader has a checkpoint vouch for what is new in the
	// audit log. beforeMoveTime bounds the one before the head moves, which nothing waits for longer.
	checkpointPause = time.Minute
	beforeMoveTime  = 5 * time.Second
	// breakShown is how long a break of the audit log is a finding. It stays in the log.
	breakShown = 7 * 24 * time.Hour
	// maxRechecked bounds what is remembered of breaks that were told of.
	maxRechecked = 1024
)

// vouching is what a coordinator knows of the checkpoints of the audit log. Package auditstore
// makes them.
type vouching struct {
	mu       sync.Mutex
	restored uint64          // since which restore it knows it; guarded by mu
	seen     auditlog.Known  // the last checkpoint that was seen; guarded by mu
	broken   *auditlog.Break // what was found last; guarded by mu
	found    time.Time       // when; guarded by mu

	// The fields of the leader's look, of which one goes on at a time.
	looking chan struct{}           // held by it; capacity 1
	recheck uint64                  // the checkpoint that is read again next
	told    map[auditlog.Break]bool // breaks that a checkpoint tells of; at most maxRechecked
	heads   auditlog.Heads          // of the chains, as checkpoints since restore headsOf tell them
	headsOf uint64
}

// last is the last checkpoint that was seen since the restore that s stands on.
func (v *vouching) last(s *authority.State) auditlog.Known {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.restored != s.RestoredEpoch() {
		return auditlog.Known{}
	}
	return v.seen
}

// saw notes the checkpoint that the store showed as the last one to a look that began when
// began was seen. One that is older, or another one under the same number, is a break.
func (v *vouching) saw(s *authority.State, began, k auditlog.Known, now time.Time) *auditlog.Break {
	v.mu.Lock()
	defer v.mu.Unlock()
	if epoch := s.RestoredEpoch(); v.restored != epoch {
		v.restored, v.seen, began = epoch, auditlog.Known{}, auditlog.Known{}
	}
	if k.Number > v.seen.Number {
		v.seen = k
	}
	if k.Number > began.Number || k == began {
		return nil
	}
	b := auditlog.Break{Problem: fmt.Sprintf("the last checkpoint was %d with hash %.16s, and is %d with hash %.16s", began.Number, began.Hash.String(), k.Number, k.Hash.String())}
	v.broken, v.found = &b, now
	return &b
}

// broke notes a break that somebody found.
func (v *vouching) broke(b auditlog.Break, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken == nil || at.After(v.found) {
		v.broken, v.found = &b, at
	}
}

// followCheckpoints has the leader make checkpoints of the audit log, and every coordinator
// look at them, until ctx ends. The first comes as soon as this coordinator leads under the keys of
// s, which may be others than before.
func (c *AuditTrail) followCheckpoints(ctx context.Context, s *authority.State) error {
	for {
		led, trusted := c.election.lead.changed.Wait(), c.bundle.bundleChanged.Wait()
		if err := c.lookAtCheckpoints(ctx, s); err != nil {
			return err
		}
		if err := c.checkpoint(ctx, s, 0); ignoreConflict(err) != nil {
			return err
		}
		if t := c.bundle.trust.Load(); t != nil && t.Epoch == s.Head.AuthorityEpoch {
			trusted = nil // its keys are read
		}
		if _, err := watch.Wait(ctx, checkpointPause, led, trusted); err != nil {
			return err
		}
	}
}

// lookAtCheckpoints compares the last checkpoint with the one that was seen before.
func (c *AuditTrail) lookAtCheckpoints(ctx context.Context, s *authority.State) error {
	began := c.vouching.last(s)
	last, err := auditstore.Last(ctx, c.store)
	if err != nil {
		return err
	}
	if b := c.vouching.saw(s, began, auditlog.Known{Number: last.Number, Hash: last.Hash}, c.now()); b != nil {
		c.auditBroken(ctx, *b)
	}
	if last.Broken != nil {
		c.vouching.broke(*last.Broken, last.Found)
	}
	return nil
}

// auditBroken tells people that the audit log is not what was written.
func (c *AuditTrail) auditBroken(ctx context.Context, b auditlog.Break) {
	c.metrics.breaks.Inc()
	c.failures.Log(ctx, c.log, slog.LevelError, "the audit log was altered: see fealty explain FE-A108",
		slog.String("problem", b.String()))
}

// checkpoint has the leader make a checkpoint, after which first is the first that is kept; 0:
// as before. It does nothing at who does not lead.
func (c *AuditTrail) checkpoint(ctx context.Context, s *authority.State, first uint64) error {
	conditions, ok := c.leaderConditions(s)
	if !ok {
		return nil
	}
	select {
	case c.vouching.looking <- struct{}{}:
		defer func() { <-c.vouching.looking }()
	default:
		return nil // one is being made
	}
	v := &c.vouching
	again, next, err := auditstore.Recheck(ctx, c.store, s.Manifest.Cluster, v.recheck)
	if err != nil {
		return err
	}
	v.recheck = next
	var breaks []auditlog.Break
	for _, b := range again {
		if !v.told[b] && len(v.told) < maxRechecked {
			breaks = append(breaks, b)
		}
	}
	if epoch := s.RestoredEpoch(); v.headsOf != epoch {
		v.headsOf = epoch
		v.heads.Forget(time.Time{})
	}
	if err := c.makeCheckpoints(ctx, s, conditions, &v.heads, breaks, first); err != nil {
		return err
	}
	for _, b := range breaks {
		v.told[b] = true
	}
	return nil
}

// leaderConditions are those of a leader's write under s; false if this coordinator does not
// lead.
func (c *AuditTrail) leaderConditions(s *authority.State) ([]store.Condition, bool) {
	_, leads, ok := c.election.leading()
	return []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion}, leads}, ok
}

// checkpointBefore makes a checkpoint under the keys of s before the head moves on from it, so
// that whoever verifies the log under the keys that come finds the hashes of before. The move
// does not depend on it: what is behind none yet is behind the next one.
func (c *AuditTrail) checkpointBefore(ctx context.Context, s *authority.State) {
	if s == nil || s.Phase != authority.Ready || c.storeguard.Lost() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beforeMoveTime)
	defer cancel()
	err := c.makeCheckpoints(ctx, s, []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion}}, nil, nil, 0)
	if ignoreConflict(err) != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, "no checkpoint of the audit log was made before the head moves", slog.Any("err", err))
	}
}

// makeCheckpoints makes checkpoints under the keys of s. heads is nil at who does not look after them.
func (c *AuditTrail) makeCheckpoints(ctx context.Context, s *authority.State, conditions []store.Condition,
	heads *auditlog.Heads, breaks []auditlog.Break, first uint64) error {
	t := c.bundle.trust.Load()
	if t == nil || t.Epoch != s.Head.AuthorityEpoch {
		return nil // its keys are not read yet
	}
	signers := t.Signers(s.Bundle, c.now())
	if len(signers) == 0 {
		return nil // no key may sign now, which is a finding of its own
	}
	made, err := auditstore.Checkpoint(ctx, c.store, auditstore.Vouch{
		Cluster: s.Manifest.Cluster, Now: c.now, Signers: signers, Trusted: t.AuditKeys(s.Bundle), If: conditions,
		Seen: c.vouching.last(s), Heads: heads, Breaks: breaks, First: first,
	})
	if made.Last.Number > 0 {
		c.vouching.saw(s, made.Last, made.Last, c.now())
	}
	for _, b := range made.Breaks {
		c.vouching.broke(b, c.now())
		c.auditBroken(ctx, b)
	}
	if err != nil && c.storeguard.Lost() != nil {
		return nil // which is what has to be mended
	}
	return err
}

// auditFindings says that the audit log was altered.
func (c *AuditTrail) auditFindings() []*fealtyv1.Finding {
	c.vouching.mu.Lock()
	b, at := c.vouching.broken, c.vouching.found
	c.vouching.mu.Unlock()
	if b == nil || c.now().Sub(at) > breakShown {
		return nil
	}
	return []*fealtyv1.Finding{finding.New(explain.AuditBroken, "problem", b.String(), "found",
		at.UTC().Format(time.RFC3339))}
}
