package accept

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// Facts are what the guard decides by now.
func (a *Autonomy) Facts() guard.Facts { return a.factsOf(a.n.trustState.Load()) }

// factsOf are those of a node that believes b. All that they come from is decisive, but for
// contact, which does not make a node degraded.
func (a *Autonomy) factsOf(b *state.TrustState) guard.Facts {
	known := a.known.Load()
	if known == nil || known.Of != b {
		known = &state.TrustFacts{Of: b, Facts: b.Facts()}
		a.known.Store(known)
	}
	svid, f := a.n.svid.Load(), known.Facts
	leaf := svid.Leaf()
	f.Contact, f.Behind, f.SVIDEnd = a.n.status.View().Connected, *a.behind.Load(), leaf.NotAfter
	if b.Contact.Banned(a.n.me.ID, svid.Key.ID) {
		f.Withdrawn = guard.LimitIdentity
	}
	// A coordinator certified this node, so one was there.
	if leaf.NotBefore.After(f.Word) {
		f.Word = leaf.NotBefore
	}
	return f
}

// DegradedUntil returns until when the node works without news, and what ends it.
func (a *Autonomy) DegradedUntil() (time.Time, string) { return a.Facts().DegradedUntil() }

// Permit decides whether this node, or a service on it, may do action now; nil
// permits it. A refusal is a [*guard.RefusedError], and counted. Out of contact with the
// cluster what is not in the table is refused.
func (a *Autonomy) Permit(action guard.Action) error {
	err := a.Facts().Permit(action, a.n.Clock.Now())
	if refused, ok := errors.AsType[*guard.RefusedError](err); ok {
		a.n.reports.Refused(guard.LabelOf(action), refused.Reason)
	}
	a.Degraded.Count(action, err == nil)
	return err
}

// Use returns what may be used now of scope, without what is revoked. The error is a
// [*guard.RefusedError].
func (a *Autonomy) Use(scope snapshot.Scope) (*snapshot.Verified, error) {
	b := a.n.trustState.Load()
	if err := a.factsOf(b).Gives(scope, a.n.Clock.Now()); err != nil {
		return nil, err
	}
	return b.Effective(b.Active[scope], a.n.me.ID), nil
}

// Given returns what may be used of scope, as local services get it.
func (a *Autonomy) Given(scope snapshot.Scope) (*fealtyv1.ScopeContent, error) {
	v, err := a.Use(scope)
	if err != nil {
		return nil, err
	}
	header := v.Header()
	record, _ := v.Record()
	trial, on := a.n.trustState.Load().OnTrial(scope)
	return &fealtyv1.ScopeContent{
		Scope: string(scope), AuthorityEpoch: header.AuthorityEpoch, ConfigVersion: header.ConfigVersion,
		Generation: record.Generation,
		Content:    []byte(v.ContentJSON()), ContentHash: header.ContentHash[:],
		Freshness: string(v.Freshness(a.n.Clock.Now(), guard.StaleFor)),
		ExpiresAt: timestamppb.New(header.ExpiresAt),
		OnTrial:   on && trial.Header == v.HeaderDigest().String(),
	}, nil
}

// NewsOf is what a watcher of scope is told now.
func (a *Autonomy) NewsOf(scope snapshot.Scope) *fealtyv1.WatchScopeResponse {
	content, err := a.n.Autonomy.Given(scope)
	if err == nil {
		return &fealtyv1.WatchScopeResponse{News: &fealtyv1.WatchScopeResponse_Content{Content: content}}
	}
	over := new(fealtyv1.ScopeOver)
	if refused, ok := errors.AsType[*guard.RefusedError](err); ok {
		over.Reason, over.Bound = refused.Reason, refused.Bound
	}
	return &fealtyv1.WatchScopeResponse{News: &fealtyv1.WatchScopeResponse_Over{Over: over}}
}

// KeepPeriods makes the periods durable if there is news and the policy lets the node
// report later. Losing them costs a report, so that a failure is logged and no more.
func (a *Autonomy) KeepPeriods(ctx context.Context) {
	if a.Facts().Permit(guard.ReportLater, a.n.Clock.Now()) != nil {
		return
	}
	list, news := a.Degraded.ForDisk()
	if !news {
		return
	}
	if err := a.n.store.WriteSealed(dir.DegradedName, list); err != nil {
		a.Degraded.Mu.Lock()
		a.Degraded.Dirty = true
		a.Degraded.Mu.Unlock()
		a.n.log.LogAttrs(ctx, slog.LevelWarn, "the time in degraded mode is not kept", slog.Any("err", err))
	}
}

// WatchDegraded notes when degraded mode begins and ends, and when the time to work
// alone is over, and wakes who lives by what then ends.
func (a *Autonomy) WatchDegraded(ctx context.Context) error {
	for {
		changed := a.Changed.Wait()
		wait := a.LookDegraded(ctx)
		t := time.NewTimer(min(wait, lookEvery)) // a timer does not see a clock that is set
		select {
		case <-ctx.Done():
			t.Stop()
			a.KeepPeriods(context.WithoutCancel(ctx))
			return ctx.Err()
		case <-changed:
		case <-t.C:
			a.Changed.Notify()
			state.Notify(a.n.Trials.Changed) // the files that others read, too
		}
		t.Stop()
	}
}

// NoteDegraded notes in memory what the facts in use come to by now: that degraded mode
// began, and that the time to work alone is over. So it is done before each change of
// them, and not only when the node looks at the clock.
func (a *Autonomy) NoteDegraded() {
	ctx, f, now := context.Background(), a.Facts(), a.n.Clock.Now()
	if !f.Degraded(now) {
		return
	}
	from := f.Entry(guard.Terms())
	if from.IsZero() || from.After(now) {
		from = now // it holds nothing, or is behind
	}
	if a.Degraded.Began(from) {
		a.n.reports.Entered()
		policy := f.PolicyAt(now)
		a.n.log.LogAttrs(ctx, slog.LevelWarn, "degraded mode: no news for too long, going on by its policy alone",
			slog.Time("since", from), slog.Time("newest_word", f.Word),
			slog.String("partition", string(f.Partition(now))), slog.Any("allow", policy.Allow),
			slog.Duration("max", policy.Max))
	}
	until, limit := f.DegradedUntil()
	if until.IsZero() {
		until = from // what it holds gives it no time at all
	}
	if !now.Before(until) && a.Degraded.Over(until, limit) {
		a.n.log.LogAttrs(ctx, slog.LevelError,
			"the time to work alone is over: services and routes are not given any more", slog.Time("since", until),
			slog.String("limit", limit))
	}
}

// LookDegraded looks once, and returns when something ends next.
func (a *Autonomy) LookDegraded(ctx context.Context) time.Duration {
	a.NoteDegraded()
	f, now := a.Facts(), a.n.Clock.Now()
	if !f.Degraded(now) {
		if p := a.Degraded.Ended(now); p != nil {
			a.n.log.LogAttrs(ctx, slog.LevelInfo, "degraded mode is over: there is news", slog.Time("since", p.From))
			a.n.reports.Report()
		}
	}
	a.KeepPeriods(ctx)
	next := lookEvery
	for _, at := range f.Ends() {
		if at.After(now) {
			next = min(next, at.Sub(now))
		}
	}
	return next
}

// Reportable are the periods to report, if the policy lets the node: it does in any
// case while there is news.
func (a *Autonomy) Reportable() []*fealtyv1.DegradedPeriod {
	if a.Facts().Permit(guard.ReportLater, a.n.Clock.Now()) != nil {
		return nil
	}
	return guard.PeriodMessages(a.Degraded.All())
}

// permissions tell what the guard would decide now on each action of the table.
func (a *Autonomy) permissions() []*fealtyv1.ActionPermission {
	f, now := a.Facts(), a.n.Clock.Now()
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

// StandsDegraded are what the local API tells of degraded mode.
func (a *Autonomy) StandsDegraded(resp *fealtyv1.GetNodeResponse) {
	f, now := a.Facts(), a.n.Clock.Now()
	resp.Freshness, resp.Partition = string(f.Overall(now)), string(f.Partition(now))
	resp.Permissions, resp.DegradedPeriods = a.permissions(), guard.PeriodMessages(a.Degraded.All())
}
