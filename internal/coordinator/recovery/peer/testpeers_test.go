package peer_test

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

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	recoverypeer "github.com/fealty-io/fealty/internal/coordinator/recovery/peer"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/proof"
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
	binding, err := coordinatortest.BindingOf(stream.Context())
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

// peerRelay passes all messages of a recovery on to a real coordinator and back, each over
// a connection of its own.
type peerRelay struct {
	fealtyv1.UnimplementedPeerServiceServer
	to     string
	passed chan string // what got through, by direction
}

func (r *peerRelay) Recover(down fealtyv1.PeerService_RecoverServer) error {
	conn, err := mesh.DialPinned(r.to, pinned.Unproven(), mesh.Options{})
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

// askOnce asks the peers that are configured, as a coordinator in recovery mode does.
func askOnce(f *coordinatortest.Fleet, loaded *history.History) (*recoverypeer.Received, error) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	return f.C.Parts().Secrets.PeerRecovery.FromPeers(ctx, loaded)
}

// wantStep fails the test unless err says that the one peer failed at step.
func wantStep(t testing.TB, err error, step recoverypeer.Step, peer string) *recoverypeer.Error {
	t.Helper()
	var failed *recoverypeer.Error
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
