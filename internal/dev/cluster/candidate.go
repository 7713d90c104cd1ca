package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

// Candidate speaks the join protocol by itself: for showing what a correct agent
// never does, and for loads.
type Candidate struct {
	Key     *ecdsa.PrivateKey
	Cluster string // that it believes to join
	addr    string
	there   pinned.Pin // of the coordinator that is there
}

// Candidate returns a candidate with a new key, for this cluster.
func (c *Cluster) Candidate(ctx context.Context) (*Candidate, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Candidate{Key: key, Cluster: c.id, addr: c.Address(), there: pinned.Root(c.id, identity.KeyID(st.GetRootPin()))}, nil
}

// NewCandidate returns a candidate with a new key, for the cluster and the coordinator
// that tok names.
func NewCandidate(tok proof.JoinToken) (*Candidate, error) {
	if len(tok.Addresses) == 0 {
		return nil, errors.New("the token names no coordinator")
	}
	return (&Candidate{Cluster: tok.Cluster, addr: tok.Addresses[0], there: pinned.Root(tok.Cluster, tok.Pin)}).Again()
}

// Again returns another candidate with a new key, for the same cluster.
func (n *Candidate) Again() (*Candidate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Candidate{Key: key, Cluster: n.Cluster, addr: n.addr, there: n.there}, nil
}

// Dial connects as a stranger that knows the root.
func (n *Candidate) Dial() (*mesh.Conn, error) {
	return mesh.DialPinned(n.addr, n.there, mesh.Options{})
}

// DialAs connects with the certificate of a grant or a renewal.
func (n *Candidate) DialAs(der [][]byte, opts ...grpc.DialOption) (*mesh.Conn, identity.ID, error) {
	var chain []*x509.Certificate
	for _, d := range der {
		cert, err := x509.ParseCertificate(d)
		if err != nil {
			return nil, identity.ID{}, err
		}
		chain = append(chain, cert)
	}
	if len(chain) != 3 {
		return nil, identity.ID{}, fmt.Errorf("a chain of %d certificates, want leaf, mesh CA and root", len(chain))
	}
	bundle, err := identity.NewBundle(identity.BundleConfig{Cluster: n.Cluster, Roots: chain[2:], MeshKeys: []identity.KeyID{identity.KeyOf(chain[1])}})
	if err != nil {
		return nil, identity.ID{}, err
	}
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain[:2], Key: n.Key, Bundle: bundle})
	if err != nil {
		return nil, identity.ID{}, err
	}
	conn, err := mesh.Dial(n.addr, credential.Static(m), credential.AnyOfKind(identity.Coordinator), mesh.Options{GRPC: opts})
	return conn, m.ID(), err
}

// Renew has next certified over a connection that [Candidate.DialAs] made, and
// returns the new chain. The candidate holds next from then on.
func (n *Candidate) Renew(ctx context.Context, conn grpc.ClientConnInterface, id identity.ID) ([][]byte, error) {
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return n.renewTo(ctx, conn, id, next)
}

func (n *Candidate) renewTo(ctx context.Context, conn grpc.ClientConnInterface, id identity.ID, next *ecdsa.PrivateKey) ([][]byte, error) {
	csr, err := pki.NewCSR(next)
	if err != nil {
		return nil, err
	}
	resp, err := fealtyv1.NewAdmissionServiceClient(conn).Renew(ctx, &fealtyv1.RenewRequest{Name: id.Name(), Csr: csr})
	if err != nil {
		return nil, err
	}
	n.Key = next
	return resp.GetChain(), nil
}

// Join joins over a connection of its own, to the coordinator with the pinned root.
func (n *Candidate) Join(ctx context.Context, kind identity.Kind, p proof.Prover) (*fealtyv1.JoinGrant, error) {
	conn, err := n.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return n.JoinOver(ctx, conn, kind, p)
}

// strangerKey makes a key that no manifest names.
func strangerKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

// Stranger tries to join with a key that nobody named, and returns the refusal.
func (c *Cluster) Stranger(ctx context.Context) error {
	n, err := c.Candidate(ctx)
	if err != nil {
		return err
	}
	key, err := strangerKey()
	if err != nil {
		return err
	}
	_, err = n.Join(ctx, identity.Data, proof.NewKeyProver(key))
	return err
}

// JoinOver joins over a connection that is there.
func (n *Candidate) JoinOver(ctx context.Context, conn grpc.ClientConnInterface, kind identity.Kind, p proof.Prover) (*fealtyv1.JoinGrant, error) {
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(ctx)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	state, err := tlsState(stream.Context())
	if err != nil {
		return nil, err
	}
	binding, err := proof.Binding(state)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(n.Key.Public())
	if err != nil {
		return nil, err
	}
	ev, err := p.Prove(ctx, proof.Transcript{Role: proof.Candidate, Cluster: n.Cluster, Nonce: first.GetChallenge().GetNonce(), Binding: binding, PublicKey: spki})
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewCSR(n.Key)
	if err != nil {
		return nil, err
	}
	// One that is answered while it might say more counts as one that is given up: of those a connection has few.
	err = errors.Join(stream.Send(&fealtyv1.JoinRequest{
		ClusterId: n.Cluster, Kind: string(kind), Csr: csr,
		Proof: &fealtyv1.Proof{Type: ev.Type, Claim: ev.Claim, Evidence: ev.Evidence, PublicKey: ev.PublicKey},
	}), stream.CloseSend())
	if err != nil {
		return nil, err
	}
	second, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if second.GetGrant() == nil {
		return nil, errors.New("the seed answered without a grant")
	}
	return second.GetGrant(), nil
}

// tlsState returns the TLS state of the stream's own connection.
func tlsState(ctx context.Context) (tls.ConnectionState, error) {
	if cs, ok := proof.ConnectionState(ctx); ok {
		return cs, nil
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			return info.State, nil
		}
	}
	return tls.ConnectionState{}, errors.New("the stream runs over no TLS connection")
}
