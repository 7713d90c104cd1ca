package fencehttp

import (
	"context"
	"errors"
	"net/http"

	"github.com/fealty-io/fealty/fence"
)

// Server is a middleware: a request that may change something reaches the service only
// when its receiver may obey it, one at a time for each resource, before anything of it was
// looked at.
type Server struct {
	// Gate decides. Required.
	Gate *fence.Gate

	// Holder returns who is on the other end, as its certificate says. Required.
	Holder func(r *http.Request) (string, error)

	// Resource returns the resource that a request acts on, and the domain in which it
	// creates it, "" for none. It looks at method and URL, not at the body, which nobody has
	// bounded yet. Required.
	Resource func(r *http.Request) (resource, domain string)

	// Authority is whose grants count; the zero Authority has none.
	Authority fence.Authority

	// Refused hears of every refusal, before the sender does: the place for logs, metrics
	// and alarms ([fence.Reason.Alarm]). Nil: nobody hears. It does not block.
	Refused func(r *http.Request, err *fence.RefusedError)
}

// Handler returns next behind the fence.
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
			s.refuse(w, r, &fence.RefusedError{Reason: fence.ReasonMalformed, Holder: holder, Resource: claim.Resource, Detail: err.Error()})
			return
		}
		err = s.Gate.Do(r.Context(), claim, func(ctx context.Context) error {
			next.ServeHTTP(&answer{ResponseWriter: w}, r.WithContext(ctx))
			return nil
		})
		refused, ok := errors.AsType[*fence.RefusedError](err)
		switch {
		case err == nil:
		case ok:
			s.refuse(w, r, refused)
		case errors.Is(err, fence.ErrBusy):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		default:
			http.Error(w, "the attempt was not made, as its mark could not be saved", http.StatusServiceUnavailable)
		}
	})
}

func (s *Server) claim(r *http.Request, holder string) (fence.Claim, error) {
	c := fence.Claim{Holder: holder}
	c.Resource, c.Domain = s.Resource(r)
	err := c.Read(s.Authority, r.Header.Values(TokenHeader), r.Header.Values(LineageHeader), r.Header.Values(GrantHeader))
	return c, err
}

// refuse tells the sender the reason, and no mark.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err *fence.RefusedError) {
	if s.Refused != nil {
		s.Refused(r, err)
	}
	w.Header().Set(ReasonHeader, string(err.Reason))
	http.Error(w, "refused by the fence: "+string(err.Reason), statusOf(err.Reason))
}

// answer keeps the status of fencing for fencing: a service that answers with it for
// something else would make its client stop for good.
type answer struct{ http.ResponseWriter }

func (a *answer) WriteHeader(code int) {
	a.Header().Del(ReasonHeader)
	if code == http.StatusPreconditionFailed {
		code = http.StatusInternalServerError
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(b []byte) (int, error) {
	a.Header().Del(ReasonHeader) // the first Write is a WriteHeader(200)
	return a.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
