package trust

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

func (t trustServer) GetTrust(ctx context.Context, _ *fealtyv1.GetTrustRequest) (*fealtyv1.GetTrustResponse, error) {
	s, err := t.c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	in, err := t.c.cfg.Bundle.Read(ctx, s)
	if err != nil {
		return nil, t.c.cfg.Head.StoreError("read the trust state", err)
	}
	msg, err := t.c.trustMessage(ctx, s, in)
	return &fealtyv1.GetTrustResponse{Trust: msg}, err
}

// RotateConfigKey begins a rotation, or revokes a key at once.
func (t trustServer) RotateConfigKey(ctx context.Context,
	req *fealtyv1.RotateConfigKeyRequest) (*fealtyv1.RotateConfigKeyResponse, error) {
	c := t.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	stolen := req.GetCompromised()
	if err := record.CheckReason(req.GetReason(), stolen != ""); err != nil {
		return nil, err
	}
	deadline := rotationDeadline
	if d := req.GetDeadline(); d != nil {
		deadline = d.AsDuration()
		switch {
		case stolen != "":
			return nil, errcode.New(errcode.RequestField,
				"field", "deadline", "problem", "a key that is compromised leaves at once")
		case d.CheckValid() != nil || deadline < minRotationDeadline || deadline > maxRotationDeadline:
			return nil, errcode.New(errcode.RequestField,
				"field", "deadline", "problem", fmt.Sprintf("it is %v, want %v to %v", deadline, minRotationDeadline,
					maxRotationDeadline))
		}
	}
	action, point := "trust.rotate", "rotate.introduce"
	if stolen != "" {
		action, point = "trust.rotate.compromised", "rotate.compromised"
	}
	var number uint32
	changed := false
	s, in, err := c.changeTrust(ctx, req.GetDryRun(), point,
		func(s *authority.State, st *bundle.State, was store.Revision, now time.Time) (record.AuditEntry, bool, error) {
			var err error
			if changed = true; stolen == "" {
				err = st.Rotate(s.Bundle, was, bundle.Rotation{StartedAt: now, Deadline: now.Add(deadline),
					By: record.Actor(ctx), Reason: req.GetReason()})
			} else {
				changed, err = st.RevokeKey(s.Bundle,
					func(key ed25519.PublicKey) bool { return internalsnapshot.KeyIDOf(key) == stolen },
					now, record.Actor(ctx),
					req.GetReason(), bundle.ForOthers)
			}
			if errors.Is(err, bundle.ErrNoSuchKey) {
				err = errcode.Wrap(err, errcode.NotFound, "what", "config signing key", "name",
					ratelimit.Clip(stolen, live.MaxReleaseBytes))
			}
			if err != nil {
				return record.AuditEntry{}, false, err
			}
			key, _ := st.Newest(now)
			number = key.Number
			target := s.Bundle.KeyID(number)
			e := record.AuditEntry{Actor: record.Actor(ctx), Action: action, Target: target, Reason: req.GetReason()}
			if stolen != "" {
				e.Target, e.Fields = stolen, map[string]string{"next": target}
			}
			return e, changed, nil
		})
	if err != nil {
		return nil, err
	}
	msg, err := c.trustMessage(ctx, s, in)
	if changed && !req.GetDryRun() {
		err = c.cfg.Head.Made(ctx, "the change of trust", err)
	}
	if err != nil {
		return nil, err
	}
	return &fealtyv1.RotateConfigKeyResponse{Trust: msg, Number: number, KeyId: s.Bundle.KeyID(number)}, nil
}

// changeTrust changes the trust state and brings the bundle that follows into force,
// again from the start if somebody was first. edit answers false for nothing to do.
// It returns what is in force then, or with dry would be.
func (c *Trust) changeTrust(ctx context.Context, dry bool, point string,
	edit func(s *authority.State, st *bundle.State, was store.Revision, now time.Time) (record.AuditEntry, bool,
		error)) (*authority.State,
	bundle.Input, error) {
	var under *authority.State
	var in bundle.Input
	err := c.cfg.Head.Transact(ctx, "the trust state", func(s *authority.State) (err error) {
		under = s
		if in, err = c.cfg.Bundle.Read(ctx, s); err != nil {
			return c.cfg.Head.StoreError("read the trust state", err)
		}
		now := c.cfg.Now().UTC().Truncate(time.Second)
		var entry record.AuditEntry
		changed := false
		ch := s.Records.NewChange(s.HeadVersion)
		err = c.cfg.Bundle.Touch(ctx, s, ch,
			bundle.Delta{Edit: func(st *bundle.State, was store.Revision) (err error) {
				entry, changed, err = edit(s, st, was, now)
				in.State.Value = *st
				return err
			}}, bundle.ForBans)
		if err != nil || !changed || dry {
			return current.WordFull("the change", err)
		}
		ch.Audit(c.cfg.Now(), entry)
		if err := c.cfg.Faults.Hit(point + ".before-commit"); err != nil {
			return err
		}
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("change the trust state", err)
		}
		if err := c.cfg.Faults.Hit(point + ".after-commit"); err != nil {
			return err
		}
		if err = c.cfg.Bundle.Apply(ctx); err == nil {
			in, err = c.cfg.Bundle.Read(ctx, s)
		}
		return c.cfg.Head.Made(ctx, "the change of trust", err)
	})
	return under, in, err
}

// trustMessage says what in means.
func (c *Trust) trustMessage(ctx context.Context, s *authority.State, in bundle.Input) (*fealtyv1.Trust, error) {
	st := in.State.Value
	out := &fealtyv1.Trust{
		AuthorityEpoch: s.Head.AuthorityEpoch, ConfigVersion: uint64(in.State.Version),
		ConfigRootKey: internalsnapshot.KeyIDOf(s.Bundle.PublicRoot()),
		BannedIds:     uint32(len(in.BannedIDs)), BannedKeys: uint32(len(in.Listed())),
	}
	t := c.cfg.Bundle.View()
	if t != nil && t.Version == out.GetConfigVersion() && t.Epoch == out.GetAuthorityEpoch() {
		out.IssuedAt = timestamppb.New(t.IssuedAt)
		out.ExpiresAt = timestamppb.New(t.IssuedAt.Add(bundle.Life(s.Manifest)))
	}
	for _, r := range st.Roots {
		cert, err := x509.ParseCertificate(r.DER)
		if err != nil {
			return nil, fmt.Errorf("a root of the trust state: %w", err)
		}
		out.Roots = append(out.Roots, &fealtyv1.TrustRoot{KeyId: identity.KeyOf(cert).String(),
			NotAfter: timestamppb.New(cert.NotAfter), Retired: !cert.Equal(s.Root),
			AcceptUntil: timeUnlessZero(r.AcceptUntil)})
	}
	for _, k := range st.MeshKeys {
		out.MeshKeys = append(out.MeshKeys, &fealtyv1.TrustMeshKey{KeyId: k.Key.String(),
			AuthorityEpoch: k.AuthorityEpoch, AcceptUntil: timeUnlessZero(k.AcceptUntil)})
	}
	now := c.cfg.Now()
	for _, k := range st.ConfigKeys {
		public := s.Bundle.PublicKey(k.Number)
		m := &fealtyv1.TrustConfigKey{
			Number: k.Number, KeyId: internalsnapshot.KeyIDOf(public), Digest: snapshot.DigestOf(public).String(),
			State:     "signing",
			NotBefore: timestamppb.New(k.NotBefore), NotAfter: timestamppb.New(k.NotAfter),
			RevokedAt: timeUnlessZero(k.RevokedAt), RevokedBy: k.RevokedBy, Reason: k.Reason,
		}
		switch {
		case !k.RevokedAt.IsZero():
			m.State = "revoked"
		case !k.Signing(now):
			m.State = "expired"
		case st.Rotation != nil && k.Number == st.Rotation.Number:
			m.State = "introduced"
		case st.Rotation != nil:
			m.State = "leaving"
		}
		out.ConfigKeys = append(out.ConfigKeys, m)
	}
	if st.Rotation != nil {
		progress, _, _, err := c.Progress(ctx, s, st.Rotation)
		if err != nil {
			return nil, c.cfg.Head.StoreError("read who confirmed", err)
		}
		out.Rotation = rotationMessage(s, *st.Rotation)
		out.Rotation.Members = uint32(progress.members)
		out.Rotation.Confirmed = uint32(progress.members - len(progress.missing))
		out.Rotation.Missing = progress.missing[:min(len(progress.missing), bundle.MaxNamedMembers)]
	}
	if r := st.Rotated; r != nil {
		out.LastRotation = rotationMessage(s, r.Rotation)
		out.LastRotation.Ended, out.LastRotation.EndedAt = r.How, timestamppb.New(r.EndedAt)
		out.LastRotation.Missing = r.Missing
	}
	for _, r := range st.Revoked {
		out.Revoked = append(out.Revoked, &fealtyv1.RevokedThing{Kind: r.Kind, Name: r.Name,
			At: timestamppb.New(r.At), By: r.By, Reason: r.Reason})
	}
	for _, e := range st.Emergencies {
		out.Emergencies = append(out.Emergencies,
			&fealtyv1.AppliedEmergency{Number: e.Number, Digest: e.Digest.String(), AppliedAt: timestamppb.New(e.At),
				By: e.By, Reason: e.Reason})
	}
	if t != nil {
		out.Rollout = c.cfg.Membership.Live().Rollout(t)
	}
	out.TokenIssuer = s.Manifest.TokenIssuer
	keys, _, err := st.VerifierKeys(s.Bundle, now)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		der, err := x509.MarshalPKIXPublicKey(k.Public)
		if err != nil {
			return nil, fmt.Errorf("encode a key of tokens: %w", err)
		}
		out.TokenKeys = append(out.TokenKeys, &fealtyv1.TrustTokenKey{KeyId: k.ID, Key: der})
	}
	out.MeshRollout = meshRollout(c.cfg.Membership.Roster().All(), s.MeshKey, now)
	return out, nil
}

// meshRollout says which of the members are certified under key.
func meshRollout(members []record.Member, key identity.KeyID, now time.Time) *fealtyv1.MeshRollout {
	out := &fealtyv1.MeshRollout{}
	for _, m := range members {
		switch {
		case !m.Held() || !now.Before(m.NotAfter) || record.IsSession(m.Kind):
			continue // whoever comes back gets a new certificate anyway
		case m.MeshKey == key:
			out.Renewed++
		case len(out.Missing) < bundle.MaxNamedMembers:
			out.Missing = append(out.Missing, m.Path())
		}
		out.Members++
	}
	return out
}

// RotateMeshKey writes a rekey transition: every coordinator and member follows it.
func (t trustServer) RotateMeshKey(ctx context.Context,
	req *fealtyv1.RotateMeshKeyRequest) (*fealtyv1.RotateMeshKeyResponse, error) {
	c := t.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	if err := record.CheckReason(req.GetReason(), false); err != nil {
		return nil, err
	}
	reason := "the mesh CA key is rotated"
	if req.GetReason() != "" {
		reason += ": " + req.GetReason()
	}
	s, err := c.cfg.RotateMesh(ctx, req.GetDryRun(), reason, record.Actor(ctx))
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.RotateMeshKeyResponse{AuthorityEpoch: s.Head.AuthorityEpoch + 1}
	if !req.GetDryRun() {
		out.AuthorityEpoch, out.MeshKeyId = s.Head.AuthorityEpoch, s.MeshKey.String()
	}
	in, err := c.cfg.Bundle.Read(ctx, s)
	if err == nil {
		out.Trust, err = c.trustMessage(ctx, s, in)
	}
	if err != nil && !req.GetDryRun() {
		return nil, c.cfg.Head.Made(ctx, "the new mesh CA key", err)
	}
	if err != nil {
		return nil, c.cfg.Head.StoreError("read the trust state", err)
	}
	return out, nil
}

func rotationMessage(s *authority.State, r bundle.Rotation) *fealtyv1.ConfigKeyRotation {
	return &fealtyv1.ConfigKeyRotation{Number: r.Number, KeyId: s.Bundle.KeyID(r.Number),
		StartedAt: timestamppb.New(r.StartedAt), Deadline: timestamppb.New(r.Deadline), By: r.By, Reason: r.Reason}
}

func timeUnlessZero(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
