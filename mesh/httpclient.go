package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"google.golang.org/grpc/codes"
)

// HTTPTransport sends requests of net/http to servers that prove one identity. It is an
// [http.RoundTripper]; make it with [NewHTTPTransport].
type HTTPTransport struct {
	src    credential.Source
	expect credential.Expect
	opts   Options
	live   *liveSet

	journal *balancer.Journal
	order   balancer.Order

	mu   sync.Mutex
	base *http.Transport      // whose connections were made with last; guarded by mu
	last *credential.Material // nil before the first request; guarded by mu
}

// NewHTTPTransport returns a transport whose connections are kept only if the server proves
// expect under the bundle of src. The host in a URL is where it is dialed, and proves nothing.
//
// A host may lead to several endpoints, by DNS or Options.Lookup. A connection is made to one of
// them, in turn. One whose handshake fails is skipped, and for a second, or at last for 30, tried
// after all others. A request fails with a [*NoEndpointsError] when each was tried, once, for nothing. One
// whose body cannot be sent again (http.Request.GetBody) fails at the first endpoint that does not
// accept our certificate, which shows when it was sent.
//
// It follows its source as [Dial] does: a request takes a connection that was made with the
// material of now, and a connection ends when the bundle bans its server, or with the server's
// certificate. A request to a server that did not prove itself, or that does not accept our
// certificate, fails with a [*HandshakeError], and one whose connection was ended with a
// [*CutError], unless net/http could send it again on another. Nothing is sent over plain http, and
// a response has no TLS state. At most 8 connections to one server stand at once, and while one
// does a goroutine runs.
//
// Errors are those of [credential.ClientTLS]. Options.GRPC is not looked at.
func NewHTTPTransport(src credential.Source, expect credential.Expect, opts Options) (*HTTPTransport, error) {
	if _, err := credential.ClientTLS(src, expect, credential.ClientOptions{}); err != nil {
		return nil, err // each connection would fail so
	}
	t := &HTTPTransport{src: src, expect: expect, opts: opts.complete().told(), live: newLiveSet()}
	t.journal = t.opts.journal()
	if t.opts.Lookup == nil && opts.Dialer == nil {
		t.opts.Lookup = balancer.Lookup
	}
	t.base = &http.Transport{
		DialTLSContext:         t.dial,
		MaxConnsPerHost:        maxHTTPConns, // further requests wait
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        httpIdleTimeout / 2, // before a server's, so that no request meets its end
	}
	return t, nil
}

// maxHTTPConns bounds the connections to one server: fewer than a guard's MaxPerIdentity by
// default, as those from before a renewal may still be open.
const maxHTTPConns = 8

var errPlain = errors.New("mesh: a request has to go to an https URL: over http nobody proves who they are")

// RoundTrip sends a request. Its errors are said by [NewHTTPTransport].
func (t *HTTPTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	tried, ctx := balancer.NewAttempt(r.Context())
	next := r.WithContext(ctx)
	for {
		base, err := t.current(r.Context())
		if r.URL == nil || r.URL.Scheme != "https" {
			err = errPlain
		}
		if err != nil {
			if next.Body != nil {
				_ = next.Body.Close() // a RoundTripper always closes it
			}
			return nil, err
		}
		answer, err := base.RoundTrip(next)
		// A server that does not accept our certificate has read nothing of the request.
		h, ok := errors.AsType[*HandshakeError](err)
		if !ok || h.Reason != ClientRejected || errors.As(err, new(*NoEndpointsError)) || !tried.First(h.Endpoint, h) {
			return answer, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return answer, err
			}
			again, problem := r.GetBody()
			if problem != nil {
				return answer, err
			}
			next = next.WithContext(next.Context())
			next.Body = again
		}
	}
}

// CloseIdleConnections closes the connections on which no request runs.
func (t *HTTPTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base.CloseIdleConnections()
}

// current returns the transport whose connections are made with the material of now.
func (t *HTTPTransport) current(ctx context.Context) (*http.Transport, error) {
	m, err := t.src.Current(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil && t.last == nil:
		return nil, &sourceError{err}
	case err != nil: // the last good one stays
	case t.last != nil && differs(t.last, m):
		// A request on an earlier connection goes on there; then that is closed, as the
		// transport that it belongs to is asked for no other.
		before := t.base
		t.base = before.Clone()
		before.CloseIdleConnections()
		t.last = m
	default:
		t.last = m
	}
	return t.base, nil
}

// dial makes one connection to an endpoint of addr that was not tried for the request.
func (t *HTTPTransport) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	set, err := []string{addr}, error(nil)
	if t.opts.Lookup != nil {
		if set, err = t.opts.Lookup(ctx, addr); err != nil {
			return nil, err
		}
	}
	conn, failed := t.order.Connect(ctx, set, t.opts.Now, func(ctx context.Context, at string) (net.Conn, error) {
		return t.connect(ctx, at, len(set) > 1)
	})
	switch {
	case conn != nil:
		return conn, nil
	case len(set) == 1:
		return nil, failed[set[0]]
	case len(failed) == 0:
		return nil, fmt.Errorf("mesh: %s leads to no endpoint", addr)
	}
	for at, err := range failed {
		if _, ok := errors.AsType[*HandshakeError](err); !ok {
			failed[at] = &EndpointError{at, err}
		}
	}
	return nil, &NoEndpointsError{Target: addr, Failures: balancer.ByEndpoint(failed), code: codes.Unavailable}
}

// connect makes a connection to one endpoint, with the freshest material.
func (t *HTTPTransport) connect(ctx context.Context, addr string, others bool) (net.Conn, error) {
	dialing, cancel := ctx, context.CancelFunc(func() {})
	if others {
		dialing, cancel = context.WithTimeout(ctx, balancer.ReachTimeout)
	}
	defer cancel()
	raw, err := t.opts.Dialer(dialing, addr)
	if err != nil {
		return nil, err
	}
	conn, err := t.secure(ctx, raw, addr)
	if err != nil {
		raw.Close()
		return nil, t.failed(classify(err, clientSide, addr, t.expect.String()))
	}
	return conn, nil
}

// failed tells about a handshake that failed, and returns why.
func (t *HTTPTransport) failed(err error) error {
	if h, ok := errors.AsType[*HandshakeError](err); ok {
		h.note(t.journal)
		if t.opts.OnFailure != nil {
			t.opts.OnFailure(h)
		}
	}
	return err
}

func (t *HTTPTransport) secure(ctx context.Context, raw net.Conn, addr string) (net.Conn, error) {
	var verified identity.Verified
	cfg, err := credential.ClientTLS(t.src, t.expect, credential.ClientOptions{NextProtos: httpProtos,
		OnVerified: func(v identity.Verified) { verified = v }})
	if err != nil {
		return nil, err
	}
	shaking, cancel := context.WithTimeout(ctx, mesh.HandshakeTimeout)
	defer cancel()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(shaking); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	live := &liveConn{
		raw:     raw,
		peer:    identity.Peer{ID: verified.ID, Leaf: verified.Leaf, Key: verified.Key, Addr: addr},
		expires: earliest(state.PeerCertificates), issuers: keysOf(state.PeerCertificates[1:]),
	}
	live.Conn = &answeredConn{Conn: conn, first: func(err error) error {
		switch {
		case err == nil:
			t.order.Good(addr)
			t.journal.Healed(addr)
			return nil
		case isAlert(err):
			err = &HandshakeError{Reason: ClientRejected, Endpoint: addr, Expected: t.expect.String()}
		default:
			err = classify(err, clientSide, addr, t.expect.String())
		}
		t.order.Failed(addr, t.opts.Now())
		return t.failed(err)
	}}
	if t.live.add(live, t.opts.Now()) {
		go t.live.follow(t.src, t.opts.Now)
	}
	t.live.wake() // a ban may have come, and been acted on, while we shook hands
	return cutConnection{live}, nil
}

// cutConnection says why its connection was ended, where it was.
type cutConnection struct{ *liveConn }

func (c cutConnection) Read(p []byte) (int, error) {
	n, err := c.liveConn.Read(p)
	return n, c.because(err)
}

func (c cutConnection) Write(p []byte) (int, error) {
	n, err := c.liveConn.Write(p)
	return n, c.because(err)
}
