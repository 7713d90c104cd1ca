package trust

import (
	"context"
	"strings"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/snapshot"
)

// Members and other coordinators tell what they saw of the store, which may be more than this
// coordinator saw. Package storeguard is what it saw itself.

// Proven takes a trust bundle that somebody shows. If this cluster signed it in the
// authority epoch that is in force, it is compared with what the store shows from now on.
func (c *Trust) Proven(ctx context.Context, from string, raw []byte) error {
	s, err := c.cfg.Head.Ready()
	if err != nil {
		return err
	}
	bundle, header, err := s.Bundle.Open(raw)
	if err != nil {
		return errcode.Wrap(err, errcode.RequestField,
			"field", "bundle", "problem", strings.TrimPrefix(err.Error(), "snapshot: "))
	}
	if header.AuthorityEpoch != s.Head.AuthorityEpoch || bundle.Head.Hash != snapshot.Digest(s.Head.Hash) {
		return nil
	}
	// A member that shows what is known costs no look at the store.
	shown, news := health.Proof{From: from, Version: header.ConfigVersion}, false
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
