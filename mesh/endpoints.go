package mesh

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// EndpointError is a plain network failure of one endpoint: it was not reached,
// or it went away before it had answered.
type EndpointError struct {
	Endpoint string
	Err      error
}

func (e *EndpointError) Error() string {
	return fmt.Sprintf("mesh: %s cannot be reached: %v", e.Endpoint, e.Err)
}

// Unwrap returns the network's error.
func (e *EndpointError) Unwrap() error { return e.Err }

// NoEndpointsError says that a call found no endpoint to run on, and for each
// endpoint that was tried why. errors.As finds the [*HandshakeError] and
// [*EndpointError] values in it.
type NoEndpointsError struct {
	Target   string
	Failures []error // sorted by endpoint; never empty

	code codes.Code
}

// maxFailuresShown bounds the endpoints that an error's text and details list.
const maxFailuresShown = 8

func (e *NoEndpointsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mesh: no endpoint of %s is usable", e.Target)
	for i, err := range e.Failures[:min(len(e.Failures), maxFailuresShown)] {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep + strings.TrimPrefix(err.Error(), "mesh: "))
	}
	if more := len(e.Failures) - maxFailuresShown; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// Unwrap returns the failure of each endpoint.
func (e *NoEndpointsError) Unwrap() []error { return e.Failures }

// GRPCStatus keeps the code that gRPC gave the call, and carries the handshake
// errors in its details.
func (e *NoEndpointsError) GRPCStatus() *status.Status {
	var details []*errdetails.ErrorInfo
	for _, err := range e.Failures[:min(len(e.Failures), maxFailuresShown)] {
		if h, ok := err.(*HandshakeError); ok {
			details = append(details, h.detail())
		}
	}
	return withDetails(status.New(e.code, e.Error()), details...)
}

// maxEndpoints bounds what is remembered about endpoints, whose number
// discovery decides.
const maxEndpoints = 1024

// attempts remembers how the latest attempt at each endpoint went. gRPC reports
// a connection's failure to the calls that wait for it as text; this keeps the
// error itself.
//
// An attempt replaces what is known when it ends, not when it starts: meanwhile
// gRPC still fails calls for the attempt before.
type attempts struct {
	mu       sync.Mutex
	failed   map[string]error  // by endpoint; guarded by mu
	endpoint map[string]string // by remote address: a name may lead to several; guarded by mu
}

// dialed notes that endpoint was reached under a remote address.
func (a *attempts) dialed(endpoint string, remote net.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.endpoint == nil || len(a.endpoint) >= maxEndpoints {
		a.endpoint = make(map[string]string)
	}
	a.endpoint[remote.String()] = endpoint
}

// at returns the endpoint that was dialed to reach remote.
func (a *attempts) at(remote net.Addr) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.endpoint[remote.String()]; ok {
		return e
	}
	return remote.String()
}

// ended notes how an attempt ended; nil is success.
func (a *attempts) ended(endpoint string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.failed, endpoint)
		return
	}
	if a.failed == nil || len(a.failed) >= maxEndpoints {
		a.failed = make(map[string]error)
	}
	a.failed[endpoint] = err
}

// failures returns what failed, sorted by endpoint.
func (a *attempts) failures() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	endpoints := make([]string, 0, len(a.failed))
	for e := range a.failed {
		endpoints = append(endpoints, e)
	}
	slices.Sort(endpoints)
	errs := make([]error, len(endpoints))
	for i, e := range endpoints {
		errs[i] = a.failed[e]
	}
	return errs
}
