package sharing

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Limits on what members ask of this node, which has other work.
const (
	// askRate and askBurst bound the calls of one member: each of its scopes is asked for
	// once, and then again after some minutes.
	askRate  = 1 // in a second
	askBurst = 16
	// askedAtOnce bounds the calls of one member that are under way, and atOnce those of all.
	askedAtOnce = 2
	atOnce      = 16
	// untakenEvery is how often a member may leave an answer that it asked for: more often it holds
	// places for nothing, and is not answered until the pause is over.
	untakenEvery = 2 * time.Minute
	// memberBytes and memberBurst bound what one member is given, and allBytes and allBurst
	// what all are: whoever says that it holds nothing is given everything.
	memberBytes = 16 << 10 // in a second
	memberBurst = 16 << 20
	allBytes    = 2 << 20 // in a second
	allBurst    = 64 << 20
	// maxAskers bounds the members whose rates are remembered.
	maxAskers = 4096

	// maxRequest bounds a request: what shows the group, and nine scopes that are held.
	maxRequest = 64 << 10
	// maxShown bounds the node_runtime in it, without its content.
	maxShown = 24 << 10
	// maxLinkBytes bounds the links of the history that go with a trust bundle.
	maxLinkBytes = 256 << 10
	// chunkBytes is how much of a content one message holds: little, so that whoever reads
	// slowly sees that it comes.
	chunkBytes = 16 << 10
	// maxConns bounds the connections of members, and connsOfOne those of one of them.
	maxConns   = 256
	connsOfOne = 2
	// maxStreams bounds the calls of one connection.
	maxStreams = 4
)

// bounds are kept before anything is looked at.
type bounds struct {
	calls, member, all *ratelimit.PerKey
	untaken            *ratelimit.PerKey // answers, by member

	mu       sync.Mutex
	underWay map[string]int // by member, those with any; guarded by mu
	sum      int            // of all; guarded by mu
}

func newBounds() *bounds {
	return &bounds{
		calls:    ratelimit.NewPerKey(askRate, askBurst, maxAskers),
		member:   ratelimit.NewPerKey(memberBytes, memberBurst, maxAskers),
		all:      ratelimit.NewPerKey(allBytes, allBurst, 1),
		untaken:  ratelimit.NewPerKey(rate.Every(untakenEvery), 1, maxAskers),
		underWay: make(map[string]int),
	}
}

func limited(what, limit string) error {
	return errcode.New(errcode.RateLimited, "what", what, "limit", limit)
}

// begin begins a call of member, and returns what ends it.
func (l *bounds) begin(member string, now time.Time) (end func(), err error) {
	if !l.untaken.AllowN(member, now, 0) {
		return nil, limited("calls of "+member, fmt.Sprintf("one in %s whose answer it leaves", untakenEvery))
	}
	if !l.calls.Allow(member, now) {
		return nil, limited("calls of "+member, fmt.Sprintf("%d per second, %d at once", askRate, askBurst))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.underWay[member] == askedAtOnce:
		return nil, limited("calls of "+member, fmt.Sprintf("%d under way", askedAtOnce))
	case l.sum == atOnce:
		return nil, limited("calls of all members", fmt.Sprintf("%d under way", atOnce))
	}
	l.underWay[member]++
	l.sum++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sum--
		if l.underWay[member]--; l.underWay[member] == 0 {
			delete(l.underWay, member)
		}
	}, nil
}

// give counts bytes that member is about to be given, or none: a member does not pay for what it
// is refused because of the others.
func (l *bounds) give(member string, bytes int, now time.Time) error {
	undo, ok := l.member.Reserve(member, now, bytes)
	if !ok {
		return limited("what "+member+" is given", fmt.Sprintf("%d KiB per second, %d MiB at once", memberBytes>>10,
			memberBurst>>20))
	}
	if !l.all.AllowN("", now, bytes) {
		undo()
		return limited("what all members are given", fmt.Sprintf("%d KiB per second, %d MiB at once", allBytes>>10,
			allBurst>>20))
	}
	return nil
}
