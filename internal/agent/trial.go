package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/snapshot"
)

// A snapshot of a scope that the degraded_mode_policy names is on trial for a while
// after its activation. If whoever consumes it says that it is bad, or the contact that
// there was before is not there when the trial ends, the node uses the content before
// again. That rolls back behaviour, never trust: the marks stay, the scopes that say
// whom to believe and what is allowed are never on trial, and what it falls back to is
// verified again as of now. The fix is a higher version with another content.

const (
	// maxAttempts is how often a snapshot is put into use on trial: at its activation,
	// and by each start before the trial ended. One that ends the machine each time does
	// so no more than that.
	maxAttempts = 3
	// maxQuarantined bounds the list, for each scope; the oldest entry goes first.
	maxQuarantined = 8
)

// triable are the scopes that can be on trial. The others say whom to believe, who the
// node is and what it may do: of these the newest alone counts.
var triable = []snapshot.Scope{
	snapshot.ScopePeerDirectory, snapshot.ScopeQoSPolicy, snapshot.ScopeRoutePolicy, snapshot.ScopeServiceAssignment, snapshot.ScopeStorageDirectory,
}

// trial is a snapshot that is in use on trial.
type trial struct {
	Scope    snapshot.Scope `json:"scope"`
	Header   string         `json:"header"`   // the digest of its header
	Attempts int            `json:"attempts"` // how often it was put into use; written down before it is
	Contact  bool           `json:"contact"`  // there was contact when it began
}

// quarantined is a snapshot that failed its trial.
type quarantined struct {
	Scope          snapshot.Scope `json:"scope"`
	AuthorityEpoch uint64         `json:"authority_epoch"`
	ConfigVersion  uint64         `json:"config_version"`
	Content        string         `json:"content_hash"` // what is not tried again
	Reason         string         `json:"reason"`
	Detail         string         `json:"detail"`
	At             time.Time      `json:"at"`
	// Kept says that it stays in use, because there is nothing before it that may be
	// used.
	Kept bool `json:"kept,omitempty"`
}

// Reasons of a failed trial.
const (
	failedVerdict  = "verdict"  // who consumes it said so
	failedHook     = "hook"     // so did the program that runs on a change
	failedContact  = "contact"  // the coordinators were lost
	failedAttempts = "attempts" // the agent ended each time
)

// onTrial returns the trial of scope.
func (l ledger) onTrial(scope snapshot.Scope) (trial, bool) {
	for _, t := range l.trials {
		if t.Scope == scope {
			return t, true
		}
	}
	return trial{}, false
}

// tries returns what is in use and what t is the trial of; nil if that is not in use any
// more: the node lost the scope, or its signer was revoked.
func (b *beliefs) tries(t trial) *held {
	if h := b.held[t.Scope]; h != nil && h.v.HeaderDigest().String() == t.Header {
		return h
	}
	return nil
}

// withTrial returns l with t in place of the trial of its scope.
func (l ledger) withTrial(t trial) ledger {
	l = l.withoutTrial(t.Scope)
	l.trials = append(l.trials, t)
	return l
}

func (l ledger) withoutTrial(scope snapshot.Scope) ledger {
	l.trials = slices.DeleteFunc(slices.Clone(l.trials), func(t trial) bool { return t.Scope == scope })
	return l
}

// barred returns why content is not used again in scope.
func (l ledger) barred(scope snapshot.Scope, content snapshot.Digest) (quarantined, bool) {
	for _, q := range l.quarantine {
		if q.Scope == scope && q.Content == content.String() && !q.Kept {
			return q, true
		}
	}
	return quarantined{}, false
}

// withQuarantined returns l with q, and without the trial that ended with it.
func (l ledger) withQuarantined(q quarantined) ledger {
	l = l.withoutTrial(q.Scope)
	l.quarantine = slices.DeleteFunc(slices.Clone(l.quarantine), func(o quarantined) bool { return o.Scope == q.Scope && o.Content == q.Content })
	l.quarantine = append(l.quarantine, q)
	count := 0
	for i := len(l.quarantine) - 1; i >= 0; i-- {
		if l.quarantine[i].Scope != q.Scope {
			continue
		}
		if count++; count > maxQuarantined {
			l.quarantine = slices.Delete(l.quarantine, i, i+1)
		}
	}
	return l
}

// quarantined returns what of scope was accepted last and is not used, because it
// failed its trial.
func (b *beliefs) quarantined(scope snapshot.Scope) (quarantined, bool) {
	h := b.held[scope]
	for i := len(b.quarantine) - 1; i >= 0; i-- {
		q := b.quarantine[i]
		if q.Scope != scope {
			continue
		}
		newer := h == nil || q.AuthorityEpoch > h.v.Header().AuthorityEpoch ||
			q.AuthorityEpoch == h.v.Header().AuthorityEpoch && q.ConfigVersion > h.v.Header().ConfigVersion
		same := h != nil && q.Kept && q.Content == h.v.Header().ContentHash.String()
		if newer || same {
			return q, true
		}
	}
	return quarantined{}, false
}

// trialOf returns for how long a new snapshot of scope is on trial; 0: it is not.
func (b *beliefs) trialOf(scope snapshot.Scope) time.Duration {
	h := b.held[snapshot.ScopeDegradedModePolicy]
	if h == nil || !slices.Contains(triable, scope) {
		return 0
	}
	policy, _ := h.v.DegradedModePolicy()
	for _, t := range policy.Trials {
		if t.Scope == scope {
			return t.Duration
		}
	}
	return 0
}

// probation puts d on trial if it is to be, or bars it if its content failed one.
func (d decision) probation(b *beliefs, contact bool, now time.Time) decision {
	header := d.v.Header()
	scope, was := header.ScopeType, b.held[header.ScopeType]
	if old, ok := d.ledger.barred(scope, header.ContentHash); ok {
		// Accepted, so that nothing older comes in, and not used.
		d.barred = true
		if d.raised {
			old.AuthorityEpoch, old.ConfigVersion = header.AuthorityEpoch, header.ConfigVersion
			d.ledger = d.ledger.withQuarantined(old)
			if was != nil {
				d.ledger.marks = d.ledger.marks.Keep(was.v)
			}
		}
		return d
	}
	t, on := d.ledger.onTrial(scope)
	if d.renewal || was != nil && was.v.Header().ContentHash == header.ContentHash {
		// Nothing changes for who consumes it: what is on trial is so under its new header.
		if on && b.tries(t) != nil && d.raised {
			t.Header = d.v.HeaderDigest().String()
			d.ledger = d.ledger.withTrial(t)
		}
		return d
	}
	if on && t.Header == d.v.HeaderDigest().String() {
		return d // it goes on
	}
	d.ledger = d.ledger.withoutTrial(scope)
	if d.raised && b.trialOf(scope) > 0 {
		d.ledger = d.ledger.withTrial(trial{Scope: scope, Header: d.v.HeaderDigest().String(), Attempts: 1, Contact: contact})
	}
	return d
}

// before returns what of h's scope on disk may be used in its place: the newest that
// verifies now, of the same subject and epoch, and did not fail itself.
func (s *localStore) before(b *beliefs, me self, h *held, now time.Time) *held {
	header := h.v.Header()
	var best *held
	for _, c := range s.candidates(&loaded{}, header.ScopeType, now) {
		v, err := snapshot.Recheck(c.signed, me.trust(b), b.marks, now)
		if err != nil {
			continue
		}
		old := v.Header()
		if _, barred := b.barred(header.ScopeType, old.ContentHash); barred || old.ContentHash == header.ContentHash ||
			old.ScopeType != header.ScopeType || old.Subject != header.Subject || old.AuthorityEpoch != header.AuthorityEpoch {
			continue
		}
		if best == nil || compareVerified(v, best.v) > 0 {
			best = &held{v, c.raw}
		}
	}
	return best
}

// fail returns b after the snapshot in use of scope failed its trial, and what it fell
// back to; nil if there is nothing to fall back to, so that it stays in use.
func (s *localStore) fail(b *beliefs, me self, scope snapshot.Scope, reason, detail string, now time.Time) (*beliefs, *held) {
	h := b.held[scope]
	header := h.v.Header()
	old := s.before(b, me, h, now)
	next := b.ledger.withQuarantined(quarantined{
		Scope: scope, AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion, Content: header.ContentHash.String(),
		Reason: reason, Detail: clip(detail, maxDetailBytes), At: now.UTC(), Kept: old == nil,
	})
	if old == nil {
		return b.withLedger(next), nil
	}
	next.marks = next.marks.Keep(old.v)
	return b.withLedger(next).with(scope, old), old
}

// refusal tells of q as of a snapshot that was not taken.
func (q quarantined) refusal() refusal {
	detail := fmt.Sprintf("version %d of epoch %d failed its trial (%s)", q.ConfigVersion, q.AuthorityEpoch, q.Reason)
	if q.Detail != "" {
		detail += ": " + q.Detail
	}
	if q.Kept {
		detail += "; it stays in use, for there is nothing before it that may be used"
	}
	return refusal{Scope: string(q.Scope), Reason: reasonQuarantined, Detail: clip(detail, maxDetailBytes), At: q.At}
}

// reasonQuarantined is the reason of what was accepted and is not used.
const reasonQuarantined = "quarantined"

// errNoTrial is matched when a snapshot is judged that is not on trial.
var errNoTrial = errors.New("that snapshot is not on trial")

// verdict is the answer of who consumes a scope to the snapshot of version that is on
// trial: a bad one is used no more. 0 is whatever version is on trial. The error
// matches errNoTrial, or is of the context.
func (a *Agent) verdict(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, detail string) error {
	return a.judged(ctx, scope, version, ok, failedVerdict, detail)
}

func (a *Agent) judged(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, reason, detail string) error {
	release, err := a.activation.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	b := a.beliefs.Load()
	t, on := b.onTrial(scope)
	h := b.tries(t)
	if !on || h == nil || version != 0 && version != h.v.Header().ConfigVersion {
		return fmt.Errorf("%s: %w", scope, errNoTrial)
	}
	if ok {
		a.log.LogAttrs(ctx, slog.LevelInfo, "the snapshot on trial works, says who uses it", slog.String("scope", string(scope)), slog.Uint64("config_version", h.v.Header().ConfigVersion))
		return nil // the trial goes on to its end: the contact has to last as well
	}
	a.failTrial(ctx, scope, reason, detail)
	return nil
}

// failTrial has the node use what was before in place of what is in use of scope. The
// caller holds a.activation.
func (a *Agent) failTrial(ctx context.Context, scope snapshot.Scope, reason, detail string) {
	b := a.beliefs.Load()
	bad := b.held[scope].v.Header()
	next, old := a.store.fail(b, a.self(), scope, reason, detail, a.now())
	// In memory at once, whatever the disk does: without it the attempts on disk end it.
	a.beliefs.Store(next)
	delete(a.trialSince, scope)
	a.marksDirty = true
	if err := a.keepLedger(); err != nil {
		a.log.LogAttrs(ctx, slog.LevelError, "the end of a trial is not kept", slog.String("scope", string(scope)), slog.Any("err", err))
	} else if old != nil {
		if err := a.store.settle(scope, old.raw); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "the file of the snapshot in use is still the one that failed", slog.String("scope", string(scope)), slog.Any("err", err))
		}
	}
	a.tellQuarantine(ctx, next, scope)
	what := "snapshot failed its trial, the one before is in use again"
	if old == nil {
		what = "snapshot failed its trial, and stays in use for there is nothing before it"
	}
	a.log.LogAttrs(ctx, slog.LevelError, what, slog.String("code", string(explain.SnapshotRefused)), slog.String("scope", string(scope)),
		slog.Uint64("config_version", bad.ConfigVersion), slog.String("reason", reason), slog.String("detail", clip(detail, maxDetailBytes)))
	a.derive(ctx)
	if old != nil {
		a.receipts[scope] = receipt{a.now(), fromDisk}
		a.changed(scope)
	}
}

// tellQuarantine makes a failed trial known.
func (a *Agent) tellQuarantine(ctx context.Context, b *beliefs, scope snapshot.Scope) {
	if q, ok := b.quarantined(scope); ok && a.status.refused(q.refusal()) {
		a.metrics.rejected.WithLabelValues(string(scope), reasonQuarantined).Inc()
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// keepLedger makes the ledger in memory durable, if it is not.
func (a *Agent) keepLedger() error {
	if !a.marksDirty {
		return nil
	}
	if err := a.store.writeLedger(a.beliefs.Load().ledger); err != nil {
		return err
	}
	a.marksDirty = false
	return nil
}

// resumeTrials counts the trials that go on with this start, durably and before
// anything is used. One that had all its attempts has failed; so does one, for this
// time, whose attempt cannot be written down.
func (s *localStore) resumeTrials(b *beliefs, me self, now time.Time) (*beliefs, error) {
	if len(b.trials) == 0 {
		return b, nil
	}
	next := b
	for _, t := range b.trials {
		switch {
		case next.tries(t) == nil || next.trialOf(t.Scope) == 0:
			next = next.withLedger(next.ledger.withoutTrial(t.Scope)) // over, one way or the other
		case t.Attempts >= maxAttempts:
			next, _ = s.fail(next, me, t.Scope, failedAttempts, fmt.Sprintf("the agent ended %d times while it was on trial", t.Attempts), now)
		default:
			t.Attempts++
			next = next.withLedger(next.ledger.withTrial(t))
		}
	}
	err := s.writeLedger(next.ledger)
	if err == nil {
		return next, nil
	}
	for _, t := range next.trials {
		if h := next.held[t.Scope]; h != nil {
			if old := s.before(next, me, h, now); old != nil {
				next = next.with(t.Scope, old)
			}
		}
	}
	return next, err
}

// watchTrials ends trials when their time is over.
func (a *Agent) watchTrials(ctx context.Context) error {
	for {
		next, err := a.endTrials(ctx)
		if err != nil {
			return err
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-a.trialKick:
			t.Stop()
		case <-t.C:
		}
	}
}

// endTrials ends those whose time is over, mends what the disk did not take, and
// returns when to look again. The time of a trial runs while the agent does.
func (a *Agent) endTrials(ctx context.Context) (time.Duration, error) {
	release, err := a.activation.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	next := tendEvery
	for _, t := range a.beliefs.Load().trials {
		b := a.beliefs.Load()
		if b.tries(t) == nil {
			// It is not in use any more, and nothing is to be judged.
			a.beliefs.Store(b.withLedger(b.ledger.withoutTrial(t.Scope)))
			delete(a.trialSince, t.Scope)
			a.marksDirty = true
			continue
		}
		since, ok := a.trialSince[t.Scope]
		if !ok {
			since = time.Now()
			a.trialSince[t.Scope] = since
		}
		if left := b.trialOf(t.Scope) - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		if t.Contact && !a.status.view().connected {
			a.failTrial(ctx, t.Scope, failedContact, "no coordinator is in reach at the end of its trial, and one was before it")
			continue
		}
		a.beliefs.Store(b.withLedger(b.ledger.withoutTrial(t.Scope)))
		delete(a.trialSince, t.Scope)
		a.marksDirty = true
		a.log.LogAttrs(ctx, slog.LevelInfo, "snapshot passed its trial", slog.String("scope", string(t.Scope)))
	}
	if err := a.keepLedger(); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "what was accepted and tried is not kept yet", slog.Any("err", err))
	}
	a.finishDrops(ctx)
	a.derive(ctx)
	return next, nil
}
