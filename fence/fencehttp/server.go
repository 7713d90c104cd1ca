package fencehttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/fealty-io/fealty/fence"
)

// Server is a middleware: a request that may change something reaches the service only
// when its receiver may obey it, one at a time for each resource, before anything of it was
// looked at.
type Server struct {
	// Gate decides. Required.
	Gate *fence.Gate

	// Holder returns the name of the caller, from its certificate. Required.
	Holder func(r *http.Request) (string, error)

	// Resource returns the resource that a request acts on, and the domain that it says it
	// is in, "" for none. It looks at method and URL, not at the body, which nobody has
	// bounded yet. Required.
	Resource func(r *http.Request) (resource, domain string)

	// Removes says that after a request that is answered with success its resource is gone
	// for good, and to be forgotten. Nil: none is.
	Removes func(r *http.Request) bool

	// MaxBody bounds the body of a fenced request, in bytes. Zero means 1 MiB.
	MaxBody int64

	// Authority is whose grants count; the zero Authority has none.
	Authority fence.Authority

	// Refused hears of every refusal, before the sender does: the place for logs, metrics
	// and alarms ([fence.Reason.Alarm]). Nil: nobody hears. It does not block.
	Refused func(r *http.Request, err *fence.RefusedError)
}

// defaultMaxBody bounds the body of a fenced request where the server says nothing.
const defaultMaxBody = 1 << 20

// Handler returns next behind the fence. A fenced request is read whole before it has its
// turn, and answered after it, so that a sender that stands still holds up nobody; next
// therefore cannot flush or hijack.
func (s *Server) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if safe(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		holder, err := s.Holder(r)
		if err != nil {
			http.Error(w, "nobody is known on the other end", http.StatusUnauthorized)
			return
		}
		claim, err := s.claim(r, holder)
		if err != nil {
			s.refuse(w, r, &fence.RefusedError{Reason: fence.ReasonMalformed, Holder: holder, Resource: claim.Resource,
				Detail: err.Error()})
			return
		}
		limit := s.MaxBody
		if limit <= 0 {
			limit = defaultMaxBody
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			code := http.StatusBadRequest
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				code = http.StatusRequestEntityTooLarge
			}
			http.Error(w, "the attempt was not made, as its body was not read", code)
			return
		}
		do := s.Gate.Do
		if s.Removes != nil && s.Removes(r) {
			do = s.Gate.Remove
		}
		var given *answer
		err = do(r.Context(), claim, func(ctx context.Context) error {
			given = &answer{header: make(http.Header)}
			whole := r.WithContext(ctx)
			whole.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(given, whole)
			if given.status/100 > 2 {
				return errFailed
			}
			return nil
		})
		refused, ok := errors.AsType[*fence.RefusedError](err)
		switch {
		case given != nil:
			given.send(w)
		case ok:
			s.refuse(w, r, refused)
		case errors.Is(err, fence.ErrBusy):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case r.Context().Err() != nil:
			http.Error(w, "the attempt was not made, as the request ended while it waited", http.StatusServiceUnavailable)
		default:
			http.Error(w, "the attempt was not made, as its mark could not be saved", http.StatusServiceUnavailable)
		}
	})
}

// errFailed keeps a resource whose removal was answered with a failure.
var errFailed = errors.New("the service answered with a failure")

// claim reads what came with a request.
func (s *Server) claim(r *http.Request, holder string) (fence.Claim, error) {
	c := fence.Claim{Holder: holder}
	c.Resource, c.Domain = s.Resource(r)
	err := c.Read(s.Authority, r.Header.Values(tokenHeader), r.Header.Values(lineageHeader), r.Header.Values(grantHeader))
	return c, err
}

// refuse tells the sender the reason, and no mark.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err *fence.RefusedError) {
	if s.Refused != nil {
		s.Refused(r, err)
	}
	w.Header().Set(reasonHeader, string(err.Reason))
	http.Error(w, "refused by the fence: "+string(err.Reason), statusOf(err.Reason))
}

// answer is what a service answers, until its turn is over.
type answer struct {
	header http.Header
	status int // 0: none was written yet
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	if a.status == 0 && code >= 200 { // there is no place for those before
		a.status = code
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// send writes it. Status and reason of fencing are for fencing alone: a service that
// answers with them, such as with what another fenced service told it, would make its
// client stop for good.
func (a *answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		if !strings.EqualFold(name, reasonHeader) {
			w.Header()[name] = values
		}
	}
	code := a.status
	if code == 0 {
		code = http.StatusOK
	}
	if code == http.StatusPreconditionFailed {
		code = http.StatusInternalServerError
	}
	w.WriteHeader(code)
	_, _ = w.Write(a.body.Bytes()) // whoever asked is gone
}
