package owner

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

// Timeout bounds one stream on which the history is shown: a long one takes its receiver a while. Patience bounds
// one page of it, and then the wait for what the receiver answers.
const (
	Timeout  = 2 * time.Minute
	Patience = 30 * time.Second
)

// VerificationConfig is what a Verification is made of.
type VerificationConfig struct {
	Self    *authority.Enrolment
	Head    *authority.Head
	Readers *ratelimit.Readers
	Now     func() time.Time
}

// Verification serves VerifyService. Make it with [NewVerification].
type Verification struct {
	cfg       VerificationConfig
	verifiers *ratelimit.Limiter
	showing   chan struct{} // held by who looks what history there is to show; capacity 1
	shown     *shown        // owned by who holds showing
}

// NewVerification returns a Verification. It reads nothing yet.
func NewVerification(cfg VerificationConfig) *Verification {
	return &Verification{cfg: cfg, verifiers: newVerifiers(), showing: make(chan struct{}, 1)}
}

// RegisterServices registers the service by which anybody checks the history. A call of it is under the context
// that [Verification.Enter] returns.
func (v *Verification) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterVerifyServiceServer(to, verifyServer{v: v})
}

// slotKey is the key of a slot in the context of a call.
type slotKey struct{}

// Enter takes a slot for a caller at addr, before its request is read, for at most [Timeout]. leave is called once:
// it gives the slot back, and words what ended the call. The error is that there is no slot for this address
// ([errcode.RateLimited]).
func (v *Verification) Enter(ctx context.Context, addr string) (in context.Context, leave func(error) error,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	slot, err := v.verifiers.Enter(ctx, addr, v.cfg.Now())
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return context.WithValue(slot.Context(), slotKey{}, slot), func(err error) error {
		defer cancel()
		defer slot.Leave()
		return slot.Reason(err)
	}, nil
}

// slotOf returns the slot that was taken before the request was read.
func slotOf(ctx context.Context) (*ratelimit.Slot, error) {
	slot, ok := ctx.Value(slotKey{}).(*ratelimit.Slot)
	if !ok {
		return nil, errcode.New(errcode.Internal, "what", "a call without a slot")
	}
	return slot, nil
}

// Bounds on strangers who verify this coordinator. Each is sent all links of the history.
const (
	maxAtOnce                 = 512
	MaxVerificationsPerSource = 4
	// verifyRate and verifyBurst bound the verifications that one address begins, per
	// second.
	verifyRate  = 1
	verifyBurst = 50
)

// newVerifiers bounds the callers that verify, and never prove anything.
func newVerifiers() *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Limits{
		What: "verifications", PerSecond: verifyRate, Burst: verifyBurst,
		Most: maxAtOnce, PerSource: MaxVerificationsPerSource, Patience: Patience,
	})
}

// verifyServer serves VerifyService.
type verifyServer struct {
	fealtyv1.UnimplementedVerifyServiceServer
	v *Verification
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
func (s verifyServer) Verify(req *fealtyv1.VerifyRequest, stream fealtyv1.VerifyService_VerifyServer) error {
	slot, err := slotOf(stream.Context())
	if err != nil {
		return err
	}
	v, ctx := s.v, slot.Context()
	if v.cfg.Head.State().Phase == authority.Uninitialized {
		return errcode.New(errcode.HistoryUninitialized)
	}
	if len(req.GetNonce()) != proof.NonceBytes {
		return errcode.New(errcode.RequestField,
			"field", "nonce", "problem", fmt.Sprintf("it has %d bytes, want %d", len(req.GetNonce()), proof.NonceBytes))
	}
	ch, err := proof.OpenChallenge(ctx)
	if err != nil {
		return err
	}
	claim, h, err := v.Claim(ctx, req.GetNonce(), ch.Binding)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_Claim{Claim: claim}}); err != nil {
		return err
	}
	return Send(slot, v.cfg.Readers, h, func(page *fealtyv1.RecoveryHistory) error {
		return stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_History{History: page}})
	})
}

// Claim says what this coordinator is at the head that the store shows, proven
// over a connection.
func (v *Verification) Claim(ctx context.Context, nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History,
	error) {
	s := v.cfg.Head.State()
	if s.Phase == authority.Uninitialized {
		return nil, nil, errcode.New(errcode.HistoryUninitialized)
	}
	sh, err := v.showHistory(ctx)
	if err != nil {
		return nil, nil, err
	}
	t := proof.VerifyTranscript{Cluster: sh.cluster, Nonce: nonce, Binding: binding, Head: sh.head[:]}
	// One whose state is not that head shows no authority: it is behind.
	if s.Phase == authority.Ready && s.Head.Hash == sh.head {
		mesh, err := s.FreshMeshCA(v.cfg.Now())
		if err != nil {
			return nil, nil, err
		}
		t.Ready, t.Root, t.MeshCA = true, s.Root.Raw, mesh.Certificate().Raw
		t.TransactionKey = s.Secrets.TransactionKey()
	}
	key, evidence, err := proof.ProveVerify(v.cfg.Self.PrivateKey(), t)
	if err != nil {
		return nil, nil, err
	}
	vouch, err := v.cfg.Self.VouchFor(t)
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
func (v *Verification) showHistory(ctx context.Context) (*shown, error) {
	select {
	case v.showing <- struct{}{}:
		defer func() { <-v.showing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	head, _, err := v.cfg.Head.History().Head(ctx)
	if err != nil {
		return nil, v.cfg.Head.ClaimedHistoryError(err)
	}
	// The record too: nobody vouched for its signature.
	if v.shown != nil && v.shown.head == head.Hash && bytes.Equal(v.shown.history.Head, head.Encode()) {
		return v.shown, nil
	}
	h, links, m, err := v.cfg.Head.ClaimedHistory(ctx)
	if err != nil {
		return nil, err
	}
	// No manifests: a verifier has the one that was agreed on, and links name hashes.
	// The content of a manifest (who may join by what, and who holds the seed) is for people
	// who have logged in.
	h = &history.History{Head: h.Head, Links: h.Links}
	v.shown = &shown{head: links[len(links)-1].Hash, cluster: m.Cluster, history: h}
	return v.shown, nil
}

// Send sends h to a caller that has a slot. A page that is not taken in time ends that:
// the stream does not see by itself that nobody reads.
func Send(slot *ratelimit.Slot, readers *ratelimit.Readers, h *history.History,
	send func(*fealtyv1.RecoveryHistory) error) error {
	return Pages(h, func(page *fealtyv1.RecoveryHistory) error {
		defer slot.Progress()
		return readers.Do(slot.Context(), func() error { return send(page) })
	})
}

// maxShownPage bounds a page of the history that strangers are sent, unless one manifest is
// larger: who does not take it has it kept.
const maxShownPage = 256 << 10

// Pages sends h in pages that any client takes.
func Pages(h *history.History, send func(*fealtyv1.RecoveryHistory) error) error {
	page, size := &fealtyv1.RecoveryHistory{}, 0
	flush := func() error {
		err := send(page)
		page, size = &fealtyv1.RecoveryHistory{}, 0
		return err
	}
	sent := make(map[manifest.Hash]bool)
	for _, raw := range h.Links {
		t, err := history.Decode(raw)
		if err != nil {
			return err // it was decoded when it was read
		}
		more := len(raw)
		if h.Manifests == nil {
			sent[t.Manifest] = true // it is shown without
		}
		if !sent[t.Manifest] {
			more += len(h.Manifests[t.Manifest])
		}
		if size+more > maxShownPage && size > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
		size += more
		page.Transitions = append(page.Transitions, raw)
		if !sent[t.Manifest] {
			sent[t.Manifest] = true
			page.Manifests = append(page.Manifests, h.Manifests[t.Manifest])
		}
	}
	page.Head = h.Head
	return flush()
}
