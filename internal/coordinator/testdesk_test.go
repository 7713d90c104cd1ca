package coordinator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/challenge"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/durable/durabletest"
	"github.com/fealty-io/fealty/internal/fault"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/leadership"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/manifest"
)

// desk is a coordinator that decides and commits, on a store and a disk in
// memory, without loops and listeners: time stands still until a test moves it,
// and nothing happens behind its back.
type desk struct {
	t      rapidTB
	store  *memStore
	disk   *durabletest.Disk
	faults *fault.Points
	signer ed25519.PrivateKey
	extra  string // entries of its manifest beside the usual
	seed   string // the seed section of its manifest; empty: one keeper
	c      *coordinator.Coordinator
	alter  func(*coordinator.Config) // what a test changes of the next coordinators; nil: nothing

	mu     sync.Mutex
	now    time.Time     // guarded by mu; zero: the time that it is
	passed time.Duration // on its clock that only goes forward; guarded by mu
}

// rapidTB is what testing.TB and *rapid.T share.
type rapidTB interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func (d *desk) clock() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now.IsZero() {
		return time.Now()
	}
	return d.now
}

func (d *desk) advance(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = d.now.Add(by)
}

// noListener stands for a listener that is never served.
type noListener struct{}

func (noListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (noListener) Close() error              { return nil }
func (noListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// newDesk returns a desk without a manifest.
func newDesk(t rapidTB) *desk {
	t.Helper()
	d := unopenedDesk(t)
	d.open()
	return d
}

// unopenedDesk returns a desk whose coordinator was not opened yet.
func unopenedDesk(t rapidTB) *desk {
	t.Helper()
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &desk{t: t, store: newMemStore(), disk: durabletest.NewDisk(), signer: signer, faults: new(fault.Points),
		now: time.Now().Truncate(time.Second)}
}

// readyDesk returns a desk with its first manifest and these entries beside the
// usual ones.
func readyDesk(t rapidTB, extra string) *desk { return deskWith(t, extra, nil) }

// deskWith is readyDesk, with a config that alter changes.
func deskWith(t rapidTB, extra string, alter func(*coordinator.Config)) *desk {
	t.Helper()
	d := unopenedDesk(t)
	d.alter = alter
	d.open()
	if err := d.set(extra); err != nil {
		t.Fatalf("first set: %v", err)
	}
	d.c.Rooms().Membership.Listens(d.clock().Add(-replicas.SilentAfter))
	return d
}

// open starts a coordinator on what store and disk hold.
func (d *desk) open() {
	d.t.Helper()
	c, err := d.another("coordinator")
	if err != nil {
		d.t.Fatalf("open: %v", err)
	}
	c.Rooms().Membership.Listens(d.clock().Add(-replicas.SilentAfter)) // it knows by now who is away
	d.c = c
	d.tryLead(c)
}

// lead makes c the leader, if it is ready: at a desk nobody else sees to that, and time
// stands still for who leads too.
func (d *desk) lead(c *coordinator.Coordinator) {
	d.t.Helper()
	if c.Rooms().Head.State().Phase == authority.Ready && !d.tryLead(c) {
		d.t.Fatal("it does not lead")
	}
}

// tryLead is lead where the store may be away, or have lost something.
func (d *desk) tryLead(c *coordinator.Coordinator) bool {
	if c.Rooms().Head.State().Phase != authority.Ready {
		return false
	}
	leads := func() bool {
		term, _, ok := c.Rooms().Election.Leading()
		return ok && d.store.version(election.TermKey) == store.Revision(term)
	}
	for range 8 {
		if leads() {
			return true
		}
		c.Rooms().Election.Step(context.Background())
		d.pass(election.DefaultLease)
		c.Rooms().Election.Step(context.Background())
	}
	return leads()
}

// lapse has the lease of whoever leads end: nobody leads until lead or a step says so.
func (d *desk) lapse() { d.pass(leadership.MaxLease) }

// pass has some time pass on the clock that only goes forward.
func (d *desk) pass(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed += by
}

// another returns one more replica on the same store, with a data directory of
// its own, or of one that was closed.
func (d *desk) another(dir string) (*coordinator.Coordinator, error) {
	cfg := coordinator.Config{
		DataDir: "/" + dir, Store: d.store, StoreName: "memory", Listener: noListener{}, Now: d.clock,
		Elapsed: d.elapsed, FS: d.disk.FS(), Faults: d.faults, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Rates: coordinator.Rates{PerMember: 1e6, MemberBurst: 1e6},
	}
	if d.alter != nil {
		d.alter(&cfg)
	}
	return coordinator.New(context.Background(), cfg)
}

func (d *desk) elapsed() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// lookAgain has the coordinator look at the head when it is time to look again.
func (d *desk) lookAgain() {
	d.t.Helper()
	d.pass(time.Minute)
	d.c.Rooms().Authority.Look(context.Background())
}

// restart closes the coordinator and opens it again.
func (d *desk) restart() {
	d.t.Helper()
	if err := d.c.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.open()
}

func (d *desk) state() *authority.State { return d.c.Rooms().Head.State() }

func (d *desk) manifest(extra string) []byte {
	key, err := manifest.NewKey(d.signer.Public().(ed25519.PublicKey))
	if err != nil {
		d.t.Fatal(err)
	}
	seed := d.seed
	if seed == "" {
		seed = "seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"file:/keeper/key\"}]\n"
	}
	return fmt.Appendf(nil, `cluster: %s
%ssigners:
  threshold: 1
  keys: [{name: alice, key: "%s"}]
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%s"]}
%s`, testCluster, seed, key, d.c.Rooms().Self.EnrolmentKey(), extra)
}

// request returns a signed request to set a manifest with these entries.
func (d *desk) request(m []byte) *fealtyv1.SetManifestRequest {
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	s := d.state()
	if s.Phase != authority.Ready {
		return req
	}
	parsed, err := manifest.ParseAccepted(m)
	if err != nil {
		d.t.Fatal(err)
	}
	key, err := manifest.NewKey(d.signer.Public().(ed25519.PublicKey))
	if err != nil {
		d.t.Fatal(err)
	}
	req.CurrentTransition = s.Head.Hash[:]
	req.Signatures = []*fealtyv1.ManifestSignature{{Key: key.String(),
		Signature: ed25519.Sign(d.signer, history.SetStatement(parsed.Hash(), s.Head.Hash))}}
	return req
}

// set sets a manifest with these entries.
func (d *desk) set(extra string) error {
	_, err := served[fealtyv1.ManifestServiceServer](d.c.Rooms().Authority.RegisterServices).SetManifest(
		identity.NewContext(context.Background(), identity.Peer{Local: &identity.Local{}}),
		d.request(d.manifest(extra)))
	if err == nil {
		d.extra = extra
		d.tryLead(d.c)
	}
	return err
}

func (d *desk) token(req *fealtyv1.CreateTokenRequest) proof.JoinToken {
	d.t.Helper()
	resp, err := served[fealtyv1.TokenServiceServer](d.c.Rooms().Admission.RegisterServices).CreateToken(
		context.Background(), req)
	if err != nil {
		d.t.Fatalf("create a token: %v", err)
	}
	tok, err := proof.ParseJoinToken(resp.GetLine())
	if err != nil {
		d.t.Fatal(err)
	}
	return tok
}

// machine is a candidate or member with its key.
type machine struct {
	d     *desk
	key   *ecdsa.PrivateKey
	id    identity.ID
	leaf  *x509.Certificate
	mesh  *x509.Certificate // that signed leaf
	older []*ecdsa.PrivateKey
	// claims is the member that it says it is already; "" for none.
	claims string
	// leaves are all certificates that it ever got.
	leaves []*x509.Certificate
	grant  *fealtyv1.JoinGrant
}

func (d *desk) machine() *machine {
	d.t.Helper()
	key, err := newKey()
	if err != nil {
		d.t.Fatal(err)
	}
	return &machine{d: d, key: key}
}

func keyOf(t rapidTB, key *ecdsa.PrivateKey) identity.KeyID {
	t.Helper()
	id, err := identity.KeyOfPublic(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// join asks to be certified over key, as the handshake does past the network.
func (m *machine) join(kind identity.Kind, prover proof.Prover) error {
	return m.joinWith(m.key, kind, prover)
}

func (m *machine) joinWith(key *ecdsa.PrivateKey, kind identity.Kind, prover proof.Prover) error {
	m.d.t.Helper()
	binding := make([]byte, 32)
	rand.Read(binding)
	ch := challenge.New(binding)
	req := joinRequest(m.d.t, ch, key, kind, prover)
	req.Member = m.claims
	grant, err := m.d.c.Rooms().Admission.Join(context.Background(), ch, req)
	if err != nil {
		return err
	}
	if m.key != key {
		m.older, m.key = append(m.older, m.key), key
	}
	m.grant = grant
	return m.adopt(grant.GetChain())
}

// joinRequest is what a candidate answers to the challenge of ch.
func joinRequest(t rapidTB, ch challenge.Challenge, key *ecdsa.PrivateKey, kind identity.Kind,
	prover proof.Prover) *fealtyv1.JoinRequest {
	t.Helper()
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	ev, err := prover.Prove(context.Background(),
		proof.Transcript{Role: proof.Candidate, Cluster: testCluster, Nonce: ch.Nonce, Binding: ch.Binding,
			PublicKey: spki})
	if err != nil {
		t.Fatal(err)
	}
	csr, err := ca.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return &fealtyv1.JoinRequest{ClusterId: testCluster, Kind: string(kind), Csr: csr,
		Proof: &fealtyv1.Proof{Type: ev.Type, Claim: ev.Claim, Evidence: ev.Evidence, PublicKey: ev.PublicKey}}
}

// rejoin proves the member by a key of its own and asks for the same key again.
func (m *machine) rejoin() error {
	return m.join(m.id.Kind(), proof.NewSVIDProver(m.id.Kind(), m.id.Name(), m.key))
}

func (m *machine) adopt(chain [][]byte) error {
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if m.mesh, err = x509.ParseCertificate(chain[1]); err != nil {
		return err
	}
	m.leaf, m.leaves = leaf, append(m.leaves, leaf)
	m.id, err = identity.FromCertificate(leaf)
	return err
}

// errCut is what the guard of a listener answers to a certificate that ended or
// was banned. The desk has no listener, so it asks the bundle itself.
var errCut = errors.New("the certificate is refused in the handshake")

// renewWith renews, holding the certificate over presented, to next.
func (m *machine) renewWith(leaf *x509.Certificate, next *ecdsa.PrivateKey) ([][]byte, error) {
	m.d.t.Helper()
	key := identity.KeyOf(leaf)
	if !m.d.clock().Before(leaf.NotAfter) || m.d.c.Rooms().Bundle.View().Bundle.Banned(m.id, key) {
		return nil, errCut
	}
	csr, err := ca.NewCSR(next)
	if err != nil {
		return nil, err
	}
	return renewOver(context.Background(), m.d.c, identity.Peer{ID: m.id, Leaf: leaf, Key: key}, csr)
}

// renew renews to a new key and adopts it.
func (m *machine) renew() error {
	m.d.t.Helper()
	next, err := newKey()
	if err != nil {
		return err
	}
	chain, err := m.renewWith(m.leaf, next)
	if err != nil {
		return err
	}
	m.older, m.key = append(m.older, m.key), next
	return m.adopt(chain)
}

// record returns the record of a member.
func (d *desk) record(kind identity.Kind, name string) record.Versioned[record.Member] {
	d.t.Helper()
	rec, err := record.Get[record.Member](context.Background(), d.state().Records, record.MemberKey(kind, name))
	if err != nil {
		d.t.Fatal(err)
	}
	return rec
}

func (d *desk) members() fealtyv1.MemberServiceServer {
	return served[fealtyv1.MemberServiceServer](d.c.Rooms().Membership.RegisterServices)
}

// joined admits a new data member called name under entry pool.
func (d *desk) joined(name string) *machine {
	d.t.Helper()
	m := d.machine()
	if err := m.join(identity.Data,
		proof.NewTokenProver(d.token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: name}))); err != nil {
		d.t.Fatalf("join %s: %v", name, err)
	}
	return m
}

const poolEntries = `  - {name: pool, kind: data, match: ["token:pool"], roles: [ingress, egress], organizations: [acme, globex]}
  - {name: small, kind: data, match: ["token:small"], max_members: 2}
  - {name: ops, kind: admin, match: ["token:ops"]}
`

func testDesk(t *testing.T) *desk {
	t.Helper()
	return readyDesk(t, poolEntries)
}

// renewOver renews by a certificate request.
func renewOver(ctx context.Context, c *coordinator.Coordinator, peer identity.Peer, csr []byte) ([][]byte, error) {
	resp, err := served[fealtyv1.AdmissionServiceServer](c.Rooms().Admission.RegisterServices).Renew(
		identity.NewContext(ctx, peer), &fealtyv1.RenewRequest{Name: peer.ID.Name(), Csr: csr})
	return resp.GetChain(), err
}

// counterOf is the value of the counter or gauge of this name whose labels have these values, in
// the order of the labels' names; 0 if it has labels and never counted.
func counterOf(reg *prometheus.Registry, name string, values ...string) float64 {
	families, err := reg.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := m.GetLabel()
			same := len(labels) == len(values)
			for i := 0; same && i < len(labels); i++ {
				same = labels[i].GetValue() == values[i]
			}
			if same {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	if len(values) == 0 {
		panic("nothing counts " + name)
	}
	return 0
}

// served returns the service of this kind that a room registers.
func served[S any](register func(grpc.ServiceRegistrar)) S {
	var all services
	register(&all)
	for _, one := range all {
		if s, ok := one.(S); ok {
			return s
		}
	}
	panic("the room does not serve it")
}

type services []any

func (s *services) RegisterService(_ *grpc.ServiceDesc, service any) { *s = append(*s, service) }

// newKey makes a key for an SVID of our own.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}
