package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/mirror"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
)

// Peers are other members. The bootstrap list of the node's peer_directory names those to
// find the fleet by, and they are asked last: for the trust bundle, and for what is signed
// for the node's group. All that they give is verified as from mirrors. Each has to prove
// who it is, so that a member that is banned is not asked, and none can be asked in the
// name of another.

const (
	// maxPeers bounds the peers that are asked in one round, which are others in the next.
	maxPeers = 4
	// maxPeerAddresses bounds the addresses of one of them that are tried.
	maxPeerAddresses = 4
	// peerTime bounds how long a peer takes to say what it has.
	peerTime = 20 * time.Second
	// maxPeerMessage bounds one message of that: a trust bundle is the largest.
	maxPeerMessage = mirror.MaxBundle + 64<<10
)

// byPeer: from another member, which is trusted in nothing.
const byPeer state.Origin = "peer"

// peerSources returns some of the peers that the node may ask now, in random order.
func (f *Fetcher) peerSources() []Source {
	b, me := f.Node.TrustState(), f.Node.Me().ID
	h := b.Active[snapshot.ScopePeerDirectory]
	if h == nil {
		return nil
	}
	directory, _ := b.Effective(h, me).PeerDirectory()
	peers := slices.DeleteFunc(directory.Bootstrap, func(p snapshot.Peer) bool { return p.ID == me })
	if len(peers) == 0 || f.Node.Autonomy.Permit(guard.ReconnectPeers) != nil {
		return nil
	}
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	var out []Source
	for _, p := range peers[:min(len(peers), maxPeers)] {
		out = append(out, &peerSource{f: f, peer: p})
	}
	return out
}

// peerSource is a peer that is asked, over a connection that is made when it is needed.
type peerSource struct {
	f    *Fetcher
	peer snapshot.Peer
	conn *mesh.Conn // nil: not connected yet
}

func (s *peerSource) Name() string {
	return "peer " + string(s.peer.ID.Kind()) + "/" + s.peer.ID.Name()
}

func (s *peerSource) From() state.Origin { return byPeer }

// reach returns a client of the peer, and what shows it the node's group.
func (s *peerSource) reach() (client fealtyv1.SharedServiceClient, shown []byte, err error) {
	if s.conn == nil {
		addresses := s.peer.Addresses[:min(len(s.peer.Addresses), maxPeerAddresses)]
		s.conn, err = s.f.pool.Dial("static:///"+strings.Join(addresses, ","), s.f.Node.Source(),
			credential.ExactID(s.peer.ID))
		if err != nil {
			s.conn = nil
			return nil, nil, err
		}
	}
	if shown, err = s.shown(); err != nil {
		return nil, nil, err
	}
	return fealtyv1.NewSharedServiceClient(s.conn), shown, nil
}

// Close ends the connection.
func (s *peerSource) Close() error {
	if s.conn == nil {
		return nil
	}
	conn := s.conn
	s.conn = nil
	return conn.Close()
}

// shown returns the node's own node_runtime without its content, which shows a peer in
// which group the node is; nil if it has none.
func (s *peerSource) shown() ([]byte, error) {
	h := s.f.Node.TrustState().Active[snapshot.ScopeNodeRuntime]
	if h == nil {
		return nil, nil
	}
	signed, err := snapshot.Unmarshal(h.Raw)
	if err != nil {
		return nil, err
	}
	return signed.With(nil).Marshal()
}

// News implements source. have is told but for what is signed for the node alone.
func (s *peerSource) News(ctx context.Context, have []*fealtyv1.HeldSnapshot) ([]Notice, error) {
	client, shown, err := s.reach()
	if err != nil {
		return nil, err
	}
	b := s.f.Node.TrustState()
	have = slices.DeleteFunc(have, func(h *fealtyv1.HeldSnapshot) bool {
		held := b.Active[snapshot.Scope(h.GetScope())]
		return held == nil || ofOne(held.Verified.Header())
	})
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	stream, err := client.ListShared(ctx, &fealtyv1.ListSharedRequest{Name: s.f.Node.Me().ID.Name(),
		NodeRuntime: shown, Held: have}, grpc.MaxCallRecvMsgSize(maxPeerMessage))
	if err != nil {
		return nil, err
	}
	var out []Notice
	for messages := 0; ; messages++ {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case messages > len(state.Scopes):
			return nil, fmt.Errorf("more than %d messages", len(state.Scopes)+1)
		}
		switch news := m.GetNews().(type) {
		case *fealtyv1.ListSharedResponse_Snapshot:
			n := Notice{news.Snapshot.GetScope(), news.Snapshot.GetEnvelope()}
			if err := checkShared(n); err != nil {
				return nil, err
			}
			out = append(out, n)
		case *fealtyv1.ListSharedResponse_HistoryLinks:
			s.f.Node.HearLinks(ctx, news.HistoryLinks.GetLinks())
		}
	}
}

// ofOne reports whether a header is for one node alone.
func ofOne(h snapshot.Header) bool {
	_, _, one := h.Subject.Node()
	return one
}

// checkShared refuses what no peer has to give: what is for one node alone, and a content
// that came with its header, whose size nobody signed yet.
func checkShared(n Notice) error {
	signed, err := snapshot.Unmarshal(n.Raw)
	if err != nil {
		return fmt.Errorf("what it gave as %.40q cannot be read: %w", n.Scope, err)
	}
	claims, err := signed.Claims()
	switch {
	case err != nil:
		return fmt.Errorf("what it gave as %.40q cannot be read: %w", n.Scope, err)
	case ofOne(claims.Header):
		return fmt.Errorf("it gave %.40q of %.80q, which is for one node alone", claims.Header.ScopeType,
			claims.Header.Subject)
	case signed.Publication != nil && (len(signed.Content) > 0 || len(signed.Patch) > 0):
		return fmt.Errorf("it gave %.40q with its content, which nobody asked for", claims.Header.ScopeType)
	}
	return nil
}

// Content implements source.
func (s *peerSource) Content(ctx context.Context, _ snapshot.Scope, hash snapshot.Digest, _ int) (io.ReadCloser,
	error) {
	client, shown, err := s.reach()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.GetShared(ctx, &fealtyv1.GetSharedRequest{Name: s.f.Node.Me().ID.Name(), NodeRuntime: shown,
		ContentHash: hash[:]}, grpc.MaxCallRecvMsgSize(maxChunkBytes))
	if err != nil {
		cancel()
		return nil, err
	}
	return &chunks{cancel: cancel, next: func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk(), err
	}}, nil
}
