package credential_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// A server answers each sort of client so.
func TestServerTLS(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	id := a.ID(t, identity.Data, "n1")
	banned := a.ID(t, identity.Data, "bad")
	chain, key := a.Issue(t, a.ID(t, identity.Coordinator, "c1"))
	server, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle(func(c *identity.BundleConfig) {
		c.BannedIDs = []identity.ID{banned}
	})})
	if err != nil {
		t.Fatal(err)
	}
	raw := func(a *pkitest.Authority, edit func(*x509.Certificate), opts ...pkitest.IssueOption) *tls.Config {
		chain, key := a.IssueRaw(t, edit, opts...)
		return rawClient(chain, key)
	}
	san := func(ids ...identity.ID) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for _, id := range ids {
				c.URIs = append(c.URIs, id.URL())
			}
		}
	}
	for _, tc := range []struct {
		name     string
		client   *tls.Config
		fails    error // matched by the server's error
		verified bool
		id       identity.ID
		idErr    error
	}{
		{name: "stranger", client: clientTLS(t, trustOnly(t, a.Bundle()), credential.AnyOfKind(identity.Coordinator))},
		{name: "member", client: clientTLS(t, material(t, a, identity.Data, "n1"), credential.AnyOfKind(identity.Coordinator)), verified: true, id: id},
		{name: "no SAN", client: raw(a, san()), verified: true, idErr: identity.ErrNoIdentity},
		{name: "two SANs", client: raw(a, san(id, banned)), verified: true, idErr: identity.ErrNoIdentity},
		{name: "foreign SAN", client: raw(a, san(foreign.ID(t, identity.Data, "n1"))), verified: true, idErr: identity.ErrNoIdentity},
		{name: "https SAN", client: raw(a, func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "https", Host: cluster, Path: "/data/n1"}} }), verified: true, idErr: identity.ErrNoIdentity},
		{name: "other root", client: raw(foreign, san(foreign.ID(t, identity.Data, "n1"))), fails: identity.ErrUntrusted},
		{name: "expired", client: raw(a, san(id), pkitest.Expired()), fails: identity.ErrExpired},
		{name: "banned", client: raw(a, san(banned)), fails: identity.ErrBanned},
		{name: "CA as leaf", client: raw(a, func(c *x509.Certificate) { san(id)(c); c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign }), fails: identity.ErrProfile},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got *identity.Verified
			cfg := credential.ServerTLS(credential.Static(server), credential.ServerOptions{OnVerified: func(m *credential.Material, v identity.Verified) {
				if m != server {
					t.Errorf("verified under %v", m)
				}
				got = &v
			}})
			out := shake(t, cfg, tc.client)
			if tc.fails != nil {
				if !errors.Is(out.server, tc.fails) {
					t.Fatalf("server: %v, want %v", out.server, tc.fails)
				}
				if out.client == nil || got != nil {
					t.Fatalf("client: %v, verified %v", out.client, got)
				}
				return
			}
			if out.server != nil || out.client != nil {
				t.Fatalf("server: %v, client: %v", out.server, out.client)
			}
			if (got != nil) != tc.verified {
				t.Fatalf("verified = %v, want %v", got, tc.verified)
			}
			if got != nil && (got.ID != tc.id || !errors.Is(got.IDErr, tc.idErr)) {
				t.Fatalf("verified = %+v", got)
			}
		})
	}
}

// A client answers each sort of server so.
func TestClientTLS(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	foreign := pkitest.NewAuthority(t, "other.example")
	c1 := a.ID(t, identity.Coordinator, "c1")
	me := material(t, a, identity.Data, "n1")
	raw := func(a *pkitest.Authority, edit func(*x509.Certificate), opts ...pkitest.IssueOption) *tls.Config {
		chain, key := a.IssueRaw(t, edit, opts...)
		return &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, MinVersion: tls.VersionTLS13}
	}
	san := func(ids ...identity.ID) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for _, id := range ids {
				c.URIs = append(c.URIs, id.URL())
			}
		}
	}
	for _, tc := range []struct {
		name   string
		server *tls.Config
		expect credential.Expect
		want   error // nil: accepted
		mism   bool
	}{
		{"exact", raw(a, san(c1)), credential.ExactID(c1), nil, false},
		{"one of", raw(a, san(c1)), credential.AnyOf(a.ID(t, identity.Shard, "s"), c1), nil, false},
		{"kind", raw(a, san(c1)), credential.AnyOfKind(identity.Coordinator), nil, false},
		{"other name", raw(a, san(a.ID(t, identity.Coordinator, "c2"))), credential.ExactID(c1), nil, true},
		{"other kind", raw(a, san(a.ID(t, identity.Shard, "c1"))), credential.ExactID(c1), nil, true},
		{"other kind than any", raw(a, san(a.ID(t, identity.Shard, "c1"))), credential.AnyOfKind(identity.Coordinator), nil, true},
		{"no SAN", raw(a, san()), credential.AnyOfKind(identity.Coordinator), identity.ErrNoIdentity, false},
		{"two SANs", raw(a, san(c1, c1)), credential.ExactID(c1), identity.ErrNoIdentity, false},
		{"foreign SAN", raw(a, san(foreign.ID(t, identity.Coordinator, "c1"))), credential.AnyOfKind(identity.Coordinator), identity.ErrNoIdentity, false},
		{"DNS name alone", raw(a, func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} }), credential.ExactID(c1), identity.ErrNoIdentity, false},
		{"other root", raw(foreign, san(c1)), credential.ExactID(c1), identity.ErrUntrusted, false},
		{"expired", raw(a, san(c1), pkitest.Expired()), credential.ExactID(c1), identity.ErrExpired, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := shake(t, tc.server, clientTLS(t, me, tc.expect))
			_, mism := errors.AsType[*credential.MismatchError](out.client)
			switch {
			case tc.mism != mism:
				t.Fatalf("client: %v, want a mismatch: %v", out.client, tc.mism)
			case !tc.mism && !errors.Is(out.client, tc.want):
				t.Fatalf("client: %v, want %v", out.client, tc.want)
			case out.client != nil && out.server == nil:
				t.Fatal("the server was not told")
			}
		})
	}
}

func TestNoExpectationNoClient(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	m := material(t, a, identity.Data, "n1")
	other, err := identity.New("other.example", identity.Data, "n1")
	if err != nil {
		t.Fatal(err)
	}
	eph, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		m      *credential.Material
		expect credential.Expect
		want   error // nil: any error
	}{
		{"zero", m, credential.Expect{}, credential.ErrNoExpectation},
		{"no ids", m, credential.AnyOf(), credential.ErrNoExpectation},
		{"zero id", m, credential.ExactID(identity.ID{}), credential.ErrNoExpectation},
		{"zero id among others", m, credential.AnyOf(m.ID(), identity.ID{}), credential.ErrNoExpectation},
		{"unknown kind", m, credential.AnyOfKind("root"), nil},
		{"foreign id", m, credential.ExactID(other), nil},
		{"no material", nil, credential.ExactID(m.ID()), credential.ErrNoMaterial},
		{"ephemeral", eph, credential.ExactID(m.ID()), credential.ErrNoMaterial},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := credential.ClientTLS(credential.Static(tc.m), tc.expect, credential.ClientOptions{})
			if cfg != nil || err == nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Fatalf("ClientTLS = %v, %v, want %v", cfg != nil, err, tc.want)
			}
		})
	}
}

// Certificate and bundle are taken anew for each connection, with one config.
func TestServerRotates(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	first := material(t, a, identity.Coordinator, "c1")
	src := credential.NewIssued(first)
	cfg := credential.ServerTLS(src, credential.ServerOptions{})
	n1 := material(t, a, identity.Data, "n1")
	client := clientTLS(t, n1, credential.ExactID(first.ID()))

	if out := shake(t, cfg, client); out.client != nil || identity.KeyOf(out.clientState.PeerCertificates[0]) != first.Pin() {
		t.Fatalf("first: %v", out.client)
	}
	second := material(t, a, identity.Coordinator, "c1")
	if err := src.Adopt(second); err != nil {
		t.Fatal(err)
	}
	if out := shake(t, cfg, client); out.client != nil || identity.KeyOf(out.clientState.PeerCertificates[0]) != second.Pin() {
		t.Fatalf("second: %v", out.client)
	}
	if err := src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.BannedKeys = []identity.KeyID{n1.Pin()} })); err != nil {
		t.Fatal(err)
	}
	if out := shake(t, cfg, client); !errors.Is(out.server, identity.ErrBanned) {
		t.Fatalf("after the ban: server %v, client %v", out.server, out.client)
	}
}

// A peer that was banned after its first connection must not come back on a
// ticket, with a client that tries.
func TestNoTicketOutlivesABan(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	src := credential.NewIssued(material(t, a, identity.Coordinator, "c1"))
	cfg := credential.ServerTLS(src, credential.ServerOptions{})
	n1 := material(t, a, identity.Data, "n1")
	client := clientTLS(t, n1, credential.AnyOfKind(identity.Coordinator))
	cache := &countingCache{ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	client.ClientSessionCache = cache
	client.ServerName = "c1" // the cache is keyed by it
	client.SessionTicketsDisabled = false

	for range 3 {
		if out := shake(t, cfg, client); out.client != nil || out.clientState.DidResume || out.serverState.DidResume {
			t.Fatalf("client %v, resumed %v", out.client, out.clientState.DidResume)
		}
	}
	if cache.puts != 0 {
		t.Fatalf("the server handed out %d tickets", cache.puts)
	}
	if err := src.Trust(a.Bundle(func(c *identity.BundleConfig) { c.BannedIDs = []identity.ID{n1.ID()} })); err != nil {
		t.Fatal(err)
	}
	if out := shake(t, cfg, client); !errors.Is(out.server, identity.ErrBanned) {
		t.Fatalf("after the ban: server %v, client %v", out.server, out.client)
	}
}

type countingCache struct {
	tls.ClientSessionCache
	puts int
}

func (c *countingCache) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		c.puts++
	}
	c.ClientSessionCache.Put(key, s)
}

func TestOnlyTLS13(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	m := material(t, a, identity.Coordinator, "c1")
	old := clientTLS(t, m, credential.ExactID(m.ID()))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if out := shake(t, credential.ServerTLS(credential.Static(m), credential.ServerOptions{}), old); out.server == nil || out.client == nil {
		t.Fatal("the server speaks TLS 1.2")
	}
	server := &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(m.Chain(), m.Key())}, MaxVersion: tls.VersionTLS12}
	if out := shake(t, server, clientTLS(t, m, credential.ExactID(m.ID()))); out.server == nil || out.client == nil {
		t.Fatal("the client speaks TLS 1.2")
	}
}

func TestServerWithoutCertificate(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	client := clientTLS(t, trustOnly(t, a.Bundle()), credential.AnyOfKind(identity.Coordinator))
	for name, src := range map[string]credential.Source{"empty": credential.NewIssued(nil), "trust alone": credential.Static(trustOnly(t, a.Bundle()))} {
		if out := shake(t, credential.ServerTLS(src, credential.ServerOptions{}), client); !errors.Is(out.server, credential.ErrNoMaterial) || out.client == nil {
			t.Errorf("%s: server %v, client %v", name, out.server, out.client)
		}
	}
}

// A joiner knows one hash. Everything that is not the cluster's coordinator
// under that root is refused.
func TestRootPin(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	evil := pkitest.NewAuthority(t, cluster)
	serve := func(m *credential.Material, root bool) *tls.Config {
		return credential.ServerTLS(credential.Static(m), credential.ServerOptions{SendRoot: root})
	}
	coordinator := material(t, a, identity.Coordinator, "c1")
	// A chain of the attacker's with the true root put at its end.
	forged, forgedKey := evil.Issue(t, evil.ID(t, identity.Coordinator, "c1"))
	forged = append(forged, a.Root().Cert)
	long, longKey := a.Issue(t, coordinator.ID())
	long = append(long, a.Root().Cert, a.Root().Cert)
	two, twoKey := a.IssueRaw(t, func(c *x509.Certificate) { c.URIs = []*url.URL{coordinator.ID().URL(), coordinator.ID().URL()} })
	two = append(two, a.Root().Cert)
	bare := func(chain []*x509.Certificate, key any) *tls.Config {
		cfg := rawClient(chain, key)
		return &tls.Config{Certificates: cfg.Certificates, MinVersion: tls.VersionTLS13}
	}
	pin := pinned.Root(cluster, a.Root().KeyID())
	for _, tc := range []struct {
		name   string
		server *tls.Config
		pin    pinned.Pin
		ok     func(error) bool
	}{
		{"true seed", serve(coordinator, true), pin, func(err error) bool { return err == nil }},
		{"root not sent", serve(coordinator, false), pin, isPin},
		{"other root", serve(material(t, evil, identity.Coordinator, "c1"), true), pin, isPin},
		{"true root under a forged chain", bare(forged, forgedKey), pin, is(identity.ErrUntrusted)},
		{"a fourth certificate", bare(long, longKey), pin, isPin},
		{"member instead of coordinator", serve(material(t, a, identity.Shard, "c1"), true), pin, is(identity.ErrUntrusted)},
		{"two SANs", bare(two, twoKey), pin, func(err error) bool { return err != nil }},
		{"other cluster", serve(coordinator, true), pinned.Root("other.example", a.Root().KeyID()), func(err error) bool { return err != nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got identity.Verified
			cfg, err := tc.pin.ClientTLS(nil, credential.ClientOptions{OnVerified: func(v identity.Verified) { got = v }})
			if err != nil {
				t.Fatal(err)
			}
			out := shake(t, tc.server, cfg)
			if !tc.ok(out.client) {
				t.Fatalf("client: %v", out.client)
			}
			if (out.client == nil) != (got.ID == coordinator.ID()) {
				t.Fatalf("client: %v, verified %v", out.client, got.ID)
			}
		})
	}
}

func TestLeafPin(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	eph, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	src := credential.NewIssued(eph)
	server := credential.ServerTLS(src, credential.ServerOptions{SendRoot: true})
	connect := func(p pinned.Pin) outcome {
		cfg, err := p.ClientTLS(nil, credential.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return shake(t, server, cfg)
	}
	if out := connect(pinned.Leaf(eph.Pin())); out.client != nil || out.server != nil {
		t.Fatalf("client %v, server %v", out.client, out.server)
	}
	if out := connect(pinned.Leaf(other.Pin())); !isPin(out.client) {
		t.Fatalf("other key: %v", out.client)
	}
	// A client with a certificate is a stranger here: nobody could verify it.
	if out := shake(t, server, rawClient(material(t, a, identity.Data, "n1").Chain(), pkitest.NewKey(t))); out.server != nil || len(out.serverState.PeerCertificates) != 0 {
		t.Fatalf("server %v", out.server)
	}
	// The same server becomes a member of its cluster without a restart.
	m := material(t, a, identity.Coordinator, "c1")
	if err := src.Adopt(m); err != nil {
		t.Fatal(err)
	}
	if out := connect(pinned.Root(cluster, a.Root().KeyID())); out.client != nil {
		t.Fatal(out.client)
	}
	if out := connect(pinned.Leaf(m.Pin())); !isPin(out.client) {
		t.Fatalf("a leaf pin accepts a chain: %v", out.client)
	}
}

func TestBlankPins(t *testing.T) {
	key := identity.KeyID{1}
	for name, p := range map[string]pinned.Pin{
		"zero": {}, "no leaf key": pinned.Leaf(identity.KeyID{}), "no root key": pinned.Root(cluster, identity.KeyID{}),
		"no cluster": pinned.Root("", key), "not a cluster": pinned.Root("Prod Example", key),
	} {
		if cfg, err := p.ClientTLS(nil, credential.ClientOptions{}); err == nil || cfg != nil {
			t.Errorf("%s pin is taken", name)
		}
	}
}

// Both ends of one connection have one exporter value, and another connection
// another: that is what a proof of join is bound to.
func TestExporter(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	server := credential.ServerTLS(credential.Static(material(t, a, identity.Coordinator, "c1")), credential.ServerOptions{})
	client := clientTLS(t, trustOnly(t, a.Bundle()), credential.AnyOfKind(identity.Coordinator))
	var last string
	for range 2 {
		out := shake(t, server, client)
		if out.client != nil {
			t.Fatal(out.client)
		}
		c, err := out.clientState.ExportKeyingMaterial("EXPORTER-fealty-test", nil, 32)
		if err != nil {
			t.Fatal(err)
		}
		s, err := out.serverState.ExportKeyingMaterial("EXPORTER-fealty-test", nil, 32)
		if err != nil {
			t.Fatal(err)
		}
		if string(c) != string(s) || string(c) == last {
			t.Fatal("the exporter does not name the connection")
		}
		last = string(c)
	}
}

// crypto/tls goes on running VerifyConnection for a resumed session, which is why
// the identity is checked there.
func TestCanaryVerifyConnectionRunsOnResumption(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	chain, key := a.Issue(t, a.ID(t, identity.Coordinator, "c1"))
	calls := 0
	server := &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, MinVersion: tls.VersionTLS13,
		VerifyConnection: func(tls.ConnectionState) error { calls++; return nil }}
	client := &tls.Config{InsecureSkipVerify: true, ServerName: "c1", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	shake(t, server, client)
	if out := shake(t, server, client); !out.serverState.DidResume || calls != 2 {
		t.Fatalf("resumed %v, VerifyConnection ran %d times, want on both", out.serverState.DidResume, calls)
	}
}

func isPin(err error) bool { return errors.Is(err, pinned.ErrMismatch) }
func is(target error) func(err error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}
