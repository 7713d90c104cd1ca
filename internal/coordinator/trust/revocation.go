package trust

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/bundle/current"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/snapshot"
)

// Revoke takes something away by its name.
func (t trustServer) Revoke(ctx context.Context, req *fealtyv1.RevokeRequest) (*fealtyv1.RevokeResponse, error) {
	c := t.c
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	if err := record.CheckReason(req.GetReason(), true); err != nil {
		return nil, err
	}
	thing := snapshot.Revoked{Kind: req.GetKind(), Name: req.GetName()}
	if !slices.Contains(internalsnapshot.RevokedKinds(), thing.Kind) {
		return nil, errcode.New(errcode.RequestField,
			"field", "kind", "problem", fmt.Sprintf("%.40q is nothing that can be revoked by name", req.GetKind()))
	}
	if err := thing.Check(s.Manifest.Cluster); err != nil {
		return nil, errcode.Wrap(err, errcode.RequestField,
			"field", "name", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	out := &fealtyv1.RevokeResponse{}
	s, in, err := c.changeTrust(ctx, req.GetDryRun(), "revoke",
		func(_ *authority.State, st *bundle.State, _ store.Revision, now time.Time) (record.AuditEntry, bool, error) {
			var err error
			out.Changed, err = st.Revoke(now, record.Actor(ctx), req.GetReason(), bundle.ForOthers, thing)
			return record.AuditEntry{Actor: record.Actor(ctx), Action: "trust.revoke", Target: thing.String(),
				Reason: req.GetReason()}, out.Changed, err
		})
	if err != nil {
		return nil, err
	}
	out.Trust, err = c.trustMessage(ctx, s, in)
	if out.Changed && !req.GetDryRun() {
		err = c.cfg.Head.Made(ctx, "the revocation", err)
	}
	return out, err
}

// ApplyEmergency brings a statement of the signers into the bundle. The caller that
// hands it in only carries it: the signatures decide.
func (t trustServer) ApplyEmergency(ctx context.Context,
	req *fealtyv1.ApplyEmergencyRequest) (*fealtyv1.ApplyEmergencyResponse, error) {
	c := t.c
	if _, err := c.cfg.Head.Ready(); err != nil {
		return nil, err
	}
	signed, err := trust.UnmarshalEmergency(req.GetStatement())
	if err != nil {
		return nil, emergencyRefused(err)
	}
	out := &fealtyv1.ApplyEmergencyResponse{}
	cuts := c.cfg.Membership.ConnectionsCut()
	err = c.cfg.Head.Transact(ctx, "the trust state", func(s *authority.State) error {
		in, err := c.cfg.Bundle.Read(ctx, s)
		if err != nil {
			return c.cfg.Head.StoreError("read the trust state", err)
		}
		e, err := signed.Verify(s.Bundle.Compile(in))
		if err != nil {
			return emergencyRefused(err)
		}
		news, err := in.State.Value.IsNews(signed, e)
		if err != nil {
			return emergencyRefused(err)
		}
		if slices.Contains(e.Keys, s.MeshKey) {
			return emergencyRefused(errors.New("it bans the mesh CA key in force, and so every member: move " +
				"authority to another one first, with fealty recover, or reseed"))
		}
		if out.Changed = news; !news || req.GetDryRun() {
			return nil
		}
		ch := s.Records.NewChange(s.HeadVersion)
		if err := c.emergencyChange(ctx, s, in, ch, signed, e); err != nil {
			return current.WordFull("the emergency statement", err)
		}
		if err := c.cfg.Faults.Hit("emergency.before-commit"); err != nil {
			return err
		}
		if _, err := ch.Commit(ctx); err != nil {
			return c.cfg.Head.CommitError("apply the emergency statement", err)
		}
		if err := c.cfg.Faults.Hit("emergency.after-commit"); err != nil {
			return err
		}
		err = c.cfg.Head.Made(ctx, "the emergency statement", c.cfg.Bundle.Apply(ctx))
		out.ConnectionsClosed = uint32(c.cfg.Membership.ConnectionsCut() - cuts)
		return err
	})
	return out, err
}

// emergencyChange adds to ch what a statement does. Identities are banned without their
// keys, which are banned when somebody lifts that.
func (c *Trust) emergencyChange(ctx context.Context, s *authority.State, in bundle.Input, ch *record.Change,
	signed *trust.SignedEmergency, e *trust.Emergency) error {
	now, by := c.cfg.Now().UTC().Truncate(time.Second), record.Actor(ctx)
	ban := record.Ban{Reason: ratelimit.Clip("emergency: "+e.Reason, record.MaxReasonBytes), By: by, At: now}
	var d bundle.Delta
	for _, id := range e.Nodes {
		if slices.Contains(in.BannedIDs, id) {
			continue
		}
		d.Ban = append(d.Ban, id)
	}
	d.Write = func(counter uint64) {
		ban.Counter = counter
		for _, id := range d.Ban {
			ch.Put(record.BanIDKey(id.Kind(), id.Name()), 0, ban)
		}
	}
	for _, key := range e.Keys {
		old, err := record.Get[record.Ban](ctx, s.Records, record.BanKeyKey(key))
		if err != nil {
			return c.cfg.Head.StoreError("read a banned key", err)
		}
		next := ban
		// Nobody says whose it is: the last certificate over it ends no later than this.
		next.CertEnd = record.Later(now.Add(s.Manifest.LongestSVIDTTL()+record.CertMargin), old.Value.CertEnd)
		next.Until = record.Later(record.Later(now.Add(record.KeyMemory(s.Manifest)), next.CertEnd), old.Value.Until)
		ch.Put(record.BanKeyKey(key), old.Version, next)
		d.Keys = append(d.Keys, bundle.KeyBan{Key: key, CertEnd: next.CertEnd})
	}
	d.Edit = func(st *bundle.State, _ store.Revision) error {
		for _, digest := range e.ConfigKeys {
			_, err := st.RevokeKey(s.Bundle,
				func(key ed25519.PublicKey) bool { return snapshot.DigestOf(key) == digest }, now, by, e.Reason,
				bundle.ForBans)
			// One that is not listed signs nothing in any case, and numbers do not come again.
			if err != nil && !errors.Is(err, bundle.ErrNoSuchKey) {
				return err
			}
		}
		if _, err := st.Revoke(now, by, e.Reason, bundle.ForBans, e.Revoked...); err != nil {
			return err
		}
		st.Emergencies = append(slices.Clone(st.Emergencies),
			bundle.Emergency{Number: e.Number, Digest: signed.Digest(), At: now, By: by, Reason: e.Reason})
		return nil
	}
	if err := c.cfg.Bundle.Touch(ctx, s, ch, d, bundle.ForBans); err != nil {
		return err
	}
	ch.Audit(c.cfg.Now(), record.AuditEntry{Actor: by, Action: "trust.emergency",
		Target: fmt.Sprintf("statement %d", e.Number), Reason: e.Reason, Fields: map[string]string{
			"digest": signed.Digest().String(), "config_keys": fmt.Sprint(len(e.ConfigKeys)),
			"keys":  fmt.Sprint(len(e.Keys)),
			"nodes": fmt.Sprint(len(e.Nodes)), "things": fmt.Sprint(len(e.Revoked)),
		}})
	return nil
}

// emergencyRefused words why a statement counts for nothing.
func emergencyRefused(err error) error {
	problem := strings.TrimPrefix(err.Error(), "snapshot: ")
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		problem = r.Detail
	}
	return errcode.Wrap(err, errcode.EmergencyRefused, "problem", problem)
}
