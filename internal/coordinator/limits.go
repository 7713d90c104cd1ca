package coordinator

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
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

// joinLimiter limits joins by source address and overall.
type joinLimiter struct {
	rates   Rates
	overall *rate.Limiter
	sources *flowcontrol.PerKey
}

func newJoinLimiter(r Rates) *joinLimiter {
	r = r.withDefaults()
	return &joinLimiter{
		rates:   r,
		overall: rate.NewLimiter(r.Overall, r.OverallBurst),
		sources: flowcontrol.NewPerKey(r.PerSource, r.SourceBurst, flowcontrol.MaxSources),
	}
}

// allow reports whether one more join from addr may start now. The source is
// asked first, so that one noisy address cannot use up what is everybody's.
func (l *joinLimiter) allow(addr string, now time.Time) bool {
	return l.sources.Allow(flowcontrol.Source(addr), now) && l.overall.AllowN(now, 1)
}

func newMemberLimiter(r Rates) *flowcontrol.PerKey {
	r = r.withDefaults()
	return flowcontrol.NewPerKey(r.PerMember, r.MemberBurst, maxMembers)
}

// memberTurn takes one turn of a member's renewals and rejoins. Ask once it has
// shown its newest key: whoever holds an earlier one must not use up its turns.
func (c *Admission) memberTurn(kind identity.Kind, name string) error {
	path := string(kind) + "/" + name
	if c.perMember.Allow(path, c.now()) {
		return nil
	}
	perSecond, burst := c.perMember.Limit()
	return explain.New(explain.RateLimited, "what", "certificates of "+path, "limit",
		fmt.Sprintf("%v per second, %d at once", perSecond, burst))
}

// oneTurn is memberTurn for a call that decides again after each conflict: it takes
// one turn in all.
func (c *Admission) oneTurn() func(identity.Kind, string) error {
	took := false
	return func(kind identity.Kind, name string) error {
		if took {
			return nil
		}
		took = true
		return c.memberTurn(kind, name)
	}
}
