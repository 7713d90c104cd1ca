package accept

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// Verdict is the answer of who consumes a scope to the snapshot of version that is on
// trial: a bad one is used no more. 0 is whatever version is on trial. The error
// matches state.ErrNoTrial, or is of the context.
func (w *Trials) Verdict(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, detail string) error {
	return w.Judged(ctx, scope, version, ok, state.FailedVerdict, detail)
}

// Judged is Verdict with the reason to keep for a bad one.
func (w *Trials) Judged(ctx context.Context, scope snapshot.Scope, version uint64, ok bool, reason,
	detail string) error {
	release, err := w.n.Activation.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	b := w.n.trustState.Load()
	t, on := b.OnTrial(scope)
	h := b.Tries(t)
	if !on || h == nil || version != 0 && version != h.Verified.Header().ConfigVersion {
		return fmt.Errorf("%s: %w", scope, state.ErrNoTrial)
	}
	if ok {
		w.n.log.LogAttrs(ctx, slog.LevelInfo, "the snapshot on trial works, says who uses it",
			slog.String("scope", string(scope)), slog.Uint64("config_version", h.Verified.Header().ConfigVersion))
		return nil // the trial goes on to its end: the contact has to last as well
	}
	w.failTrial(ctx, scope, reason, detail)
	return nil
}

// failTrial has the node use what was before in place of what is in use of scope. The
// caller holds n.activation.
func (w *Trials) failTrial(ctx context.Context, scope snapshot.Scope, reason, detail string) {
	b := w.n.trustState.Load()
	bad := b.Active[scope].Verified.Header()
	next, old := w.n.store.Fail(b, w.n.Self(), scope, reason, detail, w.n.Clock.Now())
	// In memory at once, whatever the disk does: without it the attempts on disk end it.
	w.n.trustState.Store(next)
	delete(w.Since, scope)
	w.n.owed.marksDirty = true
	if err := w.n.KeepLedger(); err != nil {
		w.n.log.LogAttrs(ctx, slog.LevelError, "the end of a trial is not kept", slog.String("scope", string(scope)),
			slog.Any("err", err))
	} else if old != nil {
		if err := w.n.store.Settle(scope, old.Raw); err != nil {
			w.n.log.LogAttrs(ctx, slog.LevelWarn, "the file of the snapshot in use is still the one that failed",
				slog.String("scope", string(scope)), slog.Any("err", err))
		}
	}
	w.n.tellQuarantine(ctx, next, scope)
	what := "snapshot failed its trial, the one before is in use again"
	if old == nil {
		what = "snapshot failed its trial, and stays in use for there is nothing before it"
	}
	w.n.log.LogAttrs(ctx, slog.LevelError, what, slog.String("code", string(errcode.SnapshotRefused)),
		slog.String("scope", string(scope)),
		slog.Uint64("config_version", bad.ConfigVersion), slog.String("reason", reason),
		slog.String("detail", state.Clip(detail, state.MaxDetailBytes)))
	w.n.files.derive(ctx)
	if old != nil {
		w.n.files.receipts[scope] = state.Receipt{At: w.n.Clock.Now(), From: state.FromDisk}
		w.n.reports.Changed(scope)
	}
}

// tellQuarantine makes a failed trial known.
func (n *Node) tellQuarantine(ctx context.Context, b *state.TrustState, scope snapshot.Scope) {
	if q, ok := b.Quarantined(scope); ok && n.status.Refused(q.Refusal()) {
		n.reports.Rejected(string(scope), state.ReasonQuarantined)
		n.keepRefusals(ctx)
	}
	n.reports.Report()
}

// KeepLedger makes the ledger in memory durable, if it is not.
func (n *Node) KeepLedger() error {
	if !n.owed.marksDirty {
		return nil
	}
	if err := n.store.WriteLedger(n.trustState.Load().Ledger); err != nil {
		return err
	}
	n.owed.marksDirty = false
	return nil
}

// WatchTrials ends trials when their time is over.
func (w *Trials) WatchTrials(ctx context.Context) error {
	for {
		next, err := w.EndTrials(ctx)
		if err != nil {
			return err
		}
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-w.n.Trials.Changed:
			t.Stop()
		case <-t.C:
		}
	}
}

// EndTrials ends those whose time is over, mends what the disk did not take, and
// returns when to look again. The time of a trial runs while the agent does.
func (w *Trials) EndTrials(ctx context.Context) (time.Duration, error) {
	release, err := w.n.Activation.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	next := state.TendEvery
	for _, t := range w.n.trustState.Load().Trials {
		b := w.n.trustState.Load()
		if b.Tries(t) == nil {
			// It is not in use any more, and nothing is to be judged.
			w.n.trustState.Store(b.WithLedger(b.Ledger.WithoutTrial(t.Scope)))
			delete(w.Since, t.Scope)
			w.n.owed.marksDirty = true
			continue
		}
		since, ok := w.Since[t.Scope]
		if !ok {
			since = time.Now()
			w.Since[t.Scope] = since
		}
		if left := b.TrialOf(t.Scope) - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		if t.Contact && !w.n.status.View().Connected {
			w.failTrial(ctx, t.Scope, state.FailedContact,
				"no coordinator is in reach at the end of its trial, and one was before it")
			continue
		}
		w.n.trustState.Store(b.WithLedger(b.Ledger.WithoutTrial(t.Scope)))
		delete(w.Since, t.Scope)
		w.n.owed.marksDirty = true
		w.n.log.LogAttrs(ctx, slog.LevelInfo, "snapshot passed its trial", slog.String("scope", string(t.Scope)))
	}
	if err := w.n.KeepLedger(); err != nil {
		w.n.log.LogAttrs(ctx, slog.LevelWarn, "what was accepted and tried is not kept yet", slog.Any("err", err))
	}
	w.n.finishDrops(ctx)
	w.n.files.derive(ctx)
	return next, nil
}
