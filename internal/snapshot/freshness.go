package snapshot

import "time"

// How far a node may rely on a snapshot that it holds, in the order in which one without news goes through it.
const (
	Fresh    = "fresh"
	Stale    = "stale"    // no news for longer than announced
	Degraded = "degraded" // for so long that only the degraded policy allows to act
	Expired  = "expired"  // not to be used
)

// FreshnessAt returns which of them holds at now for a snapshot that is fresh until freshUntil and expires at
// expiresAt. staleFor is how long it is stale before it is degraded.
func FreshnessAt(freshUntil, expiresAt, now time.Time, staleFor time.Duration) string {
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
