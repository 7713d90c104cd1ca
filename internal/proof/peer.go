package proof

import (
	"bytes"
	"crypto/ed25519"
	"fmt"

	"github.com/fealty-io/fealty/internal/identity"
)

// PeerTranscriptLabel is the label of what coordinators sign for each other.
const PeerTranscriptLabel = "fealty-peer-v1"

// PeerRole is a side of the exchange between two coordinators.
type PeerRole string

// The roles.
const (
	Asker PeerRole = "asker" // who opened the stream
	Giver PeerRole = "giver" // who answers it
)

// PeerPurpose is what the exchange is for.
type PeerPurpose string

// The purposes. Secrets go from giver to asker to recover, and the other way to
// prepare.
const (
	Recover PeerPurpose = "recover" // the asker wants what the head in force needs
	Prepare PeerPurpose = "prepare" // the asker brings what the next head needs
)

// PeerTranscript is what two coordinators sign for each other over one connection,
// each in its role, before either of them hands over a secret. It is a kind of its
// own and not a [Transcript]: both sides prove, and nothing is certified.
//
// The effect of a change of each part on a signature:
//
//	role        what one side signed cannot be sent back to it
//	purpose     who asks to be given cannot be made to take, and the reverse
//	cluster     a coordinator of two clusters does not prove one to the other
//	head        both speak of the same history and of the same manifest
//	nonces      an earlier exchange on the same connection does not count
//	binding     a relay has another one on each of its two legs
//	recipient   who carries secrets along cannot have them sealed to itself
//	keys        each knows with whom it speaks; the other cannot be swapped
type PeerTranscript struct {
	Purpose PeerPurpose
	// Cluster is the id of the cluster.
	Cluster string
	// Head is the hash of the head of the history that both speak of, HeadBytes long.
	Head []byte
	// AskerNonce and GiverNonce are random, NonceBytes long, of this exchange.
	AskerNonce, GiverNonce []byte
	// Binding is the connection's [Binding], BindingBytes long.
	Binding []byte
	// Recipient is the age recipient of the side that gets secrets; they are sealed to
	// it. At most MaxRecipientBytes.
	Recipient string
	// AskerKey and GiverKey are the enrolment keys of both. They differ.
	AskerKey, GiverKey ed25519.PublicKey
}

// Digest returns what the side of role signs: SHA-512 over the parts
//
//	PeerTranscriptLabel, role, Purpose, Cluster, Head, AskerNonce, GiverNonce,
//	Binding, Recipient, own key, key of the other side
//
// each preceded by its length as in [Transcript.Digest]. It fails with a
// [*TranscriptError] if a part is missing or has a wrong size, or if both sides are
// one.
func (t PeerTranscript) Digest(role PeerRole) ([64]byte, error) {
	switch {
	case role != Asker && role != Giver:
		return [64]byte{}, &TranscriptError{"role", fmt.Sprintf("is %.16q, want %q or %q", string(role), Asker, Giver)}
	case t.Purpose != Recover && t.Purpose != Prepare:
		return [64]byte{}, &TranscriptError{"purpose", fmt.Sprintf("is %.16q, want %q or %q", string(t.Purpose), Recover, Prepare)}
	case t.Cluster == "" || len(t.Cluster) > identity.MaxClusterBytes:
		return [64]byte{}, &TranscriptError{"cluster", fmt.Sprintf("has %d bytes, want 1 to %d",
			len(t.Cluster), identity.MaxClusterBytes)}
	case len(t.Head) != HeadBytes:
		return [64]byte{}, &TranscriptError{"head", fmt.Sprintf("has %d bytes, want %d", len(t.Head), HeadBytes)}
	case len(t.AskerNonce) != NonceBytes:
		return [64]byte{}, &TranscriptError{"asker's nonce", fmt.Sprintf("has %d bytes, want %d", len(t.AskerNonce), NonceBytes)}
	case bytes.Equal(t.AskerNonce, t.GiverNonce):
		return [64]byte{}, &TranscriptError{"giver's nonce", "is that of the asker"}
	case t.Recipient == "" || len(t.Recipient) > MaxRecipientBytes:
		return [64]byte{}, &TranscriptError{"recipient", fmt.Sprintf("has %d bytes, want 1 to %d", len(t.Recipient), MaxRecipientBytes)}
	case len(t.AskerKey) != ed25519.PublicKeySize:
		return [64]byte{}, &TranscriptError{"asker's key", fmt.Sprintf("has %d bytes, want %d", len(t.AskerKey), ed25519.PublicKeySize)}
	case len(t.GiverKey) != ed25519.PublicKeySize:
		return [64]byte{}, &TranscriptError{"giver's key", fmt.Sprintf("has %d bytes, want %d", len(t.GiverKey), ed25519.PublicKeySize)}
	case bytes.Equal(t.AskerKey, t.GiverKey):
		return [64]byte{}, &TranscriptError{"giver's key", "is that of the asker: a coordinator does not prove itself to itself"}
	}
	if err := checkChannel(t.GiverNonce, t.Binding); err != nil {
		return [64]byte{}, err
	}
	own, other := t.AskerKey, t.GiverKey
	if role == Giver {
		own, other = other, own
	}
	return digest([]byte(PeerTranscriptLabel), []byte(role), []byte(t.Purpose), []byte(t.Cluster), t.Head, t.AskerNonce, t.GiverNonce,
		t.Binding, []byte(t.Recipient), own, other), nil
}

// ProvePeer signs t in role with the enrolment key of that side. It fails with a
// [*TranscriptError], also if key is not the one that t names.
func ProvePeer(key ed25519.PrivateKey, role PeerRole, t PeerTranscript) ([]byte, error) {
	d, err := t.Digest(role)
	if err != nil {
		return nil, err
	}
	if !t.keyOf(role).Equal(key.Public()) {
		return nil, &TranscriptError{string(role) + "'s key", "is not the one that signs"}
	}
	return ed25519.Sign(key, d[:]), nil
}

func (t PeerTranscript) keyOf(role PeerRole) ed25519.PublicKey {
	if role == Asker {
		return t.AskerKey
	}
	return t.GiverKey
}

// errPeerRefused is the answer to a wrong signature.
var errPeerRefused = &refusal{"the peer's proof is not a signature by the key that it names over this channel, head and purpose: whoever answers is not who holds that key, or a proxy terminates TLS in between"}

// VerifyPeer checks evidence that [ProvePeer] made in role against t, which the
// caller filled from its own side of the connection. It returns the selector that is
// proven, "key:ed25519:<base64>": whether that key is a coordinator's is for a
// manifest to say. Both keys of t come from [ParseKeyClaim], which refuses those
// that anybody can sign for.
//
// Errors: [*TranscriptError] if t is incomplete, or its two sides are one; otherwise
// one that matches [ErrRefused].
func VerifyPeer(role PeerRole, t PeerTranscript, evidence []byte) (selector string, err error) {
	d, err := t.Digest(role)
	if err != nil {
		return "", err
	}
	key := t.keyOf(role)
	if lowOrder(key) || len(evidence) != ed25519.SignatureSize || !ed25519.Verify(key, d[:], evidence) {
		return "", errPeerRefused
	}
	return "key:" + KeyClaim(key), nil
}
