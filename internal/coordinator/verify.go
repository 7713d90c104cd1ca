package coordinator

import (
	"bytes"
	"context"
	"fmt"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/challenge"
	"github.com/fealty-io/fealty/internal/coordinator/ownerrecovery"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
)

// Bounds on strangers who verify this coordinator. Each is sent all links of the history.
const (
	verifiersAtOnce    = 512
	verifiersPerSource = 4
	// verifyRate and verifyBurst bound the verifications that one address begins, per
	// second.
	verifyRate  = 1
	verifyBurst = 50
)

// newVerifiers bounds the callers that verify, and never prove anything.
func newVerifiers() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{
		What: "verifications", PerSecond: verifyRate, Burst: verifyBurst,
		Most: verifiersAtOnce, PerSource: verifiersPerSource, Patience: ownerrecovery.HistoryPatience,
	})
}

// verifyServer serves VerifyService.
type verifyServer struct {
	fealtyv1.UnimplementedVerifyServiceServer
	c *Coordinator
}

// shown is a history as the store claims it, without its manifests, and what a
// coordinator says of it.
// It is read again when the head moves, not for each stranger who asks.
type shown struct {
	head    history.Hash
	cluster string
	history *history.History
}

// Verify proves to a stranger who this is, and shows the links of the history. It decides nothing
// and reads no more than the head, unless that moved.
func (v verifyServer) Verify(req *fealtyv1.VerifyRequest, stream fealtyv1.VerifyService_VerifyServer) error {
	slot, err := slotOf(stream.Context())
	if err != nil {
		return err
	}
	c, ctx := v.c, slot.Context()
	if c.rooms.Head.State().Phase == authority.Uninitialized {
		return explain.New(explain.HistoryUninitialized)
	}
	if len(req.GetNonce()) != proof.NonceBytes {
		return explain.New(explain.RequestField,
			"field", "nonce", "problem", fmt.Sprintf("it has %d bytes, want %d", len(req.GetNonce()), proof.NonceBytes))
	}
	ch, err := challenge.Open(ctx)
	if err != nil {
		return err
	}
	claim, h, err := c.verifyClaim(ctx, req.GetNonce(), ch.Binding)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_Claim{Claim: claim}}); err != nil {
		return err
	}
	return c.rooms.OwnerRecovery.SendHistory(slot, h, func(page *fealtyv1.RecoveryHistory) error {
		return stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_History{History: page}})
	})
}

// verifyClaim says what this coordinator is at the head that the store shows, proven
// over a connection.
func (c *Coordinator) verifyClaim(ctx context.Context, nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History,
	error) {
	s := c.rooms.Head.State()
	if s.Phase == authority.Uninitialized {
		return nil, nil, explain.New(explain.HistoryUninitialized)
	}
	sh, err := c.showHistory(ctx)
	if err != nil {
		return nil, nil, err
	}
	t := proof.VerifyTranscript{Cluster: sh.cluster, Nonce: nonce, Binding: binding, Head: sh.head[:]}
	// One whose state is not that head shows no authority: it is behind.
	if s.Phase == authority.Ready && s.Head.Hash == sh.head {
		mesh, err := s.FreshMeshCA(c.now())
		if err != nil {
			return nil, nil, err
		}
		t.Ready, t.Root, t.MeshCA = true, s.Root.Raw, mesh.Certificate().Raw
		t.TransactionKey = s.Secrets.TransactionKey()
	}
	key, evidence, err := proof.ProveVerify(c.rooms.Self.PrivateKey(), t)
	if err != nil {
		return nil, nil, err
	}
	vouch, err := c.rooms.Self.VouchFor(t)
	if err != nil {
		return nil, nil, err
	}
	return &fealtyv1.VerifyClaim{
		Cluster: t.Cluster, Ready: t.Ready, Head: t.Head, Root: t.Root, MeshCa: t.MeshCA,
		TransactionKey: t.TransactionKey,
		Key:            key, Evidence: evidence, X509: vouch,
	}, sh.history, nil
}

// showHistory returns the history at the head that the store shows.
func (c *Coordinator) showHistory(ctx context.Context) (*shown, error) {
	select {
	case c.showing <- struct{}{}:
		defer func() { <-c.showing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	head, _, err := c.rooms.Head.History().Head(ctx)
	if err != nil {
		return nil, c.rooms.Head.ClaimedHistoryError(err)
	}
	// The record too: nobody vouched for its signature.
	if c.shown != nil && c.shown.head == head.Hash && bytes.Equal(c.shown.history.Head, head.Encode()) {
		return c.shown, nil
	}
	h, links, m, err := c.rooms.Head.ClaimedHistory(ctx)
	if err != nil {
		return nil, err
	}
	// No manifests: who verifies has the one that was agreed on, and links name hashes.
	// What a manifest holds, who may join by what and who holds the seed, is for people
	// who have logged in.
	h = &history.History{Head: h.Head, Links: h.Links}
	c.shown = &shown{head: links[len(links)-1].Hash, cluster: m.Cluster, history: h}
	return c.shown, nil
}
