package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// verdict is the answer of who consumes a scope to the snapshot of version that is on
// trial: a bad one is used no more. 0 is whatever version is on trial. The error
// matches errNoTrial, or is of the context.
func (a *Agent) verdict(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, detail string) error {
	return a.judged(ctx, scope, version, ok, state.FailedVerdict, detail)
}

func (a *Agent) judged(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, reason, detail string) error {
	release, err := a.activation.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	b := a.beliefs.Load()
	t, on := b.OnTrial(scope)
	h := b.Tries(t)
	if !on || h == nil || version != 0 && version != h.Verified.Header().ConfigVersion {
		return fmt.Errorf("%s: %w", scope, state.ErrNoTrial)
	}
	if ok {
		a.log.LogAttrs(ctx, slog.LevelInfo, "the snapshot on trial works, says who uses it", slog.String("scope", string(scope)), slog.Uint64("config_version", h.Verified.Header().ConfigVersion))
		return nil // the trial goes on to its end: the contact has to last as well
	}
	a.failTrial(ctx, scope, reason, detail)
	return nil
}

// failTrial has the node use what was before in place of what is in use of scope. The
// caller holds a.activation.
func (a *Agent) failTrial(ctx context.Context, scope snapshot.Scope, reason, detail string) {
	b := a.beliefs.Load()
	bad := b.Held[scope].Verified.Header()
	next, old := a.store.Fail(b, a.self(), scope, reason, detail, a.now())
	// In memory at once, whatever the disk does: without it the attempts on disk end it.
	a.beliefs.Store(next)
	delete(a.trialSince, scope)
	a.marksDirty = true
	if err := a.keepLedger(); err != nil {
		a.log.LogAttrs(ctx, slog.LevelError, "the end of a trial is not kept", slog.String("scope", string(scope)), slog.Any("err", err))
	} else if old != nil {
		if err := a.store.Settle(scope, old.Raw); err != nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "the file of the snapshot in use is still the one that failed", slog.String("scope", string(scope)), slog.Any("err", err))
		}
	}
	a.tellQuarantine(ctx, next, scope)
	what := "snapshot failed its trial, the one before is in use again"
	if old == nil {
		what = "snapshot failed its trial, and stays in use for there is nothing before it"
	}
	a.log.LogAttrs(ctx, slog.LevelError, what, slog.String("code", string(explain.SnapshotRefused)), slog.String("scope", string(scope)),
		slog.Uint64("config_version", bad.ConfigVersion), slog.String("reason", reason), slog.String("detail", state.Clip(detail, state.MaxDetailBytes)))
	a.derive(ctx)
	if old != nil {
		a.receipts[scope] = state.Receipt{At: a.now(), From: state.FromDisk}
		a.changed(scope)
	}
}

// tellQuarantine makes a failed trial known.
func (a *Agent) tellQuarantine(ctx context.Context, b *state.Beliefs, scope snapshot.Scope) {
	if q, ok := b.Quarantined(scope); ok && a.status.Refused(q.Refusal()) {
		a.metrics.rejected.WithLabelValues(string(scope), state.ReasonQuarantined).Inc()
		a.keepRefusals(ctx)
	}
	a.kickReport()
}

// keepLedger makes the ledger in memory durable, if it is not.
func (a *Agent) keepLedger() error {
	if !a.marksDirty {
		return nil
	}
	if err := a.store.WriteLedger(a.beliefs.Load().Ledger); err != nil {
		return err
	}
	a.marksDirty = false
	return nil
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
	release, err := a.activation.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	next := state.TendEvery
	for _, t := range a.beliefs.Load().Trials {
		b := a.beliefs.Load()
		if b.Tries(t) == nil {
			// It is not in use any more, and nothing is to be judged.
			a.beliefs.Store(b.WithLedger(b.Ledger.WithoutTrial(t.Scope)))
			delete(a.trialSince, t.Scope)
			a.marksDirty = true
			continue
		}
		since, ok := a.trialSince[t.Scope]
		if !ok {
			since = time.Now()
			a.trialSince[t.Scope] = since
		}
		if left := b.TrialOf(t.Scope) - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		if t.Contact && !a.status.View().Connected {
			a.failTrial(ctx, t.Scope, state.FailedContact, "no coordinator is in reach at the end of its trial, and one was before it")
			continue
		}
		a.beliefs.Store(b.WithLedger(b.Ledger.WithoutTrial(t.Scope)))
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
