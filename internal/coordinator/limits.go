package coordinator

import (
	lru "container/list"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
)

// Bounds on what strangers and members can make a coordinator do.
const (
	// maxMessageBytes bounds a received gRPC message: a manifest (1 MiB) with its
	// signatures is the largest.
	maxMessageBytes = 1<<20 + 64<<10
	// joinsAtOnce bounds the joins that are decided at once, joinsPending those
	// that wait for their candidate's answer, which costs little, and joinsPerSource
	// those of them from one address. Renewals have no part in these queues, so a flood
	// of bad joins does not slow them.
	joinsAtOnce    = 32
	joinsPending   = 4096
	joinsPerSource = 512
	// maxJoinBytes bounds the answer of a candidate, which is kept while it waits to
	// be decided: a proof and a request for a certificate are far smaller.
	maxJoinBytes = 64 << 10
	// answerTimeout bounds the wait for a candidate's answer, and joinTimeout one
	// join, from challenge to grant.
	answerTimeout = 10 * time.Second
	joinTimeout   = 30 * time.Second
	// nonceLife bounds the age of a challenge (admission.md, Limits).
	nonceLife = 30 * time.Second
	// maxSources bounds the sources whose rate is remembered; the one unheard of
	// for longest is forgotten first.
	maxSources = 4096
	// maxMembers bounds the members whose rate is remembered.
	maxMembers = 1 << 14
	// requestTimeout bounds the wait for the request of a unary call.
	requestTimeout = 10 * time.Second
	// maxHeaderBytes bounds the headers of one call: ours send next to none.
	maxHeaderBytes = 16 << 10
	// maxStreams bounds the streams on one connection.
	maxStreams = 64
	// maxStrangerStreams bounds those on one without a certificate, and
	// maxStrangerBytes a message on it; a larger request comes in parts of partBytes.
	// strangerWindow is what may be under way to such a call, and to all those of a
	// connection, before anybody reads: the least that HTTP/2 knows of.
	maxStrangerStreams = 8
	maxStrangerBytes   = 64 << 10
	partBytes          = 32 << 10
	strangerWindow     = 64 << 10
	// firstSetsAtOnce and presentersAtOnce bound who brings a first manifest, and a
	// trust bundle of before a restore, and the second pair those from one address.
	// What they bring is large.
	firstSetsAtOnce     = 32
	presentersAtOnce    = 4
	firstSetsPerSource  = 8
	presentersPerSource = 2
)

// Rates are the limits on joins and renewals; a zero field means the default.
type Rates struct {
	// PerSource is the joins per second from one IP address. Zero means 10.
	PerSource rate.Limit
	// SourceBurst is how many it may start at once. Zero means 50.
	SourceBurst int
	// Overall is the joins per second from everybody. Zero means 1000, or PerSource if
	// that is more.
	Overall rate.Limit
	// OverallBurst is how many may start at once. Zero means 2000, or SourceBurst if
	// that is more.
	OverallBurst int
	// PerMember is the renewals per second of one member, its rejoins included, by
	// whatever proof: each is a write. Zero means 0.1.
	PerMember rate.Limit
	// MemberBurst is how many it may do at once. Zero means 10.
	MemberBurst int
}

func (r Rates) withDefaults() Rates {
	if r.PerSource == 0 {
		r.PerSource = 10
	}
	if r.SourceBurst == 0 {
		r.SourceBurst = 50
	}
	if r.Overall == 0 {
		r.Overall = max(1000, r.PerSource)
	}
	if r.OverallBurst == 0 {
		r.OverallBurst = max(2000, r.SourceBurst)
	}
	if r.PerMember == 0 {
		r.PerMember = 0.1
	}
	if r.MemberBurst == 0 {
		r.MemberBurst = 10
	}
	return r
}

// keyedLimiter limits by key, and remembers a bounded number of keys.
type keyedLimiter struct {
	limit   rate.Limit
	burst   int
	maximum int

	mu    sync.Mutex
	keys  map[string]*lru.Element // of *keyed; guarded by mu
	order *lru.List               // least recent first; guarded by mu
}

type keyed struct {
	key     string
	limiter *rate.Limiter
}

func newKeyedLimiter(limit rate.Limit, burst, maximum int) *keyedLimiter {
	return &keyedLimiter{limit: limit, burst: burst, maximum: maximum, keys: make(map[string]*lru.Element), order: lru.New()}
}

// allow reports whether key may do one more thing now.
func (l *keyedLimiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	el, ok := l.keys[key]
	if ok {
		l.order.MoveToBack(el)
	} else {
		if l.order.Len() >= l.maximum {
			oldest := l.order.Front()
			delete(l.keys, oldest.Value.(*keyed).key)
			l.order.Remove(oldest)
		}
		el = l.order.PushBack(&keyed{key: key, limiter: rate.NewLimiter(l.limit, l.burst)})
		l.keys[key] = el
	}
	limiter := el.Value.(*keyed).limiter
	l.mu.Unlock()
	return limiter.AllowN(now, 1)
}

// joinLimiter limits joins by source address and overall.
type joinLimiter struct {
	rates   Rates
	overall *rate.Limiter
	sources *keyedLimiter
}

func newJoinLimiter(r Rates) *joinLimiter {
	r = r.withDefaults()
	return &joinLimiter{
		rates:   r,
		overall: rate.NewLimiter(r.Overall, r.OverallBurst),
		sources: newKeyedLimiter(r.PerSource, r.SourceBurst, maxSources),
	}
}

// allow reports whether one more join from addr may start now. The source is
// asked first, so that one noisy address cannot use up what is everybody's.
func (l *joinLimiter) allow(addr string, now time.Time) bool {
	return l.sources.allow(sourceOf(addr), now) && l.overall.AllowN(now, 1)
}

func newMemberLimiter(r Rates) *keyedLimiter {
	r = r.withDefaults()
	return newKeyedLimiter(r.PerMember, r.MemberBurst, maxMembers)
}

// memberTurn takes one turn of a member's renewals and rejoins. Ask once it has
// shown its newest key: whoever holds an earlier one must not use up its turns.
func (c *Coordinator) memberTurn(kind identity.Kind, name string) error {
	path := string(kind) + "/" + name
	if c.perMember.allow(path, c.now()) {
		return nil
	}
	return explain.New(explain.RateLimited, "what", "certificates of "+path, "limit", fmt.Sprintf("%v per second, %d at once", c.perMember.limit, c.perMember.burst))
}

// oneTurn is memberTurn for a call that decides again after each conflict: it takes
// one turn in all.
func (c *Coordinator) oneTurn() func(identity.Kind, string) error {
	took := false
	return func(kind identity.Kind, name string) error {
		if took {
			return nil
		}
		took = true
		return c.memberTurn(kind, name)
	}
}

// sourceOf returns what of a remote address counts as one source: an IPv4
// address, or the /64 of an IPv6 address, which is what one customer has.
func sourceOf(addr string) string {
	host := hostOf(addr)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}

// logGate keeps strangers from filling the log: it passes on a few lines each
// second, and says how many it left out.
type logGate struct {
	limiter *rate.Limiter
	dropped *atomic.Int64
}

func newLogGate() logGate {
	return logGate{limiter: rate.NewLimiter(refusalLines, refusalBurst), dropped: new(atomic.Int64)}
}

func (g logGate) log(ctx context.Context, log *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	if !g.limiter.Allow() {
		g.dropped.Add(1)
		return
	}
	if n := g.dropped.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("left_out_before", n))
	}
	log.LogAttrs(ctx, level, msg, attrs...)
}

// Log lines per second about refusals, and how many at once.
const (
	refusalLines = 20
	refusalBurst = 200
)

// stripes are locks by name that may be held over I/O, because waiting for one
// ends with the context. They keep the admissions of one token or entry from
// conflicting in the store over and over; the store's conditions, not these,
// decide who wins.
type stripes struct {
	seed  maphash.Seed
	locks [64]chan struct{}
}

func newStripes() *stripes {
	s := &stripes{seed: maphash.MakeSeed()}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

// lock waits for the lock of name and returns its release.
func (s *stripes) lock(ctx context.Context, name string) (release func(), err error) {
	l := s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
