package workloadapi_test

import (
	"crypto/tls"
	"errors"
	"net"
)

// shake shakes hands over a pipe.
func shake(near, far net.Conn, client, server *tls.Config) error {
	defer near.Close()
	defer far.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Server(far, server).Handshake() }()
	return errors.Join(tls.Client(near, client).Handshake(), <-done)
}
