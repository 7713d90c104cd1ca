package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
)

// keepPeriods makes the periods durable if there is news and the policy lets the node
// report later. Losing them costs a report, so that a failure is logged and no more.
func (a *Agent) keepPeriods(ctx context.Context) {
	if a.facts().Permit(guard.ReportLater, a.now()) != nil {
		return
	}
	list, news := a.degraded.ForDisk()
	if !news {
		return
	}
	if err := a.store.WriteSealed(dir.DegradedName, list); err != nil {
		a.degraded.Mu.Lock()
		a.degraded.Dirty = true
		a.degraded.Mu.Unlock()
		a.log.LogAttrs(ctx, slog.LevelWarn, "the time in degraded mode is not kept", slog.Any("err", err))
	}
}

// watchDegraded notes when degraded mode begins and ends, and when the time to work
// alone is over, and wakes who lives by what then ends.
func (a *Agent) watchDegraded(ctx context.Context) error {
	for {
		changed := a.news.Wait()
		wait := a.lookDegraded(ctx)
		t := time.NewTimer(min(wait, clockLook)) // a timer does not see a clock that is set
		select {
		case <-ctx.Done():
			t.Stop()
			a.keepPeriods(context.WithoutCancel(ctx))
			return ctx.Err()
		case <-changed:
		case <-t.C:
			a.news.Ring()
			state.Poke(a.trialKick) // the files that others read, too
		}
		t.Stop()
	}
}

// noteDegraded notes in memory what the facts in use come to by now: that degraded mode
// began, and that the time to work alone is over. So it is done before each change of
// them, and not only when the node looks at the clock.
func (a *Agent) noteDegraded() {
	ctx, f, now := context.Background(), a.facts(), a.now()
	if !f.Degraded(now) {
		return
	}
	from := f.Entry(guard.Terms())
	if from.IsZero() || from.After(now) {
		from = now // it holds nothing, or is behind
	}
	if a.degraded.Began(from) {
		a.metrics.entries.Inc()
		policy := f.PolicyAt(now)
		a.log.LogAttrs(ctx, slog.LevelWarn, "degraded mode: no news for too long, going on by its policy alone", slog.Time("since", from), slog.Time("newest_word", f.Word),
			slog.String("partition", string(f.Partition(now))), slog.Any("allow", policy.Allow), slog.Duration("max", policy.Max))
	}
	until, limit := f.Alone()
	if until.IsZero() {
		until = from // what it holds gives it no time at all
	}
	if !now.Before(until) && a.degraded.Over(until, limit) {
		a.log.LogAttrs(ctx, slog.LevelError, "the time to work alone is over: services and routes are not given any more", slog.Time("since", until), slog.String("limit", limit))
	}
}

// lookDegraded looks once, and returns when something ends next.
func (a *Agent) lookDegraded(ctx context.Context) time.Duration {
	a.noteDegraded()
	f, now := a.facts(), a.now()
	if !f.Degraded(now) {
		if p := a.degraded.Ended(now); p != nil {
			a.log.LogAttrs(ctx, slog.LevelInfo, "degraded mode is over: there is news", slog.Time("since", p.From))
			a.kickReport()
		}
	}
	a.keepPeriods(ctx)
	next := clockLook
	for _, at := range f.Ends() {
		if at.After(now) {
			next = min(next, at.Sub(now))
		}
	}
	return next
}

// reportable are the periods to report, if the policy lets the node: it does in any
// case while there is news.
func (a *Agent) reportable() []*fealtyv1.DegradedPeriod {
	if a.facts().Permit(guard.ReportLater, a.now()) != nil {
		return nil
	}
	return guard.PeriodMessages(a.degraded.All())
}

// permissions tell what the guard would decide now on each action of the table.
func (a *Agent) permissions() []*fealtyv1.ActionPermission {
	f, now := a.facts(), a.now()
	var out []*fealtyv1.ActionPermission
	for _, r := range guard.ActionRules() {
		m := &fealtyv1.ActionPermission{Action: string(r.Action)}
		if refused, ok := errors.AsType[*guard.RefusedError](f.Permit(r.Action, now)); ok {
			m.Reason, m.Bound = refused.Reason, refused.Bound
		} else {
			m.Permitted = true
		}
		out = append(out, m)
	}
	return out
}

// standsDegraded are what the local API tells of degraded mode.
func (a *Agent) standsDegraded(resp *fealtyv1.GetNodeResponse) {
	f, now := a.facts(), a.now()
	resp.Freshness, resp.Partition = string(f.Overall(now)), string(f.Partition(now))
	resp.Permissions, resp.DegradedPeriods = a.permissions(), guard.PeriodMessages(a.degraded.All())
}
