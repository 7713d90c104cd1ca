package coordinator

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Bounds on a connection and its calls.
const (
	// requestTimeout bounds the wait for the request of a unary call.
	requestTimeout = 10 * time.Second
	// maxStreams bounds the streams on one connection.
	maxStreams = 64
	// memberWindow is what may be under way to such a stream, and to all of a connection, before
	// anybody reads. It stays as it is: gRPC would otherwise measure every connection by a question
	// after each message that comes, and let a window grow to 16 MiB.
	memberWindow = 256 << 10
	// askAfter is how long a connection may say nothing before it is asked whether it lives: longer
	// than the 30 seconds after which an agent asks, so that who is idle is asked by one side alone.
	// Where a machine is gone the system finds out sooner, see mesh's keepAlive.
	askAfter = 45 * time.Second
	// writeBuffer is how much is gathered before it is written: a TLS record.
	writeBuffer = 16 << 10
	// maxStrangerStreams bounds those on one without a certificate, and
	// maxStrangerBytes a message on it; a larger request comes in parts, see
	// [ratelimit.ReceiveParts]. strangerWindow is what may be under way to such a call,
	// and to all those of a connection, before anybody reads: the least that HTTP/2 knows
	// of.
	maxStrangerStreams = 8
	maxStrangerBytes   = 64 << 10
	strangerWindow     = 64 << 10
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

// perSource limits joins, and other calls of strangers, by source and overall.
func (r Rates) perSource() *ratelimit.Sources {
	r = r.withDefaults()
	return ratelimit.NewSources(r.PerSource, r.SourceBurst, r.Overall, r.OverallBurst)
}

// maxMembers bounds the members whose rate is remembered.
const maxMembers = 1 << 14

// pollRate is how often a second a member may ask about one matter of its own, and pollBurst how often at once.
const (
	pollRate  = 5
	pollBurst = 50
)

// perPoller limits what each member asks about its domains: it does so every other second, and
// once more when it let go of one. It may do so more often than it renews.
func (r Rates) perPoller() *ratelimit.PerKey {
	r = r.withDefaults()
	return ratelimit.NewPerKey(max(r.PerMember, pollRate), max(r.MemberBurst, pollBurst), maxMembers)
}

// perMember limits the renewals and rejoins of each member.
func (r Rates) perMember() *ratelimit.PerKey {
	r = r.withDefaults()
	return ratelimit.NewPerKey(r.PerMember, r.MemberBurst, maxMembers)
}
