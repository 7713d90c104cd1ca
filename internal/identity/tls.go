package identity

import (
	"crypto/tls"
	"errors"
)

// errNoChain cannot happen under TLS 1.3, whose servers must send a certificate
// (RFC 8446 §4.4.2); it keeps a client from passing an empty chain if it did.
var errNoChain = errors.New("credential: the server sent no certificate")

// ClientTLS returns a client's config whose server is verified by verify alone, which is called in each handshake with
// at least one certificate. It presents none.
//
// It stands here and not in package credential because a program of others always says whom it expects: verify could
// be a function that accepts everybody.
func ClientTLS(protos []string, verify func(tls.ConnectionState) error) *tls.Config {
	cfg := BaseTLS(protos)
	// crypto/tls can only compare names and the system's or given roots. Identity is
	// checked in VerifyConnection instead, which is always set beside this.
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errNoChain
		}
		return verify(cs)
	}
	return cfg
}

// BaseTLS is what every connection between processes of a cluster has in common.
func BaseTLS(protos []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		MaxVersion: tls.VersionTLS13,
		// A ticket would let a peer come back without showing its certificate.
		SessionTicketsDisabled: true,
		// Small records at first let a browser begin with half a page. Messages here are of use when
		// they are whole, and each record costs a system call at both ends.
		DynamicRecordSizingDisabled: true,
		NextProtos:                  protos,
	}
}
