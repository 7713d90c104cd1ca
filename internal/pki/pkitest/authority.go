// Package pkitest makes throwaway authorities and certificates for tests, and has the test cases
// that every credential source has to pass.
//
// An [Authority] mints what a cluster's own CA would: chains that [identity.Bundle.Verify] accepts.
// [Authority.IssueRaw] mints what it never would, with verbatim names and extensions. Keys are made
// when they are asked for, and forgotten with the test.
package pkitest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/identity/certtest"
)

// leafTTL is how long a leaf lives unless an option says otherwise. It is backdated by
// backdate, as are its issuers.
const (
	leafTTL  = 25 * time.Hour
	backdate = 30 * time.Second
)

// CA is a certificate and its key.
type CA struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
}

// KeyID returns the id of the CA's key.
func (c CA) KeyID() identity.KeyID { return identity.KeyOf(c.Cert) }

// Authority is a root and its mesh CAs. It is not safe for concurrent use while
// [Authority.AddMeshCA] runs.
type Authority struct {
	cluster string
	now     func() time.Time
	root    CA
	mesh    []CA // the last one signs
}

// Option changes how an authority is made.
type Option func(*Authority)

// WithClock makes the authority date certificates by now; without it, by time.Now.
func WithClock(now func() time.Time) Option { return func(a *Authority) { a.now = now } }

// NewAuthority makes a root and one mesh CA for cluster.
func NewAuthority(tb testing.TB, cluster string, opts ...Option) *Authority {
	tb.Helper()
	if err := identity.CheckCluster(cluster); err != nil {
		tb.Fatalf("pkitest: %v", err)
	}
	a := &Authority{cluster: cluster, now: time.Now}
	for _, opt := range opts {
		opt(a)
	}
	key := NewKey(tb)
	template := a.caTemplate(tb, "root of "+cluster, 10*365*24*time.Hour, 1, key.Public())
	a.root = CA{Sign(tb, template, template, key.Public(), key), key}
	a.AddMeshCA(tb)
	return a
}

// AddMeshCA makes another mesh CA under the same root. It signs from now on; bundles
// accept the earlier ones too.
func (a *Authority) AddMeshCA(tb testing.TB) CA {
	tb.Helper()
	key := NewKey(tb)
	template := a.caTemplate(tb, "mesh CA of "+a.cluster, internalidentity.MaxMeshCALifetime/2, 0, key.Public())
	ca := CA{Sign(tb, template, a.root.Cert, key.Public(), a.root.Key), key}
	a.mesh = append(a.mesh, ca)
	return ca
}

func (a *Authority) caTemplate(tb testing.TB, name string, life time.Duration, pathLen int,
	pub crypto.PublicKey) *x509.Certificate {
	tb.Helper()
	notBefore := a.now().Add(-backdate).Truncate(time.Second)
	return &x509.Certificate{
		SerialNumber:          NewSerial(tb),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(life),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            pathLen,
		MaxPathLenZero:        pathLen == 0,
		SubjectKeyId:          certtest.SubjectKeyID(tb, pub),
	}
}

// Cluster returns the name that the authority was made for.
func (a *Authority) Cluster() string { return a.cluster }

// Root returns the root.
func (a *Authority) Root() CA { return a.root }

// MeshCA returns the mesh CA that signs now.
func (a *Authority) MeshCA() CA { return a.mesh[len(a.mesh)-1] }

// ID returns the identity of name as kind in the authority's cluster.
func (a *Authority) ID(tb testing.TB, kind identity.Kind, name string) identity.ID {
	tb.Helper()
	id, err := identity.New(a.cluster, kind, name)
	if err != nil {
		tb.Fatalf("pkitest: %v", err)
	}
	return id
}

// BundleConfig returns what a member of the cluster believes: the root, and every mesh
// CA made so far.
func (a *Authority) BundleConfig() identity.BundleConfig {
	cfg := identity.BundleConfig{Cluster: a.cluster, Roots: []*x509.Certificate{a.root.Cert}}
	for _, ca := range a.mesh {
		cfg.MeshKeys = append(cfg.MeshKeys, ca.KeyID())
	}
	return cfg
}

// Bundle returns [Authority.BundleConfig] as a bundle, after edits to it (bans, roots of
// another authority). It panics if an edit makes it invalid.
func (a *Authority) Bundle(edits ...func(*identity.BundleConfig)) *identity.Bundle {
	cfg := a.BundleConfig()
	for _, edit := range edits {
		edit(&cfg)
	}
	b, err := identity.NewBundle(cfg)
	if err != nil {
		panic("pkitest: " + err.Error())
	}
	return b
}

// IssueOption changes a leaf before it is signed.
type IssueOption func(*issue)

type issue struct {
	key      crypto.Signer
	ca       *CA
	template *x509.Certificate
}

// WithKey issues for key, ECDSA P-256 or Ed25519, instead of a new P-256 key.
func WithKey(key crypto.Signer) IssueOption { return func(i *issue) { i.key = key } }

// WithMeshCA has ca sign instead of the newest mesh CA.
func WithMeshCA(ca CA) IssueOption { return func(i *issue) { i.ca = &ca } }

// WithValidity sets both bounds.
func WithValidity(notBefore, notAfter time.Time) IssueOption {
	return func(i *issue) { i.template.NotBefore, i.template.NotAfter = notBefore, notAfter }
}

// WithTTL makes the leaf expire ttl from now.
func WithTTL(ttl time.Duration) IssueOption {
	return func(i *issue) { i.template.NotAfter = i.template.NotBefore.Add(backdate + ttl) }
}

// Expired issues a leaf that ended an hour ago.
func Expired() IssueOption {
	return func(i *issue) {
		i.template.NotAfter = i.template.NotBefore.Add(-time.Hour)
		i.template.NotBefore = i.template.NotAfter.Add(-leafTTL)
	}
}

// NotYetValid issues a leaf that begins in an hour.
func NotYetValid() IssueOption {
	return func(i *issue) {
		i.template.NotBefore = i.template.NotBefore.Add(backdate + time.Hour)
		i.template.NotAfter = i.template.NotBefore.Add(leafTTL)
	}
}

// WithDNSNames adds DNS names, which identify nobody.
func WithDNSNames(names ...string) IssueOption {
	return func(i *issue) { i.template.DNSNames = append(i.template.DNSNames, names...) }
}

// WithTemplate edits the template last, however it likes.
func WithTemplate(edit func(*x509.Certificate)) IssueOption {
	return func(i *issue) { edit(i.template) }
}

// Issue mints a leaf for id, of any cluster, and returns it with its mesh CA, and its key.
// Member data/voucher vouches for a workload, with a key whose id is 01 and zeros.
func (a *Authority) Issue(tb testing.TB, id identity.ID, opts ...IssueOption) ([]*x509.Certificate, crypto.Signer) {
	tb.Helper()
	return a.issue(tb, append([]IssueOption{WithTemplate(func(c *x509.Certificate) {
		c.URIs = append(c.URIs, id.URL())
		if id.Kind() == identity.Workload {
			c.Subject.CommonName = internalidentity.VoucherName("data/voucher", (identity.KeyID{1}).String())
		}
	})}, opts...))
}

// IssueRaw mints a leaf without any name but what edit gives it: URIs verbatim, several,
// none, or anything else in the template. For names that no URL can hold, set the
// extension with [AltNames].
func (a *Authority) IssueRaw(tb testing.TB, edit func(template *x509.Certificate),
	opts ...IssueOption) ([]*x509.Certificate, crypto.Signer) {
	tb.Helper()
	return a.issue(tb, append(opts, WithTemplate(edit)))
}

func (a *Authority) issue(tb testing.TB, opts []IssueOption) ([]*x509.Certificate, crypto.Signer) {
	tb.Helper()
	notBefore := a.now().Add(-backdate).Truncate(time.Second)
	i := &issue{template: &x509.Certificate{
		SerialNumber:          NewSerial(tb),
		Subject:               pkix.Name{CommonName: "leaf"},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(leafTTL),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}}
	for _, opt := range opts {
		opt(i)
	}
	if i.key == nil {
		i.key = NewKey(tb)
	}
	ca := a.MeshCA()
	if i.ca != nil {
		ca = *i.ca
	}
	if i.template.SubjectKeyId == nil {
		i.template.SubjectKeyId = certtest.SubjectKeyID(tb, i.key.Public())
	}
	leaf := Sign(tb, i.template, ca.Cert, i.key.Public(), ca.Key)
	return []*x509.Certificate{leaf, ca.Cert}, i.key
}

// Sign signs template for pub and parses the result.
func Sign(tb testing.TB, template, issuer *x509.Certificate, pub crypto.PublicKey,
	key crypto.Signer) *x509.Certificate {
	tb.Helper()
	return certtest.Sign(tb, template, issuer, pub, key)
}

// TLS returns chain and key as crypto/tls takes them.
func TLS(chain []*x509.Certificate, key crypto.Signer) tls.Certificate {
	cert := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	if len(chain) > 0 {
		cert.Leaf = chain[0]
	}
	return cert
}

// AltNames returns a subject alternative name extension that holds exactly these URIs,
// spelled as given. Put it into ExtraExtensions of a template without other names.
func AltNames(uris ...string) pkix.Extension { return certtest.AltNames(uris...) }

// NewKey makes a P-256 key.
func NewKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	return certtest.NewKey(tb)
}

// NewEd25519Key makes an Ed25519 key.
func NewEd25519Key(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatalf("pkitest: making a key: %v", err)
	}
	return key
}

// NewSerial returns a random positive serial number of 16 bytes.
func NewSerial(tb testing.TB) *big.Int {
	tb.Helper()
	return certtest.NewSerial(tb)
}

// Unlike is another certificate of the key of like, which is root or a CA below it, made by root's key: the same but for
// its use, which is one thing more than any profile allows.
func Unlike(like, root *x509.Certificate, rootKey crypto.Signer) (*x509.Certificate, error) {
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: like.SerialNumber, RawSubject: like.RawSubject, NotBefore: like.NotBefore, NotAfter: like.NotAfter,
		KeyUsage: like.KeyUsage | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLen: like.MaxPathLen, MaxPathLenZero: like.MaxPathLenZero, SubjectKeyId: like.SubjectKeyId,
	}, root, like.PublicKey, rootKey)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(raw)
}
