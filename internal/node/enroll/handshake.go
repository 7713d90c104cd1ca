package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/platform/hostinfo"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds of one attempt at one address.
const (
	// AttemptTimeout bounds a whole join with one coordinator.
	AttemptTimeout = 30 * time.Second
	// maxGrantBytes bounds a grant: two snapshots, a chain, and a statement.
	maxGrantBytes = 2*snapshot.MaxSigned + 64<<10
)

// Handshake is the candidate's side of one Join stream.
type Handshake struct {
	Cluster string
	Kind    identity.Kind
	Pin     identity.KeyID // of the root's key
	Prover  proof.Prover
	Member  string      // the name that the node has already; blank: it is no member
	Key     dir.KeyPair // to certify
	Now     func() time.Time
	Dial    func(ctx context.Context, addr string) (net.Conn, error)
	at      func(StepName)                 // the step that is under way; may be nil
	done    func(StepName, string)         // a step was done; may be nil
	Failed  func(err *mesh.HandshakeError) // may be nil
}

// Run proves the candidate to the coordinator at address and returns the grant,
// which is not verified. The binding is taken from the very connection on which
// the challenge came.
func (h Handshake) Run(ctx context.Context, address string) (*fealtyv1.JoinGrant, error) {
	at, done := h.at, h.done
	if at == nil {
		at = func(StepName) {}
	}
	if done == nil {
		done = func(StepName, string) {}
	}
	conn, err := mesh.DialPinned(Target(address), pinned.Root(h.Cluster, h.Pin), mesh.Options{
		Now: h.Now, OnFailure: h.Failed,
		GRPC:   []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxGrantBytes))},
		Dialer: tellOnce(Dialer(h.Dial), func() { done(StepReach, address) }),
	})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(ctx)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	info, ok := mesh.FromContext(stream.Context())
	if !ok {
		return nil, errcode.New(errcode.JoinNoBinding, "problem", "nothing is known of the connection")
	}
	done(StepTrust, info.Peer.ID.String())
	state, ok := info.ConnectionState()
	if !ok {
		return nil, errcode.New(errcode.JoinNoBinding, "problem", "the call came over no TLS connection")
	}
	at(StepClock)
	challenge := first.GetChallenge()
	if challenge == nil || challenge.GetServerTime().CheckValid() != nil {
		return nil, errcode.New(errcode.JoinGrantRefused, "coordinator", address, "problem",
			"it does not begin with a challenge")
	}
	detail, err := compareClocks(h.Now(), challenge.GetServerTime().AsTime())
	if err != nil {
		return nil, err
	}
	done(StepClock, detail)
	at(StepProof)
	binding, err := proof.Binding(state)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	spki, err := h.Key.SPKI()
	if err != nil {
		return nil, err
	}
	evidence, err := h.Prover.Prove(ctx, proof.Transcript{
		Role: proof.Candidate, Cluster: h.Cluster, Nonce: challenge.GetNonce(), Binding: binding, PublicKey: spki,
	})
	if err != nil {
		return nil, errcode.Wrap(err, errcode.CredentialUnusable, "source", "this machine, which are to prove it", "problem",
			err.Error())
	}
	csr, err := pki.NewCSR(h.Key.Signer())
	if err != nil {
		return nil, err
	}
	err = stream.Send(&fealtyv1.JoinRequest{
		ClusterId: h.Cluster, Kind: string(h.Kind), Csr: csr, Member: h.Member, Machine: machineOf(h.Kind),
		Proof: &fealtyv1.Proof{Type: evidence.Type, Claim: evidence.Claim, Evidence: evidence.Evidence,
			PublicKey: evidence.PublicKey},
	})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
		return nil, err
	}
	answer, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, errcode.New(errcode.JoinGrantRefused, "coordinator", address, "problem",
			"it ended the exchange without an answer")
	}
	if err != nil {
		return nil, err
	}
	done(StepProof, evidence.Type)
	grant := answer.GetGrant()
	if grant == nil {
		return nil, errcode.New(errcode.JoinGrantRefused, "coordinator", address, "problem",
			"it answers the proof with something else than a grant")
	}
	return grant, nil
}

// compareClocks fails with JoinClockWrong if the two clocks differ by more than
// snapshots tolerate.
func compareClocks(local, remote time.Time) (string, error) {
	skew := local.Sub(remote)
	if skew.Abs() > snapshot.ClockTolerance {
		return "", errcode.New(errcode.JoinClockWrong, "who", "this machine", "skew",
			skew.Abs().Round(time.Second).String(),
			"local", state.Stamp(local), "remote", state.Stamp(remote), "limit", snapshot.ClockTolerance.String())
	}
	return fmt.Sprintf("they differ by %v", skew.Abs().Round(time.Millisecond)), nil
}

// Target makes a gRPC target of host:port: the dialer resolves it.
func Target(address string) string { return "passthrough:///" + address }

// Dialer returns dial, or for nil one of TCP.
func Dialer(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	if dial != nil {
		return dial
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		return d.DialContext(ctx, "tcp", addr)
	}
}

// tellOnce calls reached after the first connection that dial makes.
func tellOnce(dial func(context.Context, string) (net.Conn, error), reached func()) func(context.Context,
	string) (net.Conn, error) {
	reached = sync.OnceFunc(reached)
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err == nil {
			reached()
		}
		return conn, err
	}
}

// machineOf is what this machine says of itself as it joins. Where a person works is
// nobody's business.
func machineOf(kind identity.Kind) *fealtyv1.Machine {
	if kind == identity.Admin || kind == identity.Readonly {
		return nil
	}
	f := hostinfo.Here()
	return &fealtyv1.Machine{Host: f.Host, Os: f.OS, Addresses: f.Addresses}
}
