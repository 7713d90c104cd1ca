package coordinator_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/replicas"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// liar answers coordinators as an honest peer would that holds key and the secrets of
// state, but for what a test alters.
type liar struct {
	fealtyv1.UnimplementedPeerServiceServer
	key   ed25519.PrivateKey
	state *authority.State

	challenge func(*fealtyv1.PeerChallenge)
	handed    func(*keyring.Handed)   // before they are sealed
	handover  func(*keyring.Handover) // what they are sealed for
	secrets   func(*fealtyv1.PeerSecrets)
	first     func(fealtyv1.PeerService_RecoverServer) error // in place of the challenge
	last      func(fealtyv1.PeerService_RecoverServer) error // in place of the secrets
}

func (l *liar) Recover(stream fealtyv1.PeerService_RecoverServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if l.first != nil {
		return l.first(stream)
	}
	h := req.GetHello()
	asker, err := proof.ParseKeyClaim(h.GetKey())
	if err != nil {
		return err
	}
	cs, _ := mesh.ConnectionState(stream.Context())
	binding, err := proof.Binding(cs)
	if err != nil {
		return err
	}
	nonce := make([]byte, proof.NonceBytes)
	rand.Read(nonce)
	public := l.key.Public().(ed25519.PublicKey)
	t := proof.PeerTranscript{Purpose: proof.Recover, Cluster: h.GetCluster(), Head: h.GetHead(),
		AskerNonce: h.GetNonce(), GiverNonce: nonce,
		Binding: binding, Recipient: h.GetRecipient(), AskerKey: asker, GiverKey: public}
	evidence, err := proof.ProvePeer(l.key, proof.Giver, t)
	if err != nil {
		return err
	}
	ch := &fealtyv1.PeerChallenge{Nonce: nonce, Key: proof.KeyClaim(public), Evidence: evidence}
	if l.challenge != nil {
		l.challenge(ch)
	}
	if err := stream.Send(&fealtyv1.PeerServiceRecoverResponse{Step: &fealtyv1.PeerServiceRecoverResponse_Challenge{Challenge: ch}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if l.last != nil {
		return l.last(stream)
	}
	handed := coordinatortest.Steal(l.state).Handed
	if l.handed != nil {
		l.handed(&handed)
	}
	over := keyring.Handover{Purpose: string(proof.Recover), Cluster: h.GetCluster(), From: proof.KeyClaim(public),
		To: h.GetKey(), Head: [32]byte(h.GetHead())}
	if l.handover != nil {
		l.handover(&over)
	}
	sealed, err := keyring.HandOver(h.GetRecipient(), over, handed)
	if err != nil {
		return err
	}
	s := &fealtyv1.PeerSecrets{Sealed: sealed, Root: bytes.Clone(l.state.Root.Raw),
		MeshCa: l.state.MeshCA().Certificate().Raw, Manifest: bytes.Clone(l.state.Manifest.Bytes())}
	if l.secrets != nil {
		l.secrets(s)
	}
	return stream.Send(&fealtyv1.PeerServiceRecoverResponse{Step: &fealtyv1.PeerServiceRecoverResponse_Secrets{Secrets: s}})
}

// servePeer serves s over TLS of its own, and returns its address.
func servePeer(t testing.TB, s fealtyv1.PeerServiceServer) string {
	t.Helper()
	material, err := credential.NewEphemeral(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.NewIssued(material)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(guard.Credentials()), grpc.WaitForHandlers(true))
	fealtyv1.RegisterPeerServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return l.Addr().String()
}

// peerRelay passes all messages of a recovery on to a real coordinator and back, each over
// a connection of its own.
type peerRelay struct {
	fealtyv1.UnimplementedPeerServiceServer
	to     string
	passed chan string // what got through, by direction
}

func (r *peerRelay) Recover(down fealtyv1.PeerService_RecoverServer) error {
	conn, err := mesh.DialPinned(r.to, credential.Unproven(), mesh.Options{})
	if err != nil {
		return err
	}
	defer conn.Close()
	up, err := fealtyv1.NewPeerServiceClient(conn).Recover(down.Context())
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error {
		for {
			m, err := down.Recv()
			if errors.Is(err, io.EOF) {
				return up.CloseSend()
			}
			if err != nil {
				return err
			}
			if m.GetEvidence() != nil {
				r.passed <- "proof of the asker"
			}
			if err := up.Send(m); err != nil {
				return err
			}
		}
	})
	for {
		m, err := up.Recv()
		if err != nil {
			return err
		}
		if m.GetSecrets() != nil {
			r.passed <- "secrets"
		}
		if err := down.Send(m); err != nil {
			return err
		}
	}
}

// hideReplicas makes the store tell a coordinator of no other.
func hideReplicas(e store.Entry) store.Entry {
	if strings.HasPrefix(e.Key, replicas.Prefix) {
		e.Value = nil
	}
	return e
}

// askOnce asks the peers that are configured, as a coordinator in recovery mode does.
func askOnce(f *coordinatortest.Fleet, loaded *history.History) (*coordinator.Received, error) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	return f.C.Rooms().PeerRecovery.FromPeers(ctx, loaded)
}

// loaded returns the history as the store of f has it.
func loaded(f *coordinatortest.Fleet) *history.History {
	f.T.Helper()
	st := f.Store
	if f.First != nil {
		st = f.First.Store
	}
	h, err := history.New(st).Load(context.Background())
	if err != nil {
		f.T.Fatal(err)
	}
	return h
}

// wantStep fails the test unless err says that the one peer failed at step.
func wantStep(t testing.TB, err error, step coordinator.PeerStep, peer string) *coordinator.PeerError {
	t.Helper()
	var failed *coordinator.PeerError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v, want one of step %d", err, step)
	}
	if failed.Step != step || !strings.Contains(failed.Peer, peer) {
		t.Fatalf("failed at step %d (%s) with peer %q: %v; want step %d with %q", failed.Step, failed.Step, failed.Peer,
			failed.Err, step, peer)
	}
	return failed
}

// laterTo returns an address whose connections are passed on to addr once begin is
// closed.
func laterTo(t testing.TB, addr string, begin <-chan struct{}) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer down.Close()
				select {
				case <-begin:
				case <-t.Context().Done():
					return
				}
				up, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				defer up.Close()
				wg.Go(func() {
					defer up.Close()
					_, _ = io.Copy(up, down)
				})
				_, _ = io.Copy(down, up)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}
