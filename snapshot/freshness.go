package snapshot

import (
	"time"

	"github.com/fealty-io/fealty/internal/snapshot"
)

// Freshness says how far a node may rely on a snapshot that it holds.
type Freshness string

// The states, in the order in which a snapshot without news goes through them.
const (
	Fresh    Freshness = snapshot.Fresh
	Stale    Freshness = snapshot.Stale    // no news for longer than announced: ask for some
	Degraded Freshness = snapshot.Degraded // for so long that only the degraded policy allows to act
	Expired  Freshness = snapshot.Expired  // not to be used
)

// Freshness returns the state of v at now. It is a function of the age of v's
// publication record and of v's expiry, and of nothing else: whether somebody
// can be reached does not matter, and a newer record from whatever source makes
// it fresh again. staleFor is how long it is stale before it is degraded.
func (v *Verified) Freshness(now time.Time, staleFor time.Duration) Freshness {
	return Freshness(snapshot.FreshnessAt(v.FreshUntil(), v.header.ExpiresAt, now, staleFor))
}

// FreshUntil returns when v becomes stale: fresh_until of its publication record.
// Of what is signed by itself, refresh_after counts.
func (v *Verified) FreshUntil() time.Time {
	if v.record != nil {
		return v.record.FreshUntil
	}
	return v.header.RefreshAfter
}
