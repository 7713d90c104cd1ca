package guard

import (
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

// Tally counts what the guard decided on one action.
type Tally struct {
	Permitted uint64 `json:"permitted"`
	Refused   uint64 `json:"refused"`
}

// Period is one time in degraded mode.
type Period struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"` // zero: it goes on
	// Over is when what runs had to stop, by Limit; zero: it did not come to that.
	Over  time.Time `json:"over"`
	Limit string    `json:"limit,omitempty"`
	// by label, of which there are as many as rows of the table, and one more
	Actions map[string]*Tally `json:"actions,omitempty"`
}

// Periods are those that the node remembers, the oldest first.
type Periods struct {
	Mu    sync.Mutex
	list  []*Period // guarded by mu
	Dirty bool      // memory has what the disk has not; guarded by mu
}

// open returns the period that goes on, or nil. The caller holds mu.
func (p *Periods) open() *Period {
	if n := len(p.list); n > 0 && p.list[n-1].To.IsZero() {
		return p.list[n-1]
	}
	return nil
}

// Began notes that degraded mode began at from, if it is not on, and reports whether
// that is news.
func (p *Periods) Began(from time.Time) bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.open() != nil {
		return false
	}
	p.list = append(p.list, &Period{From: from.UTC()})
	p.list = p.list[max(0, len(p.list)-maxPeriods):]
	p.Dirty = true
	return true
}

// Over notes that what runs had to stop at at, by limit, and reports whether that is
// news.
func (p *Periods) Over(at time.Time, limit string) bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	o := p.open()
	if o == nil || !o.Over.IsZero() {
		return false
	}
	o.Over, o.Limit, p.Dirty = at.UTC(), limit, true
	return true
}

// Ended notes that degraded mode ended at to, and returns the period, or nil if it
// was not on.
func (p *Periods) Ended(to time.Time) *Period {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	o := p.open()
	if o == nil {
		return nil
	}
	o.To, p.Dirty = to.UTC(), true
	if o.To.Sub(o.From) < leastPeriod && len(o.Actions) == 0 {
		p.list = p.list[:len(p.list)-1] // between two snapshots that came together
	}
	return o
}

// leastPeriod is what a period lasts that is worth a person's look, unless something was
// asked in it.
const leastPeriod = time.Second

// Count counts a decision, if degraded mode is on.
func (p *Periods) Count(action Action, permitted bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	o := p.open()
	if o == nil {
		return
	}
	if o.Actions == nil {
		o.Actions = make(map[string]*Tally)
	}
	t := o.Actions[LabelOf(action)]
	if t == nil {
		t = new(Tally)
		o.Actions[LabelOf(action)] = t
	}
	if permitted {
		t.Permitted++
	} else {
		t.Refused++
	}
	p.Dirty = true
}

// ForDisk returns a copy to be written down, if there is news since the last one.
func (p *Periods) ForDisk() ([]Period, bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	was := p.Dirty
	p.Dirty = false
	return p.copied(), was
}

// All returns a copy.
func (p *Periods) All() []Period {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.copied()
}

// copied is a copy; the caller holds mu.
func (p *Periods) copied() []Period {
	out := make([]Period, 0, len(p.list))
	for _, x := range p.list {
		c := *x
		c.Actions = make(map[string]*Tally, len(x.Actions))
		for label, t := range x.Actions {
			n := *t
			c.Actions[label] = &n
		}
		out = append(out, c)
	}
	return out
}

// Resume takes up what the last process wrote down. A period that cannot be is left out: no
// file is a reason not to start.
func (p *Periods) Resume(kept []Period) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.list = nil
	for _, x := range kept[max(0, len(kept)-maxPeriods):] {
		maps.DeleteFunc(x.Actions, func(label string, t *Tally) bool {
			return t == nil || label != LabelOf(Action(label)) && label != otherAction
		})
		p.list = append(p.list, &x)
	}
	// One that goes on is the last.
	p.list = slices.DeleteFunc(p.list, func(x *Period) bool { return x.To.IsZero() && x != p.list[len(p.list)-1] })
}

// Ends are the times at which the guard may decide otherwise without news.
func (f Facts) Ends() []time.Time {
	out := []time.Time{f.SVIDEnd, f.Until, f.End(MaxBound), f.End(RouteBound), f.End(sessionBound)}
	for _, s := range f.Active {
		out = append(out, s.Fresh, s.Fresh.Add(StaleFor), s.Expires)
	}
	return out
}

// PeriodMessages are for a report: the node tells them again on each stream, because
// nobody says that it heard them.
func PeriodMessages(list []Period) []*fealtyv1.DegradedPeriod {
	stampOf := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	var out []*fealtyv1.DegradedPeriod
	for _, p := range list {
		m := &fealtyv1.DegradedPeriod{Since: stampOf(p.From), Until: stampOf(p.To), OverAt: stampOf(p.Over),
			Limit: p.Limit}
		for _, label := range slices.Sorted(maps.Keys(p.Actions)) {
			m.Actions = append(m.Actions, &fealtyv1.ActionTally{Action: label, Permitted: p.Actions[label].Permitted,
				Refused: p.Actions[label].Refused})
		}
		out = append(out, m)
	}
	return out
}
