package mirror

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// Limits of transfers.
const (
	maxRedirects   = 3
	maxHeaderBytes = 32 << 10
)

// HTTPS is a tree that a plain HTTPS server has. It sends no credentials and no
// cookies, uses no proxy, and asks for no compression.
type HTTPS struct {
	base   *url.URL
	client *http.Client
}

// HTTPSConfig says how to reach a server.
type HTTPSConfig struct {
	// URL is where the tree begins: https, a host, a path; nothing else.
	URL string

	// CA returns the roots that the server's certificate leads to, and is asked for each connection. Nil, or nil from it,
	// means those of the system.
	CA func() *x509.CertPool

	// Dial connects. Nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// CheckURL says what is wrong with the URL of a tree, or "".
func CheckURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "it is no URL"
	case u.Scheme == "http":
		return "it is http: what a tree holds is for nobody else on the way, so that it takes https"
	case u.Scheme != "https":
		return "its scheme is not https"
	case u.User != nil:
		return "it has a user name: no credentials are sent"
	case u.Host == "" || u.Hostname() == "":
		return "it names no host"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "":
		return "it has a query or a fragment, which no file has"
	}
	return ""
}

// NewHTTPS returns the source that reads from a server. It connects when it is asked.
func NewHTTPS(cfg HTTPSConfig) (*HTTPS, error) {
	if problem := CheckURL(cfg.URL); problem != "" {
		return nil, fmt.Errorf("mirror: the URL %q cannot be used: %s", cfg.URL, problem)
	}
	base, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(base.Path, "/") {
		base.Path, base.RawPath = base.Path+"/", ""
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: ratelimit.TransferGrace}).DialContext
	}
	roots := cfg.CA
	if roots == nil {
		roots = func() *x509.CertPool { return nil }
	}
	return &HTTPS{base: base, client: &http.Client{
		Transport: &http.Transport{
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dialTLS(ctx, dial, network, address, roots())
			},
			ResponseHeaderTimeout:  ratelimit.TransferGrace,
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true, // a small answer must not become a large one
			MaxConnsPerHost:        2,
			IdleConnTimeout:        30 * time.Second,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errors.New("it redirects too often")
			case req.URL.Scheme != "https":
				return errors.New("it redirects away from https")
			}
			return nil
		},
	}}, nil
}

// dialTLS makes a connection to a server whose certificate leads to roots.
func dialTLS(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error),
	network, address string, roots *x509.CertPool) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ratelimit.TransferGrace)
	defer cancel()
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// Close ends idle connections. It does not fail.
func (s *HTTPS) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

func (s *HTTPS) String() string { return s.base.String() }

// Get implements [Source].
func (s *HTTPS) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	ctx, transfer := ratelimit.BeginTransfer(ctx, limit)
	defer transfer.End()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base.String()+name, nil)
	if err != nil {
		return nil, &Error{Reason: Malformed, Name: name, Detail: "it cannot be asked for", Err: err}
	}
	req.Header.Set("Accept-Encoding", "identity")
	failed := func(err error) error {
		timeout, ok := errors.AsType[net.Error](err)
		if transfer.Slow() || ok && timeout.Timeout() {
			return &Error{Reason: Slow, Name: name, Detail: ratelimit.ErrSlowTransfer.Error()}
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return &Error{Reason: Unreachable, Name: name, Detail: "it was not received", Err: err}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, failed(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, &Error{Reason: Status, Name: name, Detail: fmt.Sprintf("the server answers %d", resp.StatusCode)}
	case resp.Header.Get("Content-Encoding") != "" && resp.Header.Get("Content-Encoding") != "identity":
		return nil, &Error{Reason: Malformed, Name: name, Detail: "the server compresses, and was asked not to"}
	case resp.ContentLength > limit:
		return nil, tooLarge(name, limit)
	}
	data, err := io.ReadAll(io.LimitReader(transfer.Reader(resp.Body), limit+1))
	if err == nil {
		err = ctx.Err() // a server that notices that it was given up may end as if that were all
	}
	if err != nil {
		return nil, failed(err)
	}
	if int64(len(data)) > limit {
		return nil, tooLarge(name, limit)
	}
	return data, nil
}
