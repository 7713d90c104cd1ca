package coordinator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/manifest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

const testCluster = "test.example"

// fleet is one coordinator on a real store behind real listeners. With newReplica
// there are more of them on that store, each a fleet too.
type fleet struct {
	t      testing.TB
	dir    string
	addr   string // kept over restarts
	store  store.Store
	c      *coordinator.Coordinator
	faults *fault.Points
	signer ed25519.PrivateKey
	stopC  func()
	config func(*coordinator.Config)
	made   func(*coordinator.Coordinator) // what a test changes of it before it runs; nil: nothing
	dialed []io.Closer                    // to the admin socket

	first    *fleet   // of a replica: the one that it was made for
	replicas []*fleet // of the first: the others, in the order in which they were made
	people   *people  // who own the seed, of a fleet that peerFleet made
	link     *storeLink
	// open opens a handle of the store, one for each coordinator; nil: all share one of
	// SQLite.
	open func() store.Store
	// enrolment is the key of a replica, "ed25519:…", which it has before it starts.
	enrolment string
	key       ed25519.PrivateKey // its private half

	mu  sync.Mutex
	now time.Duration // offset of the fleet's clock; guarded by mu
}

// clock is the coordinator's clock: the real one, moved by advance.
func (f *fleet) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.now)
}

func (f *fleet) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += d
}

// newFleet starts a coordinator that has no manifest yet.
func newFleet(t testing.TB, config func(*coordinator.Config)) *fleet {
	t.Helper()
	return newFleetOn(t, nil, config)
}

// newFleetOn is newFleet on the store that open opens; nil for SQLite.
func newFleetOn(t testing.TB, open func() store.Store, config func(*coordinator.Config)) *fleet {
	t.Helper()
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, dir: t.TempDir(), signer: signer, faults: new(fault.Points), config: config, addr: "127.0.0.1:0",
		link: new(storeLink), open: open}
	f.start()
	t.Cleanup(f.stop)
	return f
}

// readyFleet starts a coordinator and sets its first manifest.
func readyFleet(t testing.TB, config func(*coordinator.Config)) *fleet {
	t.Helper()
	f := newFleet(t, config)
	if err := f.set(f.manifest("")); err != nil {
		t.Fatalf("first set: %v", err)
	}
	return f
}

func (f *fleet) start() {
	f.t.Helper()
	st, closeStore := f.openStore()
	l, err := net.Listen("tcp", f.addr)
	// Another test may have been given the port while this coordinator was down.
	end := time.Now().Add(time.Minute)
	for errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
		l, err = net.Listen("tcp", f.addr)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = l.Addr().String()
	// Sockets have short paths; a test's directory may not.
	socket := filepath.Join(f.t.TempDir(), "s")
	cfg := coordinator.Config{
		DataDir: filepath.Join(f.dir, "coordinator"), Store: f.link.to(st), StoreName: "sqlite", Listener: l,
		AdminSocket: socket,
		Rates: coordinator.Rates{PerSource: 1e6, SourceBurst: 1e6, Overall: 1e6, OverallBurst: 1e6, PerMember: 1e6,
			MemberBurst: 1e6},
		Log: slog.New(slog.NewTextHandler(f.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Now: f.clock,
		Faults: f.faults, Release: "test",
	}
	if f.config != nil {
		f.config(&cfg)
	}
	c, err := coordinator.New(context.Background(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.made != nil {
		f.made(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	f.store, f.c = st, c
	f.stopC = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			f.t.Errorf("Run ended with %v", err)
		}
		closeStore()
	})
	for !c.Serves() {
		time.Sleep(time.Millisecond)
	}
}

func (f *fleet) stop() { f.stopC() }

// openStore returns the store of f, and what its coordinator does with it when it
// ends: one that is alone on it closes it, and opens the files again.
func (f *fleet) openStore() (store.Store, func()) {
	f.t.Helper()
	if f.open != nil {
		st := f.open()
		return st, func() {
			if err := st.Close(); err != nil {
				f.t.Errorf("close the store: %v", err)
			}
		}
	}
	if first := f.first; first != nil {
		return first.store, func() {}
	}
	if len(f.replicas) > 0 {
		return f.store, func() {}
	}
	st, err := sqlite.Open(context.Background(), filepath.Join(f.dir, "store", "db"), sqlite.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	closeOnce := sync.OnceFunc(func() {
		if err := st.Close(); err != nil {
			f.t.Errorf("close the store: %v", err)
		}
	})
	f.t.Cleanup(closeOnce)
	return st, func() {
		if len(f.replicas) == 0 {
			closeOnce()
		}
	}
}

func (f *fleet) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

// manifest returns a valid manifest with extra entries. It admits every replica.
func (f *fleet) manifest(extra string) []byte {
	if f.first != nil {
		return f.first.manifest(extra)
	}
	for i, r := range f.replicas {
		extra = fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [%q]}\n", i+2,
			"key:"+r.enrolment) + extra
	}
	key, err := manifest.NewKey(f.signer.Public().(ed25519.PublicKey))
	if err != nil {
		f.t.Fatal(err)
	}
	return fmt.Appendf(nil, `cluster: %s
seed:
  threshold: 1
  owners:
    - {name: host, keeper: "file:%s"}
signers:
  threshold: 1
  keys: [{name: alice, key: "%s"}]
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%s"]}
  - {name: pool, kind: data, match: ["token:pool"], roles: [ingress, egress], organizations: [acme, globex]}
  - {name: small, kind: data, match: ["token:small"], max_members: 2}
  - {name: witnesses, kind: witness, match: ["token:witnesses"]}
  - {name: ops, kind: admin, match: ["token:ops"]}
%s`, testCluster, filepath.Join(f.dir, "keeper.key"), key, f.c.Rooms().Self.EnrolmentKey(), extra)
}

// local returns a client of the admin socket.
func (f *fleet) local() *clients {
	f.t.Helper()
	return newClients(f.localConn())
}

func (f *fleet) localConn() grpcConn {
	f.t.Helper()
	conn, err := mesh.DialLocal(f.c.AdminSocket())
	if err != nil {
		f.t.Fatal(err)
	}
	f.dialed = append(f.dialed, conn)
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// set sets a manifest over the admin socket, signed for the current head.
func (f *fleet) set(m []byte) error {
	f.t.Helper()
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	if s := f.c.Rooms().Head.State(); s.Phase == authority.Ready {
		f.sign(req, s.Head.Hash)
	}
	_, err := f.local().manifest.SetManifest(f.ctx(), req)
	return err
}

func (f *fleet) sign(req *fealtyv1.SetManifestRequest, head history.Hash) {
	parsed, err := manifest.Parse(req.Manifest)
	if err != nil {
		f.t.Fatal(err)
	}
	key, err := manifest.NewKey(f.signer.Public().(ed25519.PublicKey))
	if err != nil {
		f.t.Fatal(err)
	}
	req.CurrentTransition = head[:]
	req.Signatures = []*fealtyv1.ManifestSignature{{Key: key.String(),
		Signature: ed25519.Sign(f.signer, history.SetStatement(parsed.Hash(), head))}}
}

func (f *fleet) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

// token makes a join token.
func (f *fleet) token(req *fealtyv1.CreateTokenRequest) proof.JoinToken {
	f.t.Helper()
	resp, err := f.local().token.CreateToken(f.ctx(), req)
	if err != nil {
		f.t.Fatal(err)
	}
	tok, err := proof.ParseJoinToken(resp.GetLine())
	if err != nil {
		f.t.Fatal(err)
	}
	return tok
}

func (f *fleet) pin() identity.KeyID { return f.c.Rooms().Head.State().RootPin }

// clients are the generated clients over one connection.
type clients struct {
	admission fealtyv1.AdmissionServiceClient
	agent     fealtyv1.AgentServiceClient
	manifest  fealtyv1.ManifestServiceClient
	member    fealtyv1.MemberServiceClient
	status    fealtyv1.StatusServiceClient
	token     fealtyv1.TokenServiceClient
}

func newClients(cc grpcConn) *clients {
	return &clients{
		fealtyv1.NewAdmissionServiceClient(cc), fealtyv1.NewAgentServiceClient(cc), fealtyv1.NewManifestServiceClient(cc),
		fealtyv1.NewMemberServiceClient(cc), fealtyv1.NewStatusServiceClient(cc), fealtyv1.NewTokenServiceClient(cc),
	}
}

// node is a candidate, and what it was granted.
type node struct {
	f        *fleet
	key      *ecdsa.PrivateKey
	chain    []*x509.Certificate // leaf, mesh CA
	id       identity.ID
	grant    *fealtyv1.JoinGrant
	trust    snapshot.Trust              // by verifyGrant
	believes *identity.Bundle            // nil: what the coordinator believes now
	cluster  string                      // asked for; empty: the test cluster
	dialer   mesh.Options                // how it reaches the seed
	alter    func(*fealtyv1.JoinRequest) // what it changes before sending
}

func (f *fleet) node() *node {
	f.t.Helper()
	key, err := newKey()
	if err != nil {
		f.t.Fatal(err)
	}
	return &node{f: f, key: key}
}

// join runs the handshake as any candidate would, and returns the refusal.
func (n *node) join(kind identity.Kind, prover proof.Prover) error {
	n.f.t.Helper()
	pin := credential.RootPin(testCluster, n.f.pin())
	opts := n.dialer
	opts.Now = n.f.clock
	conn, err := mesh.DialPinned(n.f.addr, pin, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	return n.joinOver(conn, kind, prover)
}

func (n *node) joinOver(conn grpcConn, kind identity.Kind, prover proof.Prover) error {
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(n.f.ctx())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	cs, ok := mesh.ConnectionState(stream.Context())
	if !ok {
		return errors.New("no connection state")
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return err
	}
	req, err := n.request(kind, first.GetChallenge().GetNonce(), binding, prover)
	if err != nil {
		return err
	}
	if err := stream.Send(req); err != nil {
		return err
	}
	second, err := stream.Recv()
	if err != nil {
		return err
	}
	n.grant = second.GetGrant()
	return n.adopt(n.grant.GetChain())
}

// request makes the candidate's message of a join.
func (n *node) request(kind identity.Kind, nonce, binding []byte, prover proof.Prover) (*fealtyv1.JoinRequest, error) {
	spki, err := x509.MarshalPKIXPublicKey(n.key.Public())
	if err != nil {
		return nil, err
	}
	cluster := n.cluster
	if cluster == "" {
		cluster = testCluster
	}
	ev, err := prover.Prove(n.f.ctx(), proof.Transcript{Role: proof.Candidate, Cluster: cluster, Nonce: nonce,
		Binding: binding, PublicKey: spki})
	if err != nil {
		return nil, err
	}
	csr, err := ca.NewCSR(n.key)
	if err != nil {
		return nil, err
	}
	req := &fealtyv1.JoinRequest{ClusterId: cluster, Kind: string(kind), Csr: csr,
		Proof: &fealtyv1.Proof{Type: ev.Type, Claim: ev.Claim, Evidence: ev.Evidence, PublicKey: ev.PublicKey}}
	if n.alter != nil {
		n.alter(req)
	}
	return req, nil
}

func (n *node) adopt(chain [][]byte) error {
	n.chain = nil
	for _, der := range chain[:2] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		n.chain = append(n.chain, c)
	}
	id, err := identity.FromCertificate(n.chain[0])
	n.id = id
	return err
}

// bundle is what the node believes about certificates.
func (n *node) bundle() *identity.Bundle {
	n.f.t.Helper()
	if n.believes != nil {
		return n.believes
	}
	return n.f.c.Rooms().Bundle.View().Bundle
}

// conn dials the coordinator with the node's identity.
func (n *node) conn() grpcConn {
	n.f.t.Helper()
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: n.chain, Key: n.key, Bundle: n.bundle(),
		Now: n.f.clock})
	if err != nil {
		n.f.t.Fatal(err)
	}
	conn, err := mesh.Dial(n.f.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator),
		mesh.Options{Now: n.f.clock})
	if err != nil {
		n.f.t.Fatal(err)
	}
	n.f.t.Cleanup(func() { conn.Close() })
	return conn
}

// renew renews under a new key, and adopts it if keep is set.
func (n *node) renew(keep bool) error {
	n.f.t.Helper()
	key, err := newKey()
	if err != nil {
		return err
	}
	csr, err := ca.NewCSR(key)
	if err != nil {
		return err
	}
	resp, err := newClients(n.conn()).admission.Renew(n.f.ctx(), &fealtyv1.RenewRequest{Name: n.id.Name(), Csr: csr})
	if err != nil || !keep {
		return err
	}
	n.key = key
	return n.adopt(resp.GetChain())
}

// member joins a new data member with a token for one use.
func (f *fleet) member(name string) *node {
	f.t.Helper()
	n := f.node()
	if err := n.join(identity.Data,
		proof.NewTokenProver(f.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: name}))); err != nil {
		f.t.Fatalf("join %s: %v", name, err)
	}
	return n
}

// catalog returns all members, as one text to compare.
func (f *fleet) catalog() string {
	f.t.Helper()
	recs, err := record.List[record.Member](context.Background(), f.c.Rooms().Head.State().Records,
		record.MemberPrefix)
	if err != nil {
		f.t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range recs {
		fmt.Fprintf(&b, "%d %+v\n", r.Version, r.Value)
	}
	return b.String()
}

// wantCode fails the test unless err carries the code.
func wantCode(t testing.TB, err error, want explain.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := explain.Of(err).Code; got != want {
		t.Fatalf("refused with %s (%v), want %s", got, err, want)
	}
}

// trustBundle verifies the node's grant as a node would, and returns its bundle.
func (n *node) verifyGrant() (*snapshot.Verified, error) {
	root, err := x509.ParseCertificate(n.grant.GetChain()[2])
	if err != nil {
		return nil, err
	}
	signedRoot, err := snapshot.UnmarshalRoot(n.grant.GetRootStatement())
	if err != nil {
		return nil, err
	}
	statement, err := snapshot.VerifyRoot(signedRoot, []*x509.Certificate{root}, testCluster, n.f.clock())
	if err != nil {
		return nil, err
	}
	key, err := identity.KeyOfPublic(n.key.Public())
	if err != nil {
		return nil, err
	}
	trust := snapshot.Trust{Me: n.id, Incarnation: key, ConfigRoot: statement.ConfigRoot}
	signed, err := snapshot.Unmarshal(n.grant.GetTrustBundle().GetEnvelope())
	if err != nil {
		return nil, err
	}
	if trust.Bundle, err = snapshot.Verify(signed, trust, snapshot.Marks{}, n.f.clock()); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	trust.Roles, trust.Organizations = []string{"egress", "ingress"}, []string{"acme", "globex"}
	n.trust = trust
	if signed, err = snapshot.Unmarshal(n.grant.GetNodeBootstrap().GetEnvelope()); err != nil {
		return nil, err
	}
	v, err := snapshot.Verify(signed, trust, snapshot.Marks{}, n.f.clock())
	if err != nil {
		return nil, fmt.Errorf("node bootstrap: %w", err)
	}
	return v, nil
}

// rawCredentials present the node's certificate without a look at it.
func rawCredentials(n *node) credentials.TransportCredentials {
	cert := tls.Certificate{PrivateKey: n.key}
	for _, c := range n.chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13})
}

func newTestCSR() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return ca.NewCSR(key)
}

type grpcConn = grpc.ClientConnInterface

// newTestKey makes a key for what a test signs.
func newTestKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
