package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/snapshotauthor"
	"github.com/fealty-io/fealty/snapshot"
)

// What is revoked is not relied on from the moment on at which the node knows: by its
// trust bundle, or by a statement of the signers that somebody hands to it as a file.
// A statement needs no coordinator, and no coordinator can take it back. It is durable
// before it has any effect, in two copies, and stays for as long as its root.

const (
	emergencyAName    = "emergency.a"
	emergencyBName    = "emergency.b"
	maxEmergencyBytes = 8 << 20
)

// emergencyFile is one of two copies.
type emergencyFile struct {
	Statements [][]byte `json:"statements"` // as they were handed in
}

// writeEmergencies makes statements durable, in both copies.
func (s *localStore) writeEmergencies(statements [][]byte) error {
	for _, name := range []string{emergencyAName, emergencyBName} {
		if err := s.writeSealed(name, emergencyFile{statements}); err != nil {
			return err
		}
	}
	return nil
}

// readEmergencies returns the statements under the root of me: all that one of the
// copies has. Damage is returned beside them. Their signatures were verified when they
// came, by signers who may have changed since; what is on this disk can only take
// away.
func (s *localStore) readEmergencies(me self) (raw [][]byte, out []*snapshot.Emergency, problem error) {
	var problems []error
	for _, name := range []string{emergencyAName, emergencyBName} {
		data, err := s.read(name, maxEmergencyBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var f emergencyFile
		if err == nil {
			err = unseal(data, &f)
		}
		if err != nil {
			problems = append(problems, s.corrupt(name, err))
			continue
		}
		for _, statement := range f.Statements {
			e, err := readEmergency(statement)
			if err != nil {
				problems = append(problems, s.corrupt(name, err))
				continue
			}
			if e.ClusterID != me.Cluster || e.Root != me.Pin {
				continue // of before a reseed, which changed all that it names
			}
			next, news, err := snapshot.AddEmergency(out, e)
			if err != nil {
				problems = append(problems, s.corrupt(name, err))
				continue
			}
			if news {
				raw, out = append(raw, statement), next
			}
		}
	}
	return raw, out, errors.Join(problems...)
}

func readEmergency(raw []byte) (*snapshot.Emergency, error) {
	signed, err := snapshot.UnmarshalEmergency(raw)
	if err != nil {
		return nil, err
	}
	return snapshotauthor.DecodeEmergency(signed.Statement)
}

// ApplyNodeEmergency takes a statement of the signers.
func (n nodeServer) ApplyNodeEmergency(ctx context.Context, req *fealtyv1.ApplyNodeEmergencyRequest) (*fealtyv1.ApplyNodeEmergencyResponse, error) {
	a := n.a
	release, err := a.activation.acquire(ctx)
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
		a.log.LogAttrs(ctx, slog.LevelWarn, "an emergency statement was refused", slog.String("reason", oneLine(err)))
		return explain.Wrap(err, explain.EmergencyRefused, "problem", emergencyProblem(err))
	}
	bundle := b.bundle()
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
	statements, news, err := snapshot.AddEmergency(b.emergencies, e)
	if err != nil {
		return nil, refused(err)
	}
	next := *b
	next.emergencies, next.statements = statements, withStatement(b.statements, raw)
	if next.contact, err = content.IdentityWith(next.stated()); err != nil {
		return nil, refused(err)
	}
	out := &fealtyv1.ApplyNodeEmergencyResponse{Changed: news}
	for scope, h := range b.held {
		if next.revocations().Distrusts(h.v) {
			out.Distrusted = append(out.Distrusted, string(scope))
		}
	}
	slices.Sort(out.Distrusted)
	if dry {
		return out, nil
	}
	// Also one that is in force already: what the disk lost of all of them is there again.
	kept, _, damage := a.store.readEmergencies(a.self())
	if news || damage != nil || len(kept) < len(statements) {
		if err := a.store.writeEmergencies(next.statements); err != nil {
			return nil, explain.Wrap(err, explain.FileNotWritten, "purpose", "the emergency statement", "file", a.store.path(emergencyAName))
		}
	}
	if err := a.faults.Hit("emergency.after-write"); err != nil {
		return nil, err
	}
	a.beliefs.Store(&next)
	if err := a.source.Trust(next.contact); err != nil {
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

// withStatement returns the statements that are kept, and raw. One that is kept with
// other signatures is the same statement.
func withStatement(kept [][]byte, raw []byte) [][]byte {
	digest := func(raw []byte) (d snapshot.Digest) {
		if s, err := snapshot.UnmarshalEmergency(raw); err == nil {
			d = s.Digest()
		}
		return d
	}
	if slices.ContainsFunc(kept, func(k []byte) bool { return digest(k) == digest(raw) }) {
		return kept
	}
	return append(slices.Clone(kept), raw)
}

// emergencyProblem says in one line why a statement counts for nothing.
func emergencyProblem(err error) string {
	if r, ok := errors.AsType[*snapshot.RejectedError](err); ok {
		return r.Detail
	}
	return strings.TrimPrefix(oneLine(err), "snapshot: ")
}
