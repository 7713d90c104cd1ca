package coordinatortest

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
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/failpoint"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/store/leader"
)

// Desk is a coordinator that decides and commits, on a store and a disk in
// memory, without loops and listeners: time stands still until a test moves it,
// and nothing happens behind its back.
type Desk struct {
	T      TB
	Store  *MemStore
	Disk   *durabletest.Disk
	Faults *failpoint.Points
	Signer ed25519.PrivateKey
	Extra  string // entries of its manifest beside the usual
	Seed   string // the seed section of its manifest; empty: one keeper
	C      *coordinator.Coordinator
	Alter  func(*coordinator.Config) // what a test changes of the next coordinators; nil: nothing

	Mu     sync.Mutex
	Now    time.Time                           // guarded by Mu; zero: the time that it is
	passed time.Duration                       // on its clock that only goes forward; guarded by Mu
	dirs   map[string]*coordinator.Coordinator // the last one in each; guarded by Mu
}

// TB is what testing.TB and *rapid.T share.
type TB interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// Clock is the time at the desk.
func (d *Desk) Clock() time.Time {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Now.IsZero() {
		return time.Now()
	}
	return d.Now
}

// Advance moves the time at the desk.
func (d *Desk) Advance(by time.Duration) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.Now = d.Now.Add(by)
}

// noListener stands for a listener that is never served.
type noListener struct{}

func (noListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (noListener) Close() error              { return nil }
func (noListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// NewDesk returns a desk without a manifest.
func NewDesk(t TB) *Desk {
	t.Helper()
	d := UnopenedDesk(t)
	d.Open()
	return d
}

// UnopenedDesk returns a desk whose coordinator was not opened yet.
func UnopenedDesk(t TB) *Desk {
	t.Helper()
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Desk{T: t, Store: NewMemStore(), Disk: durabletest.NewDisk(), Signer: signer, Faults: new(failpoint.Points),
		Now: time.Now().Truncate(time.Second)}
}

// ReadyDesk returns a desk with its first manifest and these entries beside the
// usual ones.
func ReadyDesk(t TB, extra string) *Desk { return ReadyDeskWith(t, extra, nil) }

// ReadyDeskWith is [ReadyDesk], with a config that alter changes.
func ReadyDeskWith(t TB, extra string, alter func(*coordinator.Config)) *Desk {
	t.Helper()
	d := UnopenedDesk(t)
	d.Alter = alter
	d.Open()
	if err := d.Set(extra); err != nil {
		t.Fatalf("first set: %v", err)
	}
	d.C.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter))
	return d
}

// Open starts a coordinator on what store and disk hold.
func (d *Desk) Open() {
	d.T.Helper()
	c, err := d.Another("coordinator")
	if err != nil {
		d.T.Fatalf("open: %v", err)
	}
	c.Parts().Membership.Listens(d.Clock().Add(-peer.SilentAfter)) // it knows by now who is away
	d.C = c
	d.tryLead(c)
}

// Lead makes c the leader, if it is ready: at a desk nobody else sees to that, and time
// stands still for who leads too.
func (d *Desk) Lead(c *coordinator.Coordinator) {
	d.T.Helper()
	if c.Parts().Head.State().Phase == authority.Ready && !d.tryLead(c) {
		d.T.Fatal("it does not lead")
	}
}

// tryLead is [Desk.Lead] where the store may be away, or have lost something.
func (d *Desk) tryLead(c *coordinator.Coordinator) bool {
	if c.Parts().Head.State().Phase != authority.Ready {
		return false
	}
	leads := func() bool {
		term, _, ok := c.Parts().Election.Leading()
		return ok && d.Store.Version(election.TermKey) == store.Revision(term)
	}
	for range 8 {
		if leads() {
			return true
		}
		c.Parts().Election.Step(context.Background())
		d.Pass(election.DefaultLease)
		c.Parts().Election.Step(context.Background())
	}
	return leads()
}

// Lapse has the lease of whoever leads end: nobody leads until [Desk.Lead] or a step says so.
func (d *Desk) Lapse() { d.Pass(leader.MaxLease) }

// Pass has some time pass on the clock that only goes forward.
func (d *Desk) Pass(by time.Duration) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	d.passed += by
}

// Another returns one more replica on the same store, with a data directory of
// its own, or of one that was closed.
func (d *Desk) Another(dir string) (*coordinator.Coordinator, error) {
	cfg := coordinator.Config{
		DataDir: "/" + dir, Store: d.Store, StoreName: "memory", Listener: noListener{},
		Machine: coordinator.Machine{Now: d.Clock, Elapsed: d.elapsed, FS: d.Disk.FS()},
		Faults:  d.Faults, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Rates: coordinator.Rates{PerMember: 1e6, MemberBurst: 1e6},
		// Fleets of a desk are small, and what is decided about the trees of large ones is tested on it too.
		Publishing: coordinator.Publishing{BinsFrom: 8},
	}
	if d.Alter != nil {
		d.Alter(&cfg)
	}
	c, err := coordinator.New(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.dirs == nil {
		d.dirs = make(map[string]*coordinator.Coordinator)
	}
	d.dirs[dir] = c
	return c, nil
}

// Second sets a manifest with these entries that admits another coordinator too, and returns
// that one, which is ready.
func (d *Desk) Second(entries string) *coordinator.Coordinator {
	d.T.Helper()
	c, err := d.Another("second")
	if err != nil {
		d.T.Fatal(err)
	}
	if err := d.Set(entries + fmt.Sprintf("  - {name: coordinator-2, kind: coordinator, match: [\"key:%s\"]}\n",
		c.EnrolmentKey())); err != nil {
		d.T.Fatal(err)
	}
	c.Parts().Moves.Succession.Look(context.Background())
	if phase, why := c.Phase(); phase != "ready" {
		d.T.Fatalf("the second coordinator is in phase %s: %s", phase, why)
	}
	return c
}

// Dir is the directory of a coordinator of the desk, by which [Desk.Another] opens it anew.
func (d *Desk) Dir(c *coordinator.Coordinator) string {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for dir, last := range d.dirs {
		if last == c {
			return dir
		}
	}
	d.T.Fatal("the desk opened no such coordinator, or another one in its directory since")
	return ""
}

func (d *Desk) elapsed() time.Duration {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return d.passed
}

// LookAgain has the coordinator look at the head when it is time to look again.
func (d *Desk) LookAgain() {
	d.T.Helper()
	d.Pass(time.Minute)
	d.C.Parts().Moves.Succession.Look(context.Background())
}

// Restart closes the coordinator and opens it again.
func (d *Desk) Restart() {
	d.T.Helper()
	if err := d.C.Close(); err != nil {
		d.T.Fatal(err)
	}
	d.Open()
}

// State is what the coordinator decides on.
func (d *Desk) State() *authority.State { return d.C.Parts().Head.State() }

// Manifest is one with these entries beside the coordinator's, and the seed section that the desk
// has.
func (d *Desk) Manifest(extra string) []byte {
	seed := d.Seed
	if seed == "" {
		seed = "seed:\n  threshold: 1\n  owners: [{name: host, keeper: \"file:/keeper/key\"}]\n"
	}
	return fmt.Appendf(nil, `cluster: %s
%ssigners:
  threshold: 1
  keys: [{name: alice, key: "%s"}]
admit:
  - {name: coordinator-1, kind: coordinator, match: ["key:%s"]}
%s`, Cluster, seed, SignerKey(d.T, d.Signer), d.C.EnrolmentKey(), extra)
}

// Request returns a signed request to set a manifest with these entries.
func (d *Desk) Request(m []byte) *fealtyv1.SetManifestRequest {
	req := &fealtyv1.SetManifestRequest{Manifest: m, Reason: "test"}
	s := d.State()
	if s.Phase != authority.Ready {
		return req
	}
	parsed, err := manifest.ParseAccepted(m)
	if err != nil {
		d.T.Fatal(err)
	}
	req.CurrentTransition = s.Head.Hash[:]
	req.Signatures = SignedBy(d.T, history.SetStatement(parsed.Hash(), s.Head.Hash), d.Signer)
	return req
}

// Set sets a manifest with these entries.
func (d *Desk) Set(extra string) error {
	_, err := Served[fealtyv1.ManifestServiceServer](d.C.Parts().Moves.Manifests.RegisterServices).SetManifest(
		identity.NewContext(context.Background(), identity.Peer{Local: &identity.Local{}}),
		d.Request(d.Manifest(extra)))
	if err == nil {
		d.Extra = extra
		d.tryLead(d.C)
	}
	return err
}

// Token makes a join token.
func (d *Desk) Token(req *fealtyv1.CreateTokenRequest) proof.JoinToken {
	d.T.Helper()
	resp, err := Served[fealtyv1.TokenServiceServer](d.C.Parts().Admission.RegisterServices).CreateToken(
		context.Background(), req)
	if err != nil {
		d.T.Fatalf("create a token: %v", err)
	}
	tok, err := proof.ParseJoinToken(resp.GetLine())
	if err != nil {
		d.T.Fatal(err)
	}
	return tok
}

// Machine is a candidate or member with its key.
type Machine struct {
	Desk  *Desk
	Key   *ecdsa.PrivateKey
	ID    identity.ID
	Leaf  *x509.Certificate
	Mesh  *x509.Certificate // that signed leaf
	Older []*ecdsa.PrivateKey
	// Claims is the member that it says it is already; "" for none.
	Claims string
	// Leaves are all certificates that it ever got.
	Leaves []*x509.Certificate
	Grant  *fealtyv1.JoinGrant
}

// Machine returns a candidate with a new key.
func (d *Desk) Machine() *Machine {
	d.T.Helper()
	key, err := NewKey()
	if err != nil {
		d.T.Fatal(err)
	}
	return &Machine{Desk: d, Key: key}
}

// KeyOf returns the ID of a key.
func KeyOf(t TB, key *ecdsa.PrivateKey) identity.KeyID {
	t.Helper()
	id, err := identity.KeyOfPublic(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Join asks to be certified over key, as the handshake does past the network.
func (m *Machine) Join(kind identity.Kind, prover proof.Prover) error {
	return m.JoinWith(m.Key, kind, prover)
}

// JoinWith is [Machine.Join] over another key, which is the machine's from then on.
func (m *Machine) JoinWith(key *ecdsa.PrivateKey, kind identity.Kind, prover proof.Prover) error {
	m.Desk.T.Helper()
	binding := make([]byte, 32)
	rand.Read(binding)
	ch := proof.NewChallenge(binding)
	req := JoinRequest(m.Desk.T, ch, key, kind, prover)
	req.Member = m.Claims
	grant, err := m.Desk.C.Parts().Admission.Join(context.Background(), ch, req)
	if err != nil {
		return err
	}
	if m.Key != key {
		m.Older, m.Key = append(m.Older, m.Key), key
	}
	m.Grant = grant
	return m.Adopt(grant.GetChain())
}

// JoinRequest is what a candidate answers to the challenge of ch.
func JoinRequest(t TB, ch proof.Challenge, key *ecdsa.PrivateKey, kind identity.Kind,
	prover proof.Prover) *fealtyv1.JoinRequest {
	t.Helper()
	req, err := joinRequest(context.Background(), Cluster, ch, key, kind, prover)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func joinRequest(ctx context.Context, cluster string, ch proof.Challenge, key *ecdsa.PrivateKey, kind identity.Kind,
	prover proof.Prover) (*fealtyv1.JoinRequest, error) {
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	ev, err := prover.Prove(ctx, proof.Transcript{Role: proof.Candidate, Cluster: cluster, Nonce: ch.Nonce, Binding: ch.Binding,
		PublicKey: spki})
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return nil, err
	}
	return &fealtyv1.JoinRequest{ClusterId: cluster, Kind: string(kind), Csr: csr,
		Proof: &fealtyv1.Proof{Type: ev.Type, Claim: ev.Claim, Evidence: ev.Evidence, PublicKey: ev.PublicKey}}, nil
}

// Rejoin proves the member by a key of its own and asks for the same key again.
func (m *Machine) Rejoin() error {
	return m.Join(m.ID.Kind(), proof.NewSVIDProver(m.ID.Kind(), m.ID.Name(), m.Key))
}

// Adopt takes a certificate and what signed it as the machine's own.
func (m *Machine) Adopt(chain [][]byte) error {
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if m.Mesh, err = x509.ParseCertificate(chain[1]); err != nil {
		return err
	}
	m.Leaf, m.Leaves = leaf, append(m.Leaves, leaf)
	m.ID, err = identity.FromCertificate(leaf)
	return err
}

// ErrCut is what the guard of a listener answers to a certificate that ended or
// was banned. The desk has no listener, so it asks the bundle itself.
var ErrCut = errors.New("the certificate is refused in the handshake")

// RenewWith renews, holding the certificate over presented, to next.
func (m *Machine) RenewWith(leaf *x509.Certificate, next *ecdsa.PrivateKey) ([][]byte, error) {
	m.Desk.T.Helper()
	key := identity.KeyOf(leaf)
	if !m.Desk.Clock().Before(leaf.NotAfter) || m.Desk.C.Parts().Bundle.View().Bundle.Banned(m.ID, key) {
		return nil, ErrCut
	}
	csr, err := pki.NewCSR(next)
	if err != nil {
		return nil, err
	}
	return RenewOver(context.Background(), m.Desk.C, identity.Peer{ID: m.ID, Leaf: leaf, Key: key}, csr)
}

// Renew renews to a new key and adopts it.
func (m *Machine) Renew() error {
	m.Desk.T.Helper()
	next, err := NewKey()
	if err != nil {
		return err
	}
	chain, err := m.RenewWith(m.Leaf, next)
	if err != nil {
		return err
	}
	m.Older, m.Key = append(m.Older, m.Key), next
	return m.Adopt(chain)
}

// Record returns the record of a member.
func (d *Desk) Record(kind identity.Kind, name string) record.Versioned[record.Member] {
	d.T.Helper()
	rec, err := record.Get[record.Member](context.Background(), d.State().Records, record.MemberKey(kind, name))
	if err != nil {
		d.T.Fatal(err)
	}
	return rec
}

// Members is the service of members, past the network and who may call it.
func (d *Desk) Members() fealtyv1.MemberServiceServer {
	return Served[fealtyv1.MemberServiceServer](d.C.Parts().Membership.RegisterServices)
}

// Joined admits a new data member called name under entry pool.
func (d *Desk) Joined(name string) *Machine {
	d.T.Helper()
	m := d.Machine()
	if err := m.Join(identity.Data,
		proof.NewTokenProver(d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: name}))); err != nil {
		d.T.Fatalf("join %s: %v", name, err)
	}
	return m
}

// PoolEntries admit members by tokens: data members, at most two others, and admins.
const PoolEntries = `  - {name: pool, kind: data, match: ["token:pool"], roles: [ingress, egress], ` +
	"organizations: [acme, globex]}\n" + `  - {name: small, kind: data, match: ["token:small"], max_members: 2}
  - {name: ops, kind: admin, match: ["token:ops"]}
`

// PoolDesk is a desk that admits by [PoolEntries].
func PoolDesk(t *testing.T) *Desk {
	t.Helper()
	return ReadyDesk(t, PoolEntries)
}

// RenewOver renews by a certificate request.
func RenewOver(ctx context.Context, c *coordinator.Coordinator, peer identity.Peer, csr []byte) ([][]byte, error) {
	resp, err := Served[fealtyv1.AdmissionServiceServer](c.Parts().Admission.RegisterServices).Renew(
		identity.NewContext(ctx, peer), &fealtyv1.RenewRequest{Name: peer.ID.Name(), Csr: csr})
	return resp.GetChain(), err
}

// CounterOf is the value of the counter or gauge of this name whose labels have these values, in
// the order of the labels' names; 0 if it has labels and never counted.
func CounterOf(reg *prometheus.Registry, name string, values ...string) float64 {
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

// Served returns the service of this kind that a part registers.
func Served[S any](register func(grpc.ServiceRegistrar)) S {
	var all services
	register(&all)
	for _, one := range all {
		if s, ok := one.(S); ok {
			return s
		}
	}
	panic("the part does not serve it")
}

type services []any

func (s *services) RegisterService(_ *grpc.ServiceDesc, service any) { *s = append(*s, service) }

// NewKey makes a key for an SVID of our own.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}
