package web_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/web"
	"github.com/fealty-io/fealty/test/wait"
)

// site is a coordinator that serves the web.
type site struct {
	*coordinatortest.Fleet
	t    testing.TB
	addr string
	tls  *tls.Config
}

func newSite(t testing.TB) *site {
	t.Helper()
	now := time.Now()
	p, dir := newPair(t, now.Add(-time.Hour), now.Add(24*time.Hour)), t.TempDir()
	p.write(t, dir)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.cert) {
		t.Fatal("no certificate")
	}
	s := &site{t: t, tls: &tls.Config{RootCAs: roots}}
	s.Fleet = coordinatortest.NewFleet(t, func(c *coordinator.Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.addr = l.Addr().String()
		c.Publishing = coordinator.Publishing{Web: l, WebCert: filepath.Join(dir, "tls.crt"),
			WebKey: filepath.Join(dir, "tls.key")}
	})
	return s
}

// issues sets a manifest with an issuer whose URL has this path; "-": without one.
func (s *site) issues(path string) {
	s.t.Helper()
	extra := ""
	if path != "-" {
		extra = "workloads: {token_issuer: \"https://" + s.addr + path + "\"}\n"
	}
	if err := s.Set(s.Manifest(extra)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) dial() *tls.Conn {
	s.t.Helper()
	conn, err := tls.Dial("tcp", s.addr, s.tls)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// send sends raw bytes on a connection of their own, and returns the answer and its body.
func (s *site) send(raw string) (*http.Response, string) {
	s.t.Helper()
	conn := s.dial()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go io.WriteString(conn, raw) // it may be refused before all of it is read
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: strings.Fields(raw)[0]})
	if err != nil {
		s.t.Fatalf("%.60q: %v", raw, err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%.60q: %v", raw, err)
	}
	return resp, string(body)
}

func get(method, path, more string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\n%s\r\n", method, path, more)
}

const (
	config = "/prod/.well-known/openid-configuration"
	keys   = "/prod/.well-known/jwks.json"
)

// The two documents are there to be read, and nothing else is, however it is asked for.
func TestNothingElseIsServed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if resp, _ := s.send(get("GET", config, "")); resp.StatusCode != http.StatusServiceUnavailable ||
		resp.Header.Get("Retry-After") == "" {
		t.Errorf("without a manifest: %v", resp.Status)
	}
	s.issues("-")
	if resp, _ := s.send(get("GET", config, "")); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without an issuer: %v", resp.Status)
	}
	s.issues("/prod")
	for path, media := range map[string]string{config: "application/json", keys: "application/jwk-set+json",
		config + "?again": "application/json", "https://" + s.addr + keys: "application/jwk-set+json"} {
		resp, body := s.send(get("GET", path, ""))
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != media || !strings.HasPrefix(body, "{") ||
			resp.Header.Get("Cache-Control") != "public, max-age=300" {
			t.Errorf("GET %s: %v, %v, %q", path, resp.Status, resp.Header, body)
		}
		head, none := s.send(get("HEAD", path, ""))
		if head.StatusCode != http.StatusOK || none != "" || head.ContentLength != int64(len(body)) {
			t.Errorf("HEAD %s: %v, %d bytes of %d", path, head.Status, head.ContentLength, len(body))
		}
	}
	for name, tc := range map[string]struct {
		raw  string
		want int
	}{
		"the root":            {get("GET", "/", ""), 404},
		"without the path":    {get("GET", "/.well-known/openid-configuration", ""), 404},
		"a slash more":        {get("GET", config+"/", ""), 404},
		"a slash before":      {get("GET", "/"+config, ""), 404},
		"a path that climbs":  {get("GET", "/prod/x/../.well-known/jwks.json", ""), 404},
		"an escape":           {get("GET", "/prod/%2ewell-known/jwks.json", ""), 404},
		"an escaped slash":    {get("GET", "/prod%2f.well-known/jwks.json", ""), 404},
		"a zero byte":         {get("GET", keys+"%00", ""), 404},
		"upper case":          {get("GET", "/PROD/.well-known/jwks.json", ""), 404},
		"metrics":             {get("GET", "/metrics", ""), 404},
		"a profile":           {get("GET", "/debug/pprof/heap", ""), 404},
		"posted elsewhere":    {get("POST", "/x", "Content-Length: 0\r\n"), 404},
		"posted":              {get("POST", keys, "Content-Length: 0\r\n"), 405},
		"put":                 {get("PUT", keys, "Content-Length: 3\r\n") + "abc", 405},
		"deleted":             {get("DELETE", keys, ""), 405},
		"options":             {get("OPTIONS", keys, ""), 405},
		"options of a server": {get("OPTIONS", "*", ""), 404},
		"a tunnel":            {get("CONNECT", "c1.example:443", ""), 404},
		"a method of no kind": {get("STEAL", keys, ""), 405},
		"content":             {get("GET", keys, "Content-Length: 3\r\n") + "abc", 400},
		"endless content":     {get("GET", keys, "Transfer-Encoding: chunked\r\n") + "1\r\na\r\n", 400},
		"two lengths":         {get("GET", keys, "Content-Length: 3\r\nContent-Length: 4\r\n"), 400},
		"huge headers":        {get("GET", keys, "X: "+strings.Repeat("x", 64<<10)+"\r\n"), 431},
		"many headers":        {get("GET", keys, strings.Repeat("X: y\r\n", 20<<10)), 431},
		"a huge path":         {get("GET", "/"+strings.Repeat("x", 64<<10), ""), 431},
	} {
		resp, body := s.send(tc.raw)
		if resp.StatusCode != tc.want || len(body) > 200 || resp.Header.Get("Location") != "" {
			t.Errorf("%s: %v, want %d, with %q", name, resp.Status, tc.want, body)
		}
		if !resp.Close {
			t.Errorf("%s: the connection goes on", name)
		}
	}
	if got := coordinatortest.CounterOf(s.C.Registry(), "fealty_web_requests_total", "keys", "405"); got != 5 {
		t.Errorf("%v refused methods are counted, want 5", got)
	}
}

// A coordinator that was not shown the head for long tells of no key: one may be revoked elsewhere.
func TestNoKeysWithoutTheStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.issues("/prod")
	status := func() int {
		resp, _ := s.send(get("GET", keys, ""))
		return resp.StatusCode
	}
	s.Link.Cut(errors.New("the store is gone"))
	s.Advance(59 * time.Minute)
	if got := status(); got != http.StatusOK {
		t.Errorf("within max_head_age: %d", got)
	}
	s.Advance(2 * time.Minute)
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("beyond max_head_age: %d", got)
	}
	s.Link.Cut(nil)
	wait.Until(t, "with the store again it is told", func() bool { return status() == http.StatusOK })
}

// Answers are asked for again before a key that they lack signs, or one that they have is needed no
// more.
func TestAnswersAgeBeforeKeysLeave(t *testing.T) {
	if web.MaxAge >= bundle.LeftFor {
		t.Errorf("answers are kept for %v, and keys that left for %v", web.MaxAge, bundle.LeftFor)
	}
}

// A visitor that says nothing, or all of it slowly, loses its connection.
func TestSlowVisitorsGo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	half := s.dial()
	if _, err := io.WriteString(half, "GET "+config+" HTTP/1.1\r\nHost:"); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"no handshake": raw, "half a request": half} {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: it stands still", name)
		}
	}
}

// More connections than one address may begin are refused and counted, and the others served; one
// connection asks for so much and no more.
func TestCrowdsAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.issues("/prod")
	conn := s.dial()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(conn)
	for i := range 100 {
		if _, err := io.WriteString(conn, get("GET", keys, "")); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Close != (i == 99) {
			t.Fatalf("answer %d: close %v, %v", i, resp.Close, err)
		}
	}
	refused := func() float64 { return coordinatortest.CounterOf(s.C.Registry(), "fealty_connections_refused_total") }
	crowd := func(name string, count int, from []string, want float64) {
		t.Helper()
		before := refused()
		for _, ip := range from {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
			for range count {
				c, err := d.Dial("tcp", s.addr)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
			}
		}
		wait.UntilNil(t, "connections are refused", func() error {
			if got := refused() - before; got < want {
				return fmt.Errorf("%s: %v were, want %v", name, got, want)
			}
			return nil
		})
	}
	if runtime.GOOS == "linux" { // elsewhere a machine has one address of its own
		crowd("more than there are slots", 75, []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}, 40)
	}
	crowd("one address", 400, []string{"127.0.0.1"}, 200)
	// The next second has room again.
	wait.UntilNil(t, "somebody gets in again", func() error {
		c, err := tls.Dial("tcp", s.addr, s.tls)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Old versions of TLS are refused, and so is HTTP without it.
func TestOnlyTLS(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old := s.tls.Clone()
	old.MaxVersion = tls.VersionTLS11
	if c, err := tls.Dial("tcp", s.addr, old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
	resp, err := http.Get("http://" + s.addr + config)
	if err == nil {
		resp.Body.Close()
		if resp.StatusCode < 400 {
			t.Errorf("HTTP: %v", resp.Status)
		}
	}
}
