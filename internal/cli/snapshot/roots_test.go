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
	"sync"
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
		if err := errors.Join(os.WriteFile(file+".new", all, 0o600), os.Rename(file+".new", file)); err != nil {
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
		err := source.Close() // each reads by a new connection
		if err == nil {
			_, err = source.Get(t.Context(), "latest", 1)
		}
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
	write(two)
	reads("the root of before is gone", true)
	serve(first)
	reads("the server of before", false)
	serve(second)
	underLoad(t, reads,
		func() { write(one, two) }, func() { serve(first) }, func() { write(one) },
		func() { write(one, two) }, func() { serve(second) }, func() { write(two) },
		func() { write(two, one) }, func() { serve(first) }, func() { write(one) },
		func() { write(two, one) }, func() { serve(second) }, func() { write(two) },
	)
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

// underLoad takes the steps of rotations while others read all the time, and no read fails.
func underLoad(t *testing.T, reads func(what string, want bool), steps ...func()) {
	t.Helper()
	var counts [3]atomic.Int64
	var over atomic.Bool
	var readers sync.WaitGroup
	defer readers.Wait()
	defer over.Store(true)
	for i := range counts {
		readers.Go(func() {
			for !over.Load() && !t.Failed() {
				reads("while roots are replaced", true)
				counts[i].Add(1)
			}
		})
	}
	for _, step := range steps {
		step()
		// Each reads to its end what it began before, and once more: a client may be one step behind and no more.
		for i := range counts {
			for n := counts[i].Load(); counts[i].Load() < n+2 && !t.Failed(); {
				reads("between two steps", true)
			}
		}
	}
}
