// Package trust makes and verifies statements that count by the signatures of the manifest's
// signers: that a cluster has another root from now on (a change), and what nobody may rely on any
// more (an emergency). Members follow both without a coordinator's word; no other program reads
// either.
package trust

import (
	"cmp"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/snapshotdoor"
	"github.com/fealty-io/fealty/snapshot"
)

// schemaVersion is the only version of a statement so far.
const schemaVersion = 1

// The checks of package snapshot that say what is wrong with a statement, by their numbers in
// docs/explanation/snapshots.md#the-twelve-checks. The limits have none.
const (
	checkLimits    = 0
	checkSchema    = 1
	checkCluster   = 2
	checkSignature = 5
	checkEpoch     = 8
	checkVersion   = 9
)

// Of package snapshot, these are for this module alone.
var (
	refuse = snapshotdoor.Refuse.(func(check int, scope snapshot.Scope, detail string) *snapshot.RejectedError)

	// walkRevoked is an optional member: it is there if the list is not empty, so that one content has one form.
	walkRevoked = snapshotdoor.WalkRevoked.(func(c *canonical.Codec, v *[]snapshot.Revoked))

	// faultOfRevoked says what is wrong with a list of revoked things, or "".
	faultOfRevoked = snapshotdoor.FaultOfRevoked.(func(cluster string, l []snapshot.Revoked) string)

	newRevocations = snapshotdoor.NewRevocations.(func(things []snapshot.Revoked, configKeys []snapshot.Digest,
		ids []identity.ID, keys []identity.KeyID) snapshot.Revocations)
)

// encode returns the canonical bytes of what walk walks.
func encode(walk func(*canonical.Codec)) ([]byte, error) {
	c := &canonical.Codec{}
	walk(c)
	return c.Out(), c.Err()
}

// decode reads them, all of in.
func decode(in []byte, walk func(*canonical.Codec)) error {
	c := canonical.NewReader(string(in))
	walk(c)
	return c.Finish()
}

func walkKeyID(c *canonical.Codec, k *identity.KeyID) { c.Fixed(k[:]) }

func inVersions(n uint64) bool { return n >= 1 && n <= internalsnapshot.MaxVersion }

func compareDigests(a, b snapshot.Digest) int { return cmp.Compare(string(a[:]), string(b[:])) }
