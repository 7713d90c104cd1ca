package member

import (
	"context"
	"fmt"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/finding"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/health"
)

// Claims names the members that say that they hold more than the store can have given
// them. It is what they say, and holds up nobody else. The error is that of [authority.Head.StoreError].
func (m *Membership) Claims(ctx context.Context, s *authority.State,
	members []*fealtyv1.Member) ([]*fealtyv1.Finding, error) {
	// One of them may hold something newer than was seen of the store here, which is not
	// newer than what the store shows from now on.
	if len(claimsAbove(members, s.Head.AuthorityEpoch, m.cfg.StoreGuard.Revision())) == 0 {
		return nil, nil
	}
	l, err := m.cfg.Store.List(ctx, bundle.StateKey)
	if err != nil {
		return nil, m.cfg.Head.StoreError("read the revision of the store", err)
	}
	return finding.Fold(errcode.StoreClaimed, "claim", claimsAbove(members, s.Head.AuthorityEpoch, uint64(l.Revision))), nil
}

func claimsAbove(members []*fealtyv1.Member, epoch, revision uint64) (above []finding.Case) {
	for _, m := range members {
		path := m.GetKind() + "/" + m.GetName()
		for _, h := range m.GetLive().GetHeld() {
			said := claimOf(path, h)
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

// claimOf is what the member at path says by holding something.
func claimOf(path string, h *fealtyv1.HeldVersion) health.Claim {
	return health.Claim{From: path, What: h.GetScope(), Epoch: h.GetAuthorityEpoch(),
		Value: max(h.GetConfigVersion(), h.GetGeneration())}
}
