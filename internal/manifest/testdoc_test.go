package manifest_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/fealty-io/fealty/internal/manifest"
)

// doc is a manifest in parts, so that a test can spoil one of them.
type doc struct {
	cluster, seed, signers, proofs, admit, rest string
}

func (d doc) String() string {
	return d.cluster + d.seed + d.signers + d.proofs + d.admit + d.rest
}

func newKey(t testing.TB) manifest.Key {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := manifest.NewKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newRecipient(t testing.TB) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.Recipient().String()
}

func newRoot(t testing.TB, ca bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "corp root"},
		NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func indent(s string, by int) string {
	return strings.Repeat(" ", by) + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n"+strings.Repeat(" ", by)) + "\n"
}

var measurement = strings.Repeat("ab", 48)

// newDoc returns a whole manifest, with keys made now.
func newDoc(t testing.TB) doc {
	return doc{
		cluster: "cluster: prod.example\n",
		seed: "seed:\n  threshold: 2\n  owners:\n" +
			"    - {name: alice, recipient: " + newRecipient(t) + "}\n" +
			"    - {name: bob, recipient: " + newRecipient(t) + "}\n" +
			"    - {name: kms, keeper: \"exec:/usr/local/bin/unwrap-seed\"}\n",
		signers: "signers:\n  threshold: 1\n  keys: [{name: alice, key: \"" + newKey(t).String() + "\"}]\n",
		proofs: "proofs:\n  x509:\n    roots_pem: |\n" + indent(newRoot(t, true), 6) +
			"  sevsnp: {measurements: [" + measurement + "], min_tcb: {snp: 8}}\n",
		admit: `admit:
  - {name: coordinators, kind: coordinator, match: ["x509:subject:CN=coordinator-*"]}
  - {name: node-c, kind: data, match: ["x509:subject:CN=node-c"], roles: [ingress], organizations: [acme]}
  - {name: edge-pool, kind: data, match: ["token:edge-pool"], max_members: 1000, svid_ttl: 72h, dns_names: []}
  - {name: alice, kind: admin, match: ["x509:subject:CN=alice"]}
`,
		rest: "trust: root\ndegraded: {allow: [continue_services, preserve_routes, reconnect_peers], max: 24h, route_ttl: 1h}\n",
	}
}

// mustAccept reads a manifest that holds what is refused since.
func mustAccept(t testing.TB, text string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.ParseAccepted([]byte(text))
	if err != nil {
		t.Fatalf("ParseAccepted: %v\n%s", err, text)
	}
	return m
}

func mustParse(t testing.TB, text string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, text)
	}
	return m
}
