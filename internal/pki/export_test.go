package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"io"
	"time"
)

// CSRRules and LintRules name the rows of the tables.
func CSRRules() (names []string) {
	for _, r := range csrRules {
		names = append(names, r.name)
	}
	return names
}

func LintRules() (names []string) {
	for _, table := range [][]lintRule{linkLints, leafLints} {
		for _, r := range table {
			names = append(names, r.name)
		}
	}
	return names
}

// SignLeaf and SignMesh sign any template behind the guards of Issue and NewMeshCA.
func SignLeaf(template, issuer *x509.Certificate, pub crypto.PublicKey, mesh *MeshCA, r Request, now time.Time) (*x509.Certificate, error) {
	return sign(rand.Reader, template, issuer, pub, leafGuard(mesh, r, now))
}

func SignMesh(template, root *x509.Certificate, pub crypto.PublicKey, rootKey crypto.Signer, asked crypto.PublicKey, now time.Time) (*x509.Certificate, error) {
	return sign(rand.Reader, template, root, pub, meshGuard(rootKey, root, asked, now))
}

// SignGuarded signs template with key behind the guard.
func SignGuarded(template, issuer *x509.Certificate, pub crypto.PublicKey, key crypto.Signer, lint func(*x509.Certificate) error) (*x509.Certificate, error) {
	return sign(rand.Reader, template, issuer, pub, &guardedSigner{key: key, lint: lint})
}

// SignDigest asks the guard for a signature of a digest.
func SignDigest(key crypto.Signer, r io.Reader, digest []byte) ([]byte, error) {
	return (&guardedSigner{key: key, lint: func(*x509.Certificate) error { return nil }}).Sign(r, digest, crypto.SHA256)
}

// EncodeLeaf returns the signed part of a leaf for r as Issue encodes it, and as crypto/x509 does.
func EncodeLeaf(mesh *MeshCA, r Request, now time.Time) (ours, theirs []byte, err error) {
	template, spki, err := leafTemplate(mesh.cert, r, now)
	if err != nil {
		return nil, nil, err
	}
	if ours, err = encodeLeaf(template, mesh.cert, spki); err != nil {
		return nil, nil, err
	}
	c, err := sign(rand.Reader, template, mesh.cert, r.PublicKey, leafGuard(mesh, r, now))
	if err != nil {
		return nil, nil, err
	}
	return ours, c.RawTBSCertificate, nil
}

// Certify signs tbs with key behind the guard.
func Certify(tbs []byte, key crypto.Signer, lint func(*x509.Certificate) error) (*x509.Certificate, error) {
	return (&guardedSigner{key: key, lint: lint}).certify(tbs)
}
