package credential

import (
	"context"
	"crypto/tls"
	"sync/atomic"

	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
)

// ServerOptions change what [ServerTLS] makes.
type ServerOptions struct {
	// SendRoot appends the root to the chain that is presented, so that a client
	// that knows only the hash of the root's key can verify the rest
	// (who joins does).
	SendRoot bool

	// NextProtos are the application protocols (ALPN, RFC 7301), best first.
	NextProtos []string

	// OnVerified is called in the handshake for each client whose chain verified,
	// before the handshake is done; it must not block. Nil means no call.
	OnVerified func(*Material, identity.Verified)
}

// ServerTLS returns a config for a server that presents src's material and asks
// each client for a certificate.
//
// A client without a certificate completes the handshake: it is a stranger, and
// what it may do is decided by call. One whose chain does not verify fails, with
// a *identity.ChainError. One whose chain verifies and identifies nobody
// completes: its [identity.Verified] carries IDErr. Material is taken anew for
// each connection. With ephemeral material no certificate is asked for; without
// material every handshake fails.
func ServerTLS(src Source, opts ServerOptions) *tls.Config {
	type made struct {
		from *Material
		cfg  *tls.Config
	}
	var last atomic.Pointer[made]
	perConn := func(ctx context.Context) (*tls.Config, error) {
		m, err := src.Current(ctx)
		if err != nil {
			return nil, err
		}
		if l := last.Load(); l != nil && l.from == m {
			return l.cfg, nil
		}
		cfg, err := m.serverTLS(opts)
		if err != nil {
			return nil, err
		}
		last.Store(&made{m, cfg})
		return cfg, nil
	}
	cfg := internalidentity.BaseTLS(opts.NextProtos)
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		return perConn(hello.Context())
	}
	return cfg
}

func (m *Material) serverTLS(opts ServerOptions) (*tls.Config, error) {
	if m.cert == nil {
		return nil, ErrNoMaterial
	}
	cfg := internalidentity.BaseTLS(opts.NextProtos)
	cert := m.cert
	if opts.SendRoot && m.withRoot != nil {
		cert = m.withRoot
	}
	cfg.Certificates = []tls.Certificate{*cert}
	if m.mode != mutual {
		return cfg, nil
	}
	cfg.ClientAuth = tls.RequestClientCert
	// VerifyConnection, not VerifyPeerCertificate: it runs for resumed sessions too,
	// should tickets ever come back.
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return nil
		}
		v, err := m.bundle.Verify(cs.PeerCertificates, m.now())
		if err != nil {
			return err
		}
		if opts.OnVerified != nil {
			opts.OnVerified(m, v)
		}
		return nil
	}
	return cfg, nil
}

// ClientOptions change what [ClientTLS] makes.
type ClientOptions struct {
	// NextProtos are the application protocols (ALPN, RFC 7301), best first.
	NextProtos []string

	// OnVerified is called in the handshake once the server is verified and
	// expected; it must not block. Nil means no call.
	OnVerified func(identity.Verified)
}

// ClientTLS returns a config for a client that talks to expect only, and presents the chain
// that src has, if any. It sends no server name and compares no address. Each handshake asks
// src anew, so that it follows renewals, and refuses a server that was banned meanwhile; a
// connection that stands is its owner's to end, as mesh does.
//
// Errors here: [ErrNoExpectation], an expectation that the bundle of src can never meet, or
// [ErrNoMaterial] for a source that never has anything to verify by.
// Errors of the handshake: *identity.ChainError, [*MismatchError], one matching
// identity.ErrNoIdentity, or what src said; [ErrNoMaterial] while it has nothing to verify by.
func ClientTLS(src Source, expect Expect, opts ClientOptions) (*tls.Config, error) {
	if src == nil {
		return nil, ErrNoMaterial
	}
	cluster := ""
	if m, err := src.Current(context.Background()); err == nil && m.bundle != nil {
		cluster = m.bundle.Cluster()
	} else if src.Changed() == nil { // it never will have one
		return nil, ErrNoMaterial
	}
	if err := expect.Validate(cluster); err != nil {
		return nil, err
	}
	current := func(ctx context.Context) (*Material, error) {
		m, err := src.Current(ctx)
		if err == nil && m.bundle == nil {
			err = ErrNoMaterial
		}
		return m, err
	}
	cfg := internalidentity.ClientTLS(opts.NextProtos, func(cs tls.ConnectionState) error {
		m, err := current(context.Background())
		if err != nil {
			return err
		}
		v, err := m.bundle.Verify(cs.PeerCertificates, m.now())
		if err != nil {
			return err
		}
		if v.IDErr != nil {
			return v.IDErr
		}
		if err := expect.Check(v.ID); err != nil {
			return err
		}
		if opts.OnVerified != nil {
			opts.OnVerified(v)
		}
		return nil
	})
	// Always ours: crypto/tls would otherwise drop it when the server lists authorities that
	// it does not find in the chain.
	cfg.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		m, err := current(asked.Context())
		switch {
		case err != nil:
			return nil, err
		case m.cert == nil:
			return new(tls.Certificate), nil // none is sent
		}
		return m.cert, nil
	}
	return cfg, nil
}
