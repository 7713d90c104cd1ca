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
// it fresh again. staleFor is how long it is stale before it is degraded.
func (v *Verified) Freshness(now time.Time, staleFor time.Duration) Freshness {
	return freshnessAt(v.FreshUntil(), v.header.ExpiresAt, now, staleFor)
}

// FreshUntil returns when v becomes stale: fresh_until of its publication record.
// Of what is signed by itself, refresh_after counts.
func (v *Verified) FreshUntil() time.Time {
	if v.record != nil {
		return v.record.FreshUntil
	}
	return v.header.RefreshAfter
}

// freshnessAt is [Verified.Freshness] of a snapshot that is fresh until freshUntil
// and expires at expiresAt.
func freshnessAt(freshUntil, expiresAt, now time.Time, staleFor time.Duration) Freshness {
	switch {
	case !now.Before(expiresAt):
		return Expired
	case now.Before(freshUntil):
		return Fresh
	case now.Sub(freshUntil) < staleFor:
		return Stale
	}
	return Degraded
}
