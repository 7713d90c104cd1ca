package credential_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

const cluster = "prod.example"

// material issues and checks material for one name, or fails the test.
func material(tb testing.TB, a *pkitest.Authority, kind identity.Kind, name string, opts ...pkitest.IssueOption) *credential.Material {
	tb.Helper()
	chain, key := a.Issue(tb, a.ID(tb, kind, name), opts...)
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func trustOnly(tb testing.TB, b *identity.Bundle) *credential.Material {
	tb.Helper()
	m, err := credential.NewMaterial(credential.MaterialConfig{Bundle: b})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// outcome is what both ends saw of one connection. A client's error is that of
// its handshake or, if that passed, of its first read.
type outcome struct {
	client, server           error
	clientState, serverState tls.ConnectionState
}

// shake runs one handshake and one byte from server to client over loopback.
func shake(tb testing.TB, server, client *tls.Config) outcome {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	var out outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := ln.Accept()
		if err != nil {
			out.server = err
			return
		}
		defer raw.Close()
		c := tls.Server(raw, server)
		if out.server = c.HandshakeContext(ctx); out.server != nil {
			return
		}
		out.serverState = c.ConnectionState()
		c.Write([]byte("x"))
	}()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, client)
	if out.client = c.HandshakeContext(ctx); out.client == nil {
		out.clientState = c.ConnectionState()
		_, out.client = c.Read(make([]byte, 1))
	}
	<-done
	return out
}

func clientTLS(tb testing.TB, m *credential.Material, e credential.Expect) *tls.Config {
	tb.Helper()
	cfg, err := credential.ClientTLS(credential.Static(m), e, credential.ClientOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return cfg
}

// rawClient builds a client config around a chain that NewMaterial would refuse.
func rawClient(chain []*x509.Certificate, key any) *tls.Config {
	cert := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
}
