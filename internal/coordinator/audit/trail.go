// Package audit signs checkpoints over the audit log, notices a log that was altered, shows the
// log, and takes in the journals of shards.
//
// Somebody who can write to the store can alter the log. So the leader signs a checkpoint over the
// new entries, about once a minute and before the head of the history moves on, and every
// coordinator compares the checkpoints that the store shows with those that were made. Package
// auditlog decides whether something is wrong with the log, and its package store keeps it; a
// [Trail] says when that is done, under which keys, and who is told.
//
// A shard writes its decisions into a journal of its own, in chains of the same form, and goes on
// while no coordinator can be reached. [Journals] gives its entries their place in the log as they
// are, with the hashes that the shard gave them: from then on checkpoints cover them, and they are
// shown and exported with the rest. A shard can report only its own acts, in chains that are named
// after it. See docs/explanation/actuation.md.
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/health"
)

const (
	// CheckpointPause is how often the leader has a checkpoint vouch for what is new in the
	// audit log.
	CheckpointPause = time.Minute
	// beforeMoveTime bounds the checkpoint before the head moves: nothing waits for it longer.
	beforeMoveTime = 5 * time.Second
	// breakShown is how long a break of the audit log is a finding. It stays in the log.
	breakShown = 7 * 24 * time.Hour
	// maxRechecked bounds what is remembered of breaks that were told of.
	maxRechecked = 1024
)

// Authority says which head is in force.
type Authority interface {
	// Ready returns the state to serve under, or why there is none.
	Ready() (*authority.State, error)
	// StoreError words an error of the store for who called; what is worded stays as it is.
	StoreError(what string, err error) error
}

// Trust has the trust bundle that is in force here.
type Trust interface {
	// View returns it; nil before it was read.
	View() *bundle.View
	// Changed returns a channel that is closed when another one is.
	Changed() <-chan struct{}
}

// Lead says whether this coordinator leads.
type Lead interface {
	// Leading returns the term, and the condition of a leader's write; false if it does not
	// lead.
	Leading() (term uint64, condition store.Condition, ok bool)
	// Changed returns a channel that is closed when somebody else leads.
	Changed() <-chan struct{}
}

// Losses are what the store is known to have lost.
type Losses interface {
	// Lost returns the loss; nil if there is none.
	Lost() *health.Loss
}

// Config is what a [Trail] is made of. Every field is required.
type Config struct {
	Store     store.Store
	Losses    Losses
	Authority Authority
	Trust     Trust
	Lead      Lead

	// Stopping is closed when the process is to end: then nobody follows the log any more.
	Stopping <-chan struct{}

	Now      func() time.Time
	Log      *slog.Logger
	Failures *ratelimit.LogSampler // of what the store can cause
}

// A Trail vouches for the audit log and serves AuditService. It is for concurrent use.
type Trail struct {
	cfg      Config
	breaks   prometheus.Counter
	readers  chan struct{} // held by each reader of the log
	vouching vouching      // what it knows of the checkpoints
}

// New returns a trail that knows of no checkpoint.
func New(cfg Config) *Trail {
	return &Trail{
		cfg: cfg, readers: make(chan struct{}, MaxReaders),
		breaks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fealty_audit_breaks_total",
			Help: "Places at which the audit log is not what was written.",
		}),
		vouching: vouching{looking: make(chan struct{}, 1), reported: make(map[auditlog.Break]bool)},
	}
}

// RegisterMetrics registers what it counts.
func (t *Trail) RegisterMetrics(reg prometheus.Registerer) { reg.MustRegister(t.breaks) }

// vouching is what a coordinator knows of the checkpoints of the audit log. Package auditlog/store
// makes them.
type vouching struct {
	mu       sync.Mutex
	restored uint64          // since which restore it knows it; guarded by mu
	seen     auditlog.Known  // the last checkpoint that was seen; guarded by mu
	broken   *auditlog.Break // what was found last; guarded by mu
	found    time.Time       // when; guarded by mu

	// The fields of the leader's look, of which one goes on at a time.
	looking  chan struct{}           // held by it; capacity 1
	recheck  uint64                  // the checkpoint that is read again next
	reported map[auditlog.Break]bool // breaks that a checkpoint tells of; at most maxRechecked
	heads    auditlog.Heads          // of the chains, as checkpoints since restore headsOf tell them
	headsOf  uint64
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
	b := auditlog.Break{Problem: fmt.Sprintf(
		"the last checkpoint was %d with hash %.16s, and is %d with hash %.16s",
		began.Number, began.Hash.String(), k.Number, k.Hash.String())}
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

// Run has the leader make checkpoints of the audit log, and every coordinator look at them,
// until ctx ends or the store fails. The first comes as soon as this coordinator leads under
// the keys of s, which may be others than before.
func (t *Trail) Run(ctx context.Context, s *authority.State) error {
	for {
		led, trusted := t.cfg.Lead.Changed(), t.cfg.Trust.Changed()
		if err := t.Look(ctx, s); err != nil {
			return err
		}
		// A reader that was overtaken looks again the next time.
		if err := t.Checkpoint(ctx, s, 0); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
		if view := t.cfg.Trust.View(); view != nil && view.Epoch == s.Head.AuthorityEpoch {
			trusted = nil // its keys are read
		}
		if _, err := watch.Wait(ctx, CheckpointPause, led, trusted); err != nil {
			return err
		}
	}
}

// Last is the last checkpoint that was seen since the restore that s stands on; the zero
// value if none was.
func (t *Trail) Last(s *authority.State) auditlog.Known { return t.vouching.last(s) }

// Look compares the last checkpoint of the store with the one that was seen before, and
// tells of what is wrong with it.
func (t *Trail) Look(ctx context.Context, s *authority.State) error {
	began := t.vouching.last(s)
	last, err := auditlogstore.Last(ctx, t.cfg.Store)
	if err != nil {
		return err
	}
	if b := t.vouching.saw(s, began, auditlog.Known{Number: last.Number, Hash: last.Hash}, t.cfg.Now()); b != nil {
		t.tell(ctx, *b)
	}
	if last.Broken != nil {
		t.vouching.broke(*last.Broken, last.Found)
	}
	return nil
}

// tell tells people that the audit log is not what was written.
func (t *Trail) tell(ctx context.Context, b auditlog.Break) {
	t.breaks.Inc()
	t.cfg.Failures.Log(ctx, t.cfg.Log, slog.LevelError, "the audit log was altered: see fealty explain FE-A108",
		slog.String("problem", b.String()))
}

// Checkpoint has the leader make a checkpoint, after which first is the first that is kept; 0:
// as before. It does nothing where this coordinator does not lead, or makes one already. The
// error is the store's; [store.ErrConflict] says that somebody else was first.
func (t *Trail) Checkpoint(ctx context.Context, s *authority.State, first uint64) error {
	conditions, ok := t.leaderConditions(s)
	if !ok {
		return nil
	}
	select {
	case t.vouching.looking <- struct{}{}:
		defer func() { <-t.vouching.looking }()
	default:
		return nil // one is being made
	}
	v := &t.vouching
	again, next, err := auditlogstore.Recheck(ctx, t.cfg.Store, s.Manifest.Cluster, v.recheck)
	if err != nil {
		return err
	}
	v.recheck = next
	var breaks []auditlog.Break
	for _, b := range again {
		if !v.reported[b] && len(v.reported) < maxRechecked {
			breaks = append(breaks, b)
		}
	}
	if epoch := s.RestoredEpoch(); v.headsOf != epoch {
		v.headsOf = epoch
		v.heads.Forget(time.Time{})
	}
	if err := t.makeCheckpoints(ctx, s, conditions, &v.heads, breaks, first); err != nil {
		return err
	}
	for _, b := range breaks {
		v.reported[b] = true
	}
	return nil
}

// Drop removes what is behind checkpoints that are all older than before, once a newer
// checkpoint says that they are over. It does nothing where this coordinator does not lead.
// Its errors are those of [Trail.Checkpoint].
func (t *Trail) Drop(ctx context.Context, s *authority.State, before time.Time) error {
	first, err := auditlogstore.FirstSince(ctx, t.cfg.Store, before)
	if err != nil {
		return err
	}
	if first > 0 {
		if err := t.Checkpoint(ctx, s, first); err != nil {
			return err
		}
	}
	conditions, ok := t.leaderConditions(s)
	if !ok {
		return nil
	}
	if err := auditlogstore.Retire(ctx, t.cfg.Store, conditions); err != nil {
		return err
	}
	return auditlogstore.Forget(ctx, t.cfg.Store, conditions)
}

// leaderConditions are those of a leader's write under s; false if this coordinator does not
// lead.
func (t *Trail) leaderConditions(s *authority.State) ([]store.Condition, bool) {
	_, leads, ok := t.cfg.Lead.Leading()
	return []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion}, leads}, ok
}

// BeforeMove makes a checkpoint under the keys of s before the head moves on from it, so
// that whoever verifies the log under the keys that come finds the hashes of before. The move
// does not depend on it: what is behind none yet is behind the next one.
func (t *Trail) BeforeMove(ctx context.Context, s *authority.State) {
	if s == nil || s.Phase != authority.Ready || t.cfg.Losses.Lost() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beforeMoveTime)
	defer cancel()
	err := t.makeCheckpoints(ctx, s, []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion}}, nil, nil, 0)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		t.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "no checkpoint of the audit log was made before the head moves",
			slog.Any("err", err))
	}
}

// makeCheckpoints makes checkpoints under the keys of s. heads is nil where nobody looks after
// them.
func (t *Trail) makeCheckpoints(ctx context.Context, s *authority.State, conditions []store.Condition,
	heads *auditlog.Heads, breaks []auditlog.Break, first uint64) error {
	view := t.cfg.Trust.View()
	if view == nil || view.Epoch != s.Head.AuthorityEpoch {
		return nil // its keys are not read yet
	}
	signers := view.Signers(s.Bundle, t.cfg.Now())
	if len(signers) == 0 {
		return nil // no key may sign now, which is a finding of its own
	}
	made, err := auditlogstore.Checkpoint(ctx, t.cfg.Store, auditlogstore.Vouch{
		Cluster: s.Manifest.Cluster, Now: t.cfg.Now, Signers: signers, Trusted: view.AuditKeys(s.Bundle),
		If: conditions, Seen: t.vouching.last(s), Heads: heads, Breaks: breaks, First: first,
	})
	if made.Last.Number > 0 {
		t.vouching.saw(s, made.Last, made.Last, t.cfg.Now())
	}
	for _, b := range made.Breaks {
		t.vouching.broke(b, t.cfg.Now())
		t.tell(ctx, b)
	}
	if err != nil && t.cfg.Losses.Lost() != nil {
		return nil // which is what has to be mended
	}
	return err
}

// Findings says that the audit log was altered, for a week after that was found last.
func (t *Trail) Findings() []*fealtyv1.Finding {
	t.vouching.mu.Lock()
	b, at := t.vouching.broken, t.vouching.found
	t.vouching.mu.Unlock()
	if b == nil || t.cfg.Now().Sub(at) > breakShown {
		return nil
	}
	return []*fealtyv1.Finding{finding.New(errcode.AuditBroken, "problem", b.String(), "found",
		at.UTC().Format(time.RFC3339))}
}
