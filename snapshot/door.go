package snapshot

import (
	"time"

	"github.com/fealty-io/fealty/internal/snapshotdoor"
)

// Members need more than what is public, and nobody else does; see package snapshotdoor.
func init() {
	snapshotdoor.ClaimsOf = func(s *Signed) (Header, *Record, error) {
		c, err := s.claims()
		return c.Header, c.Record, err
	}
	snapshotdoor.FreshnessAt = freshnessAt
	snapshotdoor.VerifyHeader = func(s *Signed, trust Trust, marks Marks, now time.Time) (any, error) {
		return verifyHeader(s, trust, marks, now)
	}
	snapshotdoor.RecheckHeader = func(s *Signed, trust Trust, marks Marks, now time.Time) (any, error) {
		return recheckHeader(s, trust, marks, now)
	}
	snapshotdoor.Effective = effective
	snapshotdoor.RevocationsOf = revocationsOf
}
