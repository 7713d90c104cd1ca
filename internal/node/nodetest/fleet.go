// Package nodetest is the other end of a member, without a coordinator: it admits who asks, and signs and serves what the
// test says, so that a member can be sent what no coordinator sends. Tests that need a coordinator's decisions take package
// coordinatortest.
package nodetest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
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
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Fleet is the other end: a real gRPC server behind a real guard, with real proofs,
// certificates and signatures. Policy is left out: a proper request is
// admitted. Its faults make it fail as networks and enemies do.
type Fleet struct {
	*signedtest.Author
	Seen      Seen
	Faults    Faults
	Source    *credential.Issued
	guard     *mesh.Guard
	listeners map[string]*bufconn.Listener

	Pki *pkitest.PKI // the operator's own; made by who needs it first

	Tokens  map[string]proof.JoinToken    // guarded by mu, as all that follows
	Members map[string]*signedtest.Member // by kind/name
	changed chan struct{}                 // closed at the next change of what streams deliver
	Extra   []*fealtyv1.ConnectResponse
	streams map[int]context.CancelFunc
	Grace   time.Duration // rejoin_grace

	// Poll is what a poll brings, and pull how a content is sent; nil: nothing, and that
	// it does not exist.
	Poll func(*fealtyv1.PollRequest) []*fealtyv1.SignedSnapshot
	Pull func(hash snapshot.Digest, stream fealtyv1.SnapshotService_GetContentServer) error
}

// Seen is what members did, guarded by the fleet's mu but for cuts.
type Seen struct {
	Shown    [][]byte // trust bundles that were presented
	Dialed   map[string]int
	Joins    int
	Renewals int
	Clones   int
	Reports  []*fealtyv1.ConnectRequest

	Hellos int // streams that were opened
	Polls  int
	Pulls  int
	Proven []string     // the types of the proofs that verified
	Cuts   atomic.Int64 // connections that the guard cut
}

// Faults are what goes wrong, guarded by the fleet's mu.
type Faults struct {
	Ignorant    int                       // how many that are asked about a restore know nothing
	Skew        time.Duration             // of the server's clock as told
	Brief       bool                      // streams end after their first news
	Down        map[string]bool           // addresses that cannot be dialed
	EditGrant   func(*fealtyv1.JoinGrant) // what an enemy makes of a grant
	EditRenewal func(*fealtyv1.RenewResponse)
	LoseJoins   int // answers that are lost after the admission
	LoseRenews  int
	RefuseSVID  error // what a proof by the last certified key gets
	RefuseJoin  error
	RefuseRenew error
	NoStore     errcode.Code // how a renewal fails but that of the recorded key
	RefuseLeave error
	LeaveError  func() error // after the member is gone
}

// CSR asks for a certificate over key.
func CSR(tb testing.TB, key dir.KeyPair) []byte {
	tb.Helper()
	der, err := pki.NewCSR(key.Signer())
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

// Quiet logs nowhere.
func Quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// New starts a cluster with coordinators at these addresses; none means one
// at the usual address. It ends with the test.
func New(tb testing.TB, addresses ...string) *Fleet {
	tb.Helper()
	if len(addresses) == 0 {
		addresses = []string{signedtest.Coordinator}
	}
	f := &Fleet{
		Author: signedtest.New(tb, addresses), listeners: make(map[string]*bufconn.Listener),
		Tokens: make(map[string]proof.JoinToken), Members: make(map[string]*signedtest.Member),
		changed: make(chan struct{}), streams: make(map[int]context.CancelFunc), Grace: 7 * 24 * time.Hour,
	}
	f.Seen.Dialed, f.Faults.Down = make(map[string]int), make(map[string]bool)
	var err error
	f.Source = credential.NewIssued(f.Server(300 * 24 * time.Hour))
	f.guard, err = mesh.NewGuard(mesh.GuardConfig{Source: f.Source, SendRoot: true, Now: f.Clock,
		OnCut: func(identity.Peer, *mesh.CutError) { f.Seen.Cuts.Add(1) }})
	f.Must(err)
	f.serve(addresses)
	return f
}

// Server makes what the coordinators present.
func (f *Fleet) Server(ttl time.Duration) *credential.Material {
	key, err := dir.NewKeyPair()
	f.Must(err)
	id, err := identity.New(signedtest.Cluster, identity.Coordinator, "c1")
	f.Must(err)
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: f.Issue(key.Signer().Public(), id, ttl),
		Key: key.Signer(), Bundle: f.BundleLocked(), Now: f.Clock})
	f.Must(err)
	return m
}

func (f *Fleet) serve(addresses []string) {
	services, err := authz.Services(fealtyv1.AdmissionService_ServiceDesc.ServiceName,
		fealtyv1.AgentService_ServiceDesc.ServiceName, fealtyv1.RestoreService_ServiceDesc.ServiceName,
		fealtyv1.SnapshotService_ServiceDesc.ServiceName)
	f.Must(err)
	table, err := authz.NewTable(services...)
	f.Must(err)
	gate, err := authz.New(table, authz.Options{ClusterID: func() string { return signedtest.Cluster }, Logger: Quiet(),
		Now: f.Clock})
	f.Must(err)
	server := grpc.NewServer(
		grpc.Creds(f.guard.Credentials()),
		grpc.ChainUnaryInterceptor(f.guard.Unary, gate.Unary()),
		grpc.ChainStreamInterceptor(f.guard.Stream, gate.Stream()),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
			PermitWithoutStream: true}),
	)
	fealtyv1.RegisterAdmissionServiceServer(server, admission{f: f})
	fealtyv1.RegisterAgentServiceServer(server, delivery{f: f})
	fealtyv1.RegisterSnapshotServiceServer(server, snapshots{f: f})
	fealtyv1.RegisterRestoreServiceServer(server, restores{f: f})
	var wg sync.WaitGroup
	for _, a := range addresses {
		// As much as a socket holds: what a connection does not need is cleared for it all the same.
		l := bufconn.Listen(1 << 16)
		f.listeners[a] = l
		wg.Go(func() { _ = server.Serve(l) })
	}
	f.TB.Cleanup(func() {
		server.Stop()
		wg.Wait()
	})
}

// Dial is the network.
func (f *Fleet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	f.Mu.Lock()
	l, down := f.listeners[addr], f.Faults.Down[addr] || f.Faults.Down["all"]
	f.Seen.Dialed[addr]++
	f.Mu.Unlock()
	if l == nil || down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	return l.DialContext(ctx)
}

// Cut ends every stream, as coordinators do that stop.
func (f *Fleet) Cut() {
	f.Do(func() {
		for _, cancel := range f.streams {
			cancel()
		}
		clear(f.streams)
	})
}

// TrustChanged gives the trust bundle a new version and delivers it.
func (f *Fleet) TrustChanged(change func()) {
	f.Do(func() {
		change()
		f.Version++
		f.Must(f.Source.Trust(f.BundleLocked()))
		f.tellLocked()
	})
}

func (f *Fleet) tellLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// Send has every stream deliver news, now and when it opens.
func (f *Fleet) Send(news *fealtyv1.ConnectResponse) {
	f.Do(func() {
		f.Extra = append(f.Extra, news)
		f.tellLocked()
	})
}

// Token makes a join token.
func (f *Fleet) Token(addresses ...string) proof.JoinToken {
	if len(addresses) == 0 {
		addresses = f.Addresses()
	}
	t, err := proof.NewJoinToken(nil, proof.JoinToken{Cluster: signedtest.Cluster, Addresses: addresses,
		Pin: identity.KeyOf(f.Root), Expires: f.Clock().Add(time.Hour)})
	f.Must(err)
	f.Do(func() { f.Tokens[t.ID] = t })
	return t
}

// Member returns the fleet's record of id.
func (f *Fleet) Member(id identity.ID) signedtest.Member {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	m := f.Members[string(id.Kind())+"/"+id.Name()]
	if m == nil {
		return signedtest.Member{}
	}
	return *m
}

// Of the nodes in these tests.
var (
	AllCompanions = slices.Sorted(slices.Values(state.Scopes[len(state.Foundations):]))
)

// keyOf makes the proof by a key that the fleet's manifest would name.
func (f *Fleet) KeyProof() enroll.Proof { return f.KeyProofOf(identity.KeyOf(f.Root)) }

// KeyProofOf makes one that believes coordinators under the root of this pin.
func (f *Fleet) KeyProofOf(pin identity.KeyID) enroll.Proof {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	f.Must(err)
	p, err := enroll.ByKey(signedtest.Cluster, f.Addresses(), pin, key)
	f.Must(err)
	return p
}

// Revoking is a newer trust bundle that revokes a config key, and lists another one.
func (f *Fleet) Revoking(key, other ed25519.PrivateKey) *fealtyv1.SignedSnapshot {
	var out *fealtyv1.SignedSnapshot
	f.TrustChanged(func() {
		content := f.Content()
		content.ConfigKeys[0].Key, content.ConfigKeys[0].Revoked = key.Public().(ed25519.PublicKey), true
		second := content.ConfigKeys[0]
		second.Key, second.Revoked = other.Public().(ed25519.PublicKey), false
		content.ConfigKeys = append(content.ConfigKeys, second)
		slices.SortFunc(content.ConfigKeys, func(x, y snapshot.ConfigKey) int { return slices.Compare(x.Key, y.Key) })
		h := f.TrustHeader()
		h.ConfigVersion++
		out = f.SignTrust(h, content)
	})
	return out
}

// ByX509 is the proof by a certificate of the operator's PKI.
func (f *Fleet) ByX509(source credential.Source) enroll.Proof {
	f.TB.Helper()
	p, err := enroll.ByX509(f.TB.Context(), signedtest.Cluster, []string{signedtest.Coordinator},
		identity.KeyOf(f.Root), source)
	f.Must(err)
	return p
}
