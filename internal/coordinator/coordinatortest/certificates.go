package coordinatortest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki/enterprise"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
)

// CorpFiles are the three files of a coordinator, and what writes a certificate of a PKI
// into them.
type CorpFiles struct {
	t     testing.TB
	Paths credential.FilePaths
}

// NewCorpFiles writes the files of a certificate of pki that names name.
func NewCorpFiles(t testing.TB, pki *pkitest.PKI, name string) *CorpFiles {
	t.Helper()
	dir := t.TempDir()
	f := &CorpFiles{t, credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}}
	f.Write(pki, name)
	return f
}

// Write puts a certificate that names name into the files.
func (f *CorpFiles) Write(pki *pkitest.PKI, name string) {
	f.t.Helper()
	f.Edit(pki, CommonName(name))
}

// Edit puts a certificate into the files that edit changed before it was signed.
func (f *CorpFiles) Edit(pki *pkitest.PKI, edit func(*x509.Certificate)) {
	f.t.Helper()
	key := pkitest.NewKey(f.t)
	f.Put(f.Paths.Cert, pkitest.PEM(pki.Issue(f.t, key, edit)...))
	f.Put(f.Paths.Key, pkitest.KeyPEM(f.t, key))
	f.Put(f.Paths.CA, pkitest.PEM(pki.Root.Cert))
}

// Put writes one file whole, as an operator's tool does.
func (f *CorpFiles) Put(path string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// Certificate is what a coordinator with these files shows.
func (f *CorpFiles) Certificate() *enterprise.Certificate {
	f.t.Helper()
	files, err := enterprise.Open(credential.FilesConfig{Paths: f.Paths})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := enterprise.NewCertificate(f.t.Context(), files)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// ByCertificate is m with one entry for all coordinators, by x509, under the roots of pki.
func ByCertificate(m []byte, pki *pkitest.PKI) []byte {
	var out []string
	for line := range strings.Lines(string(m)) {
		switch {
		case strings.Contains(line, "kind: coordinator"):
		case strings.HasPrefix(line, "admit:"):
			out = append(out, line,
				"  - {name: coordinators, kind: coordinator, match: [\"x509:subject:CN=coordinator-*\"]}\n")
		default:
			out = append(out, line)
		}
	}
	entries := CorpEntries(pki)
	return []byte(strings.Join(out, "") + entries[strings.Index(entries, "proofs:"):])
}

// CorpFleet is a ready coordinator and n that never ran, which the manifest admits by
// their certificates alone: a, b and so on. Each has a folder and files of its own. No
// keeper holds the seed.
func CorpFleet(t testing.TB, n int) (pki *pkitest.PKI, f *Fleet, rs []*Fleet,
	files []*CorpFiles) {
	t.Helper()
	pki = pkitest.NewPKI(t, "corp", nil)
	files = []*CorpFiles{NewCorpFiles(t, pki, "coordinator-a")}
	f = NewFleet(t, func(c *coordinator.Config) { c.TLS = files[0].Paths })
	for i := range n {
		r, own := NewReplica(t, f), NewCorpFiles(t, pki, "coordinator-"+string(rune('b'+i)))
		r.Config = func(c *coordinator.Config) { c.TLS = own.Paths }
		files = append(files, own)
	}
	f.People = NewPeople(t, "alice", "bob")
	WantOnlyNil(t, f.Set(WithSeed(ByCertificate(f.Manifest(""), pki), f.People.Seed(1, ""))))
	AwaitReplica(f, func(r peer.Record) bool { return r.Phase == "ready" })
	return pki, f, f.Replicas, files
}

// VouchBy is what another key than the certificate's makes of it.
func VouchBy(t testing.TB, of *enterprise.Certificate, key *ecdsa.PrivateKey, claim string, said [64]byte) []byte {
	t.Helper()
	good, err := of.Vouch(claim, said)
	WantOnlyNil(t, err)
	pki := pkitest.NewPKI(t, "mine", nil)
	own, err := proof.Vouch(proof.X509Credential{Chain: pki.Issue(t, key, CommonName("coordinator-b")), Key: key},
		claim, said)
	WantOnlyNil(t, err)
	// The chain of one with the signature of the other, which is the last part of both.
	part := func(v []byte) int { // where the signature begins
		at := 1
		for range int(v[0]) {
			at += 2 + int(v[at])<<8 + int(v[at+1])
		}
		return at
	}
	return append(good[:part(good):part(good)], own[part(own):]...)
}

// TwoNames are common names of a subject, in their order.
func TwoNames(names ...string) []pkix.AttributeTypeAndValue {
	var out []pkix.AttributeTypeAndValue
	for _, n := range names {
		out = append(out, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
	}
	return out
}

// CorpEntries admit by the names of an operator's PKI.
func CorpEntries(pki *pkitest.PKI) string {
	return `  - name: racks
    kind: data
    match: ["x509:subject:CN=node-*", "x509:dns:*.nodes.example"]
    organizations: [acme]
  - {name: watchers, kind: witness, match: ["x509:uri:spiffe://corp.example/watcher/*"]}
  - {name: alice, kind: admin, match: ["x509:subject:CN=alice"]}
proofs:
  x509:
    roots_pem: |
      ` + strings.ReplaceAll(strings.TrimSpace(string(pkitest.PEM(pki.Root.Cert))), "\n", "\n      ") + "\n"
}

// CommonName gives a certificate a subject of this name alone.
func CommonName(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.CommonName = name }
}

// Certified makes a certificate with these URI SANs by the mesh CA of a state,
// past the issuer's checks: a certificate that Fealty itself would never make.
func Certified(t testing.TB, s *authority.State, uris ...string) ([]*x509.Certificate, any) {
	t.Helper()
	ca := s.MeshCA()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	ski, err := internalidentity.SubjectKeyID(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute).Truncate(time.Second),
		NotAfter:              time.Now().Add(time.Hour).Truncate(time.Second),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, SubjectKeyId: ski, SignatureAlgorithm: x509.ECDSAWithSHA256,
	}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, parsed)
		if strings.Contains(u, "/"+string(identity.Workload)+"/") { // of which everybody wants to know who vouches
			template.Subject.CommonName = internalidentity.VoucherName("data/voucher", (identity.KeyID{1}).String())
		}
	}
	if len(uris) == 0 {
		template.DNSNames = []string{"nobody.example"} // a leaf needs some name
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Certificate(), key.Public(), ca.Key())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{leaf, ca.Certificate()}, key
}

// CorpProver returns a prover of a certificate of pki, with what edit puts into it.
func CorpProver(t testing.TB, pki *pkitest.PKI, edit func(*x509.Certificate)) proof.Prover {
	t.Helper()
	key := pkitest.NewKey(t)
	return ProverOf(pki.Issue(t, key, edit), key)
}

// ProverOf returns a prover of a certificate of somebody else, with its chain and key.
func ProverOf(chain []*x509.Certificate, key crypto.Signer) proof.Prover {
	return proof.NewX509Prover(func(context.Context) (proof.X509Credential, error) {
		return proof.X509Credential{Chain: chain, Key: key}, nil
	})
}
