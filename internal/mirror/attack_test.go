package mirror

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/snapshot"
)

// pipes is a listener whose connections are pipes in memory, so that time in them is
// that of a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// certificate returns a certificate for mirror.example, and the pool that it leads to.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mirror"}, DNSNames: []string{"mirror.example"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(100 * time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// overHTTPS calls do with a source whose server answers with handler, in a bubble.
func overHTTPS(t *testing.T, handler http.HandlerFunc, do func(t *testing.T, s *HTTPS)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cert, pool := certificate(t)
		l := newPipes()
		server := &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: log.New(io.Discard, "", 0)}
		done := make(chan struct{})
		go func() { defer close(done); server.ServeTLS(l, "", "") }()
		s, err := NewHTTPS(HTTPSConfig{URL: "https://mirror.example/fealty", CA: only(pool), Dial: l.dial})
		if err != nil {
			t.Fatal(err)
		}
		do(t, s)
		s.Close()
		// The server's Close says goodbye under its lock, and a connection that ends
		// meanwhile waits for that lock, so that no virtual time would pass: let them end.
		time.Sleep(goodbye)
		server.Close()
		<-done
		time.Sleep(goodbye)
		synctest.Wait()
	})
}

// goodbye is longer than both ends of a connection wait to say that they close it,
// which neither hears: a pipe keeps nothing. It is virtual time.
const goodbye = 30 * time.Second

// An honest server serves the whole tree.
func TestHTTPS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pub")
	p := publicationOf(t, 4, versions(300, 1))
	mustWrite(t, NewWriter(durable.Shared(), dir, nil), p)
	overHTTPS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Cookie") != "" || r.Header.Get("Authorization") != "" {
			t.Errorf("the request says more than it has to: %v", r.Header)
		}
		http.StripPrefix("/fealty/", http.FileServer(http.Dir(dir))).ServeHTTP(w, r)
	}, func(t *testing.T, s *HTTPS) { check(t, s, p) })
	source, err := NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	check(t, source, p)
}

// A server may do anything: a file costs no more than its limit and its time, and
// the reason is told.
func TestHTTPSAttacks(t *testing.T) {
	const limit = 1000
	good := bytes.Repeat([]byte("x"), limit)
	stall := func(w http.ResponseWriter, r *http.Request, first int, pause time.Duration, each int) {
		w.Header().Set("Content-Length", fmt.Sprint(limit))
		w.Write(good[:first])
		w.(http.Flusher).Flush()
		for sent := first; sent < limit; sent += each {
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
			if _, err := w.Write(good[:each]); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
	for _, tc := range []struct {
		name   string
		serve  http.HandlerFunc
		want   Reason
		within time.Duration // of virtual time
	}{
		{"whole", func(w http.ResponseWriter, r *http.Request) { w.Write(good) }, "", time.Second},
		{"403", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, Status, time.Second},
		{"404", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, Status, time.Second},
		{"500", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }, Status, time.Second},
		{"206", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(206); w.Write(good[:10]) }, Status, time.Second},
		{"204", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, Status, time.Second},
		{"announces too much", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(1<<40))
			w.Write(good)
		}, TooLarge, time.Second},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(good); err != nil {
					return
				}
			}
		}, TooLarge, time.Second},
		{"ends before its length", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(limit))
			w.Write(good[:10])
		}, Unreachable, time.Second},
		{"one byte a second", func(w http.ResponseWriter, r *http.Request) { stall(w, r, 1, time.Second, 1) }, Slow, 6 * time.Second},
		{"nothing after the head", func(w http.ResponseWriter, r *http.Request) { stall(w, r, 0, time.Hour, 1) }, Slow, 6 * time.Second},
		{"no head", func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(time.Hour):
			case <-r.Context().Done():
			}
		}, Slow, 6 * time.Second},
		{"an endless head", func(w http.ResponseWriter, r *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("y", 100))
			}
			w.Write(good)
		}, Unreachable, time.Second},
		{"compressed", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.Copy(z, io.LimitReader(zeros{}, 1<<20))
			z.Close()
		}, Malformed, time.Second},
		{"redirects for ever", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"x", http.StatusFound) }, Unreachable, time.Second},
		{"redirects to http", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://mirror.example/latest", http.StatusFound)
		}, Unreachable, time.Second},
		{"redirects to a file", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(302)
		}, Unreachable, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			overHTTPS(t, tc.serve, func(t *testing.T, s *HTTPS) {
				begin := time.Now()
				data, err := s.Get(context.Background(), PointerName, limit)
				if took := time.Since(begin); took > tc.within {
					t.Errorf("it took %v, want at most %v", took, tc.within)
				}
				if tc.want == "" {
					if err != nil || !bytes.Equal(data, good) {
						t.Errorf("%d bytes, %v", len(data), err)
					}
					return
				}
				if e, ok := errors.AsType[*Error](err); !ok || e.Reason != tc.want || data != nil {
					t.Errorf("%d bytes, %v; want the reason %s", len(data), err, tc.want)
				}
			})
		})
	}
}

// A large file that comes at the least rate has its time; one that comes slower is
// given up in the window in which that shows, not at the end.
func TestHTTPSRate(t *testing.T) {
	for _, tc := range []struct {
		rate int // bytes in a second
		want Reason
	}{{2 * ratelimit.TransferRate, ""}, {ratelimit.TransferRate / 3, Slow}} {
		const size = 60 * ratelimit.TransferRate
		overHTTPS(t, func(w http.ResponseWriter, r *http.Request) {
			for sent := 0; sent < size; sent += tc.rate {
				if _, err := w.Write(make([]byte, min(tc.rate, size-sent))); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
					return
				}
			}
		}, func(t *testing.T, s *HTTPS) {
			begin := time.Now()
			_, err := s.Get(context.Background(), "object/00/x", size)
			if tc.want == "" && err != nil || tc.want != "" && ReasonOf(err) != tc.want {
				t.Errorf("at %d bytes a second: %v", tc.rate, err)
			}
			if took := time.Since(begin); tc.want == Slow && took > ratelimit.Window+2*time.Second {
				t.Errorf("at %d bytes a second: given up after %v", tc.rate, took)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A server that is not who it has to be is not read from.
func TestHTTPSServerIsVerified(t *testing.T) {
	cert, pool := certificate(t)
	_, other := certificate(t)
	asked := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes that have to fail
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	defer server.Close()
	for name, cfg := range map[string]HTTPSConfig{
		"another CA":        {URL: "https://mirror.example/", CA: only(other)},
		"another name":      {URL: "https://other.example/", CA: only(pool)},
		"the system's list": {URL: "https://mirror.example/"},
		"right":             {URL: "https://mirror.example/", CA: only(pool)},
	} {
		cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		}
		s, err := NewHTTPS(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Get(context.Background(), PointerName, 100)
		if name == "right" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if ReasonOf(err) != Unreachable || asked {
			t.Errorf("%s: %v", name, err)
		}
		asked = false
		s.Close()
	}
}

// A text that is no URL of a tree is told before it is used.
func TestCheckURL(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://mirror.example": true, "https://mirror.example:8443/a/b/": true, "https://[::1]:8443/": true,
		"http://mirror.example": false, "ftp://mirror.example": false, "mirror.example": false, "https://": false, "https:///x": false,
		"https://user:pass@mirror.example": false, "https://mirror.example/?a=b": false, "https://mirror.example/#x": false, "https:mirror": false, "": false, "https://a b/": false,
	} {
		if problem := CheckURL(text); (problem == "") != ok {
			t.Errorf("%q: %q", text, problem)
		}
		if _, err := NewHTTPS(HTTPSConfig{URL: text}); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Nothing outside of a directory is read, and nothing that is no file is waited for.
func TestDirAttacks(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	dir := filepath.Join(base, "tree")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(outside, []byte("secret"), 0o600))
	must(os.MkdirAll(filepath.Join(dir, "object"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "inside"), []byte("fine"), 0o600))
	must(os.Symlink(outside, filepath.Join(dir, "absolute")))
	must(os.Symlink("../outside", filepath.Join(dir, "relative")))
	must(os.Symlink("inside", filepath.Join(dir, "within")))
	must(os.Symlink("loop", filepath.Join(dir, "loop")))
	must(os.Symlink(base, filepath.Join(dir, "up")))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	s, err := NewDir(dir)
	must(err)
	for name, want := range map[string]Reason{
		"inside": "", "within": "", "absolute": Unreachable, "relative": Unreachable, "loop": Unreachable, "up/outside": Unreachable, "../outside": Unreachable,
		"/etc/passwd": Unreachable, "pipe": Malformed, "object": Malformed, "missing": Unreachable,
	} {
		data, err := s.Get(context.Background(), name, 10)
		if want == "" && (err != nil || string(data) != "fine") || want != "" && (ReasonOf(err) != want || data != nil) {
			t.Errorf("%s: %q, %v; want %q", name, data, err, want)
		}
	}
	if _, err := s.Get(context.Background(), "inside", 3); ReasonOf(err) != TooLarge {
		t.Errorf("above the limit: %v", err)
	}
	if _, err := NewDir("relative/path"); err == nil {
		t.Error("a relative path was taken")
	}
	gone, err := NewDir(filepath.Join(base, "gone"))
	must(err)
	if _, err := Open(context.Background(), gone, testCluster); ReasonOf(err) != Unreachable {
		t.Errorf("a missing directory: %v", err)
	}
}

// altered is a source that answers with other bytes for some files.
type altered struct {
	Source
	bend func(name string, data []byte) ([]byte, error)
}

func (a *altered) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	data, err := a.Source.Get(ctx, name, limit)
	if err != nil {
		return nil, err
	}
	if data, err = a.bend(name, data); err == nil && int64(len(data)) > limit {
		return nil, tooLarge(name, limit)
	}
	return data, err
}

// walkAll reads all that a node reads.
func walkAll(s Source) error {
	ctx := context.Background()
	tree, err := Open(ctx, s, testCluster)
	if err != nil {
		return err
	}
	if _, err := tree.TrustBundle(ctx); err != nil {
		return err
	}
	if _, err := tree.RootChanges(ctx); err != nil {
		return err
	}
	for _, i := range []int{0, 7, 299} {
		if _, err := tree.Header(ctx, snapshot.ScopeNodeRuntime, subjectOf(i)); err != nil {
			return err
		}
	}
	content := []byte("content 1")
	_, err = Content(ctx, s, snapshot.DigestOf(content), len(content))
	return err
}

// Every file of a tree that is cut, prolonged, altered or of another generation is
// noticed; nothing is returned of it.
func TestTreeAttacks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pub")
	old, next := publicationOf(t, 3, versions(300, 1)), publicationOf(t, 9, versions(300, 1))
	w := NewWriter(durable.Shared(), dir, nil)
	mustWrite(t, w, old)
	honest, err := NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	oldPointer, err := honest.Get(context.Background(), PointerName, MaxPointer)
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, w, next)
	if err := walkAll(honest); err != nil {
		t.Fatal(err)
	}
	// The generation before is still there, whole: a lagging mirror.
	lagging := &altered{honest, func(name string, data []byte) ([]byte, error) {
		if name == PointerName {
			return oldPointer, nil
		}
		return data, nil
	}}
	if err := walkAll(lagging); err != nil {
		t.Errorf("a lagging mirror: %v", err)
	}
	for kind, bend := range map[string]func([]byte) []byte{
		"cut":             func(d []byte) []byte { return d[:len(d)/2] },
		"empty":           func([]byte) []byte { return nil },
		"prolonged":       func(d []byte) []byte { return append(bytes.Clone(d), 'x') },
		"a bit turned":    func(d []byte) []byte { d = bytes.Clone(d); d[len(d)/2] ^= 1; return d },
		"another's bytes": func(d []byte) []byte { return bytes.Repeat([]byte("z"), len(d)) },
	} {
		names := make(map[string]bool)
		seen := &altered{honest, func(name string, data []byte) ([]byte, error) { names[name] = true; return data, nil }}
		if err := walkAll(seen); err != nil {
			t.Fatal(err)
		}
		for target := range names {
			s := &altered{honest, func(name string, data []byte) ([]byte, error) {
				if name == target {
					return bend(data), nil
				}
				return data, nil
			}}
			err := walkAll(s)
			e, ok := errors.AsType[*Error](err)
			if target == PointerName && kind == "a bit turned" && err == nil {
				continue // of what is for people: the generation that it claims
			}
			if !ok || e.Reason == Unreachable {
				t.Errorf("%s is %s: %v", target, kind, err)
			}
		}
	}
	// The tree of another cluster.
	if _, err := Open(context.Background(), honest, "other.example"); ReasonOf(err) != OtherCluster {
		t.Errorf("another cluster's: %v", err)
	}
}

// A pointer, a generation or a bucket that promises too much is refused before any of
// that is read.
func TestUnsignedPartsAreBounded(t *testing.T) {
	good := encode(Pointer{Format: pointerFormat, Cluster: testCluster, AuthorityEpoch: 1, Generation: 1, Object: strings.Repeat("0", 64), Size: 10})
	if _, err := parsePointer(good); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"nothing":          "",
		"no JSON":          "x",
		"another format":   strings.Replace(string(good), pointerFormat, "fealty/mirror/v2", 1),
		"too large":        strings.Replace(string(good), `"size":10`, fmt.Sprintf(`"size":%d`, MaxGeneration+1), 1),
		"negative":         strings.Replace(string(good), `"size":10`, `"size":-1`, 1),
		"a path":           strings.Replace(string(good), strings.Repeat("0", 64), "../../../../etc/passwd", 1),
		"an unknown part":  strings.Replace(string(good), `"size":10`, `"size":10,"x":1`, 1),
		"something behind": string(good) + "{}",
		"no cluster":       strings.Replace(string(good), testCluster, "", 1),
	} {
		if _, err := parsePointer([]byte(data)); ReasonOf(err) != Malformed {
			t.Errorf("a pointer with %s: %v", name, err)
		}
	}
	page := strings.Repeat("0", 64)
	for name, g := range map[string]generation{
		"no record":          {Format: generationFormat, Signatures: make([]signature, 1), Pages: []string{page}},
		"a record too large": {Format: generationFormat, Record: make([]byte, internalsnapshot.MaxRecord+1), Signatures: make([]signature, 1), Pages: []string{page}},
		"many signatures":    {Format: generationFormat, Record: []byte("{}"), Signatures: make([]signature, 3), Pages: []string{page}},
		"many bits":          {Format: generationFormat, Record: []byte("{}"), Signatures: make([]signature, 1), Bits: 60, Pages: []string{page}},
		"negative bits":      {Format: generationFormat, Record: []byte("{}"), Signatures: make([]signature, 1), Bits: -1, Pages: []string{page}},
		"pages missing":      {Format: generationFormat, Record: []byte("{}"), Signatures: make([]signature, 1), Bits: 10, Pages: []string{page}},
		"another format":     {Format: "x", Record: []byte("{}"), Signatures: make([]signature, 1), Pages: []string{page}},
	} {
		if _, err := parseGeneration(encode(g)); ReasonOf(err) != Malformed {
			t.Errorf("a generation with %s: %v", name, err)
		}
	}
}

// With any content of a pointer and a generation, reading them ends and does not panic.
func FuzzTree(f *testing.F) {
	f.Add([]byte(`{"format":"fealty/mirror/v1"}`), []byte(`{"headers":[]}`))
	f.Add(encode(Pointer{Format: pointerFormat, Cluster: testCluster, Object: strings.Repeat("a", 64), Size: 3}), []byte("{}"))
	f.Add(encode(generation{Format: generationFormat, Record: []byte("{}"), Signatures: make([]signature, 1), Pages: []string{"x"}}), []byte("[]"))
	f.Fuzz(func(t *testing.T, one, other []byte) {
		if p, err := parsePointer(one); err == nil && (p.Size > MaxGeneration || len(p.Object) != 64) {
			t.Errorf("pointer %+v", p)
		}
		if g, err := parseGeneration(one); err == nil && (g.Bits > maxBits || len(g.Pages) > 1<<maxBits/pageWidth) {
			t.Errorf("generation %+v", g)
		}
		var b bucket
		_ = strict(other, &b)
	})
}

// only returns roots that stay the same.
func only(roots *x509.CertPool) func() *x509.CertPool {
	return func() *x509.CertPool { return roots }
}
