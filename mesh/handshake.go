package mesh

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/balancer"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// domain marks the error details of this project in a gRPC status.
const domain = "fealty"

// Reason says why a handshake failed, or why a connection was ended that stood. It is short
// and fixed: a metric label.
type Reason string

// Reasons for which a handshake failed: those of a [HandshakeError].
const (
	// PeerUntrusted: the peer's chain is not of the bundle, is banned, or does not
	// match the pin.
	PeerUntrusted Reason = "PeerUntrusted"
	// IdentityMismatch: the peer proved an identity, and not the expected one.
	IdentityMismatch Reason = "IdentityMismatch"
	// NoIdentity: the peer's chain verifies and identifies nobody.
	NoIdentity Reason = "NoIdentity"
	// Expired: the peer's chain is past its end, or before its start.
	Expired Reason = "Expired"
	// ClientRejected: the server refused our certificate. TLS does not say why; the
	// server's log does.
	ClientRejected Reason = "ClientRejected"
	// ServerRejected: as a server, the client refused our certificate.
	ServerRejected Reason = "ServerRejected"
	// Protocol: the peer does not speak TLS 1.3 with HTTP/2, or broke it.
	Protocol Reason = "Protocol"
)

// reasons holds, for each reason, what happened and what to do, in the words of
// [HandshakeError.Error].
var reasons = []struct {
	Reason   Reason
	What, Do string
}{
	{PeerUntrusted, "its certificate is not trusted", "check that it is of this cluster and that both sides have the current trust bundle"},
	{IdentityMismatch, "it is another process than expected", "the address leads to somebody else; correct the address or the expected identity"},
	{NoIdentity, "its certificate carries no usable identity", "have it join this cluster and use the certificate issued there"},
	{Expired, "its certificate is out of date", "check the clocks of both sides, then why it was not renewed"},
	{ClientRejected, "it refused our certificate", "its log says why; check that our certificate is current and not banned"},
	{ServerRejected, "the client refused our certificate", "check that the client has the current trust bundle and means this server"},
	{Protocol, "it does not speak TLS 1.3 and HTTP/2 as expected", "check that the address is a secured endpoint of this system and not behind a proxy"},
}

// HandshakeError says that a peer was reached and no secure connection came of
// it. A plain network failure is never one. Its text and JSON hold reason,
// endpoint and expected identity, and nothing that the peer sent.
type HandshakeError struct {
	Reason   Reason `json:"reason"`
	Endpoint string `json:"endpoint"`           // the address that was tried
	Expected string `json:"expected,omitempty"` // who should have been there; blank on a server
	Rule     string `json:"rule,omitempty"`     // the rule of package identity that refused, if one did

	cause error // a typed error of identity or credential, for errors.As; never printed
}

func (e *HandshakeError) Error() string {
	what, do := "the handshake failed", "see the peer's log"
	if i := slices.IndexFunc(reasons, func(r struct {
		Reason   Reason
		What, Do string
	}) bool {
		return r.Reason == e.Reason
	}); i >= 0 {
		what, do = reasons[i].What, reasons[i].Do
	}
	var b strings.Builder
	fmt.Fprintf(&b, "mesh: no connection with %s (%s): %s", e.Endpoint, e.Reason, what)
	if e.Rule != "" {
		fmt.Fprintf(&b, " (rule %s)", e.Rule)
	}
	if e.Expected != "" {
		fmt.Fprintf(&b, "; expected %s", e.Expected)
	}
	fmt.Fprintf(&b, "; %s", do)
	return b.String()
}

// Unwrap returns the *identity.ChainError, *identity.SANError,
// *credential.MismatchError or *PinError behind it, if there is one.
func (e *HandshakeError) Unwrap() error { return e.cause }

// GRPCStatus carries the error over gRPC as Unavailable; fromStatus reads it.
func (e *HandshakeError) GRPCStatus() *status.Status {
	return errorinfo.With(status.New(codes.Unavailable, e.Error()), e.detail())
}

func (e *HandshakeError) detail() *errdetails.ErrorInfo {
	meta := map[string]string{"endpoint": e.Endpoint}
	if e.Expected != "" {
		meta["expected"] = e.Expected
	}
	if e.Rule != "" {
		meta["rule"] = e.Rule
	}
	return &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: domain, Metadata: meta}
}

// note has j say that the endpoint is rejected.
func (e *HandshakeError) note(j *balancer.Journal) {
	details := []any{"expected", e.Expected}
	if e.Rule != "" {
		details = append(details, "rule", e.Rule)
	}
	j.Rejected(e.Endpoint, string(e.Reason), details...)
}

// fromStatus returns the handshake errors that a status carries in its details,
// at most 8. They are what the sender of the status says: another process may
// have met them, or made them up.
func fromStatus(st *status.Status) []*HandshakeError {
	var errs []*HandshakeError
	for info := range errorinfo.All(st, domain) {
		for _, r := range reasons {
			if string(r.Reason) == info.GetReason() && len(errs) < maxFailuresShown {
				m := info.GetMetadata()
				errs = append(errs, &HandshakeError{Reason: r.Reason, Endpoint: clean(m["endpoint"]), Expected: clean(m["expected"]), Rule: clean(m["rule"])})
			}
		}
	}
	return errs
}

// maxTextBytes bounds a text that comes from a status: 8 identities of usual size.
const maxTextBytes = 2048

// clean makes a text from elsewhere fit for a log line.
func clean(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxTextBytes)], "")
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return -1
	}, s)
}

// side is which end of the handshake we are.
type side int

const (
	clientSide side = iota
	serverSide
)

// classify makes a [*HandshakeError] of what a handshake returned, by the types
// of its errors alone. It returns err itself if it is a plain network failure,
// or our own giving up.
//
// The order matters: a *net.OpError is both the shape of a TLS alert and of a
// network failure.
func classify(err error, s side, endpoint, expected string) error {
	e := &HandshakeError{Endpoint: endpoint, Expected: expected}
	if chain, ok := errors.AsType[*identity.ChainError](err); ok {
		e.Reason, e.Rule, e.cause = PeerUntrusted, chain.Rule, chain
		if chain.Reason == identity.ErrExpired {
			e.Reason = Expired
		}
		return e
	}
	if mismatch, ok := errors.AsType[*credential.MismatchError](err); ok {
		e.Reason, e.cause = IdentityMismatch, mismatch
		return e
	}
	if pin, ok := errors.AsType[*PinError](err); ok {
		e.Reason, e.cause = PeerUntrusted, pin
		return e
	}
	if errors.Is(err, identity.ErrNoIdentity) {
		e.Reason = NoIdentity
		if san, ok := errors.AsType[*identity.SANError](err); ok {
			e.cause = san
		}
		return e
	}
	if errors.Is(err, credential.ErrNoMaterial) {
		return err // ours, not the peer's
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		e.Reason = PeerUntrusted
		return e
	}
	if isAlert(err) {
		// An alert amid the handshake. To a server it says what the client thinks of
		// our certificate; to a client, which has shown nothing yet, that the two
		// sides found no common protocol.
		if e.Reason = Protocol; s == serverSide {
			e.Reason = ServerRejected
		}
		return e
	}
	if isNetwork(err) {
		return err
	}
	e.Reason = Protocol
	return e
}

// isAlert reports whether err is a TLS alert that the peer sent. crypto/tls
// wraps each in a *net.OpError of this Op.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// isNetwork reports whether err says that bytes did not get through, or that we
// gave up waiting for them.
func isNetwork(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, target) {
			return true
		}
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return true
	}
	// "local error" is crypto/tls reporting an alert that it sent itself.
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op != "local error"
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// maxFailuresShown bounds the endpoints that an error's text and details list.
const maxFailuresShown = 8
