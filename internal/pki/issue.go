package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// MaxTTL bounds a leaf's lifetime from now; it is backdated on top.
const MaxTTL = internalidentity.MaxLeafLifetime - Backdate

var (
	// ErrRequest is matched by every [*RequestError].
	ErrRequest = errors.New("certificate cannot be issued as asked")

	// ErrMeshExpired is matched when the mesh CA is not in date: nothing that it
	// signs would be accepted. The remedy is a new one, by a rekey.
	ErrMeshExpired = errors.New("mesh CA is out of date")
)

// RequestError says which field of a [Request] cannot be granted. Its cause is in
// this process: what peers ask for never gets this far.
type RequestError struct {
	Field  string
	Detail string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("pki: cannot issue a certificate: %s %s", e.Field, e.Detail)
}

// Is reports that a RequestError matches [ErrRequest].
func (e *RequestError) Is(target error) bool { return target == ErrRequest }

// Request says what leaf to issue.
type Request struct {
	// PublicKey is what [ParseCSR] returned. Required.
	PublicKey crypto.PublicKey

	// ID is the one identity, of the issuer's cluster. Required.
	ID identity.ID

	// Voucher is the common name of a workload's leaf: the member that vouches for it, by
	// internalidentity.VoucherName. Required for a workload, and for nobody else.
	Voucher string

	// TTL is how long the leaf lives from now, in whole seconds: 1 to [MaxTTL]. The mesh
	// CA's end cuts it.
	TTL time.Duration

	// DNSNames and IPs are for browsers and https_web, and identify nobody. Names are
	// in lower case, without a wildcard; addresses without a zone. Together with the
	// identity at most identity.MaxAltNames.
	DNSNames []string
	IPs      []netip.Addr
}

// Issuer issues leaves under one mesh CA. It may be used concurrently.
type Issuer struct {
	mesh    *MeshCA
	cluster string
}

// NewIssuer returns the issuer of leaves for identities of cluster.
func NewIssuer(mesh *MeshCA, cluster string) (*Issuer, error) {
	if mesh == nil {
		return nil, errors.New("pki: an issuer needs a mesh CA")
	}
	if err := identity.CheckCluster(cluster); err != nil {
		return nil, fmt.Errorf("pki: making an issuer: %w", err)
	}
	if _, err := checkCAKey(mesh.key(), mesh.cert); err != nil {
		return nil, err
	}
	return &Issuer{mesh: mesh, cluster: cluster}, nil
}

// MeshCA returns the mesh CA under which the issuer signs.
func (i *Issuer) MeshCA() *MeshCA { return i.mesh }

// Issue signs a leaf for r: an X509-SVID, valid from [Backdate] before now, with a
// random serial number. The caller sends it with the mesh CA's certificate.
//
// Errors: [*RequestError]; [ErrMeshExpired]; [*LintError] or *identity.ChainError
// from the lint, which after a good request is a bug.
func (i *Issuer) Issue(r Request, now time.Time) (*x509.Certificate, error) {
	if err := i.check(r); err != nil {
		return nil, err
	}
	mesh := i.mesh.cert
	if now.Before(mesh.NotBefore) || !now.Before(mesh.NotAfter) {
		return nil, fmt.Errorf("pki: the mesh CA is valid from %s to %s, and it is %s here: check the clock, or rotate the mesh CA: %w",
			mesh.NotBefore.Format(time.RFC3339), mesh.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339), ErrMeshExpired)
	}
	template, spki, err := leafTemplate(mesh, r, now)
	if err != nil {
		return nil, err
	}
	tbs, err := encodeLeaf(template, mesh, spki)
	if err != nil {
		return nil, err
	}
	return leafGuard(i.mesh, r, now).certify(tbs)
}

// leafTemplate is what r asks for, and the SubjectPublicKeyInfo of its key.
func leafTemplate(mesh *x509.Certificate, r Request, now time.Time) (_ *x509.Certificate, spki []byte, err error) {
	keyID := subjectKeyID(r.PublicKey)
	if keyID == nil {
		return nil, nil, &RequestError{"PublicKey", fmt.Sprintf("is of type %T, want *ecdsa.PublicKey or ed25519.PublicKey", r.PublicKey)}
	}
	if spki, err = x509.MarshalPKIXPublicKey(r.PublicKey); err != nil {
		return nil, nil, &RequestError{"PublicKey", "cannot be encoded"}
	}
	notBefore, notAfter := within(mesh, now, r.TTL)
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		SignatureAlgorithm:    x509.ECDSAWithSHA256,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		SubjectKeyId:          keyID,
		URIs:                  []*url.URL{r.ID.URL()},
		DNSNames:              r.DNSNames,
		IPAddresses:           addresses(r.IPs),
		Subject:               pkix.Name{CommonName: r.Voucher},
	}, spki, nil
}

// leafGuard signs with the mesh CA's key leaves that are what r asks for.
func leafGuard(mesh *MeshCA, r Request, now time.Time) *guardedSigner {
	return &guardedSigner{key: mesh.key(), lint: func(c *x509.Certificate) error {
		if err := refused(internalidentity.CheckLeaf(c, now)); err != nil {
			return err
		}
		in := lintInput{cert: c, issuer: mesh.cert, key: r.PublicKey, request: r}
		if err := lint(linkLints, in); err != nil {
			return err
		}
		return lint(leafLints, in)
	}}
}

// check refuses what the lint would refuse too, with words for who called.
func (i *Issuer) check(r Request) error {
	switch {
	case r.PublicKey == nil:
		return &RequestError{"PublicKey", "is missing"}
	case r.ID.IsZero():
		return &RequestError{"ID", "is missing"}
	case r.ID.Cluster() != i.cluster:
		return &RequestError{"ID", fmt.Sprintf("is %v, of another cluster than %s", r.ID, i.cluster)}
	case (r.ID.Kind() == identity.Workload) != (r.Voucher != ""):
		return &RequestError{"Voucher", fmt.Sprintf("is %q for %v; a workload has one, and nobody else", r.Voucher,
			r.ID)}
	case r.TTL < time.Second || r.TTL > MaxTTL:
		return &RequestError{"TTL", fmt.Sprintf("is %v, want at least 1s and at most %v", r.TTL, MaxTTL)}
	}
	if n := 1 + len(r.DNSNames) + len(r.IPs); n > internalidentity.MaxAltNames {
		return &RequestError{"DNSNames and IPs", fmt.Sprintf("make %d names with the identity, at most %d are allowed",
			n, internalidentity.MaxAltNames)}
	}
	for _, name := range r.DNSNames {
		if !isHostName(name) {
			return &RequestError{"DNSNames", fmt.Sprintf("holds %q, want a host name in lower case, without a wildcard", name)}
		}
	}
	for _, ip := range r.IPs {
		if !ip.IsValid() || ip.Zone() != "" {
			return &RequestError{"IPs", fmt.Sprintf("holds %q, want an address without a zone", ip)}
		}
	}
	return nil
}

// lintInput is what a row of the lint tables sees.
type lintInput struct {
	cert, issuer *x509.Certificate
	key          crypto.PublicKey // that was asked to be certified
	request      Request          // for leaves
}

// lintRule is a row: check returns "" or what is wrong.
type lintRule struct {
	name, section string
	check         func(in lintInput) string
}

func lint(rules []lintRule, in lintInput) error {
	for _, r := range rules {
		if detail := r.check(in); detail != "" {
			return &LintError{r.name, r.section, detail}
		}
	}
	return nil
}

// linkLints tie a certificate to its issuer and to the key that was asked for.
var linkLints = []lintRule{
	{"issuer-name", "RFC 5280 §6.1.3 (a)(4)", func(in lintInput) string {
		if !bytes.Equal(in.cert.RawIssuer, in.issuer.RawSubject) {
			return "its issuer's name is not that of the issuer"
		}
		return ""
	}},
	{"issuer-key-id", "RFC 5280 §4.2.1.1", func(in lintInput) string {
		if !bytes.Equal(in.cert.AuthorityKeyId, in.issuer.SubjectKeyId) {
			return "its issuer's key is not that of the issuer"
		}
		return ""
	}},
	{"within-issuer", "no certificate outlives its issuer", func(in lintInput) string {
		if in.cert.NotBefore.Before(in.issuer.NotBefore) || in.cert.NotAfter.After(in.issuer.NotAfter) {
			return fmt.Sprintf("valid from %v to %v, and its issuer from %v to %v", in.cert.NotBefore, in.cert.NotAfter, in.issuer.NotBefore, in.issuer.NotAfter)
		}
		return ""
	}},
	{"key", "RFC 5280 §4.1.2.7", func(in lintInput) string {
		// That the key is in its one encoding is a rule of the profiles.
		if key, ok := in.cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(in.key) {
			return "it is for another key than that which was asked for"
		}
		return ""
	}},
}

// leafLints tie a leaf to its request.
var leafLints = []lintRule{
	{"identity", "X509-SVID §2", func(in lintInput) string {
		switch id, err := identity.FromCertificate(in.cert); {
		case err != nil:
			return err.Error()
		case id != in.request.ID:
			return fmt.Sprintf("it identifies %v, want %v", id, in.request.ID)
		}
		return ""
	}},
	{"no-subject", "X509-SVID §2", func(in lintInput) string {
		// A name there identifies nobody, and someone would believe that it does. That of a
		// workload says who vouches for it.
		if len(in.cert.Subject.Names) != 0 && in.request.Voucher == "" ||
			in.cert.Subject.CommonName != in.request.Voucher {
			return "it has a subject that was not asked for"
		}
		if in.request.Voucher != "" {
			if _, _, err := identity.VoucherOf(in.cert); err != nil {
				return err.Error()
			}
		}
		return ""
	}},
	{"dns-names", "RFC 5280 §4.2.1.6", func(in lintInput) string {
		if !slices.Equal(in.cert.DNSNames, in.request.DNSNames) {
			return "its DNS names are not those asked for"
		}
		return ""
	}},
	{"addresses", "RFC 5280 §4.2.1.6", func(in lintInput) string {
		if !slices.EqualFunc(in.cert.IPAddresses, addresses(in.request.IPs), net.IP.Equal) {
			return "its addresses are not those asked for"
		}
		return ""
	}},
	{"ttl", "manifest: svid_ttl", func(in lintInput) string {
		if life := in.cert.NotAfter.Sub(in.cert.NotBefore); life > in.request.TTL+Backdate {
			return fmt.Sprintf("it lives for %v, asked for were %v", life, in.request.TTL)
		}
		return ""
	}},
}

// subjectKeyID is identity.SubjectKeyID for the two kinds of key that leaves have,
// without its way through DER; nil for others. The lint compares the two.
func subjectKeyID(pub crypto.PublicKey) []byte {
	var raw []byte
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		var err error
		if raw, err = pub.Bytes(); err != nil {
			return nil
		}
	case ed25519.PublicKey:
		raw = pub
	default:
		return nil
	}
	sum := sha256.Sum256(raw)
	return sum[:20]
}

func addresses(ips []netip.Addr) []net.IP {
	var out []net.IP
	for _, ip := range ips {
		out = append(out, ip.Unmap().AsSlice())
	}
	return out
}

// isHostName reports whether s is a host name (RFC 1123 §2.1) in lower case: labels
// of 1 to 63 letters, digits and inner hyphens, 253 bytes in all. One whose last
// label is all digits would be read as an address.
func isHostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}
