package store

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
)

// RefusesCertificate reports whether err, of a connection that an engine was making, is a server's alert of TLS about
// the client's certificate, or that it wants one.
func RefusesCertificate(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && slices.ContainsFunc(certificateAlerts, func(a tls.AlertError) bool {
		return op.Err.Error() == a.Error() // the type of such an alert is not exported
	})
}

// certificateAlerts are the alerts by which a server refuses a client's certificate (RFC 8446, section
// 6.2): bad, unsupported, revoked, expired, unknown, of an unknown CA, denied, required.
var certificateAlerts = []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116}

// HungUp reports whether a server ended a connection that was being made, in the middle. In TLS 1.3 the
// client's certificate is looked at when the client is done, and the alert may be lost with the connection.
func HungUp(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}
