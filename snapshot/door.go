package snapshot

import "github.com/fealty-io/fealty/internal/snapshotdoor"

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
	snapshotdoor.ParseSubject = parseSubject
	snapshotdoor.DecodeRootChange = decodeRootChange
	snapshotdoor.DecodeEmergency = decodeEmergency
	snapshotdoor.FreshnessAt = freshnessAt
	snapshotdoor.RecheckHeader = recheckHeader
	snapshotdoor.AddEmergency = addEmergency
	snapshotdoor.Effective = effective
	snapshotdoor.RevocationsOf = revocationsOf
	snapshotdoor.VerifyRootChanges = verifyRootChanges
	snapshotdoor.ErrNoRootChange = errNoRootChange
	snapshotdoor.UnmarshalRootChange = unmarshalRootChange
	snapshotdoor.UnmarshalEmergency = unmarshalEmergency
}
