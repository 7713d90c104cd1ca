package proof

import (
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/fealty-io/fealty/internal/identity"
)

// ExporterLabel is the label under which both ends take the channel binding (RFC
// 8446 §7.5; labels that are not registered with IANA begin with "EXPORTER", RFC
// 5705 §4).
const ExporterLabel = "EXPORTER-fealty-join-v1"

// Labels of what is signed. Each kind of transcript has its own, as the first
// part of its digest, so that a signature over one is never one over another.
const (
	TranscriptLabel      = "fealty-proof-v1"
	SetupTranscriptLabel = "fealty-first-set-v1"
)

// Sizes of the parts of a transcript, in bytes.
const (
	NonceBytes   = 32
	BindingBytes = 32

	minPublicKeyBytes = 44 // the shortest allowed SubjectPublicKeyInfo: Ed25519, RFC 8410 §4
)

// Binding returns the channel binding of a connection: BindingBytes bytes that
// both its ends compute alike and no other connection shares. cs must come from
// crypto/tls. The error is a [*NoBindingError]; without a binding there is no
// proof, so the caller ends the call.
func Binding(cs tls.ConnectionState) ([]byte, error) {
	if !cs.HandshakeComplete {
		return nil, &NoBindingError{Version: cs.Version, Detail: "the TLS handshake is not complete"}
	}
	// Before TLS 1.3 the exporter does not cover the whole handshake (RFC 7627
	// §1), so that two connections can be made to share one.
	if cs.Version != tls.VersionTLS13 {
		return nil, &NoBindingError{Version: cs.Version, Detail: "TLS 1.3 is required"}
	}
	b, err := cs.ExportKeyingMaterial(ExporterLabel, nil, BindingBytes)
	if err != nil {
		return nil, &NoBindingError{Version: cs.Version, Detail: err.Error()}
	}
	return b, nil
}

// NoBindingError says why a connection has no channel binding.
type NoBindingError struct {
	Version uint16 // of TLS; 0 without TLS
	Detail  string
}

func (e *NoBindingError) Error() string {
	version := "no TLS"
	if e.Version != 0 {
		version = tls.VersionName(e.Version)
	}
	return fmt.Sprintf("the connection (%s) has no channel binding, so nothing can be proven over it: %s; connect with TLS 1.3, without a proxy that terminates it", version, e.Detail)
}

// Role is the side of the exchange that makes a proof.
type Role string

// The roles.
const (
	Candidate Role = "candidate" // who wants something, and opened the stream
	Seed      Role = "seed"      // who grants it
)

// Transcript is what a proof is made over. Both sides fill it from what they
// know themselves: a verifier never takes a part of it from the evidence.
type Transcript struct {
	// Role is the role of who makes the proof.
	Role Role
	// Cluster is the id of the cluster.
	Cluster string
	// Nonce is the seed's challenge, NonceBytes long.
	Nonce []byte
	// Binding is the connection's [Binding], BindingBytes long.
	Binding []byte
	// PublicKey is the sender's key, DER SubjectPublicKeyInfo: for a candidate the
	// one in its CSR. At most MaxPublicKeyBytes.
	PublicKey []byte
}

// Digest returns what is signed: SHA-512 over the parts
//
//	TranscriptLabel, Role, Cluster, Nonce, Binding, PublicKey
//
// each preceded by its length in bytes as 4 bytes, big endian. It fails with a
// [*TranscriptError] if a part is missing or has a wrong size, so that nothing
// is ever signed or accepted over less than all of them.
func (t Transcript) Digest() ([64]byte, error) {
	switch {
	case t.Role != Candidate && t.Role != Seed:
		return [64]byte{}, &TranscriptError{"role", fmt.Sprintf("is %.16q, want %q or %q", string(t.Role), Candidate, Seed)}
	case t.Cluster == "" || len(t.Cluster) > identity.MaxClusterBytes:
		return [64]byte{}, &TranscriptError{"cluster", fmt.Sprintf("has %d bytes, want 1 to %d",
			len(t.Cluster), identity.MaxClusterBytes)}
	}
	if err := checkChannel(t.Nonce, t.Binding); err != nil {
		return [64]byte{}, err
	}
	if n := len(t.PublicKey); n < minPublicKeyBytes || n > MaxPublicKeyBytes {
		return [64]byte{}, &TranscriptError{"public key", fmt.Sprintf("has %d bytes, want %d to %d", n, minPublicKeyBytes, MaxPublicKeyBytes)}
	}
	return digest([]byte(TranscriptLabel), []byte(t.Role), []byte(t.Cluster), t.Nonce, t.Binding, t.PublicKey), nil
}

// checkChannel checks the parts that every kind of transcript has.
func checkChannel(nonce, binding []byte) error {
	if len(nonce) != NonceBytes {
		return &TranscriptError{"nonce", fmt.Sprintf("has %d bytes, want %d", len(nonce), NonceBytes)}
	}
	if len(binding) != BindingBytes {
		return &TranscriptError{"binding", fmt.Sprintf("has %d bytes, want %d", len(binding), BindingBytes)}
	}
	return nil
}

// digest hashes parts with their lengths, so that no two lists of parts have the
// same input: "ab","c" is not "a","bc".
func digest(parts ...[]byte) [64]byte {
	h := sha512.New()
	for _, p := range parts {
		writePart(h, p)
	}
	return [64]byte(h.Sum(nil))
}

func writePart(h hash.Hash, p []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(p)))
	h.Write(n[:])
	h.Write(p)
}

// TranscriptError says which part of a transcript is missing or malformed. It is
// a mistake of the side that filled the transcript, not of its peer.
type TranscriptError struct {
	Part   string
	Detail string
}

func (e *TranscriptError) Error() string {
	return fmt.Sprintf("nothing can be proven over this transcript: its %s %s", e.Part, e.Detail)
}
