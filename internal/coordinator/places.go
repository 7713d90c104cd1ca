package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/explain"
)

// placeLimits bound the calls of one kind that are under way.
type placeLimits struct {
	what string // is called, in the words of a refusal

	// perSecond and burst bound the calls that one address begins; zero leaves that to
	// who gives the places away.
	perSecond rate.Limit
	burst     int

	// most bounds the calls of strangers at once, and perSource those from one address.
	most, perSource int
	// patience is how long a stranger may take for its next step.
	patience time.Duration
	// perHolder bounds the calls at once of one who has proven who it is.
	perHolder int
}

// places bounds the calls of callers that nobody vouches for when they come, so that
// none of them can keep the others out.
//
// A caller comes as a stranger, and has to get on: one that takes longer than patience
// for a step loses its place. Once it has proven who it is it holds a place of its own,
// which strangers can neither fill nor take; how many there are of those is bounded by
// the manifest, which names who can prove anything.
//
// A stranger is let in even if all places are taken. Somebody gives way then: of the
// network with the most places, of the address there with the most, the one that came
// first. So strangers from many addresses of one network push out one another, and from
// however many networks they come, who comes as a stranger keeps its place until as
// many others came after it as there are places, for which each address may begin but a
// few calls per second.
//
// An address is an IPv4 address, or the /64 of an IPv6 address; a network a /24 or /48.
type places struct {
	limits placeLimits
	rates  *keyedLimiter // by address; nil: none of its own

	mu        sync.Mutex
	strangers []*visit          // oldest first; guarded by mu
	crowds    map[string]*crowd // of strangers, by address and network; guarded by mu
	holders   map[string]int    // calls by who has proven itself; guarded by mu
}

// crowd are the strangers of one address, or of one network.
type crowd struct {
	name string
	n    int // guarded by places.mu
}

// visit is one call in its place. Its context ends when the place is lost.
type visit struct {
	of              *places
	ctx             context.Context
	end             context.CancelCauseFunc
	timer           *time.Timer // ends a stranger that does not get on
	source, network *crowd
	release         func() // of its connection, which it keeps once it has proven itself; nil: not yet; guarded by of.mu
	holder          string // who has proven itself; empty: a stranger; guarded by of.mu
	left            bool   // guarded by of.mu
}

// Why a stranger lost its place.
var (
	errGaveWay = errors.New("the call gave way to a newer one")
	errTooSlow = fmt.Errorf("the caller took too long: %w", context.DeadlineExceeded)
)

func newPlaces(l placeLimits) *places {
	p := &places{limits: l, crowds: make(map[string]*crowd), holders: make(map[string]int)}
	if l.perSecond > 0 {
		p.rates = newKeyedLimiter(l.perSecond, l.burst, maxSources)
	}
	return p
}

// enter takes a place for a call from addr that runs under ctx; go on under that of the
// place. Who got one leaves it.
func (p *places) enter(ctx context.Context, addr string, now time.Time) (*visit, error) {
	source := sourceOf(addr)
	if p.rates != nil && !p.rates.allow(source, now) {
		return nil, p.refusal("from " + source)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.crowds[source]; c != nil && c.n >= p.limits.perSource {
		return nil, p.refusal("from " + source)
	}
	pl := &visit{of: p, source: p.crowd(source), network: p.crowd("network " + networkOf(source))}
	pl.ctx, pl.end = context.WithCancelCause(ctx)
	pl.timer = time.AfterFunc(p.limits.patience, func() { pl.end(errTooSlow) })
	p.strangers = append(p.strangers, pl)
	if len(p.strangers) > p.limits.most {
		out := p.crowding()
		out.end(errGaveWay)
		p.drop(out)
	}
	return pl, nil
}

// crowd counts one more stranger in. The caller holds mu.
func (p *places) crowd(name string) *crowd {
	c := p.crowds[name]
	if c == nil {
		c = &crowd{name: name}
		p.crowds[name] = c
	}
	c.n++
	return c
}

// crowding returns who gives way. The caller holds mu.
func (p *places) crowding() *visit {
	out := p.strangers[0]
	for _, pl := range p.strangers {
		if pl.network.n > out.network.n || pl.network.n == out.network.n && pl.source.n > out.source.n {
			out = pl
		}
	}
	return out
}

// drop takes the place of a stranger. The caller holds mu.
func (p *places) drop(pl *visit) {
	i := slices.Index(p.strangers, pl)
	p.strangers = slices.Delete(p.strangers, i, i+1)
	for _, c := range []*crowd{pl.source, pl.network} {
		if c.n--; c.n == 0 {
			delete(p.crowds, c.name)
		}
	}
	pl.timer.Stop()
	pl.left = true
}

func (p *places) refusal(of string) error {
	limit := fmt.Sprintf("%d at once", p.limits.perSource)
	if p.rates != nil {
		limit += fmt.Sprintf(", and %v per second", p.limits.perSecond)
	}
	return explain.New(explain.RateLimited, "what", p.limits.what+" "+of, "limit", limit)
}

// moves notes that a stranger made a step.
func (pl *visit) moves() {
	pl.of.mu.Lock()
	defer pl.of.mu.Unlock()
	if !pl.left && pl.holder == "" {
		pl.timer.Reset(pl.of.limits.patience)
	}
}

// proves makes the place one of holder, who has proven itself. It fails if the place was
// lost, or if holder has too many.
func (pl *visit) proves(holder string) error {
	p := pl.of
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case pl.ctx.Err() != nil:
		return pl.worded(pl.ctx.Err())
	case p.holders[holder] >= p.limits.perHolder:
		return explain.New(explain.RateLimited, "what", p.limits.what+" of "+clip(holder, maxShownBytes), "limit", fmt.Sprintf("%d at once", p.limits.perHolder))
	}
	release, err := keepConnection(pl.ctx, p.limits.what, 0)
	if err != nil {
		return err
	}
	p.drop(pl)
	pl.left, pl.holder, pl.release = false, holder, release
	p.holders[holder]++
	return nil
}

// leave gives the place back.
func (pl *visit) leave() {
	p := pl.of
	p.mu.Lock()
	defer p.mu.Unlock()
	pl.end(nil)
	if pl.release != nil {
		pl.release()
	}
	switch {
	case pl.left:
	case pl.holder == "":
		p.drop(pl)
	default:
		if p.holders[pl.holder]--; p.holders[pl.holder] == 0 {
			delete(p.holders, pl.holder)
		}
		pl.left = true
	}
}

// worded returns err, what the call came to, or why its place was lost instead.
func (pl *visit) worded(err error) error {
	switch cause := context.Cause(pl.ctx); {
	case err == nil:
		return nil
	case errors.Is(cause, errGaveWay):
		return explain.Wrap(err, explain.RateLimited, "what", pl.of.limits.what+" from everybody", "limit", fmt.Sprintf("%d of callers that have proven nothing yet", pl.of.limits.most))
	case errors.Is(cause, errTooSlow):
		return errTooSlow
	}
	return err
}

// networkOf returns the network that a source belongs to; see [sourceOf].
func networkOf(source string) string {
	if p, err := netip.ParsePrefix(source); err == nil {
		return netip.PrefixFrom(p.Addr(), 48).Masked().String()
	}
	ip, err := netip.ParseAddr(source)
	if err != nil {
		return source
	}
	return netip.PrefixFrom(ip, 24).Masked().String()
}
