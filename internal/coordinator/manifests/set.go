package manifests

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	"github.com/fealty-io/fealty/internal/proof"
)

// maxHistoryPage bounds the transitions and manifests of one answer.
const maxHistoryPage = 3 << 20

// firstSetsAtOnce bounds who brings a first manifest, and firstSetsPerSource those of them
// from one address: what they bring is large.
const (
	firstSetsAtOnce    = 32
	firstSetsPerSource = 8
)

// newFirstSets are the places of who sets the first manifest. The caller that proves
// the setup token keeps its slot.
func newFirstSets() *ratelimit.Limiter {
	return ratelimit.New(ratelimit.Limits{What: "first sets", Most: firstSetsAtOnce,
		PerSource: firstSetsPerSource, Patience: ratelimit.AnswerTimeout, PerHolder: 1})
}

// manifestServer serves ManifestService.
type manifestServer struct {
	fealtyv1.UnimplementedManifestServiceServer
	c *Manifests
}

// RegisterServices registers the services that set and reseed the manifest.
func (c *Manifests) RegisterServices(to grpc.ServiceRegistrar) {
	fealtyv1.RegisterManifestServiceServer(to, manifestServer{c: c})
	fealtyv1.RegisterReseedServiceServer(to, reseedServer{c: c})
}

func (m manifestServer) SetManifest(ctx context.Context,
	req *fealtyv1.SetManifestRequest) (*fealtyv1.SetManifestResponse, error) {
	return m.c.Set(ctx, req, identity.FromContext(ctx).Local != nil)
}

// FirstSet is a set over a proof of the setup token, bound to this channel and
// to this manifest.
func (m manifestServer) FirstSet(stream fealtyv1.ManifestService_FirstSetServer) error {
	c := m.c
	ctx, cancel := context.WithTimeout(stream.Context(), ratelimit.ExchangeTimeout)
	defer cancel()
	if c.cfg.Self.SetupKey() == nil { // before anything is read
		return errcode.New(errcode.HistoryInitialized)
	}
	addr := identity.FromContext(ctx).Addr
	if !c.cfg.Limiter.Allow(addr, c.cfg.Now()) {
		return errcode.New(errcode.RateLimited, "what", "first sets", "limit", fmt.Sprint(c.cfg.Limiter.Limit()))
	}
	slot, err := c.firstSets.Enter(ctx, addr, c.cfg.Now())
	if err != nil {
		return err
	}
	defer slot.Leave()
	return slot.Reason(m.firstSet(slot, stream))
}

func (m manifestServer) firstSet(slot *ratelimit.Slot, stream fealtyv1.ManifestService_FirstSetServer) error {
	c, ctx := m.c, slot.Context()
	ch, err := proof.OpenChallenge(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Nonce{Nonce: ch.Nonce},
		PartBytes: ratelimit.PartBytes}); err != nil {
		return err
	}
	req, err := ratelimit.Receive(ctx, c.cfg.Readers, stream.Recv)
	if err != nil {
		return err
	}
	if err := ch.Stale(); err != nil {
		return err
	}
	setup := c.cfg.Self.SetupKey()
	if setup == nil {
		return errcode.New(errcode.HistoryInitialized)
	}
	t := proof.SetupTranscript{Nonce: ch.Nonce, Binding: ch.Binding, Manifest: req.GetSet().GetManifest(),
		Hash: req.GetManifestHash()}
	if err := proof.VerifySetup(setup, t, req.GetEvidence()); err != nil {
		c.cfg.Refusals.Log(ctx, c.cfg.Log, slog.LevelWarn, "first set refused",
			slog.String("remote", identity.FromContext(ctx).Addr), slog.Any("err", err))
		return errcode.Wrap(err, errcode.SetupRefused)
	}
	if err := slot.Prove("the setup token"); err != nil {
		return err
	}
	if len(req.GetManifestHash()) > 0 {
		if req.Set == nil {
			req.Set = &fealtyv1.SetManifestRequest{}
		}
		if req.Set.Manifest, err = c.manifestParts(ctx, req, stream); err != nil {
			return err
		}
	}
	done, err := c.Set(ctx, req.GetSet(), true)
	if err != nil {
		return err
	}
	return stream.Send(&fealtyv1.FirstSetResponse{Step: &fealtyv1.FirstSetResponse_Done{Done: done}})
}

// manifestParts receives the manifest whose hash was proven.
func (c *Manifests) manifestParts(ctx context.Context, req *fealtyv1.FirstSetRequest,
	stream fealtyv1.ManifestService_FirstSetServer) ([]byte, error) {
	size := int(req.GetManifestBytes())
	if size == 0 || size > manifest.MaxBytes {
		return nil, errcode.New(errcode.RequestField,
			"field", "manifest_bytes",
			"problem", fmt.Sprintf("it is %d, want from 1 to %d", size, manifest.MaxBytes))
	}
	whole, err := ratelimit.ReceiveParts(ctx, c.cfg.Readers, nil, size, func() ([]byte, bool, error) {
		m, err := stream.Recv()
		return m.GetPart(), true, err
	})
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(whole); !bytes.Equal(sum[:], req.GetManifestHash()) {
		return nil, errcode.New(errcode.RequestField,
			"field", "part", "problem", "the manifest is not the one that was proven")
	}
	return whole, nil
}

// Set makes a manifest the one in force. first allows a set without signatures
// where there is no history: who asks is at the machine, or proved the setup
// token.
//
// The order is the proof (docs/explanation/failure-model.md): the new mesh CA key is made and
// sealed before the head moves, so that a crash right after the swap costs
// nothing; the head moves by compare-and-swap; an unknown outcome is settled by
// reading the head.
func (c *Manifests) Set(ctx context.Context, req *fealtyv1.SetManifestRequest,
	first bool) (*fealtyv1.SetManifestResponse, error) {
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	s, release, err := c.cfg.Succession.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	next, err := c.proposed(s, req.GetManifest())
	if err != nil {
		return nil, err
	}
	if err := c.staysAdmitted(s, next); err != nil {
		return nil, err
	}
	if err := c.readByAll(ctx, s, next); err != nil {
		return nil, err
	}
	if err := c.cfg.Keepers.Usable(next); err != nil {
		return nil, err
	}
	mv, err := transition.Compose(req, s, next, first, c.cfg.Now())
	inUse := false
	defer func() {
		if !inUse {
			mv.Wipe()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := c.lookAtKeepers(ctx, mv); err != nil {
		return nil, err
	}
	if err := c.cfg.Succession.Fits(ctx, mv); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		return &fealtyv1.SetManifestResponse{Transition: transition.Message(mv.Link)}, nil
	}
	if err := c.cfg.Succession.WriteSecrets(ctx, mv); err != nil {
		return nil, err
	}
	if inUse, err = c.cfg.Succession.Swap(ctx, mv); err != nil {
		return nil, err
	}
	return &fealtyv1.SetManifestResponse{Transition: transition.Message(mv.Link), Shares: mv.Shares.Message(),
		KeysMade: mv.Sealing.Made}, nil
}

// lookAtKeepers has the keepers of the move looked at, and refuses one that they cannot follow.
func (c *Manifests) lookAtKeepers(ctx context.Context, mv *transition.Move) error {
	mv.Sealing = mv.Seals()
	return c.cfg.Keepers.Look(ctx, &mv.Sealing)
}

// staysAdmitted reports whether next admits this coordinator, and under the name
// that it has.
func (c *Manifests) staysAdmitted(s *authority.State, next *manifest.Manifest) error {
	entry, err := c.cfg.Self.Admits(next)
	if err != nil || s.Phase != authority.Ready {
		return err
	}
	if now, err := c.cfg.Self.Admits(s.Manifest); err == nil && now.Name != entry.Name {
		return errcode.New(errcode.RequestField, "field", "admit", "problem",
			fmt.Sprintf("it renames this coordinator from %s to %s, and a process keeps its identity: keep the name, "+
				"or add the other one for another enrolment key", now.Name, entry.Name))
	}
	return nil
}

// readByAll refuses a field that is new in next and that a coordinator which next admits,
// and which is heard, cannot read: it would refuse the whole manifest, and be none any
// more.
func (c *Manifests) readByAll(ctx context.Context, s *authority.State, next *manifest.Manifest) error {
	before := []string(nil)
	if s.Phase == authority.Ready {
		before = s.Manifest.LaterFields()
	}
	added := slices.DeleteFunc(next.LaterFields(), func(f string) bool {
		return slices.Contains(before, f) && (f != manifest.Long || next.Hash() == s.Manifest.Hash())
	})
	if len(added) == 0 {
		return nil
	}
	all, err := c.cfg.Replicas.Newest(ctx, next)
	if err != nil {
		return c.cfg.Head.StoreError("read what the coordinators read", err)
	}
	for _, r := range all {
		if r.Key == c.cfg.Self.EnrolmentKey() || r.Stopped || c.cfg.Now().Sub(r.At).Abs() >= peer.SilentAfter {
			continue
		}
		for _, field := range added {
			if !slices.Contains(r.Reads, field) {
				return errcode.New(errcode.ManifestFieldUnread, "field", field, "coordinator", r.Name,
					"release", cmp.Or(r.Release, "an earlier one"))
			}
		}
	}
	return nil
}

// proposed reads a manifest that is to follow s. One that is in force already was
// accepted: what a later release would refuse in it must not stand in the way of a new
// seed.
func (c *Manifests) proposed(s *authority.State, data []byte) (*manifest.Manifest, error) {
	if s.Phase == authority.Ready && manifest.Hash(sha256.Sum256(data)) == s.Manifest.Hash() {
		return s.Manifest, nil
	}
	m, err := c.cfg.Parse(data)
	if err != nil {
		return nil, manifestProblems(err)
	}
	return m, nil
}

func manifestProblems(err error) error {
	var invalid *manifest.InvalidError
	if !errors.As(err, &invalid) {
		return errcode.Wrap(err, errcode.ManifestInvalid, "problem", err.Error())
	}
	return errcode.Wrap(err, errcode.ManifestInvalid, "count", fmt.Sprint(len(invalid.Problems)),
		"problem", invalid.Problems[0].Error())
}

func (m manifestServer) GetManifest(ctx context.Context,
	req *fealtyv1.GetManifestRequest) (*fealtyv1.GetManifestResponse, error) {
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetIndex() == 0 || req.GetIndex() == s.Head.Index {
		return &fealtyv1.GetManifestResponse{Manifest: s.Manifest.Bytes(), Transition: transition.Message(s.Head)}, nil
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, l := range v.Links() {
		if l.Index == req.GetIndex() {
			return &fealtyv1.GetManifestResponse{Manifest: h.Manifests[l.Manifest],
				Transition: transition.Message(l)}, nil
		}
	}
	return nil, errcode.New(errcode.NotFound, "what", "transition", "name", fmt.Sprint(req.GetIndex()))
}

func (m manifestServer) GetHistory(ctx context.Context, req *fealtyv1.GetHistoryRequest) (*fealtyv1.GetHistoryResponse,
	error) {
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	v, h, err := m.c.verifiedHistory(ctx, s)
	if err != nil {
		return nil, err
	}
	key, err := x509.MarshalPKIXPublicKey(s.Secrets.Transaction().Public())
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.GetHistoryResponse{Head: h.Head, TransactionKey: key}
	sent := make(map[manifest.Hash]bool)
	size := 0
	for _, l := range v.Links() {
		if l.Index < req.GetFrom() {
			continue
		}
		t := transition.Message(l)
		size += len(t.GetRecord())
		if !sent[l.Manifest] {
			size += len(h.Manifests[l.Manifest])
		}
		// Clients take no more than 4 MiB. A caller that does not see the head yet
		// asks again, from the index after the last.
		if size > maxHistoryPage && len(out.Transitions) > 0 {
			break
		}
		out.Transitions = append(out.Transitions, t)
		if !sent[l.Manifest] {
			sent[l.Manifest] = true
			out.Manifests = append(out.Manifests, h.Manifests[l.Manifest])
		}
	}
	return out, nil
}

// verifiedHistory reads the history and verifies it again: what is shown is what
// the store holds, and no more than what verifies.
func (c *Manifests) verifiedHistory(ctx context.Context, s *authority.State) (*history.Verified, *history.History,
	error) {
	h, err := c.cfg.Head.History().Load(ctx)
	var damaged *history.BlobError
	switch {
	case errors.As(err, &damaged), errors.Is(err, history.ErrEmpty), errors.Is(err, history.ErrEncoding), errors.Is(err,
		history.ErrUnverified):
		return nil, nil, errcode.Wrap(err, errcode.HistoryInvalid, "cluster", s.Manifest.Cluster, "problem",
			err.Error())
	case err != nil:
		return nil, nil, c.cfg.Head.StoreError("read the history", err)
	}
	v, err := history.Verify(h, s.Secrets.TransactionKey())
	if err != nil {
		return nil, nil, errcode.Wrap(err, errcode.HistoryInvalid, "cluster", s.Manifest.Cluster, "problem",
			err.Error())
	}
	return v, h, nil
}

// PreviewManifest says which members and tokens a manifest would cut off.
func (m manifestServer) PreviewManifest(ctx context.Context,
	req *fealtyv1.PreviewManifestRequest) (*fealtyv1.PreviewManifestResponse, error) {
	c := m.c
	s, err := c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	next, err := c.proposed(s, req.GetManifest())
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.PreviewManifestResponse{Manifest: s.Manifest.Bytes(), Transition: transition.Message(s.Head)}
	if err := c.cfg.Preview(ctx, s, next, out); err != nil {
		return nil, err
	}
	return out, nil
}

// ForgetKeeperKey removes what a keeper sealed under one key.
func (m manifestServer) ForgetKeeperKey(ctx context.Context,
	req *fealtyv1.ForgetKeeperKeyRequest) (*fealtyv1.ForgetKeeperKeyResponse, error) {
	c := m.c
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	release, err := c.cfg.Turn.Take(ctx) // no set of ours seals meanwhile
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	return c.cfg.Keepers.Forget(ctx, s, req)
}

// GetSeedShares returns the shares that the owners of the manifest in force should
// hold. In recovery mode it is served to this machine alone.
func (m manifestServer) GetSeedShares(ctx context.Context,
	_ *fealtyv1.GetSeedSharesRequest) (*fealtyv1.GetSeedSharesResponse, error) {
	if m.c.cfg.Head.State().Phase == authority.Recovery && identity.FromContext(ctx).Local != nil {
		return m.c.cfg.Shares.Claimed(ctx)
	}
	s, err := m.c.cfg.Head.AtHead(ctx)
	if err != nil {
		return nil, err
	}
	return m.c.cfg.Shares.InForce(ctx, s)
}
