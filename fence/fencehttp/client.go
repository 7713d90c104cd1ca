package fencehttp

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"

	"github.com/fealty-io/fealty/fence"
)

// Transport stamps the requests of one process that may change something, each attempt
// with a token of its own; a redirect is another attempt. It is an [http.RoundTripper].
type Transport struct {
	// Sender numbers the attempts. Required.
	Sender *fence.Sender

	// Host is the host, with its port if the URL has one, of the fenced service. Requests to
	// others, also those to which it redirects, go without a token, and what they answer
	// fences nobody. Required.
	Host string

	// Base sends the requests. Nil means [http.DefaultTransport].
	Base http.RoundTripper

	// Ownership returns the ownership epoch under which a request acts. Nil: 0, as nobody
	// assigns what it acts on.
	Ownership func(r *http.Request) uint64
}

// RefusedError is a refusal as its sender sees it. It matches [fence.ErrRefused], and
// [fence.ErrFenced] and [fence.ErrEnded] by its reason.
type RefusedError struct {
	Reason fence.Reason
	Status string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("fence: the server refused it as %s (%s)", e.Reason, e.Status)
}

// Is reports what a refusal matches.
func (e *RefusedError) Is(target error) bool { return e.Reason.Matches(target) }

// RoundTrip sends a request. A refusal is an error, a [*RefusedError]. Once the process is
// fenced it fails without a request, and its error matches [fence.ErrFenced].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if safe(r.Method) || t.Host != "" && r.URL.Host != t.Host {
		return base.RoundTrip(r)
	}
	stamped, err := t.stamp(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper always closes it
		}
		return nil, err
	}
	response, err := base.RoundTrip(stamped)
	if err != nil {
		return nil, err
	}
	reason := fence.Reason(response.Header.Get(reasonHeader))
	switch {
	case reason != "" && response.StatusCode == statusOf(reason):
	case response.StatusCode == http.StatusPreconditionFailed:
		// An answer that does not say why has fenced the sender: to go on acting would be the
		// worse mistake.
		reason = fence.ReasonStale
	default: // a reason beside another status is not the fence's own
		return response, nil
	}
	_ = response.Body.Close()
	return nil, t.Sender.Heard(&RefusedError{Reason: reason, Status: response.Status})
}

// stamp returns the request with a token, and leaves r as it is.
func (t *Transport) stamp(r *http.Request) (*http.Request, error) {
	refuse := func(why string) (*http.Request, error) {
		return nil, fmt.Errorf("fence: %s %s was not sent: %s", r.Method, r.URL.Redacted(), why)
	}
	switch {
	case t.Host == "":
		return refuse("the transport has no Host")
	case r.Body != nil && r.Body != http.NoBody && r.GetBody == nil:
		return refuse("its body can be read once alone, and has to be read for the token: set GetBody")
	case len(r.Header.Values("Idempotency-Key"))+len(r.Header.Values("X-Idempotency-Key")) > 0:
		// net/http sends such a request again by itself, with the same token.
		return refuse("it has an Idempotency-Key, by which it may be sent twice: name the operation in its body")
	}
	// The digest need not be of the bytes on the wire, only another one for another request.
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s\n", r.Method, r.URL)
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, fmt.Errorf("fence: %s %s was not sent: %w", r.Method, r.URL.Redacted(), err)
		}
		_, err = io.Copy(hash, body)
		if closed := body.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return nil, fmt.Errorf("fence: %s %s was not sent: %w", r.Method, r.URL.Redacted(), err)
		}
	}
	ownership := uint64(0)
	if t.Ownership != nil {
		ownership = t.Ownership(r)
	}
	token, err := t.Sender.Next(ownership, hash.Sum(nil))
	if err != nil {
		return nil, err
	}
	life := t.Sender.Life()
	stamped := r.Clone(r.Context())
	if stamped.Header == nil {
		stamped.Header = make(http.Header)
	}
	for name, value := range map[string]string{tokenHeader: token.String(), lineageHeader: life.Lineage.String(), grantHeader: life.Grant} {
		stamped.Header.Del(name)
		if value != "" {
			stamped.Header.Set(name, value)
		}
	}
	return stamped, nil
}
