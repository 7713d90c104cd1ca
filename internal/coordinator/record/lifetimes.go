package record

import (
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/snapshot"
)

// Certificates of an outage of the store.
const (
	// Stretch is how much longer than its record says a member can be certified.
	// A member whose certificate was valid when the outage began stays certified until
	// the coordinator itself gives up.
	Stretch = 4 * time.Hour
	// outageTTLs is likewise, in times of svid_ttl: a record remembers every key over
	// which a certificate can be valid, and members with short ones have many.
	outageTTLs = 40
)

// StretchOf is how much longer than its record says a member can be certified whose
// certificates last for ttl.
func StretchOf(ttl time.Duration) time.Duration { return min(Stretch, outageTTLs*ttl) }

// defaultRenewEvery is how often a member renews whose record has room for its keys.
const defaultRenewEvery = 30 * time.Minute

// RenewEvery is how often a member renews: often enough that a new key is never
// far, seldom enough that its record can remember every valid certificate, with a
// fifth of the room left for renewals out of turn.
func RenewEvery(ttl time.Duration) time.Duration {
	return min(max(defaultRenewEvery, ttl*5/(MaxLiveKeys*4)), ttl/2)
}

// CertMargin is how much longer than its recorded certificates a banned key is
// listed: for verifiers whose clock is behind, and for certificates of an outage of
// the store, which stand in no record.
const CertMargin = time.Hour + Stretch

// KeyMemory is how long a banned key is remembered: until no certificate over it
// can be valid, or its holder in grace.
func KeyMemory(m *manifest.Manifest) time.Duration {
	return max(m.LongestSVIDTTL(), manifest.DefaultDegradedMax) + m.RejoinGrace
}

// Degraded is how long, and with what, a member may go on without coordinators, as the manifest
// bounds it.
func Degraded(m *manifest.Manifest) snapshot.DegradedPolicy {
	p := snapshot.DegradedPolicy{Max: m.Degraded.Max.Truncate(time.Second),
		RouteTTL: m.Degraded.RouteTTL.Truncate(time.Second)}
	for _, a := range m.Degraded.Allow {
		p.Allow = append(p.Allow, string(a))
	}
	slices.Sort(p.Allow)
	return p
}
