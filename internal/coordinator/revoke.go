package coordinator

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/snapshot"
)

// revokedThing is something that is revoked by its name, for good.
type revokedThing struct {
	Kind   snapshot.RevokedKind `json:"kind"`
	Name   string               `json:"name"`
	At     time.Time            `json:"at"`
	By     string               `json:"by"`
	Reason string               `json:"reason"`
}

func (r revokedThing) thing() snapshot.Revoked { return snapshot.Revoked{Kind: r.Kind, Name: r.Name} }

// appliedEmergency is a statement of the signers that is in the bundle.
type appliedEmergency struct {
	Number uint64          `json:"number"`
	Digest snapshot.Digest `json:"digest"`
	At     time.Time       `json:"at"`
	By     string          `json:"by"` // who handed it in
	Reason string          `json:"reason"`
}

// revoke adds things to the state, each at most once, and reports whether one was new.
func (t *trustState) revoke(now time.Time, by, reason string, room banRoom, things ...snapshot.Revoked) (bool, error) {
	out := slices.Clone(t.Revoked)
	for _, r := range things {
		i, found := slices.BinarySearchFunc(out, r, func(a revokedThing, b snapshot.Revoked) int { return a.thing().Compare(b) })
		if !found {
			out = slices.Insert(out, i, revokedThing{r.Kind, r.Name, now, by, reason})
		}
	}
	changed := len(out) != len(t.Revoked)
	if limit := room.of(snapshot.MaxRevoked); changed && len(out) > limit {
		return false, explain.New(explain.TrustFull, "what", "things that are revoked by name", "limit", fmt.Sprint(limit))
	}
	t.Revoked = out
	return changed, nil
}

// Revoke takes something away by its name.
func (t trustServer) Revoke(ctx context.Context, req *fealtyv1.RevokeRequest) (*fealtyv1.RevokeResponse, error) {
	c := t.c
	s, err := c.ready()
	if err != nil {
		return nil, err
	}
	if err := checkReason(req.GetReason(), true); err != nil {
		return nil, err
	}
	thing := snapshot.Revoked{Kind: snapshot.RevokedKind(req.GetKind()), Name: req.GetName()}
	if !slices.Contains(snapshot.RevokedKinds(), thing.Kind) {
		return nil, explain.New(explain.RequestField, "field", "kind", "problem", fmt.Sprintf("%.40q is nothing that can be revoked by name", req.GetKind()))
	}
	if err := thing.Check(s.manifest.Cluster); err != nil {
		return nil, explain.Wrap(err, explain.RequestField, "field", "name", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	out := &fealtyv1.RevokeResponse{}
	s, in, err := c.changeTrust(ctx, req.GetDryRun(), "revoke", func(_ *state, st *trustState, _ store.Revision, now time.Time) (auditEntry, bool, error) {
		var err error
		out.Changed, err = st.revoke(now, actor(ctx), req.GetReason(), roomForOthers, thing)
		return auditEntry{Actor: actor(ctx), Action: "trust.revoke", Target: thing.String(), Reason: req.GetReason()}, out.Changed, err
	})
	if err != nil {
		return nil, err
	}
	out.Trust, err = c.trustMessage(ctx, s, in)
	if out.Changed && !req.GetDryRun() {
		err = c.made(ctx, "the revocation", err)
	}
	return out, err
}

// ApplyEmergency brings a statement of the signers into the bundle. Who hands it in
// only carries it: the signatures decide.
func (t trustServer) ApplyEmergency(ctx context.Context, req *fealtyv1.ApplyEmergencyRequest) (*fealtyv1.ApplyEmergencyResponse, error) {
	c := t.c
	if _, err := c.ready(); err != nil {
		return nil, err
	}
	signed, err := snapshot.UnmarshalEmergency(req.GetStatement())
	if err != nil {
		return nil, emergencyRefused(err)
	}
	out := &fealtyv1.ApplyEmergencyResponse{}
	cuts := c.cuts.Load()
	for range commitTries {
		s, err := c.inForce(ctx)
		if err != nil {
			return nil, err
		}
		in, err := c.readTrust(ctx, s)
		if err != nil {
			return nil, c.storeError("read the trust state", err)
		}
		content, err := compileTrust(s, in)
		if err != nil {
			return nil, err
		}
		e, err := signed.Verify(content)
		if err != nil {
			return nil, emergencyRefused(err)
		}
		news, err := in.state.value.isNews(signed, e)
		if err != nil {
			return nil, emergencyRefused(err)
		}
		if slices.Contains(e.Keys, s.meshKey) {
			return nil, emergencyRefused(errors.New("it bans the mesh CA key in force, and so every member: move authority to another one first, with fealty recover, or reseed"))
		}
		if out.Changed = news; !news || req.GetDryRun() {
			return out, nil
		}
		ch := s.records.newChange(s.headVersion)
		if err := c.emergencyChange(ctx, s, in, ch, signed, e); err != nil {
			return nil, bundleFull("the emergency statement", err)
		}
		if err := c.faults.Hit("emergency.before-commit"); err != nil {
			return nil, err
		}
		switch _, err := ch.commit(ctx); {
		case err == nil:
			if err := c.faults.Hit("emergency.after-commit"); err != nil {
				return nil, err
			}
			err = c.made(ctx, "the emergency statement", c.trustChanged(ctx))
			out.ConnectionsClosed = uint32(c.cuts.Load() - cuts)
			return out, err
		case !c.conflicts(ctx, err):
			return nil, c.storeError("apply the emergency statement", err)
		}
	}
	return nil, errBusy("the trust state")
}

// isNews reports whether a statement is not in force yet.
func (t trustState) isNews(signed *snapshot.SignedEmergency, e *snapshot.Emergency) (bool, error) {
	for _, a := range t.Emergencies {
		switch {
		case a.Digest == signed.Digest():
			return false, nil
		case a.Number == e.Number:
			return false, fmt.Errorf("number %d is taken by another statement, which was applied at %s", e.Number, a.At.Format(time.RFC3339))
		}
	}
	if len(t.Emergencies) >= snapshot.MaxEmergencies {
		return false, fmt.Errorf("%d statements are in force, which is the limit: a reseed starts anew", len(t.Emergencies))
	}
	return true, nil
}

// emergencyChange adds to ch what a statement does. Identities are banned without their
// keys, which are banned when somebody lifts that.
func (c *Coordinator) emergencyChange(ctx context.Context, s *state, in trustInput, ch *change, signed *snapshot.SignedEmergency, e *snapshot.Emergency) error {
	now, by := c.now().UTC().Truncate(time.Second), actor(ctx)
	ban := banRecord{Reason: flowcontrol.Clip("emergency: "+e.Reason, maxReasonBytes), By: by, At: now}
	var d trustDelta
	for _, id := range e.Nodes {
		if slices.Contains(in.bannedI, id) {
			continue
		}
		d.ban = append(d.ban, id)
	}
	d.write = func(counter uint64) {
		ban.Counter = counter
		for _, id := range d.ban {
			ch.put(banIDKey(id.Kind(), id.Name()), 0, ban)
		}
	}
	for _, key := range e.Keys {
		old, err := get[banRecord](ctx, s.records, banKeyKey(key))
		if err != nil {
			return c.storeError("read a banned key", err)
		}
		next := ban
		// Whose it is nobody says: the last certificate over it ends no later than this.
		next.CertEnd = later(now.Add(s.manifest.LongestSVIDTTL()+certMargin), old.value.CertEnd)
		next.Until = later(later(now.Add(keyMemory(s.manifest)), next.CertEnd), old.value.Until)
		ch.put(banKeyKey(key), old.version, next)
		d.keys = append(d.keys, keyBan{key: key, certEnd: next.CertEnd})
	}
	d.edit = func(st *trustState, _ store.Revision) error {
		for _, digest := range e.ConfigKeys {
			_, err := st.revokeKey(s, func(key ed25519.PublicKey) bool { return snapshot.DigestOf(key) == digest }, now, by, e.Reason, roomForBans)
			// One that is not listed signs nothing in any case, and numbers do not come again.
			if err != nil && !errors.Is(err, errNoSuchKey) {
				return err
			}
		}
		if _, err := st.revoke(now, by, e.Reason, roomForBans, e.Revoked...); err != nil {
			return err
		}
		st.Emergencies = append(slices.Clone(st.Emergencies), appliedEmergency{e.Number, signed.Digest(), now, by, e.Reason})
		return nil
	}
	if err := c.touchTrust(ctx, s, ch, d, roomForBans); err != nil {
		return err
	}
	ch.audit(c.now(), auditEntry{Actor: by, Action: "trust.emergency", Target: fmt.Sprintf("statement %d", e.Number), Reason: e.Reason, Fields: map[string]string{
		"digest": signed.Digest().String(), "config_keys": fmt.Sprint(len(e.ConfigKeys)), "keys": fmt.Sprint(len(e.Keys)),
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
	return explain.Wrap(err, explain.EmergencyRefused, "problem", problem)
}
