package proof

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// AttemptTranscriptLabel is the label of what a recovering coordinator signs to
// tell the others of its attempt.
const AttemptTranscriptLabel = "fealty-recovery-attempt-v1"

// AttemptTranscript is what a recovering coordinator signs of its attempt, so that
// the others encrypt the shares that they took to it as well. It goes by way of the
// store and is bound to no connection: what it says is to whom shares may be
// encrypted, and nobody else can open what is.
type AttemptTranscript struct {
	// Cluster is the id of the cluster.
	Cluster string
	// Attempt names the attempt, AttemptBytes long.
	Attempt []byte
	// Recipient is the age recipient that shares are encrypted to, at most
	// MaxRecipientBytes.
	Recipient string
	// Head is the hash of the head of the history, HeadBytes long.
	Head []byte
	// Ends is when the attempt is over, in seconds since 1970.
	Ends int64
}

// Digest returns what is signed: SHA-512 over the parts
//
//	AttemptTranscriptLabel, "coordinator", Cluster, Attempt, Recipient, Head, Ends
//
// each preceded by its length as in [Transcript.Digest], Ends as 8 bytes, most
// significant first. It fails with a [*TranscriptError] if a part is missing or has
// a wrong size.
func (t AttemptTranscript) Digest() ([64]byte, error) {
	switch {
	case t.Cluster == "" || len(t.Cluster) > identity.MaxClusterBytes:
		return [64]byte{}, &TranscriptError{"cluster", fmt.Sprintf("has %d bytes, want 1 to %d",
			len(t.Cluster), identity.MaxClusterBytes)}
	case len(t.Attempt) != AttemptBytes:
		return [64]byte{}, &TranscriptError{"attempt", fmt.Sprintf("has %d bytes, want %d", len(t.Attempt), AttemptBytes)}
	case t.Recipient == "" || len(t.Recipient) > MaxRecipientBytes:
		return [64]byte{}, &TranscriptError{"recipient", fmt.Sprintf("has %d bytes, want 1 to %d", len(t.Recipient), MaxRecipientBytes)}
	case len(t.Head) != HeadBytes:
		return [64]byte{}, &TranscriptError{"head", fmt.Sprintf("has %d bytes, want %d", len(t.Head), HeadBytes)}
	}
	ends := binary.BigEndian.AppendUint64(nil, uint64(t.Ends))
	return digest([]byte(AttemptTranscriptLabel), []byte("coordinator"), []byte(t.Cluster), t.Attempt, []byte(t.Recipient), t.Head, ends), nil
}

// ProveAttempt signs t with a coordinator's enrolment key. The claim is the key as
// a manifest names it. It fails with a [*TranscriptError].
func ProveAttempt(key ed25519.PrivateKey, t AttemptTranscript) (claim string, evidence []byte, err error) {
	return proveBy(key, t)
}

// errAttemptRefused is the answer to a wrong signature.
var errAttemptRefused = &refusal{"the signature is not by the claimed key over this attempt, recipient and history: whoever wrote it does not hold that key"}

// VerifyAttempt checks evidence that [ProveAttempt] made against t. It returns the
// selector that is proven, "key:ed25519:<base64>": whether that key is a
// coordinator's is for the manifest to say.
//
// Errors: [*TranscriptError] if t is incomplete; [*FormatError] for a malformed
// claim; otherwise one that matches [ErrRefused].
func VerifyAttempt(t AttemptTranscript, claim string, evidence []byte) (selector string, err error) {
	return checkBy(t, claim, evidence, errAttemptRefused)
}
