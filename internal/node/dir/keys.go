package dir

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// KeyPair is a P-256 key. It holds it in a function, so that no printer walks
// into it.
type KeyPair struct {
	ID     identity.KeyID // of the public key
	signer func() *ecdsa.PrivateKey
	pkcs8  func() ([]byte, error) // made once: a workload is sent its key at each change
}

// NewKeyPair makes a key.
func NewKeyPair() (KeyPair, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("make a key: %w", err)
	}
	return asKeyPair(k)
}

func asKeyPair(k *ecdsa.PrivateKey) (KeyPair, error) {
	id, err := identity.KeyOfPublic(k.Public())
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{id, func() *ecdsa.PrivateKey { return k },
		sync.OnceValues(func() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(k) })}, nil
}

// Signer signs with the key.
func (k KeyPair) Signer() crypto.Signer { return k.signer() }

// PKCS8 returns the private key in DER.
func (k KeyPair) PKCS8() ([]byte, error) {
	der, err := k.pkcs8()
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return bytes.Clone(der), nil
}

// SPKI returns the public key as proofs cover it.
func (k KeyPair) SPKI() ([]byte, error) { return x509.MarshalPKIXPublicKey(k.signer().Public()) }

// ParseKeyPair reads PKCS #8 DER. Errors quote nothing.
func ParseKeyPair(der []byte) (KeyPair, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return KeyPair{}, fmt.Errorf("%w: no private key of PKCS #8", ErrDamaged)
	}
	ec, ok := k.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return KeyPair{}, fmt.Errorf("%w: a private key of type %T, want P-256", ErrDamaged, k)
	}
	return asKeyPair(ec)
}

// SVID is the identity on disk: a key, and the chain that certifies it.
type SVID struct {
	Key   KeyPair
	Chain []*x509.Certificate // leaf, mesh CA, root
}

// Leaf is the certificate of the key.
func (s SVID) Leaf() *x509.Certificate { return s.Chain[0] }

// SVIDCertificates is how many certificates follow the key.
const SVIDCertificates = 3

// EncodeSVID returns one PEM file. Extra blocks are appended as they are.
func EncodeSVID(s SVID, extra ...*pem.Block) ([]byte, error) {
	der, err := s.Key.PKCS8()
	if err != nil {
		return nil, err
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	for _, c := range s.Chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	for _, b := range extra {
		out = append(out, pem.EncodeToMemory(b)...)
	}
	return out, nil
}

// ParseSVID reads what EncodeSVID wrote with these types of extra blocks. There is
// one spelling. Errors match ErrDamaged and quote nothing.
func ParseSVID(data []byte, extra ...string) (SVID, []*pem.Block, error) {
	var s SVID
	var blocks []*pem.Block
	for rest := data; ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if blocks = append(blocks, b); len(blocks) > 1+SVIDCertificates+len(extra) {
			break
		}
	}
	if n := 1 + SVIDCertificates + len(extra); len(blocks) != n {
		return s, nil, fmt.Errorf("%w: %d PEM blocks, want %d", ErrDamaged, len(blocks), n)
	}
	if blocks[0].Type != "PRIVATE KEY" {
		return s, nil, fmt.Errorf("%w: a key and its chain are wanted, and it does not begin with a key", ErrDamaged)
	}
	var err error
	if s.Key, err = ParseKeyPair(blocks[0].Bytes); err != nil {
		return s, nil, err
	}
	for _, b := range blocks[1 : 1+SVIDCertificates] {
		c, err := ParseCertificate(b.Bytes)
		if err != nil || b.Type != "CERTIFICATE" {
			return s, nil, fmt.Errorf("%w: a certificate of the chain cannot be read", ErrDamaged)
		}
		s.Chain = append(s.Chain, c)
	}
	if identity.KeyOf(s.Leaf()) != s.Key.ID {
		return s, nil, fmt.Errorf("%w: the key does not belong to the certificate", ErrDamaged)
	}
	more := blocks[1+SVIDCertificates:]
	for i, b := range more {
		if b.Type != extra[i] {
			return s, nil, fmt.Errorf("%w: a block of another type than %s", ErrDamaged, extra[i])
		}
	}
	if again, err := EncodeSVID(s, more...); err != nil || !bytes.Equal(again, data) {
		return s, nil, fmt.Errorf("%w: not as it was written", ErrDamaged)
	}
	return s, more, nil
}

// ParseCertificate reads one certificate of bounded size.
func ParseCertificate(der []byte) (*x509.Certificate, error) {
	if len(der) > internalidentity.MaxCertificateBytes {
		return nil, fmt.Errorf("a certificate of %d bytes, limit %d", len(der), internalidentity.MaxCertificateBytes)
	}
	return x509.ParseCertificate(der)
}

// ParseChain reads a chain of n certificates, the leaf first.
func ParseChain(ders [][]byte, n int) ([]*x509.Certificate, error) {
	if len(ders) != n {
		return nil, fmt.Errorf("a chain of %d certificates, want %d: leaf, mesh CA, root", len(ders), n)
	}
	chain := make([]*x509.Certificate, n)
	for i, der := range ders {
		c, err := ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of the chain: %w", i+1, err)
		}
		chain[i] = c
	}
	return chain, nil
}

// RawChain returns the DER of a chain.
func RawChain(chain []*x509.Certificate) [][]byte {
	out := make([][]byte, len(chain))
	for i, c := range chain {
		out[i] = c.Raw
	}
	return out
}
