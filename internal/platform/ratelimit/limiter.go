package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/mesh"
)

// Limits bound the calls of one kind that are under way.
type Limits struct {
	// The field What names the calls in the words of a refusal, such as "joins".
	What string

	// PerSecond and Burst bound the calls that one source begins; a zero PerSecond leaves
	// that to whoever calls [Limiter.Enter].
	PerSecond rate.Limit
	Burst     int

	// Most bounds the calls of strangers at once, and PerSource those from one source; see
	// [Source].
	Most, PerSource int
	// Patience is how long a stranger may take for its next step.
	Patience time.Duration
	// PerHolder bounds the calls at once of one caller that has proven who it is.
	PerHolder int
}

// Limiter bounds the calls of callers that nobody vouches for when they come, so that
// none of them can keep the others out. Each call under way has a [Slot].
//
// A caller comes as a stranger, and has to get on: one that takes longer than Patience
// for a step loses its slot. Once it has proven who it is it holds a slot of its own,
// which strangers can neither fill nor take; how many there are of those is bounded by
// the manifest, which names everybody who can prove anything.
//
// A stranger is let in even if all slots are taken. Somebody gives way then: of the
// network with the most slots, of the source there with the most, the one that came
// first. So strangers from many sources of one network push out one another. From
// however many networks they come, a stranger keeps its slot until as many others
// came after it as there are slots, and each source may begin but a few calls per
// second.
//
// A source is an IPv4 address, or the /64 of an IPv6 address; a network a /24 or /48.
type Limiter struct {
	limits Limits
	rates  *PerKey // by source; nil: none of its own

	mu        sync.Mutex
	strangers []*Slot           // oldest first; guarded by mu
	groups    map[string]*group // of strangers, by source and network; guarded by mu
	holders   map[string]int    // calls by whoever has proven itself; guarded by mu
}

// group are the strangers of one source, or of one network.
type group struct {
	name string
	n    int // guarded by Limiter.mu
}

// Slot is one call that is under way. Leave it when the call ends.
type Slot struct {
	of              *Limiter
	ctx             context.Context
	end             context.CancelCauseFunc
	timer           *time.Timer // ends a stranger that does not get on
	source, network *group
	// release lets go of the connection, which is kept from the proof on; nil: not
	// yet; guarded by of.mu
	release func()
	holder  string // who has proven itself; empty: a stranger; guarded by of.mu
	left    bool   // guarded by of.mu
}

// Why a stranger lost its slot.
var (
	errGaveWay = errors.New("the call gave way to a newer one")
	errTooSlow = fmt.Errorf("the caller took too long: %w", context.DeadlineExceeded)
)

// New returns a limiter without calls.
func New(l Limits) *Limiter {
	p := &Limiter{limits: l, groups: make(map[string]*group), holders: make(map[string]int)}
	if l.PerSecond > 0 {
		p.rates = NewPerKey(l.PerSecond, l.Burst, MaxSources)
	}
	return p
}

// Limits returns what the limiter was made with.
func (p *Limiter) Limits() Limits { return p.limits }

// InUse returns how many slots are taken, those of proven callers among them.
func (p *Limiter) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.strangers)
	for _, calls := range p.holders {
		n += calls
	}
	return n
}

// Enter takes a slot for a call from addr that runs under ctx; go on under the slot's
// context. An error is [errcode.RateLimited]: the source has begun too many calls, or has
// too many under way.
func (p *Limiter) Enter(ctx context.Context, addr string, now time.Time) (*Slot, error) {
	source := Source(addr)
	if p.rates != nil && !p.rates.Allow(source, now) {
		return nil, p.refusal("from " + source)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.groups[source]; g != nil && g.n >= p.limits.PerSource {
		return nil, p.refusal("from " + source)
	}
	s := &Slot{of: p, source: p.group(source), network: p.group("network " + networkOf(source))}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.timer = time.AfterFunc(p.limits.Patience, func() { s.end(errTooSlow) })
	p.strangers = append(p.strangers, s)
	if len(p.strangers) > p.limits.Most {
		out := p.mostCrowded()
		out.end(errGaveWay)
		p.drop(out)
	}
	return s, nil
}

// group counts one more stranger in. The caller holds mu.
func (p *Limiter) group(name string) *group {
	g := p.groups[name]
	if g == nil {
		g = &group{name: name}
		p.groups[name] = g
	}
	g.n++
	return g
}

// mostCrowded returns the stranger that gives way. The caller holds mu.
func (p *Limiter) mostCrowded() *Slot {
	out := p.strangers[0]
	for _, s := range p.strangers {
		if s.network.n > out.network.n || s.network.n == out.network.n && s.source.n > out.source.n {
			out = s
		}
	}
	return out
}

// drop takes the slot of a stranger. The caller holds mu.
func (p *Limiter) drop(s *Slot) {
	i := slices.Index(p.strangers, s)
	p.strangers = slices.Delete(p.strangers, i, i+1)
	for _, g := range []*group{s.source, s.network} {
		if g.n--; g.n == 0 {
			delete(p.groups, g.name)
		}
	}
	s.timer.Stop()
	s.left = true
}

func (p *Limiter) refusal(of string) error {
	limit := fmt.Sprintf("%d at once", p.limits.PerSource)
	if p.rates != nil {
		limit += fmt.Sprintf(", and %v per second", p.limits.PerSecond)
	}
	return errcode.New(errcode.RateLimited, "what", p.limits.What+" "+of, "limit", limit)
}

// Context is that of the call. It ends when the slot is lost; see [Slot.Reason].
func (s *Slot) Context() context.Context { return s.ctx }

// Progress notes that a stranger made a step.
func (s *Slot) Progress() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !s.left && s.holder == "" {
		s.timer.Reset(s.of.limits.Patience)
	}
}

// Prove makes the slot one of holder, who has proven itself. It fails if the slot was
// lost, or if holder has too many. A slot is proven once.
func (s *Slot) Prove(holder string) error {
	p := s.of
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return s.Reason(s.ctx.Err())
	case p.holders[holder] >= p.limits.PerHolder:
		return errcode.New(errcode.RateLimited, "what", p.limits.What+" of "+Clip(holder, MaxShownBytes),
			"limit", fmt.Sprintf("%d at once", p.limits.PerHolder))
	}
	release, err := KeepConnection(s.ctx, p.limits.What, 0)
	if err != nil {
		return err
	}
	p.drop(s)
	s.left, s.holder, s.release = false, holder, release
	p.holders[holder]++
	return nil
}

// Leave gives the slot back. A second call does nothing.
func (s *Slot) Leave() {
	p := s.of
	p.mu.Lock()
	defer p.mu.Unlock()
	s.end(nil)
	if s.release != nil {
		s.release()
	}
	switch {
	case s.left:
	case s.holder == "":
		p.drop(s)
	default:
		if p.holders[s.holder]--; p.holders[s.holder] == 0 {
			delete(p.holders, s.holder)
		}
		s.left = true
	}
}

// Reason returns err, which the call ended with, or why its slot was lost instead.
func (s *Slot) Reason(err error) error {
	switch cause := context.Cause(s.ctx); {
	case err == nil:
		return nil
	case errors.Is(cause, errGaveWay):
		return errcode.Wrap(err, errcode.RateLimited, "what", s.of.limits.What+" from everybody",
			"limit", fmt.Sprintf("%d of callers that have proven nothing yet", s.of.limits.Most))
	case errors.Is(cause, errTooSlow):
		return errTooSlow
	}
	return err
}

// KeepConnection keeps the connection of a stranger while others give way, until release is
// called: the stranger has shown what is worth a look. It may send grant bytes now
// beyond what strangers may. A call that came by no listener of package mesh has nothing to keep.
func KeepConnection(ctx context.Context, what string, grant int64) (release func(), err error) {
	info, ok := mesh.FromContext(ctx)
	if !ok {
		return func() {}, nil
	}
	release, ok = info.Keep()
	if !ok {
		return nil, errcode.New(errcode.RateLimited, "what", what, "limit", "reached for those that wait for an answer")
	}
	info.Grant(grant)
	return release, nil
}
