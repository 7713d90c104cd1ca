package proof

import "crypto/ed25519"

// ReplicaLabel is the label of what a coordinator says of itself in the store.
const ReplicaLabel = "fealty replica v1"

// ReplicaDigest is the digest of a replica record that is signed.
func ReplicaDigest(record []byte) [64]byte { return digest([]byte(ReplicaLabel), record) }

// SignReplica signs a replica record with a coordinator's enrolment key: Ed25519
// over the SHA-512 of
//
//	ReplicaLabel, record
//
// each preceded by its length as in [Transcript.Digest].
func SignReplica(key ed25519.PrivateKey, record []byte) []byte {
	d := ReplicaDigest(record)
	return ed25519.Sign(key, d[:])
}

// VerifyReplica reports whether the holder of key signed record. It says nothing
// about when: who can write the store can put an older one back.
func VerifyReplica(key ed25519.PublicKey, record, signature []byte) bool {
	d := ReplicaDigest(record)
	return len(key) == ed25519.PublicKeySize && len(signature) == ed25519.SignatureSize && ed25519.Verify(key, d[:], signature)
}
