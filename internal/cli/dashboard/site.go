// Package dashboard serves pages for a browser that show a fleet, as the operator who runs them may see it.
//
// It changes nothing: it asks coordinators by calls that only read, as any command does, and a browser can do no more than
// GET and HEAD. No coordinator knows that it exists, and nothing of Fealty needs it.
//
// # Who can read it
//
// Whoever has its address, which holds 130 random bits ([NewSecret]), and nobody else: not another user of the machine, who
// can connect to its port, and not a page of the web in the operator's browser, which can send requests there. There is no
// cookie. One would be sent to every port of the machine, so that another user who gets the operator to open a port of his
// would have it, and a page of the web could send requests that have it. The address is sent nowhere: pages name no other
// server and send no Referer, and the command opens no browser, because arguments of processes are seen by all users.
//
// Beside that a request is refused whose Host is not this listener, which is what a name of the web that was made to lead
// here sends (DNS rebinding), and one that a page of another origin made, by its Sec-Fetch-Site.
//
// # What a page can do
//
// Pages are made by package markup, in which text from elsewhere stays text, and the content security policy allows no
// script but the one file of this package, no style but its own, and nothing of another server. The script writes no markup
// either: it has the browser parse a page that this server sent, and takes its sections over (Trusted Types allow nothing
// else). Without it all is there, as of when the page was loaded.
package dashboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/dashboard/markup"
)

// Bounds of what a browser, or who else connects, can have.
const (
	maxConnections = 128
	maxHeaderBytes = 16 << 10
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	answerTimeout  = 30 * time.Second
	idleTimeout    = time.Minute
	maxRendering   = 32       // pages that are made at once
	maxPageBytes   = 2 << 20  // of one page
	maxTextBytes   = 16 << 10 // of one text that is shown, such as a record of config
	maxQueryBytes  = 4 << 10  // of what is searched for
)

//go:embed assets/style.css
var styleSheet []byte

//go:embed assets/icon.svg
var icon []byte

//go:embed assets/live.js
var script []byte

// policy is what pages may do; see the comment of the package.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Config is what a dashboard is made of. Certificate, Log and Now need not be set.
type Config struct {
	// Listener is where browsers connect. It is closed in the end.
	Listener net.Listener

	// Certificate returns the certificate for the web of a listener that is not on loopback; its names are those under
	// which the dashboard may be asked for. Nil: it is asked for in the clear, as a name of loopback.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	// Secret is the first part of every path; see [NewSecret].
	Secret string

	// Line leads to the coordinators, as the operator.
	Line *client.Line

	// Called puts the name under which the program was called into commands that are shown.
	Called func(text string) string

	// Log gets what the HTTP server has to say. Nil: nobody.
	Log *slog.Logger

	// Now is the clock. Nil means time.Now.
	Now func() time.Time
}

// NewSecret returns a new secret for the address of a dashboard: 26 characters, 130 bits.
func NewSecret() string { return strings.ToLower(rand.Text()) }

// URL returns the address of a dashboard's first page.
func (c Config) URL() string {
	scheme, host := "http", c.Listener.Addr().String()
	if c.Certificate != nil {
		scheme = "https"
		cert, err := c.Certificate(nil)
		if _, port, split := net.SplitHostPort(host); err == nil && split == nil && len(cert.Leaf.DNSNames) > 0 {
			host = net.JoinHostPort(cert.Leaf.DNSNames[0], port)
		}
	}
	return scheme + "://" + host + "/" + c.Secret + "/"
}

// site serves the pages of one dashboard.
type site struct {
	cfg    Config
	base   string // of every path: "/", the secret, "/"
	source *source
	hub    *hub
	turns  chan struct{} // one for each page that is made
	pages  *http.ServeMux
}

// Serve serves a dashboard until ctx ends, and returns ctx's error, or why it ended before.
func Serve(ctx context.Context, cfg Config) error {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	life, end := context.WithCancel(ctx)
	s := &site{cfg: cfg, base: "/" + cfg.Secret + "/", hub: newHub(), turns: make(chan struct{}, maxRendering),
		source: &source{services: client.ServicesOf(cfg.Line), now: cfg.Now, life: life}}
	s.route()
	var h1 http.Protocols
	h1.SetHTTP1(true)
	server := &http.Server{
		Handler: s, Protocols: &h1,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, DisableGeneralOptionsHandler: true,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	var running sync.WaitGroup
	running.Go(func() { s.watch(life) })
	running.Go(func() { s.source.followAudit(life, s.hub.look) })
	stop := context.AfterFunc(life, func() { server.Close() })
	defer s.source.asks.Wait()
	defer running.Wait()
	defer end()
	defer stop()
	l := netutil.LimitListener(cfg.Listener, maxConnections)
	if cfg.Certificate != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cfg.Certificate, NextProtos: []string{"http/1.1"}})
	}
	err := server.Serve(l)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return fmt.Errorf("serve the dashboard on %s: %w", cfg.Listener.Addr(), err)
}

// route says which path is which page.
func (s *site) route() {
	s.pages = http.NewServeMux()
	file := func(name, kind string, data []byte) {
		s.pages.HandleFunc("GET "+s.base+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(data)
		})
	}
	file("style.css", "text/css; charset=utf-8", styleSheet)
	file("icon.svg", "image/svg+xml", icon)
	file("live.js", "text/javascript; charset=utf-8", script)
	s.pages.HandleFunc("GET "+s.base+"events", s.events)
	s.pages.HandleFunc("GET "+s.base+"{$}", s.show((*view).overview))
	for path, make := range map[string]func(*view) page{
		"members": (*view).membersPage, "members/{kind}/{name}": (*view).memberPage, "config": (*view).configPage,
		"control": (*view).controlPage, "history": (*view).historyPage, "actuation": (*view).actuationPage,
		"incidents": (*view).incidentsPage, "audit": (*view).auditPage,
	} {
		s.pages.HandleFunc("GET "+s.base+path, s.show(make))
	}
	s.pages.HandleFunc("GET "+s.base+"help/{code}", s.show((*view).help))
}

// ServeHTTP refuses whoever may not read the dashboard, and serves the others.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cross-Origin-Embedder-Policy": "require-corp",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
	if status, why := s.refusal(r); why != "" {
		http.Error(w, why, status)
		return
	}
	s.pages.ServeHTTP(w, r)
}

// refusal says why a request is refused, or "".
func (s *site) refusal(r *http.Request) (status int, why string) {
	switch from := r.Header.Get("Sec-Fetch-Site"); {
	case !s.ours(r.Host):
		return http.StatusMisdirectedRequest, "the dashboard is not served under this name: open the address that fealty dashboard printed"
	case from != "" && from != "same-origin" && from != "none":
		return http.StatusForbidden, "the page of another site asked for this: open the address that fealty dashboard printed"
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return http.StatusMethodNotAllowed, "the dashboard is read-only: GET and HEAD are all that it takes"
	case !s.secret(r.URL.Path):
		return http.StatusNotFound, "there is no such page: open the address that fealty dashboard printed"
	case len(r.URL.RawQuery) > maxQueryBytes:
		return http.StatusRequestURITooLong, fmt.Sprintf("what is searched for has more than %d bytes", maxQueryBytes)
	}
	return 0, ""
}

// secret reports whether a path begins with the secret, in the same time for every path of its length.
func (s *site) secret(path string) bool {
	return len(path) >= len(s.base) && subtle.ConstantTimeCompare([]byte(path[:len(s.base)]), []byte(s.base)) == 1
}

// ours reports whether a request's Host is this listener. Who makes a name of the web lead here can have a browser connect,
// and the browser then sends that name.
func (s *site) ours(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if s.cfg.Certificate != nil {
		if err != nil {
			name = host // without a port
		}
		cert, err := s.cfg.Certificate(nil)
		return err == nil && cert.Leaf.VerifyHostname(name) == nil
	}
	at, ok := s.cfg.Listener.Addr().(*net.TCPAddr)
	return err == nil && ok && port == fmt.Sprint(at.Port) && (name == at.IP.String() || name == "localhost")
}

// page is what one page shows.
type page struct {
	title  string
	active string // the path of its place in the navigation, below the secret
	status int    // of HTTP; 0: OK
	body   markup.List
}

// show serves a page, which make returns.
func (s *site) show(make func(*view) page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
		case <-r.Context().Done():
			return
		}
		version, _ := s.hub.now()
		v := s.look(r)
		p := make(v)
		var b bytes.Buffer
		markup.Write(&b, v.frame(p, version))
		if b.Len() > maxPageBytes {
			http.Error(w, fmt.Sprintf("the page has %d bytes, and at most %d are shown", b.Len(), maxPageBytes), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if p.status != 0 {
			w.WriteHeader(p.status)
		}
		_, _ = w.Write(b.Bytes())
	}
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
