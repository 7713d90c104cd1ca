package manifests

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/transition"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/keepers"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
)

// A reseed gives the cluster a new seed (docs/explanation/reseed.md). Signers sign
// the new public keys, so that the seed is made first, and comes into force like
// every other move: package reseal moves the records to it.

// PreparedLife is how long signers have for the keys of a seed that was made for them.
const PreparedLife = time.Hour

// prepared is a seed that waits for its signatures, in memory alone.
type prepared struct {
	move       *transition.Move // manifest, secrets and root are set
	transition history.Transition
	change     []byte // what is signed
	expires    time.Time
}

// reseedServer serves ReseedService.
type reseedServer struct {
	fealtyv1.UnimplementedReseedServiceServer
	c *Manifests
}

func (r reseedServer) PrepareReseed(ctx context.Context,
	req *fealtyv1.PrepareReseedRequest) (*fealtyv1.PrepareReseedResponse, error) {
	c := r.c
	_, release, err := c.cfg.Succession.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	next := s.Manifest
	if len(req.GetManifest()) > 0 {
		if next, err = c.proposed(s, req.GetManifest()); err != nil {
			return nil, err
		}
	}
	if next.Cluster != s.Manifest.Cluster {
		return nil, errcode.New(errcode.RequestField, "field", "cluster", "problem",
			fmt.Sprintf("the manifest is of %s, and this cluster is %s", next.Cluster, s.Manifest.Cluster))
	}
	if err := c.staysAdmitted(s, next); err != nil {
		return nil, err
	}
	if err := c.readByAll(ctx, s, next); err != nil {
		return nil, err
	}
	// Signers should not sign what cannot be sealed.
	if err := c.cfg.Keepers.Look(ctx, &keepers.Sealing{From: s, Manifest: next, NewSeed: true}); err != nil {
		return nil, err
	}
	out, err := c.reseedCosts(ctx, s)
	if err != nil {
		return nil, err
	}
	mv := &transition.Move{From: s, Manifest: next}
	t, _ := s.Chain.Next(history.KindReseed, next)
	if err := mv.MakeSeed(t, c.cfg.Now()); err != nil {
		return nil, err
	}
	t.Reseed = s.Chain.ReseedTo(s.RootPin, history.SeedKeys{
		Root: identity.KeyOf(mv.Root), ConfigRoot: mv.Secrets.ConfigRootKey(),
		TransactionKey: mv.Secrets.TransactionKey(),
	})
	change, err := t.RootChange().Encode()
	if err != nil {
		mv.Wipe()
		return nil, err
	}
	out.Change = change
	if req.GetDryRun() {
		mv.Wipe()
		return out, nil
	}
	c.dropPrepared()
	p := &prepared{move: mv, transition: *t, change: change, expires: c.cfg.Now().Add(PreparedLife)}
	c.prepared = p
	ch := s.Records.NewChange(s.HeadVersion)
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: record.Actor(ctx), Action: "manifest.reseed.prepare",
		Target: identity.KeyOf(mv.Root).String()})
	if _, err := ch.Commit(ctx); err != nil {
		c.cfg.Log.LogAttrs(ctx, slog.LevelWarn,
			"the audit entry of a prepared seed was not written", slog.Any("err", err))
	}
	out.ExpiresAt = timestamppb.New(p.expires)
	return out, nil
}

// reseedCosts says what a reseed means to the fleet.
func (c *Manifests) reseedCosts(ctx context.Context, s *authority.State) (*fealtyv1.PrepareReseedResponse, error) {
	out := &fealtyv1.PrepareReseedResponse{}
	for _, count := range []struct {
		prefix string
		n      *uint64
	}{{record.MemberPrefix, &out.Members}, {c.cfg.Reseal.Tokens(), &out.TokensVoided}} {
		l, err := c.cfg.Store.List(ctx, count.prefix)
		if err != nil {
			return nil, c.cfg.Head.StoreError("count the records", err)
		}
		*count.n = uint64(len(l.Entries))
	}
	return out, nil
}

func (r reseedServer) CommitReseed(ctx context.Context,
	req *fealtyv1.CommitReseedRequest) (*fealtyv1.CommitReseedResponse, error) {
	c := r.c
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	_, release, err := c.cfg.Succession.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	p := c.prepared
	switch {
	case p == nil:
		return nil, errcode.New(errcode.ReseedUnprepared,
			"problem", "none is prepared on this coordinator: it is kept in memory alone, for an hour, and by one "+
				"coordinator")
	case !c.cfg.Now().Before(p.expires):
		c.dropPrepared()
		return nil, errcode.New(errcode.ReseedUnprepared,
			"problem", "it was prepared more than an hour ago, and is dropped")
	case !bytes.Equal(req.GetChange(), p.change):
		return nil, errcode.New(errcode.ReseedUnprepared, "problem", "another one was prepared after it")
	case p.transition.Previous != s.Head.Hash:
		return nil, errcode.New(errcode.ManifestStale, "expected", p.transition.Previous.String()[:16], "head",
			s.Head.Hash.String()[:16], "index", fmt.Sprint(s.Head.Index))
	}
	costs, err := c.reseedCosts(ctx, s)
	if err != nil {
		return nil, err
	}
	mv, err := c.composeReseed(req, s, p)
	if err != nil {
		return nil, err
	}
	if err := c.lookAtKeepers(ctx, mv); err != nil {
		return nil, err
	}
	if err := c.cfg.Succession.Fits(ctx, mv); err != nil {
		return nil, err
	}
	out := &fealtyv1.CommitReseedResponse{
		Transition: transition.Message(mv.Link), SeedEpoch: mv.Link.SeedEpoch, RootKey: mv.Link.Reseed.Root[:],
		Members: costs.Members, TokensVoided: costs.TokensVoided, Shares: mv.Shares.Message(),
	}
	if out.TransactionKey, err = keyHash(mv.Secrets.TransactionKey()); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		out.Shares = nil // of a split that counts for nothing
		return out, nil
	}
	if err := c.cfg.Succession.WriteSecrets(ctx, mv); err != nil {
		return nil, err
	}
	f, unlock, err := c.cfg.Reseal.Lock(ctx, s, mv.Link.Salt)
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Reseal.WriteLedger(ctx, s, mv, f); err != nil {
		unlock()
		return nil, err
	}
	out.KeysMade = mv.Sealing.Made
	inUse, err := c.cfg.Succession.Swap(ctx, mv)
	if inUse {
		c.prepared = nil // the seed is the cluster's now, or may be
	}
	if err != nil {
		c.cfg.Reseal.Unsettle() // the head may have moved, or may yet: who ends the record lock sees to that
		return nil, err
	}
	return out, nil
}

// composeReseed makes the move that brings p into force. The seed stays p's: if the
// head does not move it can be tried again with the same signatures.
func (c *Manifests) composeReseed(req *fealtyv1.CommitReseedRequest, s *authority.State, p *prepared) (*transition.Move,
	error) {
	mv, t := *p.move, p.transition
	mv.From = s // the head is that of then; who wrote it last may be another
	if err := transition.Authorize(&fealtyv1.SetManifestRequest{Reason: req.GetReason(),
		Signatures: req.GetSignatures()}, s,
		&t); err != nil {
		return nil, err
	}
	if err := mv.SplitSeed(&t); err != nil {
		return nil, err
	}
	if err := mv.NewMesh(&t, c.cfg.Now()); err != nil {
		return nil, err
	}
	return &mv, mv.Seal(&t)
}

// dropPrepared forgets the seed that waits for signatures. The caller has
// the turn.
func (c *Manifests) dropPrepared() {
	if c.prepared != nil {
		c.prepared.move.Wipe()
		c.prepared = nil
	}
}

// DropExpired forgets a prepared seed whose time is over, unless a set is under way.
func (c *Manifests) DropExpired() {
	release, ok := c.cfg.Turn.Try()
	if !ok {
		return
	}
	defer release()
	if c.prepared != nil && !c.cfg.Now().Before(c.prepared.expires) {
		c.dropPrepared()
	}
}

func (r reseedServer) GetRootChanges(stream fealtyv1.ReseedService_GetRootChangesServer) error {
	s, err := r.c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	addr := identity.FromContext(stream.Context()).Addr
	if err := r.c.cfg.Limiter.Admit("calls", addr, r.c.cfg.Now()); err != nil {
		return err
	}
	return stream.Send(&fealtyv1.GetRootChangesResponse{Changes: &fealtyv1.RootChanges{Changes: s.Bundle.RootChanges}})
}

// keyHash is the SHA-256 of a public key in its usual form.
func keyHash(key ed25519.PublicKey) ([]byte, error) {
	id, err := identity.KeyOfPublic(key)
	if err != nil {
		return nil, err
	}
	return id[:], nil
}
