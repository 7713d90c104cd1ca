package mesh_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// machine is a process that runs on three files of an operator's PKI.
type machine struct {
	t     *testing.T
	pki   *pkitest.PKI
	paths credential.FilePaths
	uris  []string
}

func newMachine(t *testing.T, pki *pkitest.PKI, uris ...string) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t, pki, credential.FilePaths{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}, uris}
	cert, key := m.issue()
	m.put(m.paths.Cert, cert)
	m.put(m.paths.Key, key)
	m.put(m.paths.CA, pkitest.PEM(pki.Root.Cert))
	return m
}

// issue makes the machine's next certificate and key.
func (m *machine) issue() (cert, key []byte) {
	m.t.Helper()
	k := pkitest.NewKey(m.t)
	chain := m.pki.Issue(m.t, k, func(c *x509.Certificate) {
		for _, s := range m.uris {
			u, err := url.Parse(s)
			if err != nil {
				m.t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	})
	return pkitest.PEM(chain...), pkitest.KeyPEM(m.t, k)
}

func (m *machine) put(path string, data []byte) {
	m.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) source() credential.Source {
	m.t.Helper()
	s, err := credential.NewFiles(credential.FilesConfig{Paths: m.paths})
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// raw dials with the machine's files as plain crypto/tls would, for certificates that
// a source refuses; without files it presents none.
func (m *machine) raw(addr string) grpc.ClientConnInterface {
	cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if m.pki != nil {
		pair, err := tls.LoadX509KeyPair(m.paths.Cert, m.paths.Key)
		if err != nil {
			m.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return dialRaw(m.t, addr, credentials.NewTLS(cfg))
}

func dialRaw(t *testing.T, addr string, creds credentials.TransportCredentials) grpc.ClientConnInterface {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The identity of a caller, by what it presents: the whole layer on certificate files, without a
// coordinator.
func TestCallersOnCertificateFiles(t *testing.T) {
	const (
		server = "spiffe://prod.example/provider/aws"
		client = "spiffe://prod.example/shard/eu-1"
	)
	pki, foreign := pkitest.NewPKI(t, "corp", nil), pkitest.NewPKI(t, "corp", nil)
	s := serve(t, loopback(t), mesh.GuardConfig{Source: newMachine(t, pki, server).source()})
	for _, tc := range []struct {
		name  string
		conn  grpc.ClientConnInterface
		want  string // see standing
		fails bool   // before the call is seen
	}{
		{"same CA", dial(t, s.addr, newMachine(t, pki, client).source(), credential.AnyOfKind(identity.Provider), mesh.Options{}), "identified", false},
		{"wrong CA", newMachine(t, foreign, client).raw(s.addr), "", true},
		{"no certificate", (&machine{t: t}).raw(s.addr), "insecure", false},
		{"no SAN", newMachine(t, pki).raw(s.addr), "unidentified", false},
		{"two SANs", newMachine(t, pki, client, "spiffe://prod.example/admin/alice").raw(s.addr), "unidentified", false},
		{"another cluster's SAN", newMachine(t, pki, "spiffe://dev.example/shard/eu-1").raw(s.addr), "unidentified", false},
		{"plaintext", dialRaw(t, s.addr, insecure.NewCredentials()), "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.mu.Lock()
			before := len(s.peers)
			s.mu.Unlock()
			_, err := who(t, tc.conn)
			s.mu.Lock()
			calls := len(s.peers) - before
			s.mu.Unlock()
			if tc.fails {
				if err == nil || calls != 0 {
					t.Fatalf("%d calls were seen, %v", calls, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p := s.last()
			if standing(p) != tc.want || (tc.want == "identified") != (p.ID.String() == client) {
				t.Errorf("the caller is %v (%s), want %v", standing(p), p.ID, tc.want)
			}
		})
	}
	// A client believes no server of another CA either, whatever it is called.
	if _, err := who(t, dial(t, s.addr, newMachine(t, foreign, client).source(), credential.AnyOfKind(identity.Provider), mesh.Options{})); err == nil {
		t.Error("a server of another CA was believed")
	}
}

// Without TLS nobody is anybody: the process was started insecure.
func TestPlaintextCallerIsInsecure(t *testing.T) {
	ln := loopback(t)
	svc := newService()
	server := grpc.NewServer()
	server.RegisterService(&desc, svc)
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(ln) }()
	t.Cleanup(func() { svc.unblock(); server.Stop(); <-done })
	if _, err := who(t, dialRaw(t, ln.Addr().String(), insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	if p := svc.last(); standing(p) != "insecure" || !p.ID.IsZero() {
		t.Errorf("the caller is %v (%s)", standing(p), p.ID)
	}
}

// A rotation that is half written cuts and refuses nobody; once it is whole, new
// connections see it and old streams go on.
func TestHalfWrittenRotation(t *testing.T) {
	pki := pkitest.NewPKI(t, "corp", nil)
	m := newMachine(t, pki, "spiffe://prod.example/provider/aws")
	s := serve(t, loopback(t), mesh.GuardConfig{Source: m.source()})
	shard := newMachine(t, pki, "spiffe://prod.example/shard/eu-1").source()
	connect := func() *mesh.Conn {
		return dial(t, s.addr, shard, credential.AnyOfKind(identity.Provider), mesh.Options{})
	}
	serverKey := func(c *mesh.Conn) identity.KeyID {
		t.Helper()
		st, _, err := talk(t, c, talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		info, ok := mesh.FromContext(st.Context())
		if !ok {
			t.Fatal("nothing is known of the connection")
		}
		return info.Peer.Key
	}
	stream, _, err := talk(t, connect(), talkMethod)
	if err != nil {
		t.Fatal(err)
	}
	first := serverKey(connect())
	cert, key := m.issue()
	m.put(m.paths.Cert, cert)
	if got := serverKey(connect()); got != first {
		t.Error("half of a rotation was adopted")
	}
	m.put(m.paths.Key, key)
	if got := serverKey(connect()); got == first {
		t.Error("the whole rotation was not adopted")
	}
	if err := echo(stream, "still here"); err != nil {
		t.Errorf("rotation ended a stream: %v", err)
	}
}

// A workload of a PKI that somebody else runs is vouched for by nobody, and is served and
// believed for all that.
func TestWorkloadsOnCertificateFiles(t *testing.T) {
	const me = "spiffe://prod.example/workload/billing"
	pki := pkitest.NewPKI(t, "corp", nil)
	s := serve(t, loopback(t), mesh.GuardConfig{Source: newMachine(t, pki, me).source()})
	id, err := identity.Parse(me)
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, s.addr, newMachine(t, pki, me).source(), credential.ExactID(id), mesh.Options{})
	for range 2 { // the connection stands
		if _, err := who(t, conn); err != nil {
			t.Fatal(err)
		}
	}
	if p := s.last(); p.ID != id {
		t.Errorf("the caller is %v (%s)", standing(p), p.ID)
	}
}
