package coordinatortest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/enrolment"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/tlsfiles"
	"github.com/fealty-io/fealty/mesh"
)

// CorpFiles are the three files of a coordinator, and what writes a certificate of a PKI
// into them.
type CorpFiles struct {
	t     testing.TB
	Paths credential.FilePaths
}

func NewCorpFiles(t testing.TB, pki *identitytest.PKI, name string) *CorpFiles {
	t.Helper()
	dir := t.TempDir()
	f := &CorpFiles{t, credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}}
	f.Write(pki, name)
	return f
}

func (f *CorpFiles) Write(pki *identitytest.PKI, name string) {
	f.t.Helper()
	f.Edit(pki, CommonName(name))
}

func (f *CorpFiles) Edit(pki *identitytest.PKI, edit func(*x509.Certificate)) {
	f.t.Helper()
	key := identitytest.NewKey(f.t)
	f.Put(f.Paths.Cert, identitytest.PEM(pki.Issue(f.t, key, edit)...))
	f.Put(f.Paths.Key, identitytest.KeyPEM(f.t, key))
	f.Put(f.Paths.CA, identitytest.PEM(pki.Root.Cert))
}

func (f *CorpFiles) Put(path string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// Certificate is what a coordinator with these files shows.
func (f *CorpFiles) Certificate() *enrolment.Certificate {
	f.t.Helper()
	files, err := tlsfiles.Open(credential.FilesConfig{Paths: f.Paths})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := enrolment.New(f.t.Context(), files)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// ByCertificate is m with one entry for all coordinators, by x509, under the roots of pki.
func ByCertificate(m []byte, pki *identitytest.PKI) []byte {
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
func CorpFleet(t testing.TB, n int) (pki *identitytest.PKI, f *Fleet, rs []*Fleet,
	files []*CorpFiles) {
	t.Helper()
	pki = identitytest.NewPKI(t, "corp", nil)
	files = []*CorpFiles{NewCorpFiles(t, pki, "coordinator-a")}
	f = NewFleet(t, func(c *coordinator.Config) { c.TLS = files[0].Paths })
	for i := range n {
		r, own := NewReplica(t, f), NewCorpFiles(t, pki, "coordinator-"+string(rune('b'+i)))
		r.Config = func(c *coordinator.Config) { c.TLS = own.Paths }
		files = append(files, own)
	}
	f.People = NewPeople(t, "alice", "bob")
	WantOnlyNil(t, f.Set(WithSeed(ByCertificate(f.Manifest(""), pki), f.People.Seed(1, ""))))
	AwaitReplica(f, func(r replicas.Record) bool { return r.Phase == "ready" })
	return pki, f, f.Replicas, files
}

// VouchBy is what another key than the certificate's makes of it.
func VouchBy(t testing.TB, of *enrolment.Certificate, key *ecdsa.PrivateKey, claim string, said [64]byte) []byte {
	t.Helper()
	good, err := of.Vouch(claim, said)
	WantOnlyNil(t, err)
	pki := identitytest.NewPKI(t, "mine", nil)
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

// AskRaw asks f for the secrets of its head by a client of its own.
func AskRaw(f, r *Fleet, key ed25519.PrivateKey, certificates [][]byte,
	vouch func(said [64]byte) []byte) error {
	f.T.Helper()
	conn, err := DialUnproven(f.Addr)
	WantOnlyNil(f.T, err)
	defer conn.Close()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Recover(f.Context())
	WantOnlyNil(f.T, err)
	s := f.C.Rooms().Head.State()
	t := proof.PeerTranscript{Purpose: proof.Recover, Cluster: Cluster, Head: s.Head.Hash[:],
		AskerNonce: make([]byte, proof.NonceBytes),
		AskerKey:   key.Public().(ed25519.PublicKey), Recipient: f.People.Keys["alice"].Recipient().String()}
	rand.Read(t.AskerNonce)
	hello := &fealtyv1.PeerHello{Cluster: t.Cluster, Head: t.Head, Nonce: t.AskerNonce, Key: proof.KeyClaim(t.AskerKey),
		Recipient: t.Recipient, Certificates: certificates}
	WantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{Step: &fealtyv1.PeerServiceRecoverRequest_Hello{Hello: hello}}))
	m, err := stream.Recv()
	if err != nil {
		return explain.Of(err)
	}
	cs, _ := mesh.ConnectionState(stream.Context())
	t.Binding, err = proof.Binding(cs)
	WantOnlyNil(f.T, err)
	t.GiverNonce = m.GetChallenge().GetNonce()
	t.GiverKey, err = proof.ParseKeyClaim(m.GetChallenge().GetKey())
	WantOnlyNil(f.T, err)
	evidence, err := proof.ProvePeer(key, proof.Asker, t)
	WantOnlyNil(f.T, err)
	said, err := t.Digest(proof.Asker)
	WantOnlyNil(f.T, err)
	WantOnlyNil(f.T,
		stream.Send(&fealtyv1.PeerServiceRecoverRequest{
			Step: &fealtyv1.PeerServiceRecoverRequest_Evidence{Evidence: evidence}, X509: vouch(said)}))
	if m, err = stream.Recv(); err != nil {
		return explain.Of(err)
	}
	if m.GetSecrets() == nil {
		return errors.New("the answer holds no secrets")
	}
	return nil
}

func TwoNames(names ...string) []pkix.AttributeTypeAndValue {
	var out []pkix.AttributeTypeAndValue
	for _, n := range names {
		out = append(out, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: n})
	}
	return out
}

// CorpEntries admit by the names of an operator's PKI.
func CorpEntries(pki *identitytest.PKI) string {
	return `  - name: racks
    kind: data
    match: ["x509:subject:CN=node-*", "x509:dns:*.nodes.example"]
    organizations: [acme]
  - {name: watchers, kind: witness, match: ["x509:uri:spiffe://corp.example/watcher/*"]}
  - {name: alice, kind: admin, match: ["x509:subject:CN=alice"]}
proofs:
  x509:
    roots_pem: |
      ` + strings.ReplaceAll(strings.TrimSpace(string(identitytest.PEM(pki.Root.Cert))), "\n", "\n      ") + "\n"
}

func CommonName(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.CommonName = name }
}

// EnrolledAs returns an enrolment as f's coordinator would have it with another key or certificate.
func EnrolledAs(f *Fleet, key ed25519.PrivateKey, cert *enrolment.Certificate) *authority.Enrolment {
	return authority.NewEnrolment(authority.EnrolmentConfig{
		FS: durable.OS(), Log: slog.New(slog.DiscardHandler), Now: f.Clock, DataDir: f.T.TempDir(),
		Addresses: []string{f.Addr}, Key: key, Certificate: cert,
	})
}
