package pkitest_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// Each option makes what it says, and nothing else is wrong with it.
func TestIssueOptions(t *testing.T) {
	now := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	a := pkitest.NewAuthority(t, "prod.example", pkitest.WithClock(func() time.Time { return now }))
	old := a.MeshCA()
	a.AddMeshCA(t)
	newest := a.Bundle(func(cfg *identity.BundleConfig) { cfg.MeshKeys = []identity.KeyID{a.MeshCA().KeyID()} })
	id := a.ID(t, identity.Shard, "eu-1")
	for _, tc := range []struct {
		name string
		opts []pkitest.IssueOption
		want error
	}{
		{"plain", nil, nil},
		{"ed25519", []pkitest.IssueOption{pkitest.WithKey(pkitest.NewEd25519Key(t))}, nil},
		{"names", []pkitest.IssueOption{pkitest.WithDNSNames("a.example"),
			pkitest.WithTemplate(func(c *x509.Certificate) {
				c.IPAddresses = append(c.IPAddresses, net.IPv4(192, 0, 2, 1))
			})}, nil},
		{"ttl", []pkitest.IssueOption{pkitest.WithTTL(time.Minute)}, nil},
		{"validity", []pkitest.IssueOption{pkitest.WithValidity(now, now.Add(time.Second))}, nil},
		{"expired", []pkitest.IssueOption{pkitest.Expired()}, identity.ErrExpired},
		{"not yet valid", []pkitest.IssueOption{pkitest.NotYetValid()}, identity.ErrExpired},
		{"old mesh CA", []pkitest.IssueOption{pkitest.WithMeshCA(old)}, identity.ErrUntrusted},
	} {
		chain, key := a.Issue(t, id, tc.opts...)
		v, err := newest.Verify(chain, now)
		if !errors.Is(err, tc.want) || tc.want == nil && v.ID != id {
			t.Errorf("%s: %v, %v, want %v", tc.name, v.ID, err, tc.want)
		}
		if of, err := identity.KeyOfPublic(key.Public()); err != nil || of != identity.KeyOf(chain[0]) {
			t.Errorf("%s: the key is not that of the leaf", tc.name)
		}
	}
	chain, _ := a.Issue(t, id, pkitest.WithTTL(time.Minute))
	if !chain[0].NotAfter.Equal(now.Add(time.Minute)) {
		t.Errorf("TTL of a minute ends at %v", chain[0].NotAfter)
	}
}

// Minted certificates are such as crypto/tls speaks.
func TestHandshake(t *testing.T) {
	a := pkitest.NewAuthority(t, "prod.example")
	b := a.Bundle()
	config := func(name string) *tls.Config {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true,
			Certificates: []tls.Certificate{pkitest.TLS(a.Issue(t, a.ID(t, identity.Shard, name)))},
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := b.Verify(s.PeerCertificates, time.Now())
				return err
			},
		}
	}
	left, right := net.Pipe()
	defer left.Close()
	defer right.Close()
	server := tls.Server(left, config("server"))
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	client := tls.Client(right, config("client"))
	err := client.Handshake()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	for side, conn := range map[string]*tls.Conn{"server": client, "client": server} {
		if id, err := identity.FromCertificate(conn.ConnectionState().PeerCertificates[0]); err != nil ||
			id.Name() != side {
			t.Errorf("the peer of the other side is %v, %v, want the %s", id, err, side)
		}
	}
}
