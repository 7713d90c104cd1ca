package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/snapshot"
)

// ApplyNodeEmergency takes a statement of the signers.
func (n nodeServer) ApplyNodeEmergency(ctx context.Context, req *fealtyv1.ApplyNodeEmergencyRequest) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
	a := n.a
	release, err := a.activation.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return a.applyEmergency(ctx, req.GetStatement(), req.GetDryRun())
}

// applyEmergency verifies a statement, keeps it and acts on it. The caller holds
// a.activation.
func (a *Agent) applyEmergency(ctx context.Context, raw []byte, dry bool) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
	b := a.beliefs.Load()
	refused := func(err error) error {
		a.log.LogAttrs(ctx, slog.LevelWarn, "an emergency statement was refused", slog.String("reason", state.OneLine(err)))
		return explain.Wrap(err, explain.EmergencyRefused, "problem", state.EmergencyProblem(err))
	}
	bundle := b.Bundle()
	if bundle == nil {
		return nil, refused(errors.New("there is no trust bundle that names the signers"))
	}
	content, _ := bundle.TrustBundle()
	signed, err := snapshot.UnmarshalEmergency(raw)
	if err != nil {
		return nil, refused(err)
	}
	e, err := signed.Verify(content)
	if err != nil {
		return nil, refused(err)
	}
	statements, news, err := snapshot.AddEmergency(b.Emergencies, e)
	if err != nil {
		return nil, refused(err)
	}
	next := *b
	next.Emergencies, next.Statements = statements, state.WithStatement(b.Statements, raw)
	if next.Contact, err = content.IdentityWith(next.Stated()); err != nil {
		return nil, refused(err)
	}
	out := &fealtyv1.ApplyNodeEmergencyResponse{Changed: news}
	for scope, h := range b.Held {
		if next.Revocations().Distrusts(h.Verified) {
			out.Distrusted = append(out.Distrusted, string(scope))
		}
	}
	slices.Sort(out.Distrusted)
	if dry {
		return out, nil
	}
	// Also one that is in force already: what the disk lost of all of them is there again.
	kept, _, damage := a.store.ReadEmergencies(a.self())
	if news || damage != nil || len(kept) < len(statements) {
		if err := a.store.WriteEmergencies(next.Statements); err != nil {
			return nil, explain.Wrap(err, explain.FileNotWritten, "purpose", "the emergency statement", "file", a.store.Path(dir.EmergencyAName))
		}
	}
	if err := a.faults.Hit("emergency.after-write"); err != nil {
		return nil, err
	}
	a.beliefs.Store(&next)
	if err := a.source.Trust(next.Contact); err != nil {
		return nil, err
	}
	a.reconsider(ctx)
	a.kickReport()
	if news {
		a.log.LogAttrs(ctx, slog.LevelWarn, "an emergency statement of the signers is in force", slog.Uint64("number", e.Number), slog.String("statement", signed.Digest().String()),
			slog.String("reason", e.Reason), slog.Int("config_keys", len(e.ConfigKeys)), slog.Int("keys", len(e.Keys)), slog.Int("nodes", len(e.Nodes)), slog.Int("things", len(e.Revoked)))
	}
	return out, nil
}
