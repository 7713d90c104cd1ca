package identitytest_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
)

// What is made stands for members by the rules of the cluster, and by those of crypto/tls as server and as client.
func TestLeavesServeAndDial(t *testing.T) {
	ca := identitytest.NewCA(t, "prod.example")
	files := ca.WriteFiles(t, t.TempDir(), identitytest.Leaf{URIs: []string{"spiffe://prod.example/shard/eu-1"}})
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(files.CA)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatal("no root in ", files.CA, err)
	}
	if info, err := os.Stat(files.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	server := tls.Server(a, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots})
	go func() { served <- server.Handshake() }()
	client := tls.Client(b, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true, // a member is known by its URI: the usages are what is looked at here
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			between.AddCert(s.PeerCertificates[1])
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			return err
		}})
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// Names and times are those that a test asks for, whatever they are worth.
func TestLeavesAreVerbatim(t *testing.T) {
	ca, other := identitytest.NewCA(t, "prod.example"), identitytest.NewCA(t, "prod.example")
	now := time.Now()
	for _, row := range []struct {
		name   string
		leaf   identitytest.Leaf
		bundle *identity.Bundle
		good   bool
	}{
		{"a member", identitytest.Leaf{URIs: []string{"spiffe://prod.example/data/a"}}, ca.Bundle(t), true},
		{"no name", identitytest.Leaf{}, ca.Bundle(t), false},
		{"two names", identitytest.Leaf{URIs: []string{"spiffe://prod.example/data/a", "spiffe://prod.example/data/b"}}, ca.Bundle(t), false},
		{"a name twice", identitytest.Leaf{URIs: []string{"spiffe://prod.example/data/a", "spiffe://prod.example/data/a"}}, ca.Bundle(t), false},
		{"a name of nobody", identitytest.Leaf{URIs: []string{"https://prod.example/data/a"}}, ca.Bundle(t), false},
		{"a name as no URL writes it", identitytest.Leaf{URIs: []string{"SPIFFE://prod.example/data/%61"}}, ca.Bundle(t), false},
		{"of another cluster", identitytest.Leaf{URIs: []string{"spiffe://other.example/data/a"}}, ca.Bundle(t), false},
		{"of another CA", identitytest.Leaf{URIs: []string{"spiffe://prod.example/data/a"}}, other.Bundle(t), false},
		{"out of date", identitytest.Leaf{URIs: []string{"spiffe://prod.example/data/a"}, NotBefore: now.Add(-2 * time.Hour),
			NotAfter: now.Add(-time.Hour)}, ca.Bundle(t), false},
	} {
		chain, key := ca.Issue(t, row.leaf)
		if got := len(chain[0].URIs); row.name != "a name as no URL writes it" && got != len(row.leaf.URIs) {
			t.Errorf("%s: %d names", row.name, got)
		}
		_, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: row.bundle})
		var bad *credential.MaterialError
		if (err == nil) != row.good || err != nil && !errors.As(err, &bad) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}
