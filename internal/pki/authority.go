package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

const (
	// Backdate is how long before now a certificate begins, for receivers whose
	// clock is behind.
	Backdate = internalidentity.Backdate

	// RootLifetime is how long a root is valid: as long as its cluster lives.
	RootLifetime = internalidentity.MaxRootLifetime
)

// Root returns the root certificate of a cluster, signed by its own key.
//
// It is the same, byte for byte, for the same key, cluster and notBefore (which
// counts in whole seconds): the serial number derives from the key, and with a nil
// reader an ECDSA signature is deterministic (RFC 6979). So the seed and the time
// recorded with it are enough to have the certificate again, and two coordinators
// never show two roots of one key. key is a P-256 key whose Sign obeys that rule,
// as *ecdsa.PrivateKey does; one that does not is an error.
func Root(key crypto.Signer, cluster string, notBefore time.Time) (*x509.Certificate, error) {
	if err := identity.CheckCluster(cluster); err != nil {
		return nil, fmt.Errorf("pki: making a root: %w", err)
	}
	pub, err := checkCAKey(key, nil)
	if err != nil {
		return nil, err
	}
	keyID, subjectKeyID, err := idsOf(pub)
	if err != nil {
		return nil, err
	}
	serial := sha256.Sum256(append([]byte("fealty/v1/root-serial"), keyID[:]...))
	notBefore = notBefore.UTC().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(serial[:16]),
		Subject:               authorityName(cluster, "Fealty root", keyID),
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(RootLifetime),
		SignatureAlgorithm:    x509.ECDSAWithSHA256,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1,
		SubjectKeyId:          subjectKeyID,
	}
	var made [2]*x509.Certificate
	for i := range made {
		s := &guardedSigner{key: key, deterministic: true, lint: func(c *x509.Certificate) error {
			return refused(internalidentity.CheckUnsignedRoot(c, notBefore))
		}}
		if made[i], err = sign(rand.Reader, template, template, pub, s); err != nil {
			return nil, err
		}
	}
	if !bytes.Equal(made[0].Raw, made[1].Raw) {
		return nil, fmt.Errorf("pki: making a root: a key of type %T does not sign deterministically when it gets no randomness", key)
	}
	if err := refused(internalidentity.CheckRoot(made[0], notBefore)); err != nil {
		return nil, err
	}
	return made[0], nil
}

// refused returns a refusal of the profile as the error that it is in package identity; nil for nil.
func refused(r *internalidentity.Refusal) error {
	if r == nil {
		return nil
	}
	return (*identity.ChainError)(r)
}

// MeshCA is the key and certificate that sign leaves under one authority epoch.
type MeshCA struct {
	// A function, so that fmt and log/slog, which follow pointers, see only its
	// address.
	key   func() *ecdsa.PrivateKey
	cert  *x509.Certificate
	epoch uint64
	keyID identity.KeyID
}

// MeshConfig says what mesh CA to make.
type MeshConfig struct {
	Cluster string // required

	// Epoch is the authority epoch that the mesh CA belongs to, from 1. It stands in
	// the certificate's name, so that a key cannot be taken to another epoch (I9).
	Epoch uint64

	// Validity is how long the certificate is valid from now, cut at the end of the
	// root's. At least a second and at most identity.MaxMeshCALifetime less [Backdate].
	Validity time.Duration
}

// NewMeshCA makes a random key and has the root sign its certificate.
//
// Errors: *identity.ChainError if the root or the result is not of its profile at
// now; plain ones for the configuration.
func NewMeshCA(root *x509.Certificate, rootKey crypto.Signer, cfg MeshConfig, now time.Time) (*MeshCA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: making a mesh CA key: %w", err)
	}
	return certifyMesh(root, rootKey, cfg, key, now)
}

// RenewMeshCA has the root certify the key of m once more, under the same epoch,
// for validity from now: the key lives as long as its epoch, its certificate only
// for a multiple of an SVID's lifetime. Errors are those of [NewMeshCA].
func RenewMeshCA(root *x509.Certificate, rootKey crypto.Signer, m *MeshCA, cluster string, validity time.Duration, now time.Time) (*MeshCA, error) {
	return certifyMesh(root, rootKey, MeshConfig{Cluster: cluster, Epoch: m.epoch, Validity: validity}, m.key(), now)
}

// certifyMesh has the root sign a certificate for key.
func certifyMesh(root *x509.Certificate, rootKey crypto.Signer, cfg MeshConfig, key *ecdsa.PrivateKey, now time.Time) (*MeshCA, error) {
	if err := identity.CheckCluster(cfg.Cluster); err != nil {
		return nil, fmt.Errorf("pki: making a mesh CA: %w", err)
	}
	if cfg.Epoch == 0 {
		return nil, errors.New("pki: making a mesh CA: authority epochs count from 1")
	}
	if cfg.Validity < time.Second || cfg.Validity > internalidentity.MaxMeshCALifetime-Backdate {
		return nil, fmt.Errorf("pki: making a mesh CA: it would be valid for %v, want at least 1s and at most %v",
			cfg.Validity, internalidentity.MaxMeshCALifetime-Backdate)
	}
	if err := refused(internalidentity.CheckRoot(root, now)); err != nil {
		return nil, err
	}
	if _, err := checkCAKey(rootKey, root); err != nil {
		return nil, err
	}
	keyID, subjectKeyID, err := idsOf(key.Public())
	if err != nil {
		return nil, err
	}
	notBefore, notAfter := within(root, now, cfg.Validity)
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               authorityName(cfg.Cluster, meshName(cfg.Epoch), keyID),
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		SignatureAlgorithm:    x509.ECDSAWithSHA256,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            0,
		MaxPathLenZero:        true,
		SubjectKeyId:          subjectKeyID,
	}
	cert, err := sign(rand.Reader, template, root, key.Public(), meshGuard(rootKey, root, key.Public(), now))
	if err != nil {
		return nil, err
	}
	return LoadMeshCA(root, cert.Raw, key, cfg.Cluster, cfg.Epoch)
}

// meshGuard signs with the root's key certificates of mesh CAs for pub.
func meshGuard(rootKey crypto.Signer, root *x509.Certificate, pub crypto.PublicKey, now time.Time) *guardedSigner {
	return &guardedSigner{key: rootKey, lint: func(c *x509.Certificate) error {
		if err := refused(internalidentity.CheckMeshCA(c, now)); err != nil {
			return err
		}
		return lint(linkLints, lintInput{cert: c, issuer: root, key: pub})
	}}
}

// LoadMeshCA returns the mesh CA of a certificate (DER) and key that came from a
// keeper or a peer. It checks everything but dates: that the certificate is of the
// profile of a mesh CA, signed by root, for this key, cluster and epoch.
func LoadMeshCA(root *x509.Certificate, certificate []byte, key *ecdsa.PrivateKey, cluster string, epoch uint64) (*MeshCA, error) {
	if root == nil || key == nil {
		return nil, errors.New("pki: loading a mesh CA: its root and its key are required")
	}
	if len(certificate) > internalidentity.MaxCertificateBytes {
		return nil, fmt.Errorf("pki: loading a mesh CA: its certificate has %d bytes, the limit is %d",
			len(certificate), internalidentity.MaxCertificateBytes)
	}
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("pki: loading a mesh CA: its certificate is malformed: %w", err)
	}
	// Each at a time at which it is in date: whether it is now shows when it signs.
	if err := refused(internalidentity.CheckRoot(root, root.NotBefore)); err != nil {
		return nil, err
	}
	if err := refused(internalidentity.CheckMeshCA(cert, cert.NotBefore)); err != nil {
		return nil, err
	}
	if _, err := checkCAKey(key, cert); err != nil {
		return nil, fmt.Errorf("pki: loading a mesh CA: %w", err)
	}
	if err := lint(linkLints, lintInput{cert: cert, issuer: root, key: key.Public()}); err != nil {
		return nil, err
	}
	if err := cert.CheckSignatureFrom(root); err != nil {
		return nil, fmt.Errorf("pki: loading a mesh CA: its root did not sign it: %w", err)
	}
	keyID := identity.KeyOf(cert)
	want := authorityName(cluster, meshName(epoch), keyID)
	if der, err := asn1.Marshal(want.ToRDNSequence()); err != nil || !bytes.Equal(cert.RawSubject, der) {
		return nil, fmt.Errorf("pki: loading a mesh CA: its name is %q, want %q: it belongs to another cluster or authority epoch", cert.Subject, want)
	}
	return &MeshCA{key: func() *ecdsa.PrivateKey { return key }, cert: cert, epoch: epoch, keyID: keyID}, nil
}

// Certificate returns the mesh CA's certificate, which the caller does not change.
func (m *MeshCA) Certificate() *x509.Certificate { return m.cert }

// Key returns the private key, for a keeper or a proven peer.
func (m *MeshCA) Key() *ecdsa.PrivateKey { return m.key() }

// KeyID names the mesh CA's key, as the head of the history does.
func (m *MeshCA) KeyID() identity.KeyID { return m.keyID }

// Epoch returns the authority epoch that the mesh CA belongs to.
func (m *MeshCA) Epoch() uint64 { return m.epoch }

func meshName(epoch uint64) string { return fmt.Sprintf("Fealty mesh CA, epoch %d,", epoch) }

// authorityName returns a CA's name. It holds the key's id, because verifiers look
// up issuers by name and two keys must not share one. A cluster's name that is too
// long for the organization (RFC 5280 appendix A.1, ub-organization-name) is left
// to the common name's key id.
func authorityName(cluster, role string, key identity.KeyID) pkix.Name {
	name := pkix.Name{CommonName: fmt.Sprintf("%s key %x", role, key[:8])}
	if len(cluster) <= 64 {
		name.Organization = []string{cluster}
	}
	return name
}

func idsOf(pub crypto.PublicKey) (identity.KeyID, []byte, error) {
	keyID, err := identity.KeyOfPublic(pub)
	if err != nil {
		return identity.KeyID{}, nil, err
	}
	subjectKeyID, err := internalidentity.SubjectKeyID(pub)
	return keyID, subjectKeyID, err
}

// newSerial returns a random number of 128 bits, not zero (RFC 5280 §4.1.2.2;
// CA/Browser Forum BR §7.1 wants 64 random bits or more).
func newSerial() *big.Int {
	for {
		var b [16]byte
		rand.Read(b[:])
		if n := new(big.Int).SetBytes(b[:]); n.Sign() > 0 {
			return n
		}
	}
}

// within returns the bounds of a certificate that lives for ttl from now, cut at
// those of its issuer. Certificates count in whole seconds, and both bounds round
// down from the same one, so that ttl is never exceeded.
func within(issuer *x509.Certificate, now time.Time, ttl time.Duration) (notBefore, notAfter time.Time) {
	now = now.UTC().Truncate(time.Second)
	notBefore = now.Add(-Backdate)
	notAfter = now.Add(ttl).Truncate(time.Second)
	if notBefore.Before(issuer.NotBefore) {
		notBefore = issuer.NotBefore
	}
	if notAfter.After(issuer.NotAfter) {
		notAfter = issuer.NotAfter
	}
	return notBefore, notAfter
}
