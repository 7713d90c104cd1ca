package mesh

import (
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/platform/errorinfo"
)

// EndpointError is a plain network failure of one endpoint: it was not reached,
// or it went away before it had answered. One that advertises that it speaks no
// TLS is not tried, and has one too.
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
	return errorinfo.With(status.New(e.code, e.Error()), details...)
}
