package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/keychain"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

// Bounds of preparing peers for a new head.
const (
	prepareTimeout = 2 * time.Second // of all peers together
	prepareAtOnce  = 16
)

// Prepare hands the new mesh CA key of mv to the ready peers that are coordinators
// before and after it, all at once, so that a crash right after the swap costs nothing.
// It returns the names of those that took it. It is best effort: who has not got the
// key recovers from one that has.
//
// A move that makes no mesh CA key needs none of this, and one that makes a seed hands
// that to nobody before it is in force.
func (c *PeerRecovery) Prepare(ctx context.Context, mv *transition.Move) []string {
	if mv.From == nil || mv.NewSeed || mv.Mesh.KeyID() == mv.From.MeshKey {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	targets := c.preparable(ctx, mv)
	if len(targets) == 0 {
		return nil
	}
	var mu sync.Mutex
	var took []string // guarded by mu
	var g errgroup.Group
	g.SetLimit(prepareAtOnce)
	for _, addr := range targets {
		g.Go(func() error {
			p := &preparing{c: c, move: mv}
			if err := p.bring(ctx, addr); err != nil {
				c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn,
					"a peer was not prepared for the next head; it asks for its key when the head appears",
					slog.String("peer", addr), slog.String("reason", ratelimit.Clip(reasonOf(err), maxPeerError)))
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(took, p.name) {
				took = append(took, p.name)
			}
			return nil
		})
	}
	_ = g.Wait()
	slices.Sort(took)
	return took
}

// preparable returns where the peers are that may take the key of mv: those that said
// that they are ready at its parent, or at the head before that. Such a one follows as soon
// as it is greeted, or has followed and did not come to say so. They have to prove it.
func (c *PeerRecovery) preparable(ctx context.Context, mv *transition.Move) []string {
	others, err := c.cfg.Replicas.Newest(ctx, mv.From.Manifest)
	if err != nil {
		c.cfg.Failures.Log(ctx, c.cfg.Log, slog.LevelWarn, "the replica records were not read", slog.Any("err", err))
		return nil
	}
	var out []string
	parent := mv.From.Head
	for _, r := range others {
		_, stays := r.EntryIn(mv.Manifest, c.cfg.Now())
		near := r.Head == parent.Hash || r.Head == parent.Previous
		if r.Key != c.cfg.Self.EnrolmentKey() && stays && !r.Stopped && r.Phase == authority.Ready.String() && near &&
			len(r.Addresses) > 0 {
			out = append(out, r.Addresses[0])
		}
	}
	return out[:min(len(out), MaxPeers)]
}

// preparing is the bringing of one key to one peer.
type preparing struct {
	c    *PeerRecovery
	move *transition.Move
	name string // of the peer, once it has proven it
}

func (p *preparing) bring(ctx context.Context, addr string) error {
	conn, err := p.c.dialPeer(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := fealtyv1.NewPeerServiceClient(conn).Prepare(ctx)
	if err != nil {
		return err
	}
	from := p.move.From
	x := &exchange{c: p.c, t: proof.PeerTranscript{Purpose: proof.Prepare, Cluster: from.Manifest.Cluster,
		Head: from.Head.Hash[:]}}
	if err := x.open(stream.Context, func(h *fealtyv1.PeerHello) error {
		return stream.Send(&fealtyv1.PeerServicePrepareRequest{Step: &fealtyv1.PeerServicePrepareRequest_Hello{
			Hello: h}})
	}, func() (*fealtyv1.PeerChallenge, error) {
		m, err := stream.Recv()
		return m.GetChallenge(), err
	}); err != nil {
		return err
	}
	_, before := x.giver.Match(from.Manifest, p.c.cfg.Now())
	found, after := x.giver.Match(p.move.Manifest, p.c.cfg.Now())
	if !decide.Prepares(before == nil, after == nil) {
		return fmt.Errorf("it is no coordinator both before and after the change: %w", cmp.Or(before, after))
	}
	p.name = found.Name
	evidence, vouch, err := p.c.provePeer(proof.Asker, x.t)
	if err != nil {
		return err
	}
	sealed, err := authority.HandOverMesh(x.t.Recipient, keyring.Handover{
		Purpose: string(proof.Prepare), Cluster: from.Manifest.Cluster, From: p.c.cfg.Self.EnrolmentKey(),
		To: proof.KeyClaim(x.t.GiverKey), Head: p.move.Link.Hash,
	}, p.move.Mesh)
	if err != nil {
		return err
	}
	raw, err := p.move.Link.Encode()
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.PeerServicePrepareRequest{Step: &fealtyv1.PeerServicePrepareRequest_Candidate{
		Candidate: &fealtyv1.PeerCandidate{
			Evidence: evidence, Transition: raw, Manifest: p.move.Manifest.Bytes(), Sealed: sealed,
			MeshCa: p.move.Mesh.Certificate().Raw, X509: vouch,
		}}}); err != nil && stream.Context().Err() != nil {
		return err
	}
	answer, err := stream.Recv()
	if err == nil && answer.GetTaken() == nil {
		err = errors.New("its answer is none")
	}
	return err
}

// Prepare takes the mesh CA key of a transition that a peer is about to write.
func (p peerServer) Prepare(stream fealtyv1.PeerService_PrepareServer) error {
	return p.admit(stream.Context(), proof.Prepare, func(
		ctx context.Context, slot *ratelimit.Slot,
	) (*greeted, error) {
		c := p.c
		req, err := ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv)
		if err != nil {
			return nil, err
		}
		recipient, err := keyring.NewEphemeral()
		if err != nil {
			return nil, err
		}
		defer recipient.Wipe()
		g, challenge, err := c.greet(stream.Context(), proof.Prepare, req.GetHello(), recipient.Public())
		if err != nil {
			return g, err
		}
		if err := stream.Send(&fealtyv1.PeerServicePrepareResponse{
			Step: &fealtyv1.PeerServicePrepareResponse_Challenge{Challenge: challenge}}); err != nil {
			return g, err
		}
		if req, err = ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv); err != nil {
			return g, err
		}
		candidate := req.GetCandidate()
		if err := g.proven(ctx, c, candidate.GetEvidence(), candidate.GetX509()); err != nil {
			return g, err
		}
		if err := slot.Prove(g.key); err != nil {
			return g, err
		}
		k, err := c.takeKey(g, candidate, recipient)
		if err != nil {
			return g, refusedPeer(err.Error())
		}
		if err := c.auditHandover(ctx, g, candidate.GetEvidence(), candidate.GetX509(),
			record.AuditEntry{Action: "mesh.prepared", Target: k.Link.Hash.String(), Fields: map[string]string{
				"from": g.asker.Name, "mesh_ca_key": k.Mesh.KeyID().String(),
				"head": g.state.Head.Hash.String(), "index": fmt.Sprint(k.Link.Index),
			}}); err != nil {
			authority.WipeMesh(k.Mesh)
			return g, err
		}
		c.cfg.Keys.Prepare(k)
		return g, stream.Send(&fealtyv1.PeerServicePrepareResponse{Step: &fealtyv1.PeerServicePrepareResponse_Taken{
			Taken: &fealtyv1.PeerTaken{}}})
	})
}

// takeKey checks that a candidate would be a link of the history after the head that is
// in force here, with authority over this coordinator, and that the key is its mesh CA's.
func (c *PeerRecovery) takeKey(g *greeted, p *fealtyv1.PeerCandidate,
	recipient *keyring.EphemeralRecipient) (keychain.Prepared, error) {
	t, err := history.Decode(p.GetTransition())
	if err != nil {
		return keychain.Prepared{}, err
	}
	m := g.state.Manifest
	if t.Manifest != m.Hash() {
		if m, err = manifest.ParseAccepted(p.GetManifest()); err != nil {
			return keychain.Prepared{}, err
		}
	}
	next, err := g.state.Chain.Extend(t, m)
	if err != nil {
		return keychain.Prepared{}, err
	}
	link := *next.Current()
	_, stranger := g.shown.Match(g.state.Manifest, c.cfg.Now())
	if answer := decide.Take(c.cfg.Keys.Memory(g.state), decide.HeadOf(&link),
		stranger == nil); answer != decide.Given {
		return keychain.Prepared{}, fmt.Errorf("it is no move of the head that is in force here: %v", answer)
	}
	switch _, err := c.cfg.Self.Admits(m); {
	case err != nil:
		return keychain.Prepared{}, err
	case link.Salt != g.state.Head.Salt || !next.TransactionKey().Equal(g.state.Secrets.TransactionKey()):
		return keychain.Prepared{}, errors.New("it brings another seed into force")
	case link.MeshCAKey == g.state.MeshKey:
		return keychain.Prepared{}, errors.New("it makes no mesh CA key")
	}
	key, err := authority.TakeMesh(recipient, keyring.Handover{
		Purpose: string(proof.Prepare), Cluster: g.transcript.Cluster, From: g.key, To: c.cfg.Self.EnrolmentKey(),
		Head: link.Hash,
	}, p.GetSealed())
	if err != nil {
		return keychain.Prepared{}, err
	}
	mesh, err := key.Load(g.state.Root, p.GetMeshCa(), m.Cluster, link.AuthorityEpoch)
	if err == nil && mesh.KeyID() != link.MeshCAKey {
		err = errors.New("the mesh CA key is not the one of the transition")
	}
	if err != nil {
		key.Wipe()
		return keychain.Prepared{}, err
	}
	return keychain.Prepared{Link: link, Mesh: mesh}, nil
}
