package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// noTest is for packages that make certificates for tests: there is no test here, and what fails ends the run.
type noTest struct{ testing.TB }

func (noTest) Helper()                   {}
func (noTest) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (noTest) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// ends are a server and a client of one cluster, and what each kind of TLS makes of their certificates.
type ends struct {
	server, client *credential.Material
	roots          *x509.CertPool
	root           *x509.Certificate
}

func newEnds() (*ends, error) {
	a := pkitest.NewAuthority(noTest{}, "prod.example")
	material := func(kind identity.Kind, name string) (*credential.Material, error) {
		chain, key := a.Issue(noTest{}, a.ID(noTest{}, kind, name), pkitest.WithDNSNames("end.example"))
		return credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
	}
	e := &ends{roots: x509.NewCertPool(), root: a.Root().Cert}
	e.roots.AddCert(e.root)
	var err error
	if e.server, err = material(identity.Coordinator, "c1"); err != nil {
		return nil, err
	}
	e.client, err = material(identity.Data, "n1")
	return e, err
}

func (e *ends) plain() (server, client *tls.Config) {
	return &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(e.server.Chain(), e.server.Key())}, MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: e.roots, SessionTicketsDisabled: true},
		&tls.Config{Certificates: []tls.Certificate{pkitest.TLS(e.client.Chain(), e.client.Key())}, MinVersion: tls.VersionTLS13,
			RootCAs: e.roots, ServerName: "end.example"}
}

func (e *ends) spiffe() (server, client *tls.Config, err error) {
	svid := func(m *credential.Material) (*x509svid.SVID, error) {
		id, err := spiffeid.FromString(m.ID().String())
		return &x509svid.SVID{ID: id, Certificates: m.Chain(), PrivateKey: m.Key()}, err
	}
	s, err := svid(e.server)
	if err != nil {
		return nil, nil, err
	}
	c, err := svid(e.client)
	if err != nil {
		return nil, nil, err
	}
	trust := x509bundle.FromX509Authorities(s.ID.TrustDomain(), []*x509.Certificate{e.root})
	server = tlsconfig.MTLSServerConfig(s, trust, tlsconfig.AuthorizeID(c.ID))
	server.SessionTicketsDisabled, server.MinVersion = true, tls.VersionTLS13
	return server, tlsconfig.MTLSClientConfig(c, trust, tlsconfig.AuthorizeID(s.ID)), nil
}

// handshakes compares mutual handshakes, both ends in this process, with the same chains of two certificates.
func handshakes(ctx context.Context, o options) ([]row, error) {
	e, err := newEnds()
	if err != nil {
		return nil, err
	}
	ours := credential.ServerTLS(credential.Static(e.server), credential.ServerOptions{})
	oursClient, err := credential.ClientTLS(credential.Static(e.client), credential.ExactID(e.server.ID()), credential.ClientOptions{})
	if err != nil {
		return nil, err
	}
	plain, plainClient := e.plain()
	spiffe, spiffeClient, err := e.spiffe()
	if err != nil {
		return nil, err
	}
	shake := func(server, client *tls.Config) func() error {
		return func() error {
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			done := make(chan error, 1)
			go func() { done <- tls.Server(far, server).Handshake() }()
			if err := tls.Client(near, client).Handshake(); err != nil {
				return err
			}
			return <-done
		}
	}
	n := o.scaled(100)
	sides := []side{inProcess("Fealty", n, shake(ours, oursClient)), inProcess("crypto/tls", n, shake(plain, plainClient)),
		inProcess("go-spiffe", n, shake(spiffe, spiffeClient))}
	cost, err := turns(ctx, o.rounds, sides...)
	return against("mutual handshake by identity", "µs CPU of both ends", sides, cost), err
}

// calls compares small calls over loopback, 8 at a time, on one connection.
func calls(ctx context.Context, o options) (rows []row, err error) {
	const atOnce = 8
	e, err := newEnds()
	if err != nil {
		return nil, err
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(e.server)})
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	serve := func(options ...grpc.ServerOption) (addr string, stop func(), err error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		s := grpc.NewServer(options...)
		healthpb.RegisterHealthServer(s, health.NewServer())
		running.Go(func() { _ = s.Serve(l) })
		return l.Addr().String(), s.Stop, nil
	}
	addr, stop, err := serve(guard.ServerOptions()...)
	if err != nil {
		return nil, err
	}
	defer stop()
	ours, err := mesh.Dial(addr, credential.Static(e.client), credential.ExactID(e.server.ID()), mesh.Options{})
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	serverTLS, clientTLS := e.plain()
	plainAddr, stopPlain, err := serve(grpc.Creds(credentials.NewTLS(serverTLS)))
	if err != nil {
		return nil, err
	}
	defer stopPlain()
	plain, err := grpc.NewClient("passthrough:///"+plainAddr, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS)))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	call := func(conn grpc.ClientConnInterface) func() error {
		return func() error {
			errs := make(chan error, atOnce)
			for range atOnce {
				go func() {
					for range 10 {
						if _, err := healthpb.NewHealthClient(conn).Check(ctx, new(healthpb.HealthCheckRequest)); err != nil {
							errs <- err
							return
						}
					}
					errs <- nil
				}()
			}
			for range atOnce {
				if err := <-errs; err != nil {
					return err
				}
			}
			return nil
		}
	}
	n := o.scaled(25)
	sides := []side{inProcess("Fealty", n, call(ours)), inProcess("grpc-go", n, call(plain))}
	cost, err := turns(ctx, o.rounds, sides...)
	for _, c := range cost {
		for i := range c {
			c[i] /= 10 * atOnce
		}
	}
	return against("a small call over mutual TLS", "µs CPU of both ends", sides, cost), err
}
