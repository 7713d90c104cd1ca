package snapshot

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/canonical"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/snapshot"
)

// RootStatement says which config root key a cluster has. A node that pins the
// root CA gets the key from it: see [VerifyRoot].
type RootStatement struct {
	ClusterID  string
	ConfigRoot ed25519.PublicKey
	SeedEpoch  uint64 // of the seed that both keys come from; within 1 and 2^53
	IssuedAt   time.Time
}

// signedRoot is a root statement as it travels: exact bytes, and an ECDSA
// signature (ASN.1, over SHA-256 of the pre-authentication encoding) of the root CA's P-256 key.
type signedRoot struct {
	Statement []byte
	Signature []byte
}

func (s *RootStatement) walk(c *codec) {
	version := schemaVersion
	c.Begin()
	c.Member("cluster_id")
	c.Text(&s.ClusterID, internalidentity.MaxClusterBytes)
	c.Member("config_root_key")
	c.Blob((*[]byte)(&s.ConfigRoot), ed25519.PublicKeySize)
	c.Member("issued_at")
	c.Instant(&s.IssuedAt)
	c.Member("schema_version")
	c.Number(&version, 1<<15)
	c.Member("seed_epoch")
	c.Number64(&s.SeedEpoch)
	c.End()
	if c.Err() == nil && version != schemaVersion {
		c.Fail("schema version %d, supported is %d", version, schemaVersion)
	}
}

func (s *RootStatement) fault() string {
	switch {
	case identity.CheckCluster(s.ClusterID) != nil:
		return fmt.Sprintf("cluster_id %.80q is no cluster", s.ClusterID)
	case len(s.ConfigRoot) != ed25519.PublicKeySize:
		return fmt.Sprintf("config_root_key has %d bytes, want %d", len(s.ConfigRoot), ed25519.PublicKeySize)
	case !inVersions(s.SeedEpoch):
		return fmt.Sprintf("seed_epoch %d is not within 1 and 2^53", s.SeedEpoch)
	}
	return ""
}

// Sign returns the statement as it travels, signed with the root CA's P-256 key.
func (s RootStatement) Sign(root crypto.Signer) ([]byte, error) {
	signed, err := s.sign(root)
	if err != nil {
		return nil, err
	}
	return signed.marshal()
}

func (s RootStatement) sign(root crypto.Signer) (*signedRoot, error) {
	encoded, err := encode(&s)
	if err != nil {
		return nil, fmt.Errorf("snapshot: root statement: %w", err)
	}
	if msg := s.fault(); msg != "" {
		return nil, fmt.Errorf("snapshot: root statement: %s", msg)
	}
	if public, ok := root.Public().(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("snapshot: root statement: a key of type %T, want that of the root CA, ECDSA P-256", root.Public())
	}
	sum := sha256.Sum256(snapshot.PAE(snapshot.TypeRoot, s.ClusterID, encoded))
	sig, err := root.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("snapshot: signing the root statement: %w", err)
	}
	return &signedRoot{Statement: encoded, Signature: sig}, nil
}

// marshal returns the encoding of r for disk and for the wire. It fails with
// ErrMalformed if a part exceeds its limit.
func (r *signedRoot) marshal() ([]byte, error) {
	if len(r.Statement) > snapshot.MaxRecord || len(r.Signature) > snapshot.MaxSignature {
		return nil, fmt.Errorf("snapshot: a root statement of %d and a signature of %d bytes, limits %d and %d: %w",
			len(r.Statement), len(r.Signature), snapshot.MaxRecord, snapshot.MaxSignature, ErrMalformed)
	}
	out := []byte(snapshot.RootMagic)
	out = append(binary.BigEndian.AppendUint16(out, uint16(len(r.Statement))), r.Statement...)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(r.Signature))), r.Signature...), nil
}

// unmarshalRoot reads what marshal wrote. It copies. Errors match ErrMalformed.
func unmarshalRoot(data []byte) (*signedRoot, error) {
	r := canonical.NewParts(data)
	if r.Take(len(snapshot.RootMagic)) != snapshot.RootMagic {
		return nil, fmt.Errorf("snapshot: not an encoded root statement (want %q first): %w", snapshot.RootMagic, ErrMalformed)
	}
	s := &signedRoot{Statement: r.Bytes(2, snapshot.MaxRecord), Signature: r.Bytes(2, snapshot.MaxSignature)}
	r.Finish()
	if r.Fault() != "" {
		return nil, fmt.Errorf("snapshot: an encoded root statement with %s: %w", r.Fault(), ErrMalformed)
	}
	return s, nil
}

// VerifyRoot returns the config root key that a root statement introduces, for
// [Trust.ConfigRoot], if the key of one of roots, which the caller pins, signed it for
// cluster. encoded is the statement as it travels. The signature is checked before
// anything is parsed. A statement issued in the future by more than two minutes is refused.
//
// A refusal is a [*RejectedError] without Scope, and matches ErrRejected. Bytes that are no
// statement match ErrMalformed.
func VerifyRoot(encoded []byte, roots []*x509.Certificate, cluster string, now time.Time) (ed25519.PublicKey, error) {
	r, err := unmarshalRoot(encoded)
	if err != nil {
		return nil, err
	}
	s, err := verifyRoot(r, roots, cluster, now)
	return s.ConfigRoot, err
}

// verifyRoot is VerifyRoot of what was read, with all that it says.
func verifyRoot(r *signedRoot, roots []*x509.Certificate, cluster string, now time.Time) (RootStatement, error) {
	if r == nil || len(r.Statement) == 0 || len(r.Statement) > snapshot.MaxRecord || len(r.Signature) > snapshot.MaxSignature || len(roots) > snapshot.MaxRoots {
		return RootStatement{}, refuse(checkLimits, "", "the root statement, its signature, or the list of roots is missing or above its limit")
	}
	sum := sha256.Sum256(snapshot.PAE(snapshot.TypeRoot, cluster, r.Statement))
	signed := false
	for _, root := range roots {
		public, ok := root.PublicKey.(*ecdsa.PublicKey)
		if ok && public.Curve == elliptic.P256() && ecdsa.VerifyASN1(public, sum[:], r.Signature) {
			signed = true
			break
		}
	}
	if !signed {
		return RootStatement{}, refuse(checkSignature, "", "no pinned root CA signed this root statement for cluster "+cluster)
	}
	var s RootStatement
	if _, err := decode(string(r.Statement), &s); err != nil {
		return RootStatement{}, refuse(checkSchema, "", "root statement: "+err.Error())
	}
	if msg := s.fault(); msg != "" {
		return RootStatement{}, refuse(checkSchema, "", "root statement: "+msg)
	}
	if s.ClusterID != cluster {
		return RootStatement{}, refuse(checkCluster, "", fmt.Sprintf("the root statement is of cluster %.80q", s.ClusterID))
	}
	if s.IssuedAt.After(now.Add(snapshot.ClockTolerance)) {
		return RootStatement{}, refuse(checkValidity, "", fmt.Sprintf("the root statement was issued at %s, it is %s here",
			s.IssuedAt.Format(canonical.TimeLayout), now.UTC().Format(canonical.TimeLayout)))
	}
	return s, nil
}
