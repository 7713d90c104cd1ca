package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/fealty-io/fealty/identity"
	"google.golang.org/grpc/codes"
)

// httpProtos is what net/http speaks here (RFC 9112).
var httpProtos = []string{"http/1.1"}

// Limits of [ServeHTTP] for an http.Server that leaves them at zero, and of each request of a
// client without a certificate: without that it would hold its slot for as long as it sends, or
// reads, one byte now and then.
const (
	httpHeaderTimeout   = 10 * time.Second
	httpIdleTimeout     = 2 * time.Minute
	httpHeaderBytes     = 64 << 10
	httpStopGrace       = 5 * time.Second
	httpStrangerRequest = 30 * time.Second
)

// ServeHTTP serves HTTP/1.1 over TLS 1.3 on l behind g, as a gRPC server does, until ctx ends,
// and returns nil then; requests that run have five seconds to end. It closes l.
//
// The handler of s finds who is calling by [identity.FromContext] in the request's context, and
// the connection in its TLS field. The guard keeps its promises of a call for a request: one
// of a peer that is banned, or whose certificate ended, is answered 403 or 401 before the
// handler, and one that runs has its context ended, with a [*CutError] as its cause, and its
// connection closed. A client without a certificate is served, as Insecure: the handler decides
// what that means, and each of its requests has 30 seconds. A connection that a handler hijacks is
// the handler's: the guard alone ends it, also after ServeHTTP returned.
//
// s gets a handler, a connection context and, where they are zero, limits of time from here;
// give it to nothing else. An error of l is returned.
func ServeHTTP(ctx context.Context, g *Guard, l net.Listener, s *http.Server) error {
	handler := s.Handler
	if handler == nil {
		handler = http.DefaultServeMux
	}
	s.Handler = g.httpHandler(handler)
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if c, ok := conn.(*shaken); ok {
			return context.WithValue(ctx, infoKey{}, c.info)
		}
		return ctx
	}
	s.ReadHeaderTimeout = cmp.Or(s.ReadHeaderTimeout, httpHeaderTimeout)
	s.IdleTimeout = cmp.Or(s.IdleTimeout, httpIdleTimeout)
	s.MaxHeaderBytes = cmp.Or(s.MaxHeaderBytes, httpHeaderBytes)
	s.DisableGeneralOptionsHandler = true // it would answer before the guard is asked
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handed := newHanded(l.Addr())
	accepted := make(chan error, 1)
	go func() { accepted <- g.acceptHTTP(ctx, l, handed) }()
	served := make(chan error, 1)
	go func() { served <- s.Serve(handed) }()
	var err error
	select {
	case err = <-accepted: // with ctx, or as l failed
		accepted <- err
	case err = <-served: // somebody closed s
		served <- err
	}
	ended := ctx.Err() != nil
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), httpStopGrace)
	defer stopped()
	if s.Shutdown(stopping) != nil {
		_ = s.Close() // what took too long
	}
	cancel()
	<-accepted
	<-served
	if ended || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("mesh: serve on %s: %w", l.Addr(), err)
}

// infoKey is where a request's context has the [*Info] of its connection.
type infoKey struct{}

// httpHandler serves what the guard lets in.
func (g *Guard) httpHandler(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := r.Context().Value(infoKey{}).(*Info)
		if !ok {
			http.Error(w, "mesh: this connection did not come through the guard", http.StatusInternalServerError)
			return
		}
		g.serveHTTP(w, r, info, handler)
	})
}

// serveHTTP serves one request, unless the connection that it came on may not be served.
func (g *Guard) serveHTTP(w http.ResponseWriter, r *http.Request, info *Info, handler http.Handler) {
	call, err := g.enterOn(r.Context(), info, true)
	if err != nil {
		w.Header().Set("Connection", "close")
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	defer g.leave(call)
	if info.Peer.Leaf == nil {
		end := time.Now().Add(httpStrangerRequest)
		c := http.NewResponseController(w)
		if c.SetReadDeadline(end) != nil || c.SetWriteDeadline(end) != nil {
			return // it is gone
		}
	}
	r = r.WithContext(call)
	if info.secured {
		state := info.state
		r.TLS = &state
	}
	// net/http removes the files of its own request alone, and this is a copy.
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	handler.ServeHTTP(w, r)
}

// Handler returns next behind g, for a server that listens itself. Its TLS configuration is to be
// [credential.ServerTLS] of the guard's source; whatever it is, the chain of each request's client
// is verified here, under the bundle that is current. next finds who is calling by [identity.FromContext] in
// the request's context. A request of a peer that is not trusted, is banned, or whose certificate
// ended, is answered 403 or 401 before next; one that runs has its context ended then, with a
// [*CutError] as its cause. A client without a certificate, or without TLS, is served as
// [ServeHTTP] does: next decides what that means. The connections are the server's: their number
// and their limits are not g's business.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := r.Context().Value(infoKey{}).(*Info); ok { // it came through ServeHTTP
			g.serveHTTP(w, r, info, next)
			return
		}
		info, err := g.request(r)
		if err != nil {
			code := http.StatusForbidden
			if errors.Is(err, identity.ErrExpired) {
				code = http.StatusUnauthorized
			}
			http.Error(w, err.Error(), code)
			return
		}
		g.stand(info)
		defer info.conn.forget()
		g.serveHTTP(w, r, info, next)
	})
}

// request is what is known of a request's connection, which is for the guard as if it were there
// for this request alone.
func (g *Guard) request(r *http.Request) (*Info, error) {
	info := &Info{Peer: identity.Peer{Addr: r.RemoteAddr}, conn: &liveConn{raw: ofServer{}}}
	info.conn.read.Store(true)
	if r.TLS == nil {
		return info, nil
	}
	info.state, info.secured = *r.TLS, true
	if chain := r.TLS.PeerCertificates; len(chain) > 0 {
		v, err := g.beliefs(g.cfg.Source.Current(r.Context())).Verify(chain, g.cfg.Now())
		if err != nil {
			err = classify(err, serverSide, r.RemoteAddr, "")
			if failed, ok := errors.AsType[*HandshakeError](err); ok {
				g.failed(failed)
			}
			return nil, err
		}
		info.Peer.ID, info.Peer.Err, info.Peer.Leaf, info.Peer.Key = v.ID, v.IDErr, v.Leaf, v.Key
		info.conn.expires, info.conn.issuers = earliest(chain), keysOf(chain[1:])
		info.expires = info.conn.expires
	}
	info.conn.peer = info.Peer
	return info, nil
}

// ofServer is a connection that its server closes, not the guard.
type ofServer struct{ net.Conn }

func (ofServer) Close() error { return nil }

// statusOf returns the status of a refusal: what GRPCStatus of a [*CutError] or a [*DeniedError] says, in HTTP.
func statusOf(err error) int {
	var code codes.Code
	if cut, ok := errors.AsType[*CutError](err); ok {
		code = cut.GRPCStatus().Code()
	} else if denied, ok := errors.AsType[*DeniedError](err); ok {
		code = denied.GRPCStatus().Code()
	}
	switch code {
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	}
	return http.StatusServiceUnavailable
}

// acceptHTTP makes the handshakes of l, each on a goroutine of its own, and hands what came of
// them over, until ctx ends or l fails.
func (g *Guard) acceptHTTP(ctx context.Context, l net.Listener, to *handed) error {
	var all sync.WaitGroup
	defer all.Wait()
	defer to.Close()
	return accept(ctx, l, func(raw net.Conn) {
		// A slot is taken before a goroutine is: those beyond them cost nothing.
		free, err := g.handshakes.take(sourceOf(raw.RemoteAddr()))
		if err != nil {
			raw.Close()
			g.refused(err)
			return
		}
		all.Go(func() {
			defer free()
			if conn, ok := g.httpConn(ctx, raw); ok && !to.hand(ctx, conn) {
				conn.info.conn.sever()
			}
		})
	})
}

// httpConn is one connection whose hands were shaken.
func (g *Guard) httpConn(ctx context.Context, raw net.Conn) (*shaken, bool) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.HandshakeTimeout)
	defer cancel()
	info, err := g.secure(ctx, raw, httpProtos)
	if err != nil {
		return nil, false
	}
	free, err := g.admit(info.Peer, raw)
	if err != nil {
		raw.Close()
		g.refused(err)
		return nil, false
	}
	info.conn.free = free
	g.stand(info)
	return &shaken{info.conn, info}, true
}
