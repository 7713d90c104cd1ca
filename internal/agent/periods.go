package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// A node remembers when it was in degraded mode and what was asked of its guard
// then, on disk, and reports it when it is back. It decides nothing by that: the
// bounds count from what was signed, so that whoever loses or alters the file gains
// no time.

// maxPeriods bounds the periods that are kept. The oldest go first.
const maxPeriods = 16

// maxDegradedBytes bounds the file.
const maxDegradedBytes = 64 << 10

// tally counts what the guard decided on one action.
type tally struct {
	Permitted uint64 `json:"permitted"`
	Refused   uint64 `json:"refused"`
}

// period is one time in degraded mode.
type period struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"` // zero: it goes on
	// Over is when what runs had to stop, by Limit; zero: it did not come to that.
	Over    time.Time         `json:"over"`
	Limit   string            `json:"limit,omitempty"`
	Actions map[string]*tally `json:"actions,omitempty"` // by label, of which there are as many as rows of the table, and one more
}

// periods are those that the node remembers, the oldest first.
type periods struct {
	mu    sync.Mutex
	list  []*period // guarded by mu
	dirty bool      // memory has what the disk has not; guarded by mu
}

// open returns the period that goes on, or nil. The caller holds mu.
func (p *periods) open() *period {
	if n := len(p.list); n > 0 && p.list[n-1].To.IsZero() {
		return p.list[n-1]
	}
	return nil
}

// began notes that degraded mode began at from, if it is not on, and reports whether
// that is news.
func (p *periods) began(from time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open() != nil {
		return false
	}
	p.list = append(p.list, &period{From: from.UTC()})
	p.list = p.list[max(0, len(p.list)-maxPeriods):]
	p.dirty = true
	return true
}

// over notes that what runs had to stop at at, by limit, and reports whether that is
// news.
func (p *periods) over(at time.Time, limit string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.open()
	if o == nil || !o.Over.IsZero() {
		return false
	}
	o.Over, o.Limit, p.dirty = at.UTC(), limit, true
	return true
}

// ended notes that degraded mode ended at to, and returns the period, or nil if it
// was not on.
func (p *periods) ended(to time.Time) *period {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.open()
	if o == nil {
		return nil
	}
	o.To, p.dirty = to.UTC(), true
	if o.To.Sub(o.From) < leastPeriod && len(o.Actions) == 0 {
		p.list = p.list[:len(p.list)-1] // between two snapshots that came together
	}
	return o
}

// leastPeriod is what a period lasts that is worth a person's look, unless something was
// asked in it.
const leastPeriod = time.Second

// count counts a decision, if degraded mode is on.
func (p *periods) count(action Action, permitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.open()
	if o == nil {
		return
	}
	if o.Actions == nil {
		o.Actions = make(map[string]*tally)
	}
	t := o.Actions[labelOf(action)]
	if t == nil {
		t = new(tally)
		o.Actions[labelOf(action)] = t
	}
	if permitted {
		t.Permitted++
	} else {
		t.Refused++
	}
	p.dirty = true
}

// forDisk returns a copy to be written down, if there is news since the last one.
func (p *periods) forDisk() ([]period, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.dirty
	p.dirty = false
	return p.copied(), was
}

// all returns a copy.
func (p *periods) all() []period {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.copied()
}

// copied is a copy; the caller holds mu.
func (p *periods) copied() []period {
	out := make([]period, 0, len(p.list))
	for _, x := range p.list {
		c := *x
		c.Actions = make(map[string]*tally, len(x.Actions))
		for label, t := range x.Actions {
			n := *t
			c.Actions[label] = &n
		}
		out = append(out, c)
	}
	return out
}

// resume takes up what the last process wrote down. What cannot be is left out: no
// file is a reason not to start.
func (p *periods) resume(kept []period) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = nil
	for _, x := range kept[max(0, len(kept)-maxPeriods):] {
		maps.DeleteFunc(x.Actions, func(label string, t *tally) bool {
			return t == nil || label != labelOf(Action(label)) && label != otherAction
		})
		p.list = append(p.list, &x)
	}
	// One that goes on is the last.
	p.list = slices.DeleteFunc(p.list, func(x *period) bool { return x.To.IsZero() && x != p.list[len(p.list)-1] })
}

// readPeriods returns what is on disk, and what is wrong with it.
func (s *localStore) readPeriods() ([]period, error) {
	data, err := s.read(degradedName, maxDegradedBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var kept []period
	if err == nil {
		err = unseal(data, &kept)
	}
	if err != nil {
		return nil, s.corrupt(degradedName, err)
	}
	return kept, nil
}

// keepPeriods makes the periods durable if there is news and the policy lets the node
// report later. Losing them costs a report, so that a failure is logged and no more.
func (a *Agent) keepPeriods(ctx context.Context) {
	if a.facts().permit(ReportLater, a.now()) != nil {
		return
	}
	list, news := a.degraded.forDisk()
	if !news {
		return
	}
	if err := a.store.writeSealed(degradedName, list); err != nil {
		a.degraded.mu.Lock()
		a.degraded.dirty = true
		a.degraded.mu.Unlock()
		a.log.LogAttrs(ctx, slog.LevelWarn, "the time in degraded mode is not kept", slog.Any("err", err))
	}
}

// watchDegraded notes when degraded mode begins and ends, and when the time to work
// alone is over, and wakes who lives by what then ends.
func (a *Agent) watchDegraded(ctx context.Context) error {
	for {
		changed := a.news.wait()
		wait := a.lookDegraded(ctx)
		t := time.NewTimer(min(wait, clockLook)) // a timer does not see a clock that is set
		select {
		case <-ctx.Done():
			t.Stop()
			a.keepPeriods(context.WithoutCancel(ctx))
			return ctx.Err()
		case <-changed:
		case <-t.C:
			a.news.ring()
			poke(a.trialKick) // the files that others read, too
		}
		t.Stop()
	}
}

// noteDegraded notes in memory what the facts in use come to by now: that degraded mode
// began, and that the time to work alone is over. So it is done before each change of
// them, and not only when the node looks at the clock.
func (a *Agent) noteDegraded() {
	ctx, f, now := context.Background(), a.facts(), a.now()
	if !f.degraded(now) {
		return
	}
	from := f.entry(terms())
	if from.IsZero() || from.After(now) {
		from = now // it holds nothing, or is behind
	}
	if a.degraded.began(from) {
		a.metrics.entries.Inc()
		policy := f.policyAt(now)
		a.log.LogAttrs(ctx, slog.LevelWarn, "degraded mode: no news for too long, going on by its policy alone", slog.Time("since", from), slog.Time("newest_word", f.word),
			slog.String("partition", string(f.partition(now))), slog.Any("allow", policy.allow), slog.Duration("max", policy.max))
	}
	until, limit := f.alone()
	if until.IsZero() {
		until = from // what it holds gives it no time at all
	}
	if !now.Before(until) && a.degraded.over(until, limit) {
		a.log.LogAttrs(ctx, slog.LevelError, "the time to work alone is over: services and routes are not given any more", slog.Time("since", until), slog.String("limit", limit))
	}
}

// lookDegraded looks once, and returns when something ends next.
func (a *Agent) lookDegraded(ctx context.Context) time.Duration {
	a.noteDegraded()
	f, now := a.facts(), a.now()
	if !f.degraded(now) {
		if p := a.degraded.ended(now); p != nil {
			a.log.LogAttrs(ctx, slog.LevelInfo, "degraded mode is over: there is news", slog.Time("since", p.From))
			a.kickReport()
		}
	}
	a.keepPeriods(ctx)
	next := clockLook
	for _, at := range f.ends() {
		if at.After(now) {
			next = min(next, at.Sub(now))
		}
	}
	return next
}

// ends are the times at which the guard may decide otherwise without news.
func (f facts) ends() []time.Time {
	out := []time.Time{f.svidEnd, f.until, f.end(maxBound), f.end(routeBound), f.end(sessionBound)}
	for _, s := range f.held {
		out = append(out, s.fresh, s.fresh.Add(staleFor), s.expires)
	}
	return out
}

// periodMessages are for a report: the node tells them again on each stream, because
// nobody says that it heard them.
func periodMessages(list []period) []*fealtyv1.DegradedPeriod {
	stampOf := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	var out []*fealtyv1.DegradedPeriod
	for _, p := range list {
		m := &fealtyv1.DegradedPeriod{Since: stampOf(p.From), Until: stampOf(p.To), OverAt: stampOf(p.Over), Limit: p.Limit}
		for _, label := range slices.Sorted(maps.Keys(p.Actions)) {
			m.Actions = append(m.Actions, &fealtyv1.ActionTally{Action: label, Permitted: p.Actions[label].Permitted, Refused: p.Actions[label].Refused})
		}
		out = append(out, m)
	}
	return out
}

// reportable are the periods to report, if the policy lets the node: it does in any
// case while there is news.
func (a *Agent) reportable() []*fealtyv1.DegradedPeriod {
	if a.facts().permit(ReportLater, a.now()) != nil {
		return nil
	}
	return periodMessages(a.degraded.all())
}

// permissions tell what the guard would decide now on each action of the table.
func (a *Agent) permissions() []*fealtyv1.ActionPermission {
	f, now := a.facts(), a.now()
	var out []*fealtyv1.ActionPermission
	for _, r := range actionRules() {
		m := &fealtyv1.ActionPermission{Action: string(r.action)}
		if refused, ok := errors.AsType[*RefusedError](f.permit(r.action, now)); ok {
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
	resp.Freshness, resp.Partition = string(f.overall(now)), string(f.partition(now))
	resp.Permissions, resp.DegradedPeriods = a.permissions(), periodMessages(a.degraded.all())
}
