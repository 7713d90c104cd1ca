package proof

import (
	"crypto/ed25519"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// VerifyTranscriptLabel is the label of what a coordinator signs for who verifies it.
const VerifyTranscriptLabel = "fealty-verify-v1"

// maxShownCertificate bounds a certificate in a [VerifyTranscript].
const maxShownCertificate = 64 << 10

// VerifyTranscript is what a coordinator signs for a stranger who verifies it: all
// that it claims, the stranger's nonce, and the connection on which it does.
type VerifyTranscript struct {
	// Cluster is the id of the cluster.
	Cluster string
	// Nonce was chosen by who verifies, NonceBytes long.
	Nonce []byte
	// Binding is the connection's [Binding], BindingBytes long.
	Binding []byte
	// Head is the hash of the head of the history, HeadBytes long.
	Head []byte
	// Ready: it has the secrets of that head. Otherwise the rest is empty.
	Ready bool
	// Root and MeshCA are certificates, and TransactionKey is an Ed25519 key.
	Root, MeshCA, TransactionKey []byte
}

// Digest returns what is signed: SHA-512 over the parts
//
//	VerifyTranscriptLabel, "coordinator", Cluster, Nonce, Binding, Head,
//	"ready" or "recovery", Root, MeshCA, TransactionKey
//
// each preceded by its length as in [Transcript.Digest]. It fails with a
// [*TranscriptError] if a part is missing or has a wrong size.
func (t VerifyTranscript) Digest() ([64]byte, error) {
	phase := "recovery"
	if t.Ready {
		phase = "ready"
	}
	switch {
	case t.Cluster == "" || len(t.Cluster) > identity.MaxClusterBytes:
		return [64]byte{}, &TranscriptError{"cluster", fmt.Sprintf("has %d bytes, want 1 to %d",
			len(t.Cluster), identity.MaxClusterBytes)}
	case len(t.Nonce) != NonceBytes:
		return [64]byte{}, &TranscriptError{"nonce", fmt.Sprintf("has %d bytes, want %d", len(t.Nonce), NonceBytes)}
	case len(t.Binding) != BindingBytes:
		return [64]byte{}, &TranscriptError{"binding", fmt.Sprintf("has %d bytes, want %d", len(t.Binding), BindingBytes)}
	case len(t.Head) != HeadBytes:
		return [64]byte{}, &TranscriptError{"head", fmt.Sprintf("has %d bytes, want %d", len(t.Head), HeadBytes)}
	case len(t.Root) > maxShownCertificate || len(t.MeshCA) > maxShownCertificate:
		return [64]byte{}, &TranscriptError{"certificates", fmt.Sprintf("have more than %d bytes", maxShownCertificate)}
	case t.Ready != (len(t.TransactionKey) == ed25519.PublicKeySize) || t.Ready != (len(t.Root) > 0) || t.Ready != (len(t.MeshCA) > 0):
		return [64]byte{}, &TranscriptError{"authority", "root, mesh CA and transaction key are there exactly if it is ready"}
	}
	return digest([]byte(VerifyTranscriptLabel), []byte("coordinator"), []byte(t.Cluster), t.Nonce, t.Binding, t.Head, []byte(phase), t.Root, t.MeshCA, t.TransactionKey), nil
}

// ProveVerify signs t with a coordinator's enrolment key. The claim is the key as a
// manifest names it. It fails with a [*TranscriptError].
func ProveVerify(key ed25519.PrivateKey, t VerifyTranscript) (claim string, evidence []byte, err error) {
	return proveBy(key, t)
}

// errVerifyRefused is the answer to a wrong signature.
var errVerifyRefused = &refusal{"the coordinator's proof is not a signature by the claimed key over this channel and what was shown on it: whoever answers is not who holds that key, or a proxy terminates TLS in between"}

// CheckVerify checks evidence that [ProveVerify] made against t, which the caller
// filled from its own side of the connection. It returns the selector that is
// proven, "key:ed25519:<base64>": whether that key is a coordinator's is for the
// manifest to say.
//
// Errors: [*TranscriptError] if t is incomplete; [*FormatError] for a malformed
// claim; otherwise one that matches [ErrRefused].
func CheckVerify(t VerifyTranscript, claim string, evidence []byte) (selector string, err error) {
	return checkBy(t, claim, evidence, errVerifyRefused)
}
