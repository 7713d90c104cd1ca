package agent

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/identityform"
)

// keyPair is a P-256 key. It holds it in a function, so that no printer walks
// into it.
type keyPair struct {
	signer func() *ecdsa.PrivateKey
	id     identity.KeyID
}

func newKeyPair() (keyPair, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("make a key: %w", err)
	}
	return asKeyPair(k)
}

func asKeyPair(k *ecdsa.PrivateKey) (keyPair, error) {
	id, err := identity.KeyOfPublic(k.Public())
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{func() *ecdsa.PrivateKey { return k }, id}, nil
}

func (k keyPair) Signer() crypto.Signer { return k.signer() }
func (k keyPair) pkcs8() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.signer())
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return der, nil
}

// spki returns the public key as proofs cover it.
func (k keyPair) spki() ([]byte, error) { return x509.MarshalPKIXPublicKey(k.signer().Public()) }

// parseKeyPair reads PKCS #8 DER. Errors quote nothing.
func parseKeyPair(der []byte) (keyPair, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return keyPair{}, fmt.Errorf("%w: no private key of PKCS #8", errDamaged)
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return keyPair{}, fmt.Errorf("%w: a private key of type %T, want P-256", errDamaged, k)
	}
	return asKeyPair(ec)
}

// svid is the identity on disk: a key, and the chain that certifies it.
type svid struct {
	key   keyPair
	chain []*x509.Certificate // leaf, mesh CA, root
}

func (s svid) leaf() *x509.Certificate { return s.chain[0] }

// svidCertificates is how many certificates follow the key.
const svidCertificates = 3

// encodeSVID returns one PEM file. Extra blocks are appended as they are.
func encodeSVID(s svid, extra ...*pem.Block) ([]byte, error) {
	der, err := s.key.pkcs8()
	if err != nil {
		return nil, err
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, c := range s.chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	for _, b := range extra {
		out = append(out, pem.EncodeToMemory(b)...)
	}
	return out, nil
}

// parseSVID reads what encodeSVID wrote with these types of extra blocks. There is
// one spelling. Errors match errDamaged and quote nothing.
func parseSVID(data []byte, extra ...string) (svid, []*pem.Block, error) {
	var s svid
	var blocks []*pem.Block
	for rest := data; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if blocks = append(blocks, b); len(blocks) > 1+svidCertificates+len(extra) {
			break
		}
	}
	if n := 1 + svidCertificates + len(extra); len(blocks) != n {
		return s, nil, fmt.Errorf("%w: %d PEM blocks, want %d", errDamaged, len(blocks), n)
	}
	if blocks[0].Type != "PRIVATE KEY" {
		return s, nil, fmt.Errorf("%w: a key and its chain are wanted, and it does not begin with a key", errDamaged)
	}
	var err error
	if s.key, err = parseKeyPair(blocks[0].Bytes); err != nil {
		return s, nil, err
	}
	for _, b := range blocks[1 : 1+svidCertificates] {
		c, err := parseCertificate(b.Bytes)
		if err != nil || b.Type != "CERTIFICATE" {
			return s, nil, fmt.Errorf("%w: a certificate of the chain cannot be read", errDamaged)
		}
		s.chain = append(s.chain, c)
	}
	if identity.KeyOf(s.leaf()) != s.key.id {
		return s, nil, fmt.Errorf("%w: the key does not belong to the certificate", errDamaged)
	}
	more := blocks[1+svidCertificates:]
	for i, b := range more {
		if b.Type != extra[i] {
			return s, nil, fmt.Errorf("%w: a block of another type than %s", errDamaged, extra[i])
		}
	}
	if again, err := encodeSVID(s, more...); err != nil || !bytes.Equal(again, data) {
		return s, nil, fmt.Errorf("%w: not as it was written", errDamaged)
	}
	return s, more, nil
}

// parseCertificate reads one certificate of bounded size.
func parseCertificate(der []byte) (*x509.Certificate, error) {
	if len(der) > identityform.MaxCertificateBytes {
		return nil, fmt.Errorf("a certificate of %d bytes, limit %d", len(der), identityform.MaxCertificateBytes)
	}
	return x509.ParseCertificate(der)
}

func parseChain(ders [][]byte, n int) ([]*x509.Certificate, error) {
	if len(ders) != n {
		return nil, fmt.Errorf("a chain of %d certificates, want %d: leaf, mesh CA, root", len(ders), n)
	}
	chain := make([]*x509.Certificate, n)
	for i, der := range ders {
		c, err := parseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of the chain: %w", i+1, err)
		}
		chain[i] = c
	}
	return chain, nil
}

func rawChain(chain []*x509.Certificate) [][]byte {
	out := make([][]byte, len(chain))
	for i, c := range chain {
		out[i] = c.Raw
	}
	return out
}
