package credential_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// BenchmarkHandshake measures a mutual handshake with the checks of this package
// against one of plain crypto/tls with client certificates, in turn, so that a
// busy machine slows both. "ratio" is the median of the first over the median of
// the second. The chains are equal, and neither side hands out tickets.
func BenchmarkHandshake(b *testing.B) {
	a := pkitest.NewAuthority(b, cluster)
	dns := pkitest.WithDNSNames("c1")
	server, client := material(b, a, identity.Coordinator, "c1", dns), material(b, a, identity.Data, "n1", dns)
	src := credential.NewIssued(server)
	serverTLS := credential.ServerTLS(src, credential.ServerOptions{})
	clientCfg, err := credential.ClientTLS(credential.Static(client), credential.ExactID(server.ID()), credential.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.Root().Cert)
	plainServer := &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(server.Chain(), server.Key())}, MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, SessionTicketsDisabled: true}
	plainClient := &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(client.Chain(), client.Key())}, MinVersion: tls.VersionTLS13,
		RootCAs: pool, ServerName: "c1"}

	once := func(server, client *tls.Config) time.Duration {
		start := time.Now()
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- tls.Server(far, server).Handshake() }()
		if err := tls.Client(near, client).Handshake(); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		took := time.Since(start)
		near.Close()
		far.Close()
		return took
	}
	var plain, ours []time.Duration
	for b.Loop() {
		plain = append(plain, once(plainServer, plainClient))
		ours = append(ours, once(serverTLS, clientCfg))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	b.ReportMetric(median(plain), "plain-ns")
	b.ReportMetric(median(ours), "ours-ns")
	b.ReportMetric(median(ours)/median(plain), "ratio")
	b.ReportMetric(0, "ns/op") // of the pair: misleading
}

// BenchmarkFilesCurrent is what looking for a change adds to a handshake: files that
// changed long ago.
func BenchmarkFilesCurrent(b *testing.B) {
	d := newFolder(b)
	d.write(d.issue())
	f := d.open()
	for settled := time.Now().Add(3 * time.Second); time.Now().Before(settled); {
		current(b, f)
	}
	for b.Loop() {
		current(b, f)
	}
}
