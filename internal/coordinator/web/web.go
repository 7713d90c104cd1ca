// Package web serves the public keys of the cluster's token issuer over HTTPS, with a certificate
// of the web PKI.
//
// By these two documents others verify tokens of workloads (OpenID Connect). Nothing else is
// served. A copy of the documents is made when they change. Everybody may ask, so that what a
// connection and a network cost is bounded before anything is done for them, and none of it is
// taken from what members need.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/platform/metrics"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// MaxAge is for how long an answer may be kept and given again. It is shorter than
// [bundle.LeftFor], so that who has an old answer asks again before what is in it is needed no more.
const MaxAge = 5 * time.Minute

// Limits on who asks.
const (
	maxConnections  = 256
	maxRequests     = 100 // on one connection
	maxHeaderBytes  = 8 << 10
	headerTimeout   = 5 * time.Second // for a handshake, and for the head of a request
	requestTimeout  = 10 * time.Second
	answerTimeout   = 10 * time.Second
	idleTimeout     = 30 * time.Second
	sourceRate      = 20 // connections per second from one address
	sourceBurst     = 100
	connectionRate  = 200 // connections per second from everybody: each may cost a signature by RSA
	connectionBurst = 500
)

// Config is what a Web is made of.
type Config struct {
	Head   *authority.Head
	Bundle *current.Current
	// Listener is where it serves, with the certificate of Pair. Nil: it does not.
	Listener net.Listener
	Pair     *Pair
	// Refused is told of each connection that is refused for want of a slot.
	Refused func(error)
	Log     *slog.Logger
	Now     func() time.Time
}

// Web serves the documents. Make it with [New].
type Web struct {
	cfg      Config
	sources  *ratelimit.Sources
	limiter  *mesh.Limiter
	requests *prometheus.CounterVec

	mu   sync.Mutex
	last made // guarded by mu
}

// made are documents, and what they were made of.
type made struct {
	state *authority.State
	view  *bundle.View
	at    time.Time
	until time.Time // zero: as long as state and view are the same
	docs  jwtsvid.Documents
}

// New returns a Web that serves nothing yet.
func New(cfg Config) *Web {
	return &Web{
		cfg:     cfg,
		sources: ratelimit.NewSources(sourceRate, sourceBurst, connectionRate, connectionBurst),
		limiter: mesh.NewLimiter(mesh.Limits{Slots: maxConnections}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fealty_web_requests_total",
			Help: "Requests on the listener for the web, by the document that was asked for and the status.",
		}, []string{"document", "status"}),
	}
}

// RegisterMetrics registers what it counts.
func (w *Web) RegisterMetrics(reg prometheus.Registerer) {
	reg.MustRegister(w.requests, metrics.GaugeOf("fealty_web_certificate_not_after_seconds",
		"When the certificate of the web in use ends, in seconds since 1970. 0: there is none.", func() float64 {
			if w.cfg.Pair == nil {
				return 0
			}
			return float64(w.cfg.Pair.NotAfter().Unix())
		}))
}

// Alive returns once the locks that requests take were free.
func (w *Web) Alive() {
	w.sources.Alive()
	w.mu.Lock()
	defer w.mu.Unlock()
}

// Serve serves until ctx ends, and closes the listener.
func (w *Web) Serve(ctx context.Context) error {
	serving, end := context.WithCancel(ctx)
	var h1 http.Protocols
	h1.SetHTTP1(true) // what HTTP/2 lets a client ask for at once is not needed for two documents
	h := &http.Server{
		Handler: w, Protocols: &h1,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, DisableGeneralOptionsHandler: true,
		ErrorLog: slog.NewLogLogger(w.cfg.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, counterKey{}, new(atomic.Int64))
		},
	}
	var following sync.WaitGroup
	following.Go(func() { _ = w.cfg.Pair.Run(serving) }) // it ends with its context alone
	stop := context.AfterFunc(ctx, func() { h.Close() })
	defer following.Wait()
	defer end()
	defer stop()
	err := h.Serve(tls.NewListener(&door{Listener: w.cfg.Listener, w: w}, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: w.cfg.Pair.Certificate, NextProtos: []string{"http/1.1"},
	}))
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return fmt.Errorf("serve the web on %s: %w", w.cfg.Listener.Addr(), err)
}

// door lets in as many connections as there are slots. A network that has most of them gives way.
type door struct {
	net.Listener
	w *Web
}

func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := conn.RemoteAddr().String()
		if !d.w.sources.Allow(from, d.w.cfg.Now()) {
			d.refuse(conn, "it is one too many of this second")
			continue
		}
		in := &visitor{Conn: conn}
		var ok bool
		in.slot, ok = d.w.limiter.Enter(mesh.Address(from), func() { d.refuse(conn, "another one got its slot") })
		if !ok {
			d.refuse(conn, "all slots are taken")
			continue
		}
		return in, nil
	}
}

func (d *door) refuse(conn net.Conn, why string) {
	conn.Close()
	d.w.cfg.Refused(fmt.Errorf("web: a connection from %s: %s", conn.RemoteAddr(), why))
}

// visitor is a connection that has a slot.
type visitor struct {
	net.Conn
	slot *mesh.Slot
}

func (v *visitor) Close() error {
	v.slot.Leave()
	return v.Conn.Close()
}

type counterKey struct{}

// ServeHTTP answers one request.
func (w *Web) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if n, ok := r.Context().Value(counterKey{}).(*atomic.Int64); ok && n.Add(1) >= maxRequests {
		out.Header().Set("Connection", "close")
	}
	name, status, problem := "other", http.StatusOK, ""
	var body []byte
	docs, path, err := w.documents()
	switch r.URL.EscapedPath() {
	case path + jwtsvid.ConfigurationPath:
		name, body = "configuration", docs.Configuration
		out.Header().Set("Content-Type", jwtsvid.ConfigurationType)
	case path + jwtsvid.KeysPath:
		name, body = "keys", docs.Keys
		out.Header().Set("Content-Type", jwtsvid.KeysType)
	}
	switch {
	case err != nil && strings.Contains(r.URL.EscapedPath(), "/.well-known/"):
		status, problem = http.StatusServiceUnavailable, "this coordinator is not ready, ask another one or again"
		out.Header().Set("Retry-After", "10")
	case body == nil:
		status, problem = http.StatusNotFound, "there is nothing here"
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		status, problem = http.StatusMethodNotAllowed, "this can be read alone"
		out.Header().Set("Allow", "GET, HEAD")
	case r.ContentLength != 0:
		status, problem = http.StatusBadRequest, "a request for this has no content"
	}
	w.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
	out.Header().Set("X-Content-Type-Options", "nosniff")
	if problem != "" {
		out.Header().Set("Connection", "close") // what else it sends is not read
		out.Header().Set("Cache-Control", "no-store")
		http.Error(out, problem, status)
		return
	}
	out.Header().Set("Cache-Control", "public, max-age="+strconv.Itoa(int(MaxAge.Seconds())))
	out.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = out.Write(body) // who asked went away: nobody is left to tell
	}
}

var (
	errSilent   = errors.New("the store does not answer")
	errNotReady = errors.New("there is no trust bundle, or it is not followed")
)

// documents returns what is served now, and the path of the issuer's URL; without an issuer they
// are empty. A coordinator that was not shown the head for long says nothing: a key may be revoked.
func (w *Web) documents() (jwtsvid.Documents, string, error) {
	s, err := w.cfg.Head.DegradedState("the keys of tokens", errSilent)
	if err != nil {
		return jwtsvid.Documents{}, "", err
	}
	view := w.cfg.Bundle.View()
	if view == nil || !w.cfg.Head.Acts(s) {
		return jwtsvid.Documents{}, "", errNotReady
	}
	issuer := s.Manifest.TokenIssuer
	_, path, deeper := strings.Cut(strings.TrimPrefix(issuer, "https://"), "/")
	if deeper {
		path = "/" + path
	}
	if issuer == "" {
		return jwtsvid.Documents{}, path, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.cfg.Now()
	if m := w.last; m.state == s && m.view == view && !now.Before(m.at) && (m.until.IsZero() || now.Before(m.until)) {
		return m.docs, path, nil
	}
	keys, until, err := view.VerifierKeys(s.Bundle, now)
	if err != nil {
		return jwtsvid.Documents{}, path, err
	}
	if len(keys) == 0 {
		return jwtsvid.Documents{}, path, errNotReady
	}
	docs, err := jwtsvid.NewDocuments(issuer, keys)
	if err != nil {
		return jwtsvid.Documents{}, path, err
	}
	w.last = made{state: s, view: view, at: now, until: until, docs: docs}
	return docs, path, nil
}
