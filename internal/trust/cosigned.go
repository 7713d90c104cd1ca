// Package trust makes and verifies statements that count by the signatures of the manifest's
// signers: that a cluster has another root from now on (a change), and what nobody may rely on any
// more (an emergency). Members follow both without a coordinator's word; no other program reads
// either.
package trust

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
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

// refuse is a refusal by one of these checks.
func refuse(check int, detail string) *snapshot.RejectedError {
	reason := snapshot.Reason(internalsnapshot.ReasonOf(check))
	return &snapshot.RejectedError{Check: check, Reason: reason, Detail: detail}
}

// faultOfRevoked says what is wrong with a list of revoked things, or "".
func faultOfRevoked(cluster string, l []snapshot.Revoked) string {
	if !canonical.Ascending(l, snapshot.Revoked.Compare) {
		return "revoked is out of order or double"
	}
	for _, r := range l {
		if err := r.Check(cluster); err != nil {
			return fmt.Sprintf("revoked %.40s %.80q: %v", r.Kind, r.Name, errors.Unwrap(err))
		}
	}
	return ""
}

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

// appendSignatures appends the signatures of a signed statement to its encoding: how many there are, and each.
func appendSignatures(out []byte, signatures []SignerSignature) []byte {
	out = append(out, byte(len(signatures)))
	for _, sig := range signatures {
		out = append(append(out, sig.Key[:]...), sig.Signature[:]...)
	}
	return out
}

// takeSignatures reads what appendSignatures appended.
func takeSignatures(r *canonical.Parts) (out []SignerSignature) {
	for range r.Count(internalsnapshot.MaxSigners) {
		var sig SignerSignature
		copy(sig.Key[:], r.Take(len(sig.Key)))
		copy(sig.Signature[:], r.Take(len(sig.Signature)))
		out = append(out, sig)
	}
	return out
}

func walkKeyID(c *canonical.Codec, k *identity.KeyID) { c.Fixed(k[:]) }

func inVersions(n uint64) bool { return n >= 1 && n <= internalsnapshot.MaxVersion }

func compareDigests(a, b snapshot.Digest) int { return cmp.Compare(string(a[:]), string(b[:])) }
