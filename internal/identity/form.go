// Package identity says which certificates a cluster mints (the profile), how large identities, certificates and
// bundles may be, and what TLS between members has in common. The public packages identity and credential are made of it.
package identity

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"time"
)

const (
	// MaxClusterBytes bounds a cluster's name (SPIFFE-ID §2.1: a trust domain name
	// has at most 255 bytes).
	MaxClusterBytes = 255

	// MaxIDBytes bounds a whole id (SPIFFE-ID §2.3: at most 2048 bytes).
	MaxIDBytes = 2048
)

// Limits of a bundle of trust: it comes from a peer, and every handshake looks into it.
const (
	MaxRoots    = 16
	MaxMeshKeys = 256
	MaxBans     = 1 << 17 // ids and keys, each
)

// Limits of chains and roots of an operator's own PKI. A chain comes from a peer.
const (
	MaxOperatorRoots = 64
	MaxOperatorChain = 6 // certificates, the root included if it is sent
)

// Bounds of certificates.
const (
	// MaxLeafLifetime bounds a leaf's validity (CA/Browser Forum BR §6.3.2).
	MaxLeafLifetime = 398 * 24 * time.Hour

	// Backdate is how long before it was made a certificate begins, for receivers whose
	// clock is behind.
	Backdate = 30 * time.Second

	// MaxMeshCALifetime bounds a mesh CA's validity: twice that of the longest leaf,
	// and a few days for backdating.
	MaxMeshCALifetime = 800 * 24 * time.Hour

	// MaxRootLifetime bounds a root's validity: it lives as long as its cluster.
	MaxRootLifetime = 36525 * 24 * time.Hour

	// MaxCertificateBytes bounds one certificate in DER.
	MaxCertificateBytes = 8 << 10

	// MaxAltNames bounds the subject alternative names of a leaf, of all types together.
	MaxAltNames = 64
)

// SubjectKeyID returns the subject key identifier that every certificate for pub must
// carry: the leftmost 160 bits of the SHA-256 of the key's BIT STRING (RFC 7093 §2,
// method 1). Deriving it from the key makes the identifiers of a chain name keys, not
// labels that an issuer chose.
func SubjectKeyID(pub crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("identity: subject key id of a key of type %T: %w", pub, err)
	}
	var spki struct {
		Algorithm asn1.RawValue
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &spki); err != nil {
		return nil, fmt.Errorf("identity: subject key id of a key of type %T: %w", pub, err)
	}
	sum := sha256.Sum256(spki.Key.Bytes)
	return sum[:20], nil
}

// VoucherName is the common name of a workload's certificate: the member that vouches for it, as
// "<kind>/<name>", and the id of the key that it asked with.
func VoucherName(member, key string) string { return member + " " + key }
