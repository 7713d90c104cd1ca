package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/durable"
	"github.com/fealty-io/fealty/internal/durable/durabletest"
	"github.com/fealty-io/fealty/internal/enroll"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshotauthor"
	"github.com/fealty-io/fealty/internal/snapshotform"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

const (
	testCluster = "prod.example"
	dataDir     = "/var/lib/fealty"
	coordinator = "c1.prod.example:7443"
)

// fleet is the other end: a real gRPC server behind a real guard, with real proofs,
// certificates and signatures. What it leaves out is policy: who asks properly is
// admitted. Its switches make it fail as networks and enemies do.
type fleet struct {
	history [][]byte // its links; nil: one for each authority epoch
	tb      testing.TB
	clock   func() time.Time // everybody's
	shift   atomic.Int64     // of the clock, ahead of time.Now

	rootKey    *ecdsa.PrivateKey
	root       *x509.Certificate
	configRoot ed25519.PrivateKey
	configKey  ed25519.PrivateKey
	signer     ed25519.PrivateKey
	source     *credential.Issued
	guard      *mesh.Guard
	listeners  map[string]*bufconn.Listener

	pki *identitytest.PKI // the operator's own; made by who needs it first

	mu       sync.Mutex
	mesh     *ca.MeshCA       // guarded by mu, as all that follows
	meshKeys []identity.KeyID // accepted
	epoch    uint64           // authority
	version  uint64           // of the trust bundle
	next     uint64           // revision, for bootstraps and generations
	tokens   map[string]proof.JoinToken
	members  map[string]*memberState // by kind/name
	banned   []identity.KeyID
	changed  chan struct{} // closed at the next change of what streams deliver
	extra    []*fealtyv1.ConnectResponse
	ignorant int      // how many that are asked about a restore know nothing
	shown    [][]byte // trust bundles that were presented
	dialed   map[string]int
	joins    int
	renewals int
	clones   int
	reports  []*fealtyv1.ConnectRequest

	hellos int // streams that were opened
	polls  int
	pulls  int
	// poll is what a poll brings, and pull how a content is sent; nil: nothing, and that
	// it does not exist.
	poll func(*fealtyv1.PollRequest) []*fealtyv1.SignedSnapshot
	pull func(hash snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error

	cuts       atomic.Int64 // connections that the guard cut
	streams    map[int]context.CancelFunc
	svidTTL    time.Duration
	renewEvery time.Duration
	bundleLife time.Duration
	skew       time.Duration // of the server's clock as told

	brief       bool                      // streams end after their first news
	down        map[string]bool           // addresses that cannot be dialed
	editGrant   func(*fealtyv1.JoinGrant) // what an enemy makes of a grant
	editRenewal func(*fealtyv1.RenewResponse)
	loseJoins   int // answers that are lost after the admission
	loseRenews  int
	grace       time.Duration // rejoin_grace
	proven      []string      // the types of the proofs that verified
	refuseSVID  error         // what a proof by the last certified key gets
	refuseJoin  error
	refuseRenew error
	noStore     explain.Code // how a renewal fails but that of the recorded key
	refuseLeave error
	leaveError  func() error // after the member is gone
}

type memberState struct {
	id          identity.ID
	key         identity.KeyID
	older       []identity.KeyID
	incarnation identity.KeyID
	notAfter    time.Time
	proof       string
}

func mustCSR(tb testing.TB, key dir.KeyPair) []byte {
	tb.Helper()
	der, err := ca.NewCSR(key.Signer())
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// newFleet starts a cluster with coordinators at these addresses; none means one
// at the usual address. It ends with the test.
func newFleet(tb testing.TB, addresses ...string) *fleet {
	tb.Helper()
	if len(addresses) == 0 {
		addresses = []string{coordinator}
	}
	f := &fleet{
		tb: tb, listeners: make(map[string]*bufconn.Listener), tokens: make(map[string]proof.JoinToken),
		members: make(map[string]*memberState), changed: make(chan struct{}), dialed: make(map[string]int), streams: make(map[int]context.CancelFunc), down: make(map[string]bool),
		epoch: 1, version: 10, next: 100, svidTTL: 25 * time.Hour, renewEvery: 30 * time.Minute, bundleLife: 50 * time.Hour,
		grace: 7 * 24 * time.Hour,
	}
	f.clock = func() time.Time { return time.Now().Add(time.Duration(f.shift.Load())) }
	now := f.clock()
	var err error
	f.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	f.must(err)
	f.root, err = ca.Root(f.rootKey, testCluster, now.Add(-time.Hour))
	f.must(err)
	_, f.configRoot, _ = ed25519.GenerateKey(rand.Reader)
	_, f.configKey, _ = ed25519.GenerateKey(rand.Reader)
	_, f.signer, _ = ed25519.GenerateKey(rand.Reader)
	f.newMeshCA()

	f.source = credential.NewIssued(f.server(300 * 24 * time.Hour))
	f.guard, err = mesh.NewGuard(mesh.GuardConfig{Source: f.source, SendRoot: true, Now: f.clock, OnCut: func(identity.Peer, *mesh.CutError) { f.cuts.Add(1) }})
	f.must(err)
	f.serve(addresses)
	return f
}

// server makes what the coordinators present.
func (f *fleet) server(ttl time.Duration) *credential.Material {
	key, err := dir.NewKeyPair()
	f.must(err)
	id, err := identity.New(testCluster, identity.Coordinator, "c1")
	f.must(err)
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: f.issue(key.Signer().Public(), id, ttl), Key: key.Signer(), Bundle: f.bundleLocked(), Now: f.clock})
	f.must(err)
	return m
}

func (f *fleet) must(err error) {
	if err != nil {
		f.tb.Helper()
		f.tb.Fatal(err)
	}
}

// newMeshCA makes the mesh CA of the current epoch.
func (f *fleet) newMeshCA() {
	m, err := ca.NewMeshCA(f.root, f.rootKey, ca.MeshConfig{Cluster: testCluster, Epoch: f.epoch, Validity: 400 * 24 * time.Hour}, f.clock())
	f.must(err)
	f.mesh = m
	f.meshKeys = append(f.meshKeys, m.KeyID())
}

func (f *fleet) issue(public any, id identity.ID, ttl time.Duration) []*x509.Certificate {
	issuer, err := ca.NewIssuer(f.mesh, testCluster)
	f.must(err)
	leaf, err := issuer.Issue(ca.Request{PublicKey: public, ID: id, TTL: ttl}, f.clock())
	f.must(err)
	return []*x509.Certificate{leaf, f.mesh.Certificate(), f.root}
}

// leafFor makes a leaf of the current mesh CA, over the key of like or a new one.
func (f *fleet) leafFor(kind identity.Kind, name string, like []byte) *x509.Certificate {
	id, err := identity.New(testCluster, kind, name)
	f.must(err)
	key, err := dir.NewKeyPair()
	f.must(err)
	public := key.Signer().Public()
	if like != nil {
		c, err := x509.ParseCertificate(like)
		f.must(err)
		public = c.PublicKey
	}
	return f.issue(public, id, f.svidTTL)[0]
}

func (f *fleet) content() *snapshot.TrustBundle {
	now := f.root.NotBefore.UTC().Truncate(time.Second)
	b := &snapshot.TrustBundle{
		ClusterID: testCluster, AuthorityEpoch: f.epoch, Roots: [][]byte{f.root.Raw}, MeshKeys: slices.Clone(f.meshKeys), BannedKeys: slices.Clone(f.banned),
		ConfigRoot: f.configRoot.Public().(ed25519.PublicKey),
		ConfigKeys: []snapshot.ConfigKey{{
			Algorithm: snapshotform.AlgorithmTree, Key: f.configKey.Public().(ed25519.PublicKey), NotBefore: now, NotAfter: now.Add(2 * 365 * 24 * time.Hour),
			Scopes: slices.DeleteFunc(snapshot.Scopes(), func(s snapshot.Scope) bool { return s == snapshot.ScopeTrustBundle }),
		}},
		Signers: snapshot.Signers{Threshold: 1, Keys: []snapshot.SignerKey{{Name: "alice", Key: f.signer.Public().(ed25519.PublicKey)}}},
		Head:    headOf(f.links()),
	}
	compare := func(a, b identity.KeyID) int { return bytes.Compare(a[:], b[:]) }
	slices.SortFunc(b.MeshKeys, compare)
	slices.SortFunc(b.BannedKeys, compare)
	return b
}

// links are those of the fleet's history: one for each authority epoch.
func (f *fleet) links() [][]byte {
	if f.history != nil {
		return f.history
	}
	var out [][]byte
	var previous history.Hash
	for epoch := uint64(1); epoch <= f.epoch; epoch++ {
		t := history.Transition{Index: epoch, AuthorityEpoch: epoch, Previous: previous, Kind: history.KindRekey, MeshCAKey: identity.KeyID{byte(epoch)}}
		raw, err := t.Encode()
		f.must(err)
		out, previous = append(out, raw), history.Hash(snapshot.DigestOf(raw))
	}
	return out
}

func headOf(links [][]byte) snapshot.Head {
	last := links[len(links)-1]
	t, err := history.Decode(last)
	if err != nil {
		panic("the fleet made it: " + err.Error())
	}
	return snapshot.Head{Index: t.Index, Hash: snapshot.DigestOf(last)}
}

// restores serves what nodes ask when they do not know a head.
type restores struct {
	fealtyv1.UnimplementedRestoreServiceServer
	f *fleet
}

func (r restores) GetLinks(_ *fealtyv1.GetLinksRequest, stream fealtyv1.RestoreService_GetLinksServer) error {
	r.f.mu.Lock()
	links := r.f.links()
	if r.f.ignorant > 0 {
		r.f.ignorant--
		links = links[:1]
	}
	r.f.mu.Unlock()
	return stream.Send(&fealtyv1.GetLinksResponse{Links: links})
}

func (r restores) PresentTrust(stream fealtyv1.RestoreService_PresentTrustServer) error {
	r.f.mu.Lock()
	ignorant := r.f.ignorant > 0
	r.f.ignorant--
	r.f.mu.Unlock()
	if err := stream.Send(&fealtyv1.PresentTrustResponse{Restored: !ignorant}); err != nil || ignorant {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	r.f.do(func() { r.f.shown = append(r.f.shown, m.GetBundle().GetEnvelope()) })
	return stream.Send(&fealtyv1.PresentTrustResponse{Restored: true, Taken: 1})
}

func (f *fleet) revocations() snapshot.Digest {
	digest, err := f.content().Revocations()
	f.must(err)
	return digest
}

func (f *fleet) bundleLocked() *identity.Bundle {
	b, err := f.content().Identity()
	f.must(err)
	return b
}

func (f *fleet) trustHeader() snapshot.Header {
	now := f.clock().UTC().Truncate(time.Second)
	return snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.ClusterSubject(), ScopeType: snapshot.ScopeTrustBundle, ConfigVersion: f.version, AuthorityEpoch: f.epoch,
		IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(f.bundleLife), RefreshAfter: now.Add(f.bundleLife / 2),
	}
}

// trustBundle signs the trust bundle as it is now.
func (f *fleet) trustBundle() *fealtyv1.SignedSnapshot {
	return f.signTrust(f.trustHeader(), f.content())
}

func (f *fleet) signTrust(h snapshot.Header, content *snapshot.TrustBundle) *fealtyv1.SignedSnapshot {
	draft, err := snapshotauthor.Compose(h, content)
	f.must(err)
	signed, err := draft.Sign(f.configRoot)
	f.must(err)
	return f.message(snapshot.ScopeTrustBundle, signed)
}

func (f *fleet) message(scope snapshot.Scope, s *snapshot.Signed) *fealtyv1.SignedSnapshot {
	raw, err := s.Marshal()
	f.must(err)
	return &fealtyv1.SignedSnapshot{Scope: string(scope), Envelope: raw}
}

// bootstrap signs a node_bootstrap for m, of a version of its own.
func (f *fleet) bootstrap(m *memberState, edits ...func(*snapshot.Header, *snapshot.NodeBootstrap)) *fealtyv1.SignedSnapshot {
	f.next++
	now := f.clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.NodeSubject(m.id, m.incarnation), ScopeType: snapshot.ScopeNodeBootstrap,
		ConfigVersion: f.next, AuthorityEpoch: f.epoch, IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(365 * 24 * time.Hour), RefreshAfter: now.Add(24 * time.Hour),
	}
	content := &snapshot.NodeBootstrap{
		ClusterID: testCluster, Node: m.id, Kind: m.id.Kind(), Entry: "edge-pool", Coordinators: f.addresses(),
		RenewEvery: f.renewEvery, SVIDTTL: f.svidTTL,
		Degraded:   snapshot.DegradedPolicy{Allow: []string{"continue_services"}, Max: (f.svidTTL * 24 / 25).Truncate(time.Second), RouteTTL: time.Minute},
		Resilience: snapshot.Resilience{DataMembers: 1, Required: 3},
	}
	for _, e := range edits {
		e(&h, content)
	}
	draft, err := snapshotauthor.Compose(h, content)
	f.must(err)
	signed, err := draft.Publish(snapshot.Record{
		ClusterID: testCluster, AuthorityEpoch: f.epoch, Generation: f.next, IssuedAt: now, FreshUntil: now.Add(25 * time.Hour), Revocations: f.revocations(),
	}, f.configKey)
	f.must(err)
	return f.message(snapshot.ScopeNodeBootstrap, signed)
}

// runtime signs a node_runtime for m, of a version of its own unless it is edited,
// in a tree with a header of somebody else.
func (f *fleet) runtime(m *memberState, edits ...func(*snapshot.Header, *snapshot.NodeRuntime, *snapshot.Record)) *fealtyv1.SignedSnapshot {
	f.next++
	now := f.clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.NodeSubject(m.id, m.incarnation), ScopeType: snapshot.ScopeNodeRuntime,
		ConfigVersion: f.next, AuthorityEpoch: f.epoch, IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	content := &snapshot.NodeRuntime{
		ClusterID: testCluster, Kind: m.id.Kind(), Entry: "edge-pool", State: snapshot.MemberActive, Coordinators: f.addresses(),
		RenewEvery: f.renewEvery, SVIDTTL: f.svidTTL,
		Degraded: &snapshot.DegradedPolicy{Allow: []string{"continue_services"}, Max: (f.svidTTL * 24 / 25).Truncate(time.Second), RouteTTL: time.Minute},
	}
	r := snapshot.Record{ClusterID: testCluster, AuthorityEpoch: f.epoch, Generation: f.next, IssuedAt: now, FreshUntil: now.Add(15 * time.Minute), Revocations: f.revocations()}
	for _, e := range edits {
		e(&h, content, &r)
	}
	h.Roles, h.OrganizationIDs = content.Roles, content.Organizations
	draft, err := snapshotauthor.Compose(h, content)
	f.must(err)
	tree := snapshotauthor.NewTree([]snapshot.Digest{snapshotauthor.LeafOf(testCluster, []byte("of somebody else")), draft.Leaf()})
	r.Root, r.TreeSize = tree.Root(), tree.Size()
	signed, err := r.Sign(f.configKey)
	f.must(err)
	proof, err := tree.Proof(1)
	f.must(err)
	return f.message(snapshot.ScopeNodeRuntime, &snapshot.Signed{Header: draft.HeaderBytes(), Content: draft.ContentBytes(), Publication: signed, Proof: proof})
}

// companion signs content for m, or for the group of all nodes without roles and
// organizations, of a version of its own unless it is edited.
func (f *fleet) companion(m *memberState, scope snapshot.Scope, content snapshot.Content, edits ...func(*snapshot.Header, *snapshot.Record)) *fealtyv1.SignedSnapshot {
	f.next++
	now := f.clock().UTC().Truncate(time.Second)
	h := snapshot.Header{
		ClusterID: testCluster, Subject: snapshot.GroupSubject(nil, nil), ScopeType: scope,
		ConfigVersion: f.next, AuthorityEpoch: f.epoch, IssuedAt: now, ValidFrom: now, ExpiresAt: now.Add(30 * 24 * time.Hour), RefreshAfter: now.Add(15 * 24 * time.Hour),
	}
	if scope == snapshot.ScopeServiceAssignment {
		h.Subject = snapshot.NodeSubject(m.id, m.incarnation)
	}
	r := snapshot.Record{ClusterID: testCluster, AuthorityEpoch: f.epoch, Generation: f.next, IssuedAt: now, FreshUntil: now.Add(15 * time.Minute), Revocations: f.revocations()}
	for _, e := range edits {
		e(&h, &r)
	}
	draft, err := snapshotauthor.Compose(h, content)
	f.must(err)
	signed, err := draft.Publish(r, f.configKey)
	f.must(err)
	return f.message(scope, signed)
}

func (f *fleet) addresses() []string {
	out := make([]string, 0, len(f.listeners))
	for a := range f.listeners {
		out = append(out, a)
	}
	slices.Sort(out)
	return out
}

func (f *fleet) rootStatement() []byte {
	s, err := snapshot.RootStatement{
		ClusterID: testCluster, ConfigRoot: f.configRoot.Public().(ed25519.PublicKey), SeedEpoch: 1, IssuedAt: f.root.NotBefore.UTC().Truncate(time.Second),
	}.Sign(f.rootKey)
	f.must(err)
	raw, err := s.Marshal()
	f.must(err)
	return raw
}

func (f *fleet) serve(addresses []string) {
	services, err := authz.Services(fealtyv1.AdmissionService_ServiceDesc.ServiceName, fealtyv1.AgentService_ServiceDesc.ServiceName, fealtyv1.RestoreService_ServiceDesc.ServiceName, fealtyv1.SnapshotService_ServiceDesc.ServiceName)
	f.must(err)
	table, err := authz.NewTable(services...)
	f.must(err)
	gate, err := authz.New(table, authz.Options{ClusterID: func() string { return testCluster }, Logger: quiet(), Now: f.clock})
	f.must(err)
	server := grpc.NewServer(
		grpc.Creds(f.guard.Credentials()),
		grpc.ChainUnaryInterceptor(f.guard.Unary, gate.Unary()), grpc.ChainStreamInterceptor(f.guard.Stream, gate.Stream()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	fealtyv1.RegisterAdmissionServiceServer(server, admission{f: f})
	fealtyv1.RegisterAgentServiceServer(server, delivery{f: f})
	fealtyv1.RegisterSnapshotServiceServer(server, snapshots{f: f})
	fealtyv1.RegisterRestoreServiceServer(server, restores{f: f})
	var wg sync.WaitGroup
	for _, a := range addresses {
		l := bufconn.Listen(1 << 20)
		f.listeners[a] = l
		wg.Go(func() { _ = server.Serve(l) })
	}
	f.tb.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
}

// dial is the network.
func (f *fleet) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	l, down := f.listeners[addr], f.down[addr] || f.down["all"]
	f.dialed[addr]++
	f.mu.Unlock()
	if l == nil || down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	return l.DialContext(ctx)
}

// do changes the fleet.
func (f *fleet) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// cut ends every stream, as coordinators do that stop.
func (f *fleet) cut() {
	f.do(func() {
		for _, cancel := range f.streams {
			cancel()
		}
		clear(f.streams)
	})
}

// count reads a number of the fleet.
func (f *fleet) count(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *n
}

// trustChanged gives the trust bundle a new version and delivers it.
func (f *fleet) trustChanged(change func()) {
	f.do(func() {
		change()
		f.version++
		f.must(f.source.Trust(f.bundleLocked()))
		f.tellLocked()
	})
}

func (f *fleet) tellLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// send has every stream deliver news, now and when it opens.
func (f *fleet) send(news *fealtyv1.ConnectResponse) {
	f.do(func() {
		f.extra = append(f.extra, news)
		f.tellLocked()
	})
}

func asNews(s *fealtyv1.SignedSnapshot) *fealtyv1.ConnectResponse {
	return &fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: s}}
}

// token makes a join token.
func (f *fleet) token(addresses ...string) proof.JoinToken {
	if len(addresses) == 0 {
		addresses = f.addresses()
	}
	t, err := proof.NewJoinToken(nil, proof.JoinToken{Cluster: testCluster, Addresses: addresses, Pin: identity.KeyOf(f.root), Expires: f.clock().Add(time.Hour)})
	f.must(err)
	f.do(func() { f.tokens[t.ID] = t })
	return t
}

// admission is the fleet's AdmissionService.
type admission struct {
	fealtyv1.UnimplementedAdmissionServiceServer
	f *fleet
}

func (s admission) Join(stream fealtyv1.AdmissionService_JoinServer) error {
	f := s.f
	cs, ok := mesh.ConnectionState(stream.Context())
	if !ok {
		return status.Error(codes.FailedPrecondition, "no TLS")
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return err
	}
	nonce := make([]byte, proof.NonceBytes)
	rand.Read(nonce)
	f.mu.Lock()
	skew, refuse := f.skew, f.refuseJoin
	f.mu.Unlock()
	err = stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Challenge{Challenge: &fealtyv1.JoinChallenge{Nonce: nonce, ServerTime: timestamppb.New(f.clock().Add(skew))}}})
	if err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if refuse != nil {
		return refuse
	}
	public, err := ca.ParseCSR(req.GetCsr())
	if err != nil {
		return err
	}
	spki, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joins++
	e := proof.Evidence{Type: req.GetProof().GetType(), Claim: req.GetProof().GetClaim(), Evidence: req.GetProof().GetEvidence(), PublicKey: req.GetProof().GetPublicKey()}
	proven, err := f.proofs().Verify(stream.Context(), proof.Transcript{Role: proof.Candidate, Cluster: testCluster, Nonce: nonce, Binding: binding, PublicKey: spki}, e)
	var clone *proof.CloneError
	switch {
	case errors.As(err, &clone):
		f.clones++
		return explain.Wrap(err, explain.JoinClone, "identity", e.Claim)
	case err != nil && e.Type == proof.TypeToken:
		return explain.New(explain.TokenUnknown)
	case err != nil:
		return explain.Wrap(err, explain.JoinUnauthorized)
	}
	f.proven = append(f.proven, proven.Type())
	grant, err := f.admitLocked(identity.Kind(req.GetKind()), req.GetMember(), proven, public)
	if err != nil {
		return err
	}
	if f.editGrant != nil {
		f.editGrant(grant)
	}
	if f.loseJoins > 0 {
		f.loseJoins--
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return stream.Send(&fealtyv1.JoinResponse{Step: &fealtyv1.JoinResponse_Grant{Grant: grant}})
}

func (f *fleet) proofs() *proof.Registry {
	if f.pki == nil {
		f.pki = identitytest.NewPKI(f.tb, "corp", f.clock)
	}
	roots, err := identity.NewOperatorRoots([]*x509.Certificate{f.pki.Root.Cert})
	f.must(err)
	return proof.NewRegistry(
		proof.NewX509Verifier(roots, f.clock),
		proof.NewKeyVerifier(),
		proof.NewTokenVerifier(func(_ context.Context, id string) (ed25519.PublicKey, string, error) {
			t, ok := f.tokens[id]
			if !ok {
				return nil, "", proof.ErrNotFound
			}
			return t.PublicKey(), "edge-pool", nil
		}),
		proof.NewSVIDVerifier(func(_ context.Context, kind identity.Kind, name string) (identity.KeyID, []identity.KeyID, error) {
			m := f.members[string(kind)+"/"+name]
			if m == nil {
				return identity.KeyID{}, nil, proof.ErrNotFound
			}
			return m.key, m.older, nil
		}),
	)
}

func (f *fleet) admitLocked(kind identity.Kind, claimed string, p proof.Proven, public any) (*fealtyv1.JoinGrant, error) {
	key, err := identity.KeyOfPublic(public)
	if err != nil {
		return nil, err
	}
	name := "node-k"
	if p.TokenID() != "" {
		name = "node-" + p.TokenID()[:6]
	}
	if p.Type() == proof.TypeSVID {
		kind, name = p.Member()
	}
	if slices.Contains(f.banned, key) || slices.Contains(f.banned, p.KeyID()) {
		return nil, explain.New(explain.JoinBanned, "identity", name)
	}
	path := string(kind) + "/" + name
	outcome := fealtyv1.JoinOutcome_JOIN_OUTCOME_ALREADY_MEMBER
	m := f.members[path]
	switch {
	case p.Type() == proof.TypeSVID && f.refuseSVID != nil:
		return nil, f.refuseSVID
	case p.Type() == proof.TypeSVID && f.clock().After(m.notAfter.Add(f.grace)):
		return nil, explain.New(explain.RejoinGraceOver, "identity", path)
	case claimed != "" && (claimed != name || m == nil):
		return nil, explain.New(explain.JoinOtherMember, "claimed", claimed)
	case m == nil:
		id, err := identity.New(testCluster, kind, name)
		if err != nil {
			return nil, err
		}
		m = &memberState{id: id, key: key, incarnation: key, proof: p.Type()}
		f.members[path] = m
		outcome = fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED
	case p.Type() == proof.TypeSVID:
		m.rekey(key)
	case p.Type() == proof.TypeKey, p.Type() == proof.TypeX509:
		m.rekey(key)
		m.incarnation = key
	case m.key != key:
		return nil, explain.New(explain.JoinNameTaken, "identity", path)
	}
	m.notAfter = f.clock().Add(f.svidTTL)
	grant := &fealtyv1.JoinGrant{
		Outcome: outcome, Chain: dir.RawChain(f.issue(public, m.id, f.svidTTL)), RootStatement: f.rootStatement(), TrustBundle: f.trustBundle(),
	}
	if kind != identity.Admin && kind != identity.Readonly {
		grant.NodeBootstrap = f.bootstrap(m)
	}
	return grant, nil
}

func (m *memberState) rekey(key identity.KeyID) {
	if m.key != key {
		m.older = append([]identity.KeyID{m.key}, m.older...)
		m.key = key
	}
}

func (s admission) Renew(ctx context.Context, req *fealtyv1.RenewRequest) (*fealtyv1.RenewResponse, error) {
	f := s.f
	peer := identity.FromContext(ctx)
	public, err := ca.ParseCSR(req.GetCsr())
	if err != nil {
		return nil, err
	}
	key, err := identity.KeyOfPublic(public)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewals++
	if f.refuseRenew != nil {
		return nil, f.refuseRenew
	}
	m := f.members[string(peer.ID.Kind())+"/"+peer.ID.Name()]
	switch {
	case m == nil:
		return nil, explain.New(explain.RenewEntryGone, "identity", peer.ID.String())
	case peer.Key == m.key:
	case key == m.key && len(m.older) > 0 && peer.Key == m.older[0]:
	default:
		f.clones++
		return nil, explain.New(explain.RenewOlderKey, "identity", peer.ID.String())
	}
	switch {
	case f.noStore == "":
		m.rekey(key)
		m.notAfter = f.clock().Add(f.svidTTL)
	case !req.GetRecordedKey() || key != m.key:
		return nil, explain.New(f.noStore, "what", "the renewal")
	}
	resp := &fealtyv1.RenewResponse{Chain: dir.RawChain(f.issue(public, m.id, f.svidTTL))}
	if f.editRenewal != nil {
		f.editRenewal(resp)
	}
	if f.loseRenews > 0 {
		f.loseRenews--
		return nil, status.Error(codes.Unavailable, "the connection broke")
	}
	return resp, nil
}

func (s admission) Leave(ctx context.Context, _ *fealtyv1.LeaveRequest) (*fealtyv1.LeaveResponse, error) {
	f := s.f
	peer := identity.FromContext(ctx)
	path := string(peer.ID.Kind()) + "/" + peer.ID.Name()
	f.mu.Lock()
	m := f.members[path]
	answer, refuse := f.leaveError, f.refuseLeave
	f.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if m == nil {
		return nil, explain.New(explain.NotFound, "what", "member", "name", path)
	}
	f.trustChanged(func() {
		f.banned = append(append(f.banned, m.key), m.older...)
		delete(f.members, path)
	})
	if answer != nil {
		return nil, answer()
	}
	<-ctx.Done() // the ban cuts our connection: the answer is lost
	return nil, ctx.Err()
}

// delivery is the fleet's AgentService.
type delivery struct {
	fealtyv1.UnimplementedAgentServiceServer
	f *fleet
}

func (s delivery) Connect(stream fealtyv1.AgentService_ConnectServer) error {
	f := s.f
	peer := identity.FromContext(stream.Context())
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	gone := make(chan error, 1)
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	f.do(func() {
		f.reports = append(f.reports, hello)
		f.hellos++
		f.streams[f.hellos] = cancel
	})
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				gone <- err
				return
			}
			f.do(func() { f.reports = append(f.reports, r) })
		}
	}()
	held := make(map[string]*fealtyv1.HeldSnapshot)
	for _, h := range hello.GetHeld() {
		held[h.GetScope()] = h
	}
	var sentVersion, sentExtra uint64
	if h := held[string(snapshot.ScopeTrustBundle)]; h != nil && h.GetAuthorityEpoch() == 1 {
		sentVersion = h.GetConfigVersion()
	}
	needBoot := held[string(snapshot.ScopeNodeBootstrap)] == nil
	for {
		f.mu.Lock()
		changed := f.changed
		var out []*fealtyv1.ConnectResponse
		if sentVersion != f.version {
			out = append(out, asNews(f.trustBundle()))
			sentVersion = f.version
		}
		if m := f.members[string(peer.ID.Kind())+"/"+peer.ID.Name()]; needBoot && m != nil {
			out = append(out, asNews(f.bootstrap(m)))
			needBoot = false
		}
		out = append(out, f.extra[min(sentExtra, uint64(len(f.extra))):]...)
		sentExtra = uint64(len(f.extra))
		f.mu.Unlock()
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		f.mu.Lock()
		brief := f.brief
		f.mu.Unlock()
		if brief {
			_ = stream.Send(&fealtyv1.ConnectResponse{})
			return status.Error(codes.Unavailable, "that is all")
		}
		select {
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "this coordinator stops")
		case err := <-gone:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-changed:
		}
	}
}

// snapshots is the fleet's SnapshotService.
type snapshots struct {
	fealtyv1.UnimplementedSnapshotServiceServer
	f *fleet
}

func (s snapshots) Poll(req *fealtyv1.PollRequest, stream fealtyv1.SnapshotService_PollServer) error {
	var out []*fealtyv1.SignedSnapshot
	s.f.do(func() {
		s.f.polls++
		if s.f.poll != nil {
			out = s.f.poll(req)
		}
	})
	for _, m := range out {
		if err := stream.Send(&fealtyv1.PollResponse{News: &fealtyv1.PollResponse_Snapshot{Snapshot: m}}); err != nil {
			return err
		}
	}
	return nil
}

func (s snapshots) GetContent(req *fealtyv1.GetContentRequest, stream fealtyv1.SnapshotService_GetContentServer) error {
	var pull func(snapshot.Digest, fealtyv1.SnapshotService_GetContentServer) error
	s.f.do(func() { s.f.pulls++; pull = s.f.pull })
	if pull == nil {
		return explain.New(explain.NotFound, "what", "content", "name", "")
	}
	return pull(snapshot.Digest(req.GetContentHash()), stream)
}

// node is a machine: its disk, and how it joins.
type node struct {
	f    *fleet
	disk *durabletest.Disk
	dir  string
}

func newNode(f *fleet) *node { return &node{f: f, disk: durabletest.NewDisk(), dir: dataDir} }

func (n *node) joinConfig(p enroll.Proof) enroll.JoinConfig {
	return enroll.JoinConfig{DataDir: n.dir, Proof: p, FS: n.disk.FS(), Now: n.f.clock, Log: quiet(), Dial: n.f.dial}
}

func (n *node) join(p enroll.Proof) (enroll.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return enroll.Join(ctx, n.joinConfig(p))
}

func (n *node) mustJoin() enroll.Result {
	n.f.tb.Helper()
	r, err := n.join(enroll.ByToken(n.f.token()))
	n.f.must(err)
	return r
}

func (n *node) open() (*Agent, error) { return n.openOn(n.disk.FS()) }

func (n *node) openOn(files durable.FS) (*Agent, error) {
	a, err := Open(context.Background(), Config{DataDir: n.dir, FS: files, Now: n.f.clock, Log: quiet(), Dial: n.f.dial, Release: "v0.1.0"})
	if a != nil {
		a.socket, a.configSocket = "", "" // tests that want one say so
	}
	return a, err
}

func (n *node) mustOpen() *Agent {
	n.f.tb.Helper()
	a, err := n.open()
	n.f.must(err)
	return a
}

// run runs a in the background and returns what ends it and waits; it is called at
// the end of the test at the latest.
func (n *node) run(a *Agent) (stop func() error) {
	n.f.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	n.f.tb.Cleanup(func() { _ = stop() })
	return stop
}

// files are all that a joined node has on disk.
var files = []string{
	dir.SVIDName, dir.AnchorName, dir.MarksAName, dir.MarksBName,
	dir.SnapshotName(snapshot.ScopeTrustBundle, dir.Active), dir.SnapshotName(snapshot.ScopeNodeBootstrap, dir.Active),
}

// clone returns another machine with a copy of n's files.
func (n *node) clone() *node {
	n.f.tb.Helper()
	c := newNode(n.f)
	names := slices.Clone(files)
	for _, scope := range state.Scopes {
		names = append(names, dir.SnapshotName(scope, dir.Active), dir.SnapshotName(scope, dir.Previous))
	}
	for _, name := range names {
		if n.has(name) {
			c.disk.Put(c.path(name), n.read(name))
		}
	}
	return c
}

func (n *node) path(name string) string { return n.dir + "/" + name }

func (n *node) read(name string) []byte {
	n.f.tb.Helper()
	data, err := n.disk.FS().ReadFile(n.path(name), 64<<20)
	n.f.must(err)
	return data
}

func (n *node) has(name string) bool {
	_, err := n.disk.FS().ReadFile(n.path(name), 64<<20)
	return err == nil
}

// member returns the fleet's record of id.
func (f *fleet) member(id identity.ID) memberState {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[string(id.Kind())+"/"+id.Name()]
	if m == nil {
		return memberState{}
	}
	return *m
}

// version of the trust bundle in use at a; 0 for none.
func trustVersion(a *Agent) uint64 {
	if h := a.beliefs.Load().Held[snapshot.ScopeTrustBundle]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

func bootVersion(a *Agent) uint64 {
	if h := a.beliefs.Load().Held[snapshot.ScopeNodeBootstrap]; h != nil {
		return h.Verified.Header().ConfigVersion
	}
	return 0
}

// eventually waits until cond holds. It looks again after each short while, because
// what it waits for is on the other side of a network.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
