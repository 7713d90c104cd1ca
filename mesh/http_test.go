package mesh_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/wait"
)

// web is an HTTP server behind a guard.
type web struct {
	guard *mesh.Guard
	addr  string
	stop  func() error // ends it, and tells what ServeHTTP returned; may be called again
}

// serveHTTP runs one until the test ends.
func serveHTTP(t *testing.T, ln net.Listener, cfg mesh.GuardConfig, server *http.Server) *web {
	t.Helper()
	g, err := mesh.NewGuard(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mesh.ServeHTTP(ctx, g, ln, server) }()
	w := &web{guard: g, addr: ln.Addr().String(), stop: func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}}
	t.Cleanup(func() { _ = w.stop() })
	return w
}

// who answers with who calls.
var who200 = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, identity.FromContext(r.Context()).ID)
})

// transport is one of m to expect.
func transport(t *testing.T, src credential.Source, expect credential.Expect, opts mesh.Options) *mesh.HTTPTransport {
	t.Helper()
	tr, err := mesh.NewHTTPTransport(src, expect, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func fetch(t *testing.T, rt http.RoundTripper, url string) (status int, body string, err error) {
	t.Helper()
	answer, err := (&http.Client{Transport: rt}).Get(url)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// A client and a server of net/http are held to the same as those of gRPC.
func TestHTTPPeers(t *testing.T) {
	t.Parallel()
	a, foreign := pkitest.NewAuthority(t, cluster), pkitest.NewAuthority(t, cluster)
	c1 := material(t, a, identity.Coordinator, "c1")
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: credential.Static(c1)}, &http.Server{Handler: who200})
	n1 := material(t, a, identity.Data, "n1")
	for _, tc := range []struct {
		name   string
		src    credential.Source
		expect credential.Expect
		want   mesh.Reason // none: served
	}{
		{"the one that is meant", credential.Static(n1), credential.ExactID(c1.ID()), ""},
		{"any of the kind", credential.Static(n1), credential.AnyOfKind(identity.Coordinator), ""},
		{"another server", credential.Static(n1), credential.AnyOfKind(identity.Data), mesh.IdentityMismatch},
		{"a server of another root", credential.Static(material(t, foreign, identity.Data, "n1")),
			credential.ExactID(c1.ID()), mesh.PeerUntrusted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var told atomic.Int32
			rt := transport(t, tc.src, tc.expect, mesh.Options{OnFailure: func(*mesh.HandshakeError) { told.Add(1) }})
			_, body, err := fetch(t, rt, "https://"+s.addr)
			failed, ok := errors.AsType[*mesh.HandshakeError](err)
			switch {
			case tc.want == "" && (err != nil || body != n1.ID().String() || told.Load() != 0):
				t.Errorf("%q, %v", body, err)
			case tc.want != "" && (!ok || failed.Reason != tc.want || told.Load() != 1):
				t.Errorf("%v, told %d times, want %s", err, told.Load(), tc.want)
			}
		})
	}

	rt := transport(t, credential.Static(n1), credential.ExactID(c1.ID()), mesh.Options{})
	if _, _, err := fetch(t, rt, "http://"+s.addr); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("over plain http: %v", err)
	}
	// A client that does not pass the handshake of the guard is not served.
	answer, err := http.Get("http://" + s.addr)
	if err == nil {
		answer.Body.Close()
		t.Errorf("plain http was answered %s", answer.Status)
	}
	if _, err := mesh.NewHTTPTransport(credential.Static(n1), credential.Expect{}, mesh.Options{}); !errors.Is(err, credential.ErrNoExpectation) {
		t.Errorf("without an expectation: %v", err)
	}
	if _, err := mesh.NewHTTPTransport(nil, credential.ExactID(c1.ID()), mesh.Options{}); err == nil {
		t.Error("without a source")
	}
	rt = transport(t, credential.NewIssued(nil), credential.ExactID(c1.ID()), mesh.Options{})
	if _, _, err := fetch(t, rt, "https://"+s.addr); !errors.Is(err, credential.ErrNoMaterial) {
		t.Errorf("a source that is empty yet: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if n := s.guard.Live(); n != 0 {
		t.Errorf("%d connections stand after the end", n)
	}
}

// A certificate that is not accepted is the client's to know, as its own fault.
func TestHTTPClientRejected(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	c1, n1 := material(t, a, identity.Coordinator, "c1"), material(t, a, identity.Data, "n1")
	src := credential.NewIssued(c1)
	if err := src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.BannedKeys = []identity.KeyID{n1.Pin()} })); err != nil {
		t.Fatal(err)
	}
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: src}, &http.Server{Handler: who200})
	_, _, err := fetch(t, transport(t, credential.Static(n1), credential.ExactID(c1.ID()), mesh.Options{}), "https://"+s.addr)
	if failed, ok := errors.AsType[*mesh.HandshakeError](err); !ok || failed.Reason != mesh.ClientRejected {
		t.Errorf("%v", err)
	}
}

// A server whose certificate ends meanwhile, or that is banned, is not heard any more by a
// client that has a connection to it: the request that runs says why.
func TestHTTPServerCut(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	c1, n1 := material(t, a, identity.Coordinator, "c1"), material(t, a, identity.Data, "n1")
	began, let := make(chan struct{}), make(chan struct{})
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: credential.Static(c1)},
		&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush() // the headers: the client reads the body from now on
			close(began)
			<-let
		})})
	defer close(let)
	src := credential.NewIssued(n1)
	rt := transport(t, src, credential.ExactID(c1.ID()), mesh.Options{})
	ended := make(chan error, 1)
	go func() {
		_, _, err := fetch(t, rt, "https://"+s.addr)
		ended <- err
	}()
	<-began
	if err := src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.BannedKeys = []identity.KeyID{c1.Pin()} })); err != nil {
		t.Fatal(err)
	}
	if cut, ok := errors.AsType[*mesh.CutError](<-ended); !ok || cut.Reason != mesh.PeerBanned {
		t.Errorf("it ended with %v", cut)
	}
	if _, _, err := fetch(t, rt, "https://"+s.addr); err == nil {
		t.Error("the banned was heard")
	}
}

// A request that comes through one guard twice, as [mesh.Guard.Handler] lets it, is told of the end of
// its connection like any other.
func TestHTTPTwiceThroughAGuard(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	n1, src := material(t, a, identity.Data, "n1"), credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	ended := make(chan error, 1)
	server := new(http.Server)
	guards := make(chan *mesh.Guard, 1)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(<-guards).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := src.Trust(banning(a, n1.ID())); err != nil {
				t.Error(err)
			}
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		})).ServeHTTP(w, r)
	})
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: src}, server)
	guards <- s.guard
	rt := transport(t, credential.Static(n1), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	go func() { _, _, _ = fetch(t, rt, "https://"+s.addr) }() // its connection is closed under it
	select {
	case err := <-ended:
		if cut, ok := errors.AsType[*mesh.CutError](err); !ok || cut.Reason != mesh.PeerBanned {
			t.Errorf("it ended because of %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it was not told")
	}
}

// After a renewal a request is sent with the certificate of now, also where one of before ran
// meanwhile, and no connection of before is used again.
func TestHTTPFollowsItsSource(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	c1, first, second := material(t, a, identity.Coordinator, "c1"), material(t, a, identity.Data, "n1"), material(t, a, identity.Data, "n1")
	began, let := make(chan struct{}), make(chan struct{})
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: credential.Static(c1)},
		&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				close(began)
				<-let
			}
			fmt.Fprint(w, identity.FromContext(r.Context()).Key)
		})})
	src := credential.NewIssued(first)
	rt := transport(t, src, credential.ExactID(c1.ID()), mesh.Options{})
	seen := func(path string) string {
		_, body, err := fetch(t, rt, "https://"+s.addr+path)
		if err != nil {
			t.Error(err)
		}
		return body
	}
	waited := make(chan string, 1)
	go func() { waited <- seen("/wait") }()
	<-began
	if err := src.Adopt(second); err != nil {
		t.Fatal(err)
	}
	if got := seen("/"); got != second.Pin().String() {
		t.Errorf("after the renewal it was %s", got)
	}
	close(let)
	if got := <-waited; got != first.Pin().String() {
		t.Errorf("what ran was of %s", got)
	}
	for range 3 {
		if got := seen("/"); got != second.Pin().String() {
			t.Errorf("later it was %s", got)
		}
	}
	// The server has one connection, or is about to.
	wait.UntilNil(t, "one connection stands", func() error {
		if n := s.guard.Live(); n > 1 {
			return fmt.Errorf("%d connections stand", n)
		}
		return nil
	})
}

// A request of a client whose certificate ended meanwhile is answered 401, on the connection
// that stands; with nobody watching it is the request itself that is refused.
func TestHTTPExpired(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	clock := newClock()
	g, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	g.Unwatched()
	ln := loopback(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mesh.ServeHTTP(ctx, g, ln, &http.Server{Handler: who200}) }()
	defer func() { cancel(); <-ended }()
	rt := transport(t, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if status, _, err := fetch(t, rt, "https://"+ln.Addr().String()); status != http.StatusOK {
		t.Fatalf("%d, %v", status, err)
	}
	clock.set(time.Now().Add(1000 * time.Hour))
	status, body, err := fetch(t, rt, "https://"+ln.Addr().String())
	if status != http.StatusUnauthorized || !strings.Contains(body, "renew it") {
		t.Errorf("%d %q, %v", status, body, err)
	}
}

// Clients without a certificate have slots of their own, and handshakes are bounded.
func TestHTTPPlaces(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	refused := make(chan error, 8)
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")),
		MaxStrangers: 1, MaxHandshakes: 2, OnRefused: func(err error) { refused <- err }}, &http.Server{Handler: who200})
	full := func(want mesh.FullError) {
		t.Helper()
		if e, ok := errors.AsType[*mesh.FullError](<-refused); !ok || e.Handshakes != want.Handshakes || e.Strangers != want.Strangers {
			t.Errorf("refused for %v", e)
		}
	}
	stranger := func() (net.Conn, error) {
		return tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}})
	}
	first, err := stranger()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	fmt.Fprint(first, "GET / HTTP/1.1\r\nHost: c1\r\n\r\n")
	if _, err := first.Read(make([]byte, 1)); err != nil { // it has its slot
		t.Fatal(err)
	}
	if second, err := stranger(); err == nil {
		defer second.Close()
	}
	full(mesh.FullError{Strangers: true})

	// A member is served all the same.
	rt := transport(t, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if status, _, err := fetch(t, rt, "https://"+s.addr); status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
	for range 3 { // the third finds no slot for its handshake
		silent, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	full(mesh.FullError{Handshakes: true})
}

// A listener that fails ends the server, and so does who closes it.
func TestHTTPEnds(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	src := credential.Static(material(t, a, identity.Coordinator, "c1"))
	g, err := mesh.NewGuard(mesh.GuardConfig{Source: src})
	if err != nil {
		t.Fatal(err)
	}
	ln := loopback(t)
	ended := make(chan error, 1)
	go func() { ended <- mesh.ServeHTTP(t.Context(), g, ln, &http.Server{Handler: who200}) }()
	ln.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that failed: %v", err)
	}
	if ln, err = net.Listen("tcp", nobody(t)); err != nil { // which nobody else gets once it is closed
		t.Fatal(err)
	}
	server := &http.Server{Handler: who200}
	go func() { ended <- mesh.ServeHTTP(t.Context(), g, ln, server) }()
	rt := transport(t, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	if status, _, err := fetch(t, rt, "https://"+ln.Addr().String()); status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
	server.Close()
	if err := <-ended; err != nil {
		t.Errorf("a server that was closed: %v", err)
	}
	// It is closed with it.
	if conn, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		conn.Close()
		t.Error("the listener is open")
	}
}

// More requests at once than a member may have connections wait for one.
func TestHTTPManyAtOnce(t *testing.T) {
	t.Parallel()
	a := pkitest.NewAuthority(t, cluster)
	s := serveHTTP(t, loopback(t), mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))},
		&http.Server{Handler: who200})
	rt := transport(t, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			if status, _, err := fetch(t, rt, "https://"+s.addr); status != http.StatusOK {
				t.Errorf("%d, %v", status, err)
			}
		})
	}
	all.Wait()
	if _, err := rt.RoundTrip(&http.Request{}); err == nil {
		t.Error("a request to nowhere was sent")
	}
}

// The files of a form are removed with its request, and no request passes the guard by.
func TestHTTPRequests(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	a := pkitest.NewAuthority(t, cluster)
	clock := newClock()
	g, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	g.Unwatched()
	ln := loopback(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		if files, _ := os.ReadDir(dir); len(files) == 0 {
			http.Error(w, "no file was made", http.StatusBadRequest)
		}
	})
	go func() { ended <- mesh.ServeHTTP(ctx, g, ln, &http.Server{Handler: handler}) }()
	defer func() { cancel(); <-ended }()
	rt := transport(t, credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("f", "f")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = part.Write(make([]byte, 12<<20))
	_ = w.Close()
	client := &http.Client{Transport: rt}
	answer, err := client.Post("https://"+ln.Addr().String(), w.FormDataContentType(), &form)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	wait.UntilNil(t, "the files of the form are gone", func() error {
		if files, _ := os.ReadDir(dir); len(files) > 0 {
			return fmt.Errorf("%d files are left", len(files))
		}
		return nil
	})
	clock.set(time.Now().Add(1000 * time.Hour))
	general, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, "https://"+ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	general.URL.Opaque = "*"
	if answer, err := rt.RoundTrip(general); err != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("OPTIONS *: %v, %v", answer, err)
	}
}

// A certificate's end is seen where only connections without one stood before.
func TestCutBesideLocalConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		g, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		if err != nil {
			t.Fatal(err)
		}
		shake := func(cfg *tls.Config) net.Conn {
			client, server := net.Pipe()
			conn := tls.Client(client, cfg)
			go func() { _ = conn.Handshake(); _, _ = io.Copy(io.Discard, conn) }()
			standing, _, err := g.Credentials().ServerHandshake(server)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = standing.Read(make([]byte, 1)) }() // as gRPC does
			t.Cleanup(func() { client.Close(); server.Close() })
			return standing
		}
		one, other := net.Pipe()
		forever := g.StandForever(one)
		t.Cleanup(func() { forever.Close(); other.Close() })
		time.Sleep(time.Minute)
		n1 := material(t, a, identity.Data, "n1")
		cfg, err := credential.ClientTLS(credential.Static(n1), credential.AnyOfKind(identity.Coordinator),
			credential.ClientOptions{NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		shake(cfg)
		if n := g.Live(); n != 2 {
			t.Fatalf("%d connections stand", n)
		}
		time.Sleep(time.Until(n1.NotAfter()) + time.Second)
		synctest.Wait()
		if n := g.Live(); n > 1 {
			t.Errorf("%d connections stand after the end of one's certificate", n)
		}
	})
}
