package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// rounds is how often the sides of a comparison take turns, at least.
const rounds = 10

// side is one of several that do the same.
type side struct {
	name string
	do   func() // a fixed number of operations
}

// compare has the sides do their work in turns, each round in another order, and reports the CPU
// time of one of n operations of each, as the median of the rounds, and the ratios of the first to
// the others.
func compare(b *testing.B, n int, sides ...side) {
	b.Helper()
	used := make([][]time.Duration, len(sides))
	round := func() {
		turn := len(used[0])
		for i := range sides {
			i = (i + turn) % len(sides)
			runtime.GC() // none pays for what another one left
			before := cpu(b)
			sides[i].do()
			used[i] = append(used[i], cpu(b)-before)
		}
	}
	for _, s := range sides {
		s.do() // once for what is made once
	}
	for b.Loop() {
		round()
	}
	for len(used[0]) < rounds {
		round()
	}
	for i, s := range sides {
		b.ReportMetric(float64(median(used[i]))/float64(n)/1000, s.name+"-cpu-µs")
	}
	first := float64(median(used[0]))
	for i, s := range sides[1:] {
		b.ReportMetric(first/float64(median(used[i+1])), sides[0].name+"/"+s.name)
	}
	b.ReportMetric(0, "ns/op") // of a round
}

// end is one end of a connection, on certificates of an operator's PKI in files.
type end struct {
	id    identity.ID
	chain []*x509.Certificate
	cert  tls.Certificate
	roots *x509.CertPool
	files *credential.Files
	svid  *x509svid.SVID
	trust *x509bundle.Bundle
}

func newEnd(b *testing.B, pki *pkitest.PKI, id string) *end {
	b.Helper()
	fail := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	e := &end{roots: x509.NewCertPool()}
	var err error
	e.id, err = identity.Parse(id)
	fail(err)
	key := pkitest.NewKey(b)
	e.chain = pki.Issue(b, key, func(c *x509.Certificate) {
		c.URIs, c.DNSNames = append(c.URIs, e.id.URL()), []string{"end.example"}
	})
	e.cert = pkitest.TLS(e.chain, key)
	e.roots.AddCert(pki.Root.Cert)
	dir := b.TempDir()
	paths := credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"),
		CA: filepath.Join(dir, "ca.crt")}
	for path, data := range map[string][]byte{paths.Cert: pkitest.PEM(e.chain...),
		paths.Key: pkitest.KeyPEM(b, key), paths.CA: pkitest.PEM(pki.Root.Cert)} {
		fail(os.WriteFile(path, data, 0o600))
		// Files that changed a moment ago are read each time; those here are older.
		fail(os.Chtimes(path, time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)))
	}
	e.files, err = credential.NewFiles(credential.FilesConfig{Paths: paths, Log: slog.New(slog.DiscardHandler)})
	fail(err)
	e.svid = &x509svid.SVID{ID: spiffeid.RequireFromString(id), Certificates: e.chain, PrivateKey: key}
	e.trust = x509bundle.FromX509Authorities(e.svid.ID.TrustDomain(), []*x509.Certificate{pki.Root.Cert})
	return e
}

// settle waits until files were changed long ago, also by the time of their inode.
func settle(b *testing.B, ends ...*end) {
	b.Helper()
	for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
	}
	for _, e := range ends {
		if _, err := e.files.Current(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// plainTLS are configs of crypto/tls that verify the chain, and the name of a server.
func plainTLS(server, client *end) (*tls.Config, *tls.Config) {
	return &tls.Config{Certificates: []tls.Certificate{server.cert}, ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs: server.roots, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true},
		&tls.Config{Certificates: []tls.Certificate{client.cert}, RootCAs: client.roots, ServerName: "end.example",
			MinVersion: tls.VersionTLS13}
}

// BenchmarkEdgeHandshake is a mutual handshake with this system's verification and files that are
// looked at each time, beside plain crypto/tls and go-spiffe with the same chains in memory. None
// gives tickets.
func BenchmarkEdgeHandshake(b *testing.B) {
	const n = 100
	pki := pkitest.NewPKI(b, "corp", nil)
	server, client := newEnd(b, pki, "spiffe://prod.example/provider/aws"),
		newEnd(b, pki, "spiffe://prod.example/shard/eu-1")
	ours := credential.ServerTLS(server.files, credential.ServerOptions{})
	oursClient, err := credential.ClientTLS(client.files, credential.ExactID(server.id), credential.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	spiffe := tlsconfig.MTLSServerConfig(server.svid, server.trust, tlsconfig.AuthorizeID(client.svid.ID))
	spiffe.MinVersion, spiffe.SessionTicketsDisabled = tls.VersionTLS13, true
	spiffeClient := tlsconfig.MTLSClientConfig(client.svid, client.trust, tlsconfig.AuthorizeID(server.svid.ID))
	plain, plainClient := plainTLS(server, client)
	settle(b, server, client)
	shake := func(server, client *tls.Config) func() {
		return func() {
			for range n {
				near, far := net.Pipe()
				done := make(chan error, 1)
				go func() { done <- tls.Server(far, server).Handshake() }()
				if err := tls.Client(near, client).Handshake(); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				near.Close()
				far.Close()
			}
		}
	}
	compare(b, n, side{"ours", shake(ours, oursClient)}, side{"plain", shake(plain, plainClient)},
		side{"go-spiffe", shake(spiffe, spiffeClient)})
}

// BenchmarkEdgeCalls are small calls over loopback through a guard and a pool on certificate
// files, beside those of plain grpc-go over crypto/tls, 8 at a time. Plain is what a user gets who
// sets nothing. A guard's server keeps workers for calls, which saves more than the rest of the
// mesh costs; the third side is plain with as many, so that what the mesh itself costs shows too.
func BenchmarkEdgeCalls(b *testing.B) {
	const n, atOnce = 2000, 8
	pki := pkitest.NewPKI(b, "corp", nil)
	server, client := newEnd(b, pki, "spiffe://prod.example/provider/aws"),
		newEnd(b, pki, "spiffe://prod.example/shard/eu-1")
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: server.files})
	if err != nil {
		b.Fatal(err)
	}
	serve := func(options ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := grpc.NewServer(options...)
		healthpb.RegisterHealthServer(s, health.NewServer())
		var running sync.WaitGroup
		running.Go(func() { _ = s.Serve(l) })
		b.Cleanup(func() { s.Stop(); running.Wait() })
		return l.Addr().String()
	}
	pool := &mesh.Pool{Options: mesh.Options{Log: slog.New(slog.DiscardHandler)}}
	defer pool.Close()
	ours, err := pool.Dial("static:///"+serve(guard.ServerOptions()...), client.files, credential.ExactID(server.id))
	if err != nil {
		b.Fatal(err)
	}
	serverTLS, clientTLS := plainTLS(server, client)
	dialPlain := func(options ...grpc.ServerOption) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+serve(append(options, grpc.Creds(credentials.NewTLS(serverTLS)))...),
			grpc.WithTransportCredentials(credentials.NewTLS(clientTLS)))
		if err != nil {
			b.Fatal(err)
		}
		return conn
	}
	plain, workers := dialPlain(), dialPlain(grpc.NumStreamWorkers(uint32(4*runtime.GOMAXPROCS(0))))
	defer plain.Close()
	defer workers.Close()
	settle(b, server, client)
	call := func(conn grpc.ClientConnInterface) func() {
		return func() {
			var all sync.WaitGroup
			for range atOnce {
				all.Go(func() {
					for range n / atOnce {
						if _, err := healthpb.NewHealthClient(conn).Check(context.Background(),
							new(healthpb.HealthCheckRequest)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		}
	}
	compare(b, n, side{"plain", call(plain)}, side{"mesh", call(ours)}, side{"plain-with-workers", call(workers)})
}
