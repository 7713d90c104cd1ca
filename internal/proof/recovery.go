package proof

import (
	"crypto/ed25519"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// RecoveryTranscriptLabel is the label of what a recovering coordinator signs.
const RecoveryTranscriptLabel = "fealty-recovery-v1"

// Sizes of the parts of a recovery transcript, in bytes.
const (
	AttemptBytes      = 16
	HeadBytes         = 32
	MaxRecipientBytes = 128
)

// RecoveryTranscript is what a coordinator without its seed signs before an owner
// encrypts a share to it. It is a kind of its own and not a [Transcript]: the
// coordinator speaks first, so there is no nonce of a peer (the binding is fresh
// for every connection, and made by both its ends), and it has no key to certify.
// Its label keeps the two apart.
type RecoveryTranscript struct {
	// Cluster is the id of the cluster.
	Cluster string
	// Attempt names the attempt for which shares are gathered, AttemptBytes long.
	Attempt []byte
	// Binding is the connection's [Binding], BindingBytes long.
	Binding []byte
	// Recipient is the age recipient that shares are to be encrypted to, at most
	// MaxRecipientBytes. A share for another one would be for somebody else.
	Recipient string
	// Head is the hash of the head of the history, HeadBytes long: the coordinator
	// asks for the shares of this seed, under this manifest.
	Head []byte
}

// Digest returns what is signed: SHA-512 over the parts
//
//	RecoveryTranscriptLabel, "coordinator", Cluster, Attempt, Binding, Recipient, Head
//
// each preceded by its length as in [Transcript.Digest]. It fails with a
// [*TranscriptError] if a part is missing or has a wrong size.
func (t RecoveryTranscript) Digest() ([64]byte, error) {
	switch {
	case t.Cluster == "" || len(t.Cluster) > identity.MaxClusterBytes:
		return [64]byte{}, &TranscriptError{"cluster", fmt.Sprintf("has %d bytes, want 1 to %d",
			len(t.Cluster), identity.MaxClusterBytes)}
	case len(t.Attempt) != AttemptBytes:
		return [64]byte{}, &TranscriptError{"attempt", fmt.Sprintf("has %d bytes, want %d", len(t.Attempt), AttemptBytes)}
	case len(t.Binding) != BindingBytes:
		return [64]byte{}, &TranscriptError{"binding", fmt.Sprintf("has %d bytes, want %d", len(t.Binding), BindingBytes)}
	case t.Recipient == "" || len(t.Recipient) > MaxRecipientBytes:
		return [64]byte{}, &TranscriptError{"recipient", fmt.Sprintf("has %d bytes, want 1 to %d", len(t.Recipient), MaxRecipientBytes)}
	case len(t.Head) != HeadBytes:
		return [64]byte{}, &TranscriptError{"head", fmt.Sprintf("has %d bytes, want %d", len(t.Head), HeadBytes)}
	}
	return digest([]byte(RecoveryTranscriptLabel), []byte("coordinator"), []byte(t.Cluster), t.Attempt, t.Binding, []byte(t.Recipient), t.Head), nil
}

// ProveRecovery signs t with a coordinator's enrolment key. The claim is the key
// as a manifest names it. It fails with a [*TranscriptError].
func ProveRecovery(key ed25519.PrivateKey, t RecoveryTranscript) (claim string, evidence []byte, err error) {
	return proveBy(key, t)
}

// errRecoveryRefused is the answer to a wrong signature.
var errRecoveryRefused = &refusal{"the coordinator's proof is not a signature by the claimed key over this channel, attempt, recipient and history: whoever answers is not who holds that key, or a proxy terminates TLS in between"}

// VerifyRecovery checks evidence that [ProveRecovery] made against t, which the
// caller filled from its own side of the connection. It returns the selector that
// is proven, "key:ed25519:<base64>": whether that key is a coordinator's is for the
// manifest to say.
//
// Errors: [*TranscriptError] if t is incomplete; [*FormatError] for a malformed
// claim; otherwise one that matches [ErrRefused].
func VerifyRecovery(t RecoveryTranscript, claim string, evidence []byte) (selector string, err error) {
	return checkBy(t, claim, evidence, errRecoveryRefused)
}
