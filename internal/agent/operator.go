package agent

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"log/slog"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/snapshot"
)

// proverOf proves with what source holds at the time of each proof.
func proverOf(source credential.Source) proof.Prover {
	return proof.NewX509Prover(func(ctx context.Context) (proof.X509Credential, error) {
		m, err := source.Current(ctx)
		if err != nil {
			return proof.X509Credential{}, err
		}
		return proof.X509Credential{Chain: m.Chain(), Key: m.Key()}, nil
	})
}

// operatorChanged is closed when other files of the operator's PKI are in use. It is
// nil, which blocks for ever, without any.
func (a *Agent) operatorChanged() <-chan struct{} {
	if a.operator == nil {
		return nil
	}
	return a.operator.Changed()
}

// reenrol comes back by the operator's certificate, for a node whose last certified
// key counts for nothing any more: as the member that it was, in a new incarnation.
//
// The caller has the answer that the grace is over, which is given only to who proves
// the last certified key: nobody else got this identity since. An older key and a record
// that is gone or given away have other answers, and are left to people; a ban of the
// identity is looked at again with the certificate.
func (a *Agent) reenrol(ctx context.Context, key keyPair, graceOver error) error {
	a.log.LogAttrs(ctx, slog.LevelInfo, "the grace for the last key is over, proving the operator's certificate", slog.String("reason", oneLine(graceOver)))
	err := somewhere(ctx, a.me.Cluster, a.addresses(), func(ctx context.Context, address string) error {
		return a.rejoinAt(ctx, address, proverOf(a.operator), key)
	})
	if err == nil {
		a.log.LogAttrs(ctx, slog.LevelInfo, "the node is back by the operator's certificate", slog.String("incarnation", a.self().Incarnation.String()))
	}
	return err
}

// enrolAnew puts a grant into use by which the node is in another incarnation: what
// is signed for the old one is void. It is one write, as a join is. The caller holds
// a.activation.
func (a *Agent) enrolAnew(ctx context.Context, got *admitted) error {
	got.after, _ = got.after.pruned()
	entry, err := journalOf(got, a.me.Addresses, a.now())
	if err != nil {
		return err
	}
	if err := a.store.commitJoin(entry); err != nil {
		return fmt.Errorf("keep the new enrolment: %w", err)
	}
	a.marksDirty = false
	a.clock.learn(got.after.marks)
	// What is signed for the old incarnation would only be refused at the next start.
	var void []string
	for _, scope := range scopes {
		if scope == snapshot.ScopeTrustBundle {
			continue
		}
		void = append(void, snapshotName(scope, pending), snapshotName(scope, previous))
		if got.after.held[scope] == nil {
			void = append(void, snapshotName(scope, active))
		}
	}
	if err := a.store.remove(void...); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "snapshots for the old incarnation are not removed", slog.Any("err", err))
	}
	got.me.anchor = entry.Anchor
	a.enrolled.Store(&got.me)
	a.beliefs.Store(got.after)
	if err := a.source.Adopt(got.material); err != nil {
		return fmt.Errorf("use the new identity: %w", err)
	}
	a.svid.Store(&got.svid)
	a.next, a.early = nil, nil
	for _, scope := range scopes {
		a.accepted(ctx, scope)
	}
	clear(a.receipts)
	for scope := range got.after.held {
		a.receipts[scope] = receipt{a.now(), byGrant}
	}
	a.derive(ctx)
	a.changed(scopes[:]...)
	a.log.LogAttrs(ctx, slog.LevelInfo, "enrolled anew", slog.String("key", got.svid.key.id.String()), slog.Time("svid_not_after", got.material.NotAfter()))
	return nil
}

// subjectOf names what a certificate is for: the same for each certificate that takes
// the place of another, whatever its key.
func subjectOf(c *x509.Certificate) string {
	h := sha256.New()
	h.Write(c.RawSubject)
	for _, e := range c.Extensions {
		if e.Id.String() == "2.5.29.17" { // subject alternative names (RFC 5280 §4.2.1.6)
			h.Write(e.Value)
		}
	}
	return fmt.Sprintf("%.64q:%x", c.Subject.CommonName, h.Sum(nil)[:8])
}
