package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/auditstore"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

const (
	// maxQueuedAudit bounds the audit entries that wait for the store, and auditBatch
	// those that are written at once.
	maxQueuedAudit = 10_000
	auditBatch     = 64
	auditPause     = 5 * time.Second

	// checkpointPause is how often the leader has a checkpoint vouch for what is new in the
	// audit log. beforeMoveTime bounds the one before the head moves, which nothing waits for longer.
	checkpointPause = time.Minute
	beforeMoveTime  = 5 * time.Second
	// breakShown is how long a break of the audit log is a finding. It stays in the log.
	breakShown = 7 * 24 * time.Hour
	// maxRechecked bounds what is remembered of breaks that were told of.
	maxRechecked = 1024
)

// auditQueue holds the audit entries of what was done without the store.
type auditQueue struct {
	mu      sync.Mutex
	entries []record.AuditEntry // oldest first; guarded by mu
	dropped int                 // for want of room; guarded by mu
	// placed are transactions of entries that have their places, and that are there already,
	// perhaps; guarded by mu
	placed []store.Tx

	// sending is a batch of which it is not known whether it was written; owned by who writes
	// the queue.
	sending *auditSending
}

// auditSending is a transaction that is made of the first entries of the queue.
type auditSending struct {
	tx      store.Tx
	places  *auditlog.Stamped // nil: they have theirs
	again   bool              // its answer was lost before
	entries int
	placed  int
	dropped int
}

// queueAudit keeps an entry until the store is back. The log has it at once.
func (c *AuditQueue) queueAudit(e record.AuditEntry) {
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "audit entry waits for the store", slog.String("action", e.Action), slog.String("target", e.Target))
	c.audits.add(e)
}

func (q *auditQueue) add(entries ...record.AuditEntry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		if len(q.entries)+len(q.placed) >= maxQueuedAudit {
			q.dropped++
			continue
		}
		q.entries = append(q.entries, e)
	}
}

// again queues the entries of a change that was not committed, as far as is known. Those that
// may be there already keep their places, so that they are written once.
func (q *auditQueue) again(ch *record.Change) {
	if ch.Err != nil || ch.Entries != nil {
		q.add(ch.Entries...)
		return
	}
	// The rest of the change is not made again, nor is it a condition any more.
	tx := store.Tx{ID: store.NewTxID()}
	for _, w := range ch.Tx.Put {
		if strings.HasPrefix(w.Key, auditlog.ChainPrefix) || strings.HasPrefix(w.Key, auditlog.HeadPrefix) {
			tx.Put = append(tx.Put, w)
		}
	}
	for _, i := range ch.Tx.If {
		if strings.HasPrefix(i.Key, auditlog.HeadPrefix) {
			tx.If = append(tx.If, i)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.entries)+len(q.placed) >= maxQueuedAudit {
		q.dropped++
		return
	}
	q.placed = append(q.placed, tx)
}

// followAudit writes queued audit entries whenever the store takes them.
func (c *AuditQueue) followAudit(ctx context.Context) error {
	for {
		if err := watch.Sleep(ctx, auditPause); err != nil {
			return err
		}
		if err := c.writeAudit(ctx); err != nil && ctx.Err() == nil {
			c.log.LogAttrs(ctx, slog.LevelWarn, "queued audit entries are not written yet", slog.Any("err", err))
		}
	}
}

// writeAudit writes what is queued, in its order. A batch whose outcome is unknown is sent
// again as it is, under its ID, so that none of it is written twice.
func (c *AuditQueue) writeAudit(ctx context.Context) error {
	q := &c.audits
	for {
		if q.sending == nil {
			var err error
			if q.sending, err = c.nextAudit(ctx); q.sending == nil {
				return err
			}
		}
		s := q.sending
		_, err := c.store.Commit(ctx, s.tx)
		if errors.Is(err, store.ErrUnknownOutcome) {
			s.again = true
			return err
		}
		if errors.Is(err, store.ErrConflict) && (s.again || s.places == nil) {
			err = nil // the chain that they begin is there, and so are they
		}
		q.sending = nil
		switch {
		case s.places == nil:
		case err == nil:
			s.places.Applied()
		default:
			s.places.Discarded()
		}
		if err != nil {
			return err
		}
		q.mu.Lock()
		q.entries, q.placed, q.dropped = q.entries[s.entries:], q.placed[s.placed:], q.dropped-s.dropped
		if len(q.entries) == 0 {
			q.entries = nil
		}
		q.mu.Unlock()
	}
}

// nextAudit makes a transaction of what is first in the queue; nil if nothing is.
func (c *AuditQueue) nextAudit(ctx context.Context) (*auditSending, error) {
	q := &c.audits
	q.mu.Lock()
	s := &auditSending{tx: store.Tx{ID: store.NewTxID()}}
	var entries []record.AuditEntry
	if len(q.placed) > 0 {
		s.tx, s.placed = q.placed[0], 1
	} else {
		s.entries, s.dropped = min(len(q.entries), auditBatch), q.dropped
		entries = slices.Clone(q.entries[:s.entries])
	}
	q.mu.Unlock()
	if s.dropped > 0 {
		entries = append(entries, record.AuditEntry{At: c.now().UTC(), Actor: "coordinator", Action: "audit.dropped",
			Target: "queue",
			Fields: map[string]string{"entries": fmt.Sprint(s.dropped)}})
	}
	if len(entries) == 0 {
		if s.placed == 0 {
			return nil, nil
		}
		return s, nil
	}
	var err error
	if s.places, err = c.auditWriter.Stamp(ctx, entries); err != nil {
		return nil, err
	}
	s.tx = record.WithPlaces(s.tx, s.places)
	return s, nil
}

// queuedAudit is how many entries wait.
func (c *AuditQueue) queuedAudit() int {
	c.audits.mu.Lock()
	defer c.audits.mu.Unlock()
	return len(c.audits.entries) + len(c.audits.placed)
}

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
