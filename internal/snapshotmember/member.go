// Package snapshotmember does with what is signed what a member of a cluster does, and a program of others never: it
// works out what is left of a content that it holds when parts are revoked, looks at a header whose content is still to
// come, and reads what nobody vouches for yet.
package snapshotmember

import (
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/snapshotdoor"
	"github.com/fealty-io/fealty/snapshot"
)

// The functions.
var (
	// FreshnessAt is snapshot.Verified.Freshness of a snapshot that is fresh until freshUntil
	// and expires at expiresAt.
	FreshnessAt = snapshotdoor.FreshnessAt.(func(
		freshUntil, expiresAt, now time.Time, staleFor time.Duration) snapshot.Freshness)

	// RevocationsOf returns all that bundle, which may be nil, and more revoke.
	RevocationsOf = snapshotdoor.RevocationsOf.(func(
		bundle *snapshot.Verified, more ...snapshot.Revocations) snapshot.Revocations)

	// Effective returns what the node me may rely on of v: its content without what r
	// revokes. It is for those who act on the content, and has v's header; it is not
	// what was signed, so that neither Accept nor a disk may get it. With nothing to
	// remove it is v itself.
	Effective = snapshotdoor.Effective.(func(
		v *snapshot.Verified, r snapshot.Revocations, me identity.ID) *snapshot.Verified)
)

// Checked is a snapshot whose header passed all checks that need no content: 1 to 5 and 7 to 9. The hash and the size
// of its content are signed; nothing of it is trusted yet. It is immutable.
type Checked interface {
	// Header returns the header.
	Header() snapshot.Header

	// HeaderDigest returns the SHA-256 of the header's bytes.
	HeaderDigest() snapshot.Digest

	// Record returns the publication record over the header; false for a trust bundle, which is signed by itself.
	Record() (snapshot.Record, bool)

	// Complete is the rest of snapshot.Verify, with content from whoever had it. Of content that is refused another
	// source may have the right one: it can be called again.
	Complete(content []byte) (*snapshot.Verified, error)

	// CompletePatch is Complete with the content that patch makes of what is active, which it returns too, to be kept.
	// A patch to anything else but the base that the header names is refused with snapshot.ReasonBase, and nothing
	// but the whole helps then.
	CompletePatch(active *snapshot.Verified, patch []byte) (*snapshot.Verified, []byte, error)
}

type headerCheck = func(*snapshot.Signed, snapshot.Trust, snapshot.Marks, time.Time) (any, error)

var (
	verifyHeader  = snapshotdoor.VerifyHeader.(headerCheck)
	recheckHeader = snapshotdoor.RecheckHeader.(headerCheck)
)

// VerifyHeader is the part of snapshot.Verify that needs no content, for one that is to be got first: by its hash,
// which the header says, as a patch, or from what is held already. It looks at no content or patch in s but their
// sizes.
//
// Errors are those of snapshot.Verify. Time passes until the content is there: snapshot.Accept decides by the marks of
// then.
func VerifyHeader(s *snapshot.Signed, trust snapshot.Trust, marks snapshot.Marks, now time.Time) (Checked, error) {
	return checked(verifyHeader(s, trust, marks, now))
}

// RecheckHeader is to VerifyHeader what snapshot.Recheck is to snapshot.Verify: for a node that accepted this very
// snapshot before, and lost its content.
func RecheckHeader(s *snapshot.Signed, trust snapshot.Trust, marks snapshot.Marks, now time.Time) (Checked, error) {
	return checked(recheckHeader(s, trust, marks, now))
}

func checked(c any, err error) (Checked, error) {
	if err != nil {
		return nil, err
	}
	return c.(Checked), nil
}

var claimsOf = snapshotdoor.ClaimsOf.(func(*snapshot.Signed) (snapshot.Header, *snapshot.Record, error))

// Claims are what an envelope says of itself. Nothing of it is verified: it is for people who look at a snapshot, and
// to choose what to verify it with. Never act on it; see snapshot.Verify.
type Claims struct {
	Header snapshot.Header
	// Record is nil for what is signed by itself.
	Record *snapshot.Record
}

// ClaimsOf reads the header and the record of s without verifying them. Errors match snapshot.ErrMalformed: what cannot
// be read verifies neither.
func ClaimsOf(s *snapshot.Signed) (Claims, error) {
	header, record, err := claimsOf(s)
	return Claims{header, record}, err
}
