package mesh_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/logs"
)

// webSpot is an HTTP server, but for what is wrong with it until it is mended.
type webSpot struct {
	name  string
	want  mesh.Reason
	addr  string
	wrong atomic.Pointer[func(net.Conn)]
	tried atomic.Int64 // connections
}

// wrongListener hands on the connections to a good server.
type wrongListener struct {
	net.Listener
	at *webSpot
}

func (l wrongListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.at.tried.Add(1)
		wrong := l.at.wrong.Load()
		if wrong == nil {
			return c, nil
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(2 * time.Minute))
			(*wrong)(c)
		}()
	}
}

func newWebSpot(t *testing.T, name string, cfg mesh.GuardConfig, want mesh.Reason, wrong func(net.Conn)) *webSpot {
	t.Helper()
	ln := loopback(t)
	s := &webSpot{name: name, want: want, addr: ln.Addr().String()}
	if wrong != nil {
		s.wrong.Store(&wrong)
	}
	serveHTTP(t, wrongListener{ln, s}, cfg, &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			fmt.Fprint(w, s.name, " ", string(body), err)
		})})
	return s
}

// A request whose host leads to several endpoints has one that proves itself, with its body, while
// there is one; the others are named in a line each, tried again later, and used when mended.
func TestHTTPSkipsAndHeals(t *testing.T) {
	a, foreign := pkitest.NewAuthority(t, cluster), pkitest.NewAuthority(t, cluster)
	c1 := a.ID(t, identity.Coordinator, "c1")
	cfg := mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))}
	me := material(t, a, identity.Data, "n1")
	refuse := withRefusal(t, a, c1)
	shows := func(by *pkitest.Authority, id identity.ID, opts ...pkitest.IssueOption) func(net.Conn) {
		cfg := serverCert(t, by, sans(id), opts...)
		cfg.NextProtos = nil
		return withTLS(cfg)
	}
	bad := []*webSpot{
		newWebSpot(t, "wrong CA", cfg, mesh.PeerUntrusted, shows(foreign, c1)),
		newWebSpot(t, "wrong identity", cfg, mesh.IdentityMismatch, shows(a, a.ID(t, identity.Coordinator, "c2"))),
		newWebSpot(t, "expired", cfg, mesh.Expired, shows(a, c1, pkitest.Expired())),
		newWebSpot(t, "no TLS", cfg, mesh.Protocol, withoutTLS),
		newWebSpot(t, "refuses us", cfg, mesh.ClientRejected, refuse),
	}
	good := newWebSpot(t, "good", cfg, "", nil)
	var set []string
	for _, s := range append(slices.Clone(bad), good) {
		set = append(set, s.addr)
	}
	now := newClock()
	var told logs.Text
	tr := transport(t, credential.Static(me), credential.ExactID(c1), mesh.Options{Log: told.Logger(slog.LevelInfo), Now: now.now,
		Lookup: func(_ context.Context, addr string) ([]string, error) {
			if addr != "shop:443" {
				return nil, errors.New("asked for " + addr)
			}
			return set, nil
		}})
	post := func() (string, error) {
		answer, err := (&http.Client{Transport: tr}).Post("https://shop/", "text/plain", strings.NewReader("order"))
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	for range 2 * len(set) { // each is first in its turn
		if got, err := post(); err != nil || got != "good order<nil>" {
			t.Fatalf("while one is good: %q, %v", got, err)
		}
		tr.CloseIdleConnections()
	}
	for _, s := range bad {
		if n := s.tried.Load(); n != 1 {
			t.Errorf("%s was tried %d times, while it was to rest", s.name, n)
		}
		if got := told.Lines("rejected", "endpoint="+s.addr, "reason="+string(s.want)); len(got) != 1 || len(told.Lines(s.addr)) != 1 {
			t.Errorf("%s has the lines %q", s.name, told.Lines(s.addr))
		}
	}
	for _, s := range bad {
		s.wrong.Store(nil)
	}
	now.set(now.now().Add(time.Minute))
	served := make(map[string]bool)
	for range 4 * len(set) {
		got, err := post()
		if err != nil {
			t.Fatal(err)
		}
		served[got] = true
		tr.CloseIdleConnections()
	}
	if len(served) != len(set) {
		t.Errorf("after they were mended only %v serve", served)
	}
	for _, s := range bad {
		if got := told.Lines("endpoint healed", "endpoint="+s.addr); len(got) != 1 {
			t.Errorf("%s has the lines %q after it was mended", s.name, told.Lines(s.addr))
		}
	}

	// With none that is good: why of each, once.
	wrong := []func(net.Conn){shows(foreign, c1), refuse}
	two := []*webSpot{newWebSpot(t, "", cfg, "", wrong[0]), newWebSpot(t, "", cfg, "", wrong[1])}
	gone := nobody(t)
	set = []string{two[0].addr, two[1].addr, gone}
	_, err := post()
	none, ok := errors.AsType[*mesh.NoEndpointsError](err)
	if !ok || len(none.Failures) != 3 || none.Target != "shop:443" {
		t.Fatalf("%v (%T)", err, err)
	}
	var reasons []string
	for _, f := range none.Failures {
		if h, ok := errors.AsType[*mesh.HandshakeError](f); ok {
			reasons = append(reasons, string(h.Reason))
		} else if e, ok := f.(*mesh.EndpointError); !ok || e.Endpoint != gone {
			t.Errorf("%v (%T)", f, f)
		}
	}
	if slices.Sort(reasons); !slices.Equal(reasons, []string{"ClientRejected", "PeerUntrusted"}) {
		t.Errorf("the reasons are %v", reasons)
	}
	if two[0].tried.Load() != 1 || two[1].tried.Load() != 1 {
		t.Errorf("for one request they were tried %d and %d times", two[0].tried.Load(), two[1].tried.Load())
	}
}

// withRefusal proves to be id, and accepts nobody.
func withRefusal(t *testing.T, a *pkitest.Authority, id identity.ID) func(net.Conn) {
	cfg := serverCert(t, a, sans(id))
	cfg.NextProtos = nil
	cfg.ClientAuth = tls.RequireAnyClientCert
	cfg.VerifyConnection = func(tls.ConnectionState) error { return errors.New("nobody") }
	return func(c net.Conn) {
		tls.Server(c, cfg).Handshake()
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c) // so that no reset overtakes the alert
	}
}

// A server that listens itself has the guard as a middleware: it learns who calls, and who is
// banned or out of date is refused, amid a request too.
func TestHandlerAsMiddleware(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	theirs := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	now := newClock()
	g, err := mesh.NewGuard(mesh.GuardConfig{Source: theirs, Now: now.now})
	if err != nil {
		t.Fatal(err)
	}
	entered, ended := make(chan struct{}, 1), make(chan error, 1)
	mux := http.NewServeMux()
	mux.Handle("/who", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := identity.FromContext(r.Context())
		fmt.Fprint(w, standing(p), " ", p.ID)
	}))
	mux.Handle("/wait", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}))
	ln := loopback(t)
	server := &http.Server{Handler: g.Handler(mux), TLSConfig: credential.ServerTLS(theirs, credential.ServerOptions{NextProtos: []string{"http/1.1"}})}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(ln, "", "") }()
	plain := loopback(t)
	plainServer := &http.Server{Handler: g.Handler(mux)}
	go plainServer.Serve(plain)
	t.Cleanup(func() { server.Close(); plainServer.Close(); <-served })

	expect := credential.AnyOfKind(identity.Coordinator)
	client := func(m *credential.Material) *mesh.HTTPTransport {
		return transport(t, credential.Static(m), expect, mesh.Options{Log: new(logs.Text).Logger(slog.LevelInfo)})
	}
	base := "https://" + ln.Addr().String()
	n1, short := material(t, a, identity.Data, "n1"), material(t, a, identity.Data, "n2")
	for _, tc := range []struct {
		rt   http.RoundTripper
		url  string
		want string
	}{
		{client(n1), base, "identified spiffe://prod.example/data/n1"},
		{client(trustOnly(t, a.Bundle())), base, "insecure "},
		{http.DefaultTransport, "http://" + plain.Addr().String(), "insecure "},
	} {
		if code, body, err := fetch(t, tc.rt, tc.url+"/who"); err != nil || code != http.StatusOK || !strings.HasPrefix(body, tc.want) {
			t.Errorf("%s: %d %q %v, want %q", tc.url, code, body, err, tc.want)
		}
	}

	tr := client(n1)
	if code, _, err := fetch(t, tr, base+"/who"); err != nil || code != http.StatusOK {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); fetch(t, tr, base+"/wait") }()
	receive(t, entered, "the request to begin")
	if err := theirs.Trust(banning(a, n1.ID())); err != nil {
		t.Fatal(err)
	}
	if cut, ok := errors.AsType[*mesh.CutError](receive(t, ended, "the request to end")); !ok || cut.Reason != mesh.PeerBanned {
		t.Errorf("a request of a peer that was banned ended with %v", cut)
	}
	<-done
	if code, _, err := fetch(t, tr, base+"/who"); err == nil && code != http.StatusForbidden {
		t.Errorf("a peer that is banned: %d", code)
	}
	late := client(short)
	if code, _, err := fetch(t, late, base+"/who"); err != nil || code != http.StatusOK {
		t.Fatal(code, err)
	}
	now.set(short.NotAfter().Add(time.Hour))
	if code, body, err := fetch(t, late, base+"/who"); err != nil || code != http.StatusUnauthorized {
		t.Errorf("a peer whose certificate ended: %d %q %v", code, body, err)
	}
	if n := g.Live(); n != 0 {
		t.Errorf("%d requests are still counted", n)
	}
}
