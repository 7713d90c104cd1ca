package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"google.golang.org/grpc/credentials"
)

// plaintext are credentials that shake no hands.
type plaintext struct{}

func (plaintext) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, nil, nil
}
func (plaintext) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, nil, nil
}
func (plaintext) Info() credentials.ProtocolInfo            { return credentials.ProtocolInfo{} }
func (p plaintext) Clone() credentials.TransportCredentials { return p }
func (plaintext) OverrideServerName(string) error           { return nil }

// Package mesh tells handshake failures apart by the types of these errors. They
// are pinned here without it, so that a change of crypto/tls or crypto/x509
// shows as what it is. Each row is one connection: what the client's handshake
// returned, its first read, and the server's handshake.
func TestCanaryErrorTypes(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	id := a.ID(t, identity.Coordinator, "c1")
	cert := func(opts ...pkitest.IssueOption) tls.Certificate {
		return pkitest.TLS(a.Issue(t, id, append(opts, pkitest.WithDNSNames("c1"))...))
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.Root().Cert)
	mine := errors.New("mine")
	tlsServer := func(cfg *tls.Config) func(net.Conn) error {
		return func(c net.Conn) error {
			err := tls.Server(c, cfg).Handshake()
			c.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, c)
			return err
		}
	}
	plainServer := func(f func(net.Conn)) func(net.Conn) error {
		return func(c net.Conn) error { f(c); return nil }
	}
	good := &tls.Config{Certificates: []tls.Certificate{cert()}}
	op := func(name string) func(error) bool {
		return func(err error) bool { e, ok := errors.AsType[*net.OpError](err); return ok && e.Op == name }
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	certErr := func(inner func(error) bool) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*tls.CertificateVerificationError](err)
			return ok && len(e.UnverifiedCertificates) > 0 && inner(e.Err)
		}
	}
	none := is(nil)

	for _, tc := range []struct {
		name                   string
		server                 func(net.Conn) error
		client                 *tls.Config
		handshake, read, their func(error) bool
	}{
		{"an error of VerifyConnection comes back as it is, and the server gets an alert", tlsServer(good),
			&tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { return mine }}, is(mine), nil, op("remote error")},
		{"a server's VerifyConnection too, and the client learns on its first read",
			tlsServer(&tls.Config{Certificates: good.Certificates, ClientAuth: tls.RequestClientCert, VerifyConnection: func(tls.ConnectionState) error { return mine }}),
			&tls.Config{InsecureSkipVerify: true}, none, op("remote error"), is(mine)},
		{"a required certificate is missing", tlsServer(&tls.Config{Certificates: good.Certificates, ClientAuth: tls.RequireAnyClientCert}),
			&tls.Config{InsecureSkipVerify: true}, none, op("remote error"), func(err error) bool { return err != nil }},
		{"unknown authority", tlsServer(good), &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "c1"},
			certErr(func(err error) bool { _, ok := errors.AsType[x509.UnknownAuthorityError](err); return ok }), nil, op("remote error")},
		{"expired", tlsServer(&tls.Config{Certificates: []tls.Certificate{cert(pkitest.Expired())}}), &tls.Config{RootCAs: pool, ServerName: "c1"},
			certErr(func(err error) bool {
				e, ok := errors.AsType[x509.CertificateInvalidError](err)
				return ok && e.Reason == x509.Expired
			}), nil, op("remote error")},
		{"host name", tlsServer(good), &tls.Config{RootCAs: pool, ServerName: "c2"},
			certErr(func(err error) bool { _, ok := errors.AsType[x509.HostnameError](err); return ok }), nil, op("remote error")},
		{"no common version", tlsServer(&tls.Config{Certificates: good.Certificates, MaxVersion: tls.VersionTLS12}),
			&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, op("remote error"), nil, func(err error) bool { return err != nil }},
		{"not TLS", plainServer(func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); io.Copy(io.Discard, c) }),
			&tls.Config{InsecureSkipVerify: true}, func(err error) bool { _, ok := errors.AsType[tls.RecordHeaderError](err); return ok }, nil, none},
		{"closed in the handshake", plainServer(func(c net.Conn) { c.Read(make([]byte, 4096)) }),
			&tls.Config{InsecureSkipVerify: true}, is(io.EOF), nil, none},
		{"reset in the handshake", plainServer(func(c net.Conn) { c.Read(make([]byte, 4096)); c.(*net.TCPConn).SetLinger(0) }),
			&tls.Config{InsecureSkipVerify: true}, is(syscall.ECONNRESET), nil, none},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var wg sync.WaitGroup
			defer wg.Wait()
			ln := loopback(t)
			defer ln.Close()
			their := make(chan error, 1)
			wg.Go(func() {
				c, err := ln.Accept()
				if err != nil {
					their <- err
					return
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * time.Minute))
				their <- tc.server(c)
			})
			raw, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			raw.SetDeadline(time.Now().Add(2 * time.Minute))
			c := tls.Client(raw, tc.client)
			if err := c.Handshake(); !tc.handshake(err) {
				t.Errorf("handshake: %T %v", err, err)
			}
			if tc.read != nil {
				if _, err := c.Read(make([]byte, 1)); !tc.read(err) {
					t.Errorf("first read: %T %v", err, err)
				}
			}
			raw.Close()
			if err := <-their; !tc.their(err) {
				t.Errorf("server: %T %v", err, err)
			}
		})
	}
}
