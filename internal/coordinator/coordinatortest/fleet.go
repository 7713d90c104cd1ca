package coordinatortest

import (
	"cmp"
	"context"
	"crypto"
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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/platform/freeport"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/sqlite"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Cluster is the name of all clusters of these tests.
const Cluster = "test.example"

// Fleet is one coordinator on a real store behind real listeners. With [NewReplica]
// there are more of them on that store, each a fleet too.
type Fleet struct {
	T      testing.TB
	Dir    string
	Addr   string // from the first start on, and kept over restarts
	Store  store.Store
	C      *coordinator.Coordinator
	Faults *failpoint.Points
	Signer ed25519.PrivateKey
	StopC  func()
	Config func(*coordinator.Config)
	Seed   string      // the seed section of its manifest; empty: one keeper
	Dialed []io.Closer // to the admin socket

	First    *Fleet   // of a replica: the one that it was made for
	Replicas []*Fleet // of the first: the others, in the order in which they were made
	People   *People  // who own the seed, of a fleet whose seed they own
	Link     *StoreLink
	// open opens a handle of the store, one for each coordinator; nil: all share one of
	// SQLite.
	open func() store.Store
	// In memory: what all coordinators of the fleet meet over, and the disk and the process of this one. Nil on this
	// machine, with its loopback and its disk.
	Net     *Network
	Disk    *durabletest.Disk
	Process *Process // another one with every start
	// Enrolment is the key of a replica, "ed25519:…", which it has before it starts.
	Enrolment string
	Key       ed25519.PrivateKey // its private half

	mu  sync.Mutex
	now time.Duration // offset of the fleet's clock; guarded by mu
}

// Clock is the coordinator's clock: the real one, moved by [Fleet.Advance].
func (f *Fleet) Clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.now)
}

// Advance moves the time of the fleet.
func (f *Fleet) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now += d
}

// NewFleet starts a coordinator that has no manifest yet.
func NewFleet(t testing.TB, config func(*coordinator.Config)) *Fleet {
	t.Helper()
	return NewFleetOn(t, nil, config)
}

// NewFleetOn is [NewFleet] on the store that open opens; nil for SQLite.
func NewFleetOn(t testing.TB, open func() store.Store, config func(*coordinator.Config)) *Fleet {
	t.Helper()
	f := &Fleet{T: t, Dir: t.TempDir(), Signer: NewTestKey(t), Faults: new(failpoint.Points), Config: config,
		Link: new(StoreLink), open: open}
	f.Start()
	return f
}

// NewFleetIn returns a fleet whose disks and network are in memory, so that all of it can run in virtual time. It is not
// running. Nobody is at its admin socket: its first manifest comes by [Fleet.FirstSet].
func NewFleetIn(t testing.TB, net *Network, open func() store.Store) *Fleet {
	t.Helper()
	return &Fleet{T: t, Dir: "/", Signer: NewTestKey(t), Faults: new(failpoint.Points), Link: new(StoreLink), open: open,
		Net: net, Disk: durabletest.NewDisk()}
}

// ReadyFleet starts a coordinator and sets its first manifest.
func ReadyFleet(t testing.TB, config func(*coordinator.Config)) *Fleet {
	t.Helper()
	f := NewFleet(t, config)
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatalf("first set: %v", err)
	}
	return f
}

// Start opens the coordinator, and returns once it serves.
func (f *Fleet) Start() {
	f.T.Helper()
	st, closeStore := f.openStore()
	level := slog.LevelDebug // shown of a test that fails
	if _, ok := f.T.(*testing.B); ok {
		level = slog.LevelWarn // shown in any case
	}
	cfg := coordinator.Config{
		DataDir: f.folder(), Store: f.Link.to(st), StoreName: "sqlite",
		Rates: coordinator.Rates{PerSource: 1e6, SourceBurst: 1e6, Overall: 1e6, OverallBurst: 1e6, PerMember: 1e6,
			MemberBurst: 1e6},
		Log: slog.New(slog.NewTextHandler(f.T.Output(),
			&slog.HandlerOptions{Level: level})), Machine: coordinator.Machine{Now: f.Clock},
		Faults: f.Faults, Release: "test",
	}
	f.place(&cfg)
	if f.Config != nil {
		f.Config(&cfg)
	}
	c, err := coordinator.New(context.Background(), cfg)
	if err != nil {
		f.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	f.Store, f.C = st, c
	f.StopC = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			f.T.Errorf("Run ended with %v", err)
		}
		if err := cfg.Store.Close(); err != nil { // what Config put in the place of the store
			f.T.Errorf("close the way to the store: %v", err)
		}
		closeStore()
	})
	f.T.Cleanup(f.StopC) // before its store is closed, which is registered already
	for !c.Serves() {
		select {
		case err := <-done: // it never will
			done <- err
			f.T.Fatalf("Run ended with %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// place gives a coordinator its listeners and its disk.
func (f *Fleet) place(cfg *coordinator.Config) {
	f.T.Helper()
	if f.Net != nil {
		f.Process = new(Process)
		cfg.Listener, cfg.Local = f.Net.listen(f.number(), f.Process), NewNobody()
		cfg.Machine.FS, cfg.Machine.Dial = f.Disk.FS(), f.Net.Dial(f.Process)
		f.Addr = cfg.Listener.Addr().String()
		return
	}
	var err error
	if f.Addr == "" { // from now on, also while this coordinator is down
		if f.Addr, err = freeport.Addr(); err != nil {
			f.T.Fatal(err)
		}
	}
	if cfg.Listener, err = net.Listen("tcp", f.Addr); err != nil {
		f.T.Fatal(err)
	}
	// Sockets have short paths; a test's directory may not.
	cfg.AdminSocket = filepath.Join(f.T.TempDir(), "s")
}

// number is the place of a coordinator in its fleet; 0 is the first.
func (f *Fleet) number() int {
	if f.First == nil {
		return 0
	}
	return 1 + slices.Index(f.First.Replicas, f)
}

// folder is where a coordinator keeps its state, and files what it has it on.
func (f *Fleet) folder() string { return filepath.Join(f.Dir, "coordinator") }

func (f *Fleet) files() durable.FS {
	if f.Disk != nil {
		return f.Disk.FS()
	}
	return durable.OS()
}

// Stop ends the coordinator in order.
func (f *Fleet) Stop() { f.StopC() }

// openStore returns the store of f, and what its coordinator does with it when it
// ends: one that is alone on it closes it, and opens the files again.
func (f *Fleet) openStore() (store.Store, func()) {
	f.T.Helper()
	if f.open != nil {
		st := f.open()
		return st, func() {
			if err := st.Close(); err != nil {
				f.T.Errorf("close the store: %v", err)
			}
		}
	}
	if first := f.First; first != nil {
		return first.Store, func() {}
	}
	if len(f.Replicas) > 0 {
		return f.Store, func() {}
	}
	st, err := sqlite.Open(context.Background(), filepath.Join(f.Dir, "store", "db"), sqlite.Options{})
	if err != nil {
		f.T.Fatal(err)
	}
	closeOnce := sync.OnceFunc(func() {
		if err := st.Close(); err != nil {
			f.T.Errorf("close the store: %v", err)
		}
	})
	f.T.Cleanup(closeOnce)
	return st, func() {
		if len(f.Replicas) == 0 {
			closeOnce()
		}
	}
}

// Restart stops the coordinator and starts it again on the same folder and store.
func (f *Fleet) Restart() {
	f.T.Helper()
	f.Stop()
	f.Start()
}

// Manifest returns a valid manifest with extra entries. It admits every replica.
func (f *Fleet) Manifest(extra string) []byte {
	if f.First != nil {
		return f.First.Manifest(extra)
	}
	for i, r := range f.Replicas {
		extra = fmt.Sprintf("  - {name: coordinator-%d, kind: coordinator, match: [%q]}\n", i+2,
			"key:"+r.Enrolment) + extra
	}
	seed := f.Seed
	if seed == "" {
		seed = fmt.Sprintf("seed:\n  threshold: 1\n  owners:\n    - {name: host, keeper: \"file:%s\"}\n", f.KeeperFile())
	}
	return fmt.Appendf(nil, `cluster: %s
%ssigners:
  threshold: 1
  keys: [{name: alice, key: "%s"}]
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%s"]}
  - {name: pool, kind: data, match: ["token:pool"], roles: [ingress, egress], organizations: [acme, globex]}
  - {name: small, kind: data, match: ["token:small"], max_members: 2}
  - {name: witnesses, kind: witness, match: ["token:witnesses"]}
  - {name: ops, kind: admin, match: ["token:ops"]}
%s`, Cluster, seed, SignerKey(f.T, f.Signer), f.C.EnrolmentKey(), extra)
}

// KeeperFile is the file of the keeper that the manifest names.
func (f *Fleet) KeeperFile() string { return filepath.Join(f.Dir, "keeper.key") }

// Local returns a client of the admin socket.
func (f *Fleet) Local() *Clients {
	f.T.Helper()
	return NewClients(f.LocalConn())
}

// LocalConn is a connection to the admin socket.
func (f *Fleet) LocalConn() Conn {
	f.T.Helper()
	conn, err := mesh.DialLocal(f.C.AdminSocket())
	if err != nil {
		f.T.Fatal(err)
	}
	f.Dialed = append(f.Dialed, conn)
	f.T.Cleanup(func() { conn.Close() })
	return conn
}

// Set sets a manifest over the admin socket, signed for the current head.
func (f *Fleet) Set(m []byte) error {
	f.T.Helper()
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	if s := f.State(); s.Phase == authority.Ready {
		f.Sign(req, s.Head.Hash)
	}
	_, err := f.Local().Manifest.SetManifest(f.Context(), req)
	return err
}

// Sign has the signer of the fleet sign a set on a head.
func (f *Fleet) Sign(req *fealtyv1.SetManifestRequest, head history.Hash) {
	parsed, err := manifest.Parse(req.Manifest)
	if err != nil {
		f.T.Fatal(err)
	}
	req.CurrentTransition = head[:]
	req.Signatures = SignedBy(f.T, history.SetStatement(parsed.Hash(), head), f.Signer)
}

// Context is for one call: it ends after a while.
func (f *Fleet) Context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.T.Cleanup(cancel)
	return ctx
}

// Token makes a join token.
func (f *Fleet) Token(req *fealtyv1.CreateTokenRequest) proof.JoinToken {
	f.T.Helper()
	resp, err := f.Local().Token.CreateToken(f.Context(), req)
	if err != nil {
		f.T.Fatal(err)
	}
	tok, err := proof.ParseJoinToken(resp.GetLine())
	if err != nil {
		f.T.Fatal(err)
	}
	return tok
}

// State is what the coordinator decides on.
func (f *Fleet) State() *authority.State { return f.C.Parts().Head.State() }

// Pin is that of the root in force.
func (f *Fleet) Pin() identity.KeyID { return f.State().RootPin }

// Clients are the generated clients over one connection.
type Clients struct {
	Admission fealtyv1.AdmissionServiceClient
	Agent     fealtyv1.AgentServiceClient
	Manifest  fealtyv1.ManifestServiceClient
	Member    fealtyv1.MemberServiceClient
	Status    fealtyv1.StatusServiceClient
	Token     fealtyv1.TokenServiceClient
}

// NewClients are those over a connection.
func NewClients(cc Conn) *Clients {
	return &Clients{
		fealtyv1.NewAdmissionServiceClient(cc), fealtyv1.NewAgentServiceClient(cc),
		fealtyv1.NewManifestServiceClient(cc),
		fealtyv1.NewMemberServiceClient(cc), fealtyv1.NewStatusServiceClient(cc), fealtyv1.NewTokenServiceClient(cc),
	}
}

// Node is a candidate, and what it was granted.
type Node struct {
	Fleet    *Fleet
	Key      *ecdsa.PrivateKey
	Chain    []*x509.Certificate // leaf, mesh CA
	ID       identity.ID
	Grant    *fealtyv1.JoinGrant
	Trust    snapshot.Trust              // by VerifyGrant
	Believes *identity.Bundle            // nil: what the coordinator believes now
	Cluster  string                      // asked for; empty: the test cluster
	Dialer   mesh.Options                // how it reaches the seed
	Alter    func(*fealtyv1.JoinRequest) // what it changes before sending
}

// Node returns a candidate with a new key.
func (f *Fleet) Node() *Node {
	f.T.Helper()
	key, err := NewKey()
	if err != nil {
		f.T.Fatal(err)
	}
	return &Node{Fleet: f, Key: key}
}

// Join runs the handshake as any candidate would, and returns the refusal.
func (n *Node) Join(kind identity.Kind, prover proof.Prover) error {
	n.Fleet.T.Helper()
	pin := pinned.Root(Cluster, n.Fleet.Pin())
	opts := n.Dialer
	opts.Now = n.Fleet.Clock
	conn, err := mesh.DialPinned(n.Fleet.Addr, pin, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	return n.JoinOver(n.Fleet.Context(), conn, kind, prover)
}

// JoinOver is [Node.Join] over a connection that is there, to whomever.
func (n *Node) JoinOver(ctx context.Context, conn Conn, kind identity.Kind, prover proof.Prover) error {
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(ctx)
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	binding, err := BindingOf(stream.Context())
	if err != nil {
		return err
	}
	req, err := n.Request(kind, first.GetChallenge().GetNonce(), binding, prover)
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
	n.Grant = second.GetGrant()
	return n.Adopt(n.Grant.GetChain())
}

// BindingOf is what ties a proof to the connection of a stream, be it of package mesh or of anybody who checks nothing.
func BindingOf(ctx context.Context) ([]byte, error) {
	cs, ok := proof.ConnectionState(ctx)
	if !ok {
		p, _ := peer.FromContext(ctx)
		info, tls := p.AuthInfo.(credentials.TLSInfo)
		if !tls {
			return nil, errors.New("no connection state")
		}
		cs = info.State
	}
	return proof.Binding(cs)
}

// Request makes the candidate's message of a join.
func (n *Node) Request(kind identity.Kind, nonce, binding []byte, prover proof.Prover) (*fealtyv1.JoinRequest, error) {
	req, err := joinRequest(n.Fleet.Context(), cmp.Or(n.Cluster, Cluster), proof.Challenge{Nonce: nonce, Binding: binding}, n.Key,
		kind, prover)
	if err == nil && n.Alter != nil {
		n.Alter(req)
	}
	return req, err
}

// Adopt takes a certificate and its chain as the node's own.
func (n *Node) Adopt(chain [][]byte) error {
	n.Chain = nil
	for _, der := range chain[:2] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		n.Chain = append(n.Chain, c)
	}
	id, err := identity.FromCertificate(n.Chain[0])
	n.ID = id
	return err
}

// BelieveGrant has the node believe, of certificates, what its grant shows: the root, and the mesh CA that signed its own.
func (n *Node) BelieveGrant() error {
	root, err := x509.ParseCertificate(n.Grant.GetChain()[2])
	if err != nil {
		return err
	}
	n.Believes, err = identity.NewBundle(identity.BundleConfig{Cluster: Cluster, Roots: []*x509.Certificate{root},
		MeshKeys: []identity.KeyID{identity.KeyOf(n.Chain[1])}})
	return err
}

// Bundle is what the node believes about certificates.
func (n *Node) Bundle() *identity.Bundle {
	n.Fleet.T.Helper()
	if n.Believes != nil {
		return n.Believes
	}
	return n.Fleet.C.Parts().Bundle.View().Bundle
}

// Dial connects to a coordinator with the node's identity, until somebody closes the connection.
func (n *Node) Dial(to *Fleet) (*mesh.Conn, error) {
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: n.Chain, Key: n.Key, Bundle: n.Bundle(),
		Now: to.Clock})
	if err != nil {
		return nil, err
	}
	return mesh.Dial(to.target(), credential.Static(m), credential.AnyOfKind(identity.Coordinator), to.dialer())
}

// DialPinned connects to the coordinator as somebody does who shows no certificate, until somebody closes the connection.
func (f *Fleet) DialPinned(pin pinned.Pin) (*mesh.Conn, error) {
	return mesh.DialPinned(f.target(), pin, f.dialer())
}

// dialer is how somebody connects who is no coordinator.
func (f *Fleet) dialer() mesh.Options {
	opts := mesh.Options{Now: f.Clock}
	if f.Net != nil {
		opts.Dialer = f.Net.Dial(nil)
	}
	return opts
}

func (f *Fleet) target() string {
	if f.Net != nil {
		return "passthrough:///" + f.Addr // there is nobody to ask for names
	}
	return f.Addr
}

// Conn dials the coordinator with the node's identity.
func (n *Node) Conn() Conn {
	n.Fleet.T.Helper()
	conn, err := n.Dial(n.Fleet)
	if err != nil {
		n.Fleet.T.Fatal(err)
	}
	n.Fleet.T.Cleanup(func() { conn.Close() })
	return conn
}

// Renew renews under a new key, and adopts it if keep is set.
func (n *Node) Renew(keep bool) error {
	n.Fleet.T.Helper()
	key, err := NewKey()
	if err != nil {
		return err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return err
	}
	resp, err := NewClients(n.Conn()).Admission.Renew(n.Fleet.Context(),
		&fealtyv1.RenewRequest{Name: n.ID.Name(), Csr: csr})
	if err != nil || !keep {
		return err
	}
	n.Key = key
	return n.Adopt(resp.GetChain())
}

// Member joins a new data member with a token for one use.
func (f *Fleet) Member(name string) *Node {
	f.T.Helper()
	n := f.Node()
	if err := n.Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: name}))); err != nil {
		f.T.Fatalf("join %s: %v", name, err)
	}
	return n
}

// Catalog returns all members, as one text to compare.
func (f *Fleet) Catalog() string {
	f.T.Helper()
	recs, err := record.List[record.Member](context.Background(), f.State().Records,
		record.MemberPrefix)
	if err != nil {
		f.T.Fatal(err)
	}
	var b strings.Builder
	for _, r := range recs {
		fmt.Fprintf(&b, "%d %+v\n", r.Version, r.Value)
	}
	return b.String()
}

// WantCode fails the test unless err carries the code.
func WantCode(t testing.TB, err error, want errcode.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := errcode.Of(err).Code; got != want {
		t.Fatalf("refused with %s (%v), want %s", got, err, want)
	}
}

// VerifyGrant verifies the node's grant as a node would, and returns its bundle.
func (n *Node) VerifyGrant() (*snapshot.Verified, error) {
	root, err := x509.ParseCertificate(n.Grant.GetChain()[2])
	if err != nil {
		return nil, err
	}
	configRoot, err := snapshot.VerifyRoot(n.Grant.GetRootStatement(), []*x509.Certificate{root}, Cluster,
		n.Fleet.Clock())
	if err != nil {
		return nil, err
	}
	key, err := identity.KeyOfPublic(n.Key.Public())
	if err != nil {
		return nil, err
	}
	trust := snapshot.Trust{Me: n.ID, Incarnation: key, ConfigRoot: configRoot}
	signed, err := snapshot.Unmarshal(n.Grant.GetTrustBundle().GetEnvelope())
	if err != nil {
		return nil, err
	}
	if trust.Bundle, err = snapshot.Verify(signed, trust, snapshot.Marks{}, n.Fleet.Clock()); err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	trust.Roles, trust.Organizations = []string{"egress", "ingress"}, []string{"acme", "globex"}
	n.Trust = trust
	if signed, err = snapshot.Unmarshal(n.Grant.GetNodeBootstrap().GetEnvelope()); err != nil {
		return nil, err
	}
	v, err := snapshot.Verify(signed, trust, snapshot.Marks{}, n.Fleet.Clock())
	if err != nil {
		return nil, fmt.Errorf("node bootstrap: %w", err)
	}
	return v, nil
}

// RawCredentials present the node's certificate without a look at it.
func RawCredentials(n *Node) credentials.TransportCredentials {
	cert := tls.Certificate{PrivateKey: n.Key}
	for _, c := range n.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13})
}

// NewTestCSR is a request over a new key.
func NewTestCSR() ([]byte, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	return pki.NewCSR(key)
}

// Conn is a connection that clients are made over.
type Conn = grpc.ClientConnInterface

// NewTestKey makes a key for what a test signs.
func NewTestKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// MustCSR is a request over this key.
func MustCSR(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
