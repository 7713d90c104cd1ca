package snapshot

import "time"

// Freshness says how far a node may rely on a snapshot that it holds.
type Freshness string

// The states, in the order in which a snapshot without news goes through them.
const (
	Fresh    Freshness = "fresh"
	Stale    Freshness = "stale"    // no news for longer than announced: ask for some
	Degraded Freshness = "degraded" // for so long that only the degraded policy allows to act
	Expired  Freshness = "expired"  // not to be used
)

// Freshness returns the state of v at now. It is a function of the age of v's
// publication record and of v's expiry, and of nothing else: whether somebody
// can be reached does not matter, and a newer record from whatever source makes
// it fresh again. staleFor is how long it is stale before it is degraded. Of what
// is signed by itself, refresh_after counts as fresh_until.
func (v *Verified) Freshness(now time.Time, staleFor time.Duration) Freshness {
	until := v.header.RefreshAfter
	if v.record != nil {
		until = v.record.FreshUntil
	}
	switch {
	case !now.Before(v.header.ExpiresAt):
		return Expired
	case now.Before(until):
		return Fresh
	case now.Sub(until) < staleFor:
		return Stale
	}
	return Degraded
}
