package snapshot

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/pki/pemfile"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// TestRootsFollowTheirFile: the server of a mirror moves to a certificate of another root under an agent that runs. The file of
// roots is read for each connection; while it is gone or damaged, what it held before counts, and that is said once. A root
// that is gone from it is believed no more.
func TestRootsFollowTheirFile(t *testing.T) {
	first, second := pkitest.NewPKI(t, "first", nil), pkitest.NewPKI(t, "second", nil)
	var served atomic.Pointer[tls.Certificate]
	serve := func(p *pkitest.PKI) {
		key := pkitest.NewKey(t)
		pair := &tls.Certificate{PrivateKey: key}
		for _, c := range p.Issue(t, key, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }) {
			pair.Certificate = append(pair.Certificate, c.Raw)
		}
		served.Store(pair)
	}
	serve(first)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*served.Load()}}, nil
	}}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()

	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(text ...[]byte) {
		t.Helper()
		var all []byte
		for _, one := range text {
			all = append(all, one...)
		}
		if err := os.WriteFile(file, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two := pkitest.PEM(first.Root.Cert), pkitest.PEM(second.Root.Cert)
	write(one)
	var log strings.Builder
	roots, err := newRoots(file, slog.New(slog.NewTextHandler(&log, nil)), func() ([]*x509.Certificate, error) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		certs, _, err := pemfile.Certificates(text, pemfile.Limits{Bytes: 1 << 20, Blocks: 16}, pemfile.Blocks)
		return certs, err
	})
	if err != nil {
		t.Fatal(err)
	}
	part := roots.Part()
	asked := func(want string, fails bool) {
		t.Helper()
		if got, err := part.Read(t.Context()); got != want || (err != nil) != fails {
			t.Errorf("SIGHUP: %q, %v, want %q", got, err, want)
		}
	}
	source, err := mirror.NewHTTPS(mirror.HTTPSConfig{URL: server.URL + "/", CA: roots.Pool})
	if err != nil {
		t.Fatal(err)
	}
	reads := func(what string, want bool) {
		t.Helper()
		if err := source.Close(); err != nil { // each reads by a new connection
			t.Fatal(err)
		}
		_, err := source.Get(t.Context(), "latest", 1)
		if e, ok := errors.AsType[*mirror.Error](err); !ok || (e.Reason == mirror.Status) != want {
			t.Errorf("%s: %v, want an answer of the server: %v", what, err, want)
		}
	}
	reads("at first", true)
	asked("", false)
	write(one, two)
	reads("both roots", true)
	asked("others are in use", false)
	asked("", false)
	serve(second)
	reads("the server moved", true)
	write(one)
	reads("the root that is needed is gone", false)
	write(two)
	reads("it is back", true)
	write(two[:len(two)/2])
	reads("half of the file", true)
	asked("", true)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	reads("no file", true)
	write(two)
	asked("others are in use", false)
	serve(first)
	reads("the root of before", false)
	if n := strings.Count(log.String(), "cannot be used as they are now"); n != 1 {
		t.Errorf("it is said %d times that the file cannot be used:\n%s", n, log.String())
	}
}
