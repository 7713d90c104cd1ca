package coordinator

import (
	"context"
	"fmt"
	"strings"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/regress"
	"github.com/fealty-io/fealty/snapshot"
)

// Members and other coordinators tell what they saw of the store, which may be more than this
// coordinator saw. Package storeguard is what it saw itself.

// proven takes a trust bundle that somebody shows. If this cluster signed it in the
// authority epoch that is in force, it is compared with what the store shows from now on.
func (c *Trust) proven(ctx context.Context, from string, raw []byte) error {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	bundle, header, err := s.Bundle.Open(raw)
	if err != nil {
		return explain.Wrap(err, explain.RequestField,
			"field", "bundle", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	if header.AuthorityEpoch != s.Head.AuthorityEpoch || bundle.Head.Hash != snapshot.Digest(s.Head.Hash) {
		return nil
	}
	// Whoever shows what is known costs no look at the store.
	shown, news := regress.Proof{From: from, Version: header.ConfigVersion}, false
	have := c.cfg.Bundle.View()
	if have == nil {
		return nil // there is nothing to compare with yet
	}
	for _, id := range bundle.BannedIDs {
		shown.Bans = append(shown.Bans, string(id.Kind())+"/"+id.Name())
		news = news || !have.Bundle.Banned(id, identity.KeyID{})
	}
	if !news && header.ConfigVersion <= have.Version {
		return nil
	}
	in, err := c.cfg.Bundle.Read(ctx, s)
	if err != nil {
		return c.cfg.Head.StoreError("read the trust state", err)
	}
	if loss := shown.Lost(in.Seen(s.RestoredEpoch()).Trust, c.cfg.Now()); loss != nil && c.cfg.Head.State() == s {
		c.cfg.StoreGuard.Missed(ctx, s.StoredHead(), loss)
	}
	return nil
}

// claims names the members that say that they hold more than the store can have given
// them. It is what they say, and holds up nobody else.
func (c *Membership) claims(ctx context.Context, s *authority.State, members []*fealtyv1.Member) []*fealtyv1.Finding {
	// What one of them holds may be newer than what was seen of the store here, and is not
	// newer than what it shows from now on.
	if len(claimsAbove(members, s.Head.AuthorityEpoch, c.cfg.StoreGuard.Revision())) == 0 {
		return nil
	}
	l, err := c.cfg.Store.List(ctx, bundle.StateKey)
	if err != nil {
		return nil // status says that the store does not answer
	}
	return finding.Fold(explain.StoreClaimed, "claim", claimsAbove(members, s.Head.AuthorityEpoch, uint64(l.Revision)))
}

func claimsAbove(members []*fealtyv1.Member, epoch, revision uint64) (above []finding.Case) {
	for _, m := range members {
		path := m.GetKind() + "/" + m.GetName()
		for _, h := range m.GetLive().GetHeld() {
			said := regress.Claim{From: path, What: h.GetScope(), Epoch: h.GetAuthorityEpoch(),
				Value: max(h.GetConfigVersion(), h.GetGeneration())}
			if !m.GetBanned() && said.Above(epoch, revision) {
				above = append(above, finding.Case{Member: path,
					Value: fmt.Sprintf("version %d of epoch %d in %s, and the store is at %d of epoch %d", said.Value,
						said.Epoch, said.What, revision, epoch)})
				break
			}
		}
	}
	return above
}

func (l liveServer) GetSeen(_ context.Context, req *fealtyv1.GetSeenRequest) (*fealtyv1.GetSeenResponse, error) {
	c := l.c
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return nil, err
	}
	out := &fealtyv1.GetSeenResponse{Restored: s.RestoredEpoch(), Revision: c.cfg.StoreGuard.Revision(),
		Lost: c.cfg.StoreGuard.Lost() != nil, Findings: c.foundHere(s)}
	if t := c.cfg.Bundle.View(); t != nil && t.Newer(&bundle.View{Epoch: req.GetAuthorityEpoch(),
		Version: req.GetConfigVersion()}) {
		out.TrustBundle = t.Message()
	}
	return out, nil
}

// compareSeen compares the store with what another coordinator says of it, and returns
// what of that is no proof; empty if there is nothing to tell.
func (c *Membership) compareSeen(ctx context.Context, s *authority.State, name string,
	seen *fealtyv1.GetSeenResponse) (claim string, err error) {
	if seen.GetRestored() != s.RestoredEpoch() {
		return "", nil // one of both does not know of a restore yet
	}
	if raw := seen.GetTrustBundle().GetEnvelope(); raw != nil {
		if err := c.cfg.Proven(ctx, "coordinator "+name,
			raw); err != nil && explain.CodeOf(err) != string(explain.RequestField) {
			return "", err
		}
	}
	if c.cfg.StoreGuard.Lost() != nil {
		return "", nil // it is known
	}
	if said := (regress.Claim{Epoch: s.Head.AuthorityEpoch,
		Value: seen.GetRevision()}); said.Above(s.Head.AuthorityEpoch, c.cfg.StoreGuard.Revision()) {
		l, err := c.cfg.Store.List(ctx, bundle.StateKey)
		if err != nil {
			return "", err
		}
		if said.Above(s.Head.AuthorityEpoch, uint64(l.Revision)) {
			return fmt.Sprintf("revision %d, and the store is at %d", said.Value, l.Revision), nil
		}
	}
	if seen.GetLost() {
		return "more than the store has now: it went back, it says", nil
	}
	return "", nil
}
