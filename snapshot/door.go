package snapshot

import (
	"crypto"
	"crypto/ed25519"
	"time"

	"github.com/fealty-io/fealty/internal/snapshotdoor"
)

// Authors of snapshots and members need more than what is public, and nobody else does; see package snapshotdoor.
func init() {
	snapshotdoor.Compose = func(h Header, content Content) (any, error) { return compose(h, content) }
	snapshotdoor.NewTree = func(leaves []Digest) any { return newTree(leaves) }
	snapshotdoor.LeafOf = leafOf
	snapshotdoor.Diff = diffOf
	snapshotdoor.Steps = func() (numbers []int, rules, sources []string) {
		for _, c := range checks {
			numbers, rules, sources = append(numbers, c.number), append(rules, c.rule), append(sources, c.source)
		}
		return numbers, rules, sources
	}
	snapshotdoor.RevokedKinds = revokedKinds
	snapshotdoor.RevocationsIn = revocationsIn
	snapshotdoor.WithoutRevoked = withoutRevoked
	snapshotdoor.ReadAssignment = readAssignment
	snapshotdoor.ParseDigest = parseDigest
	snapshotdoor.SignRoot = func(cluster string, configRoot ed25519.PublicKey, seedEpoch uint64, at time.Time,
		root crypto.Signer) ([]byte, error) {
		signed, err := rootStatement{cluster, configRoot, seedEpoch, at}.Sign(root)
		if err != nil {
			return nil, err
		}
		return signed.Marshal()
	}
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
	snapshotdoor.RevocationsOf, snapshotdoor.NewRevocations = revocationsOf, newRevocations
	snapshotdoor.Refuse, snapshotdoor.WalkRevoked, snapshotdoor.FaultOfRevoked = refuse, walkRevoked, faultOfRevoked
}
