package peer

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/store"
)

// Bounds on what strangers can make a coordinator do as a peer.
const (
	// MaxAsking bounds the exchanges under way with who has proven nothing yet,
	// peersPerSource those with one address, and peersPerKey those with one coordinator.
	MaxAsking      = 512
	peersPerSource = 8
	peersPerKey    = 4
	// peerRate and peerBurst bound the exchanges that one address begins, per second.
	peerRate  = 2
	peerBurst = 40
)

// newPeerCalls bounds the coordinators that ask.
func newPeerCalls(most int) *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Limits{
		What: "calls of coordinators", PerSecond: peerRate, Burst: peerBurst,
		Most: most, PerSource: peersPerSource, Patience: peerTimeout, PerHolder: peersPerKey,
	})
}

// peerServer serves PeerService.
type peerServer struct {
	fealtyv1.UnimplementedPeerServiceServer
	c *PeerRecovery
}

// RegisterServices registers the service that other coordinators ask for secrets.
func (c *PeerRecovery) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterPeerServiceServer(to, peerServer{c: c})
}

// greeted is an exchange whose asker was answered, and has proven nothing yet.
type greeted struct {
	state      *authority.State // that it is decided on
	transcript proof.PeerTranscript
	asker      manifest.Match    // its entry in the manifest in force here, by what it claims
	key        string            // the enrolment key that it claims
	shown      proof.Coordinator // what it claims; what it proved, after proven
}

func (g *greeted) name() string { return string(identity.Coordinator) + "/" + g.asker.Name }

// greet decides whether to go on with who says hello, and proves to it who this is. It
// tells strangers no more than that they are none of ours, or that nothing is served
// here.
func (c *PeerRecovery) greet(ctx context.Context, purpose proof.PeerPurpose, h *fealtyv1.PeerHello,
	recipient string) (*greeted, *fealtyv1.PeerChallenge, error) {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, nil, err
	}
	key, err := proof.ParseKeyClaim(ratelimit.Clip(h.GetKey(), proof.MaxClaimBytes))
	if err != nil {
		return nil, nil, refusedPeer(err.Error())
	}
	g := &greeted{state: s, key: h.GetKey()}
	if g.shown, err = proof.ClaimedCoordinator(g.key, h.GetCertificates()); err != nil {
		return nil, nil, refusedPeer(err.Error())
	}
	if _, unknown := g.shown.Match(s.Manifest,
		c.cfg.Now()); unknown == nil && string(h.GetHead()) != string(s.Head.Hash[:]) {
		// It may have seen a newer head than this one has.
		if s, err = c.cfg.HeadIfFree(ctx); err != nil {
			return nil, nil, err
		}
		g.state = s
	}
	if h.GetCluster() != s.Manifest.Cluster {
		return nil, nil, refusedPeer(strangerThere)
	}
	if g.asker, err = g.shown.Match(s.Manifest, c.cfg.Now()); err != nil {
		return nil, nil, refusedPeer(err.Error())
	}
	cs, ok := proof.ConnectionState(ctx)
	if !ok {
		return nil, nil, errcode.New(errcode.JoinNoBinding, "problem", "the call came over no TLS connection")
	}
	binding, err := proof.Binding(cs)
	if err != nil {
		return nil, nil, errcode.Wrap(err, errcode.JoinNoBinding, "problem", err.Error())
	}
	nonce := make([]byte, proof.NonceBytes)
	rand.Read(nonce)
	if recipient == "" {
		recipient = h.GetRecipient()
	}
	g.transcript = proof.PeerTranscript{
		Purpose: purpose, Cluster: s.Manifest.Cluster, Head: h.GetHead(), AskerNonce: h.GetNonce(), GiverNonce: nonce,
		Binding: binding, Recipient: recipient, AskerKey: key,
		GiverKey: c.cfg.Self.PrivateKey().Public().(ed25519.PublicKey),
	}
	evidence, vouch, err := c.provePeer(proof.Giver, g.transcript)
	if err != nil {
		return nil, nil, refusedPeer(err.Error()) // of what it sent
	}
	return g, &fealtyv1.PeerChallenge{Nonce: nonce, Key: c.cfg.Self.EnrolmentKey(), Recipient: recipient,
		Evidence: evidence, X509: vouch}, nil
}

// strangerThere is all that a stranger is told.
const strangerThere = "no entry of kind coordinator names its key in the manifest in force there"

func refusedPeer(problem string) error {
	return errcode.New(errcode.PeerRefused, "problem", problem)
}

// behind says, to who has proven itself, that what was asked for is not the head here,
// or here is not the head.
func (c *PeerRecovery) behind(g *greeted, problem string) error {
	c.cfg.Head.LookAgain() // one of the two is behind; it may be this one
	return errcode.New(errcode.PeerBehind, "peer", c.cfg.Self.NameIn(g.state.Manifest),
		"asked", transition.ShortHex(g.transcript.Head),
		"problem", problem)
}

// proven verifies the asker's half of the proof, and then that the head is the one that
// was asked for, the one that is served here, and the newest: who lags must not give
// what is older.
//
// The peer may prove less than it claimed, and another certificate: what it proved is
// matched.
func (g *greeted) proven(ctx context.Context, c *PeerRecovery, evidence, vouch []byte) error {
	shown, err := provenPeer(proof.Asker, g.transcript, evidence, vouch)
	if err != nil {
		return refusedPeer(err.Error())
	}
	g.shown = shown
	if err := c.cfg.Faults.Hit("peer.before-reread"); err != nil {
		return err
	}
	head, version, err := c.cfg.Head.History().Head(ctx)
	if err != nil {
		return c.cfg.Head.StoreError("read the head of the history", err)
	}
	asker, stranger := g.shown.Match(g.state.Manifest, c.cfg.Now())
	g.asker = asker
	asked := history.Hash(g.transcript.Head)
	switch answer := decide.Give(c.cfg.Keys.Memory(g.state), head.Hash, asked, stranger == nil); {
	case answer == decide.Stranger:
		return refusedPeer(stranger.Error())
	case answer == decide.OtherHead:
		return c.behind(g, fmt.Sprintf("there it is %s at index %d", g.state.Head.Hash.String()[:16],
			g.state.Head.Index))
	case answer != decide.Given, c.cfg.Head.State() != g.state, version != g.state.HeadVersion:
		return c.behind(g, fmt.Sprintf("the history moved on to index %d, and that one has not followed yet",
			head.Index))
	}
	return nil
}

// admit runs serve in a slot of its own, for a bounded time, and counts and logs what
// came of it.
func (p peerServer) admit(ctx context.Context, purpose proof.PeerPurpose,
	serve func(context.Context, *ratelimit.Slot) (*greeted, error)) error {
	c := p.c
	addr := identity.FromContext(ctx).Addr
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	slot, err := c.peerCalls.Enter(ctx, addr, c.cfg.Now())
	if err != nil {
		c.metrics.peerCalls.WithLabelValues(string(purpose), errcode.CodeOf(err)).Inc()
		return err
	}
	defer slot.Leave()
	g, err := serve(slot.Context(), slot)
	err = slot.Reason(err)
	label := "given"
	switch {
	case err != nil && errcode.CodeOf(err) != "":
		label = errcode.CodeOf(err)
	case err != nil:
		label = "error"
	case purpose == proof.Prepare:
		label = "taken"
	}
	c.metrics.peerCalls.WithLabelValues(string(purpose), label).Inc()
	attrs := []slog.Attr{slog.String("remote", addr), slog.String("purpose", string(purpose))}
	if g != nil {
		attrs = append(attrs, slog.String("peer", g.name()), slog.String("key", g.key))
	}
	if err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "a coordinator was refused",
			append(attrs, slog.String("code", errcode.CodeOf(err)), slog.String("reason", err.Error()))...)
		return err
	}
	c.cfg.Log.LogAttrs(ctx, slog.LevelInfo, "secrets were handed over between coordinators", append(attrs,
		slog.String("outcome", label))...)
	return nil
}

// Recover gives seed and mesh CA key of the head to a coordinator that the manifest in
// force here names.
func (p peerServer) Recover(stream fealtyv1.PeerService_RecoverServer) error {
	return p.admit(stream.Context(), proof.Recover, func(
		ctx context.Context, slot *ratelimit.Slot,
	) (*greeted, error) {
		c := p.c
		req, err := ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv)
		if err != nil {
			return nil, err
		}
		g, challenge, err := c.greet(stream.Context(), proof.Recover, req.GetHello(), "")
		if err != nil {
			return g, err
		}
		if err := stream.Send(&fealtyv1.PeerServiceRecoverResponse{
			Step: &fealtyv1.PeerServiceRecoverResponse_Challenge{Challenge: challenge}}); err != nil {
			return g, err
		}
		if req, err = ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv); err != nil {
			return g, err
		}
		if err := g.proven(ctx, c, req.GetEvidence(), req.GetX509()); err != nil {
			return g, err
		}
		if err := slot.Prove(g.key); err != nil {
			return g, err
		}
		secrets, err := c.give(ctx, g, req.GetEvidence(), req.GetX509())
		if err != nil {
			return g, err
		}
		return g, stream.Send(&fealtyv1.PeerServiceRecoverResponse{Step: &fealtyv1.PeerServiceRecoverResponse_Secrets{
			Secrets: secrets}})
	})
}

// give seals the secrets of the state for who proved itself. The audit entry is durable
// before they leave; that it is written says too that the head is still the one.
func (c *PeerRecovery) give(ctx context.Context, g *greeted, evidence, vouch []byte) (*fealtyv1.PeerSecrets, error) {
	mesh, err := g.state.FreshMeshCA(c.cfg.Now())
	if err != nil {
		return nil, err
	}
	sealed, err := g.state.Secrets.HandOver(g.transcript.Recipient, keyring.Handover{
		Purpose: string(proof.Recover), Cluster: g.transcript.Cluster, From: c.cfg.Self.EnrolmentKey(), To: g.key,
		Head: g.state.Head.Hash,
	}, mesh)
	if err != nil {
		return nil, refusedPeer("nothing can be sealed to its recipient")
	}
	if err := c.cfg.Faults.Hit("peer.before-audit"); err != nil {
		return nil, err
	}
	if err := c.auditHandover(ctx, g, evidence, vouch, record.AuditEntry{Action: "seed.given", Target: g.name(),
		Fields: map[string]string{
			"to": g.asker.Name, "mesh_ca_key": mesh.KeyID().String(),
			"head": g.state.Head.Hash.String(), "index": fmt.Sprint(g.state.Head.Index),
		}}); err != nil {
		return nil, err
	}
	return &fealtyv1.PeerSecrets{Sealed: sealed, Root: g.state.Root.Raw, MeshCa: mesh.Certificate().Raw,
		Manifest: g.state.Manifest.Bytes()}, nil
}

// auditHandover writes down what is handed over with the proof for it: the key, its
// signature, and the digest that was signed. It fails if the head moved.
func (c *PeerRecovery) auditHandover(ctx context.Context, g *greeted, evidence, vouch []byte,
	e record.AuditEntry) error {
	digest, err := g.transcript.Digest(proof.Asker)
	if err != nil {
		return err
	}
	e.Actor = c.cfg.Self.OwnID(g.state)
	e.Fields["key"], e.Fields["proof"] = g.key, base64.StdEncoding.EncodeToString(evidence)
	e.Fields["transcript"] = base64.StdEncoding.EncodeToString(digest[:])
	if g.asker.Entry != nil && !strings.HasPrefix(g.asker.Selector, "key:") {
		e.Fields["shown"], e.Fields["x509"] = g.asker.Selector, base64.StdEncoding.EncodeToString(vouch)
	}
	ch := g.state.Records.NewChange(g.state.HeadVersion)
	ch.Audit(c.cfg.Now(), e)
	if _, err := ch.Commit(ctx); err != nil {
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && conflict.Key == history.HeadKey {
			return c.behind(g, "the history moved on, and that one has not followed yet")
		}
		return c.cfg.Head.StoreError("audit what is handed over", err)
	}
	return nil
}
