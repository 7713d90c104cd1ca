package coordinator

import (
	"context"
	"errors"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/lifetimes"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// What a coordinator does while its store answers and takes no writes: a disk is full or
// fails, a quota is used up, the database was made read-only, or its file is gone.
//
// It is ready: it serves what it reads, and it has the head of the history confirmed,
// so that there is no end to it as there is to an outage. It admits nobody and changes
// nothing, and nobody leads. It certifies the recorded key of a known member again, as
// in an outage and until the same moment after what the record says; but first it
// reads from the store what the refused transaction would have been conditional on:
// record, head and bans.

// renewFull certifies the recorded key of a member again whose renewal the store refused.
// rec is what the store shows of the member, and cause how it refused. A key of the gap
// of a restore is in no record that can be shown, so it is not certified.
func (c *Admission) renewFull(ctx context.Context, s *authority.State, peer identity.Peer, r renewRequest,
	rec record.Versioned[record.Member], turn func(identity.Kind, string) error, cause error) ([][]byte, error) {
	id := peer.ID
	for _, want := range []store.Condition{{Key: history.HeadKey, Version: s.HeadVersion},
		{Key: record.MemberKey(id.Kind(), id.Name()), Version: rec.Version}} {
		e, err := s.Records.Store.Get(ctx, want.Key)
		switch {
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return nil, c.cfg.Head.StoreError("read what the renewal depends on", err)
		case e.Version != want.Version:
			c.cfg.Head.LookAgain()
			return nil, record.Busy("the renewal")
		}
	}
	for _, key := range []identity.KeyID{r.key, peer.Key} {
		if err := c.bannedNow(ctx, s, id, key); err != nil {
			return nil, err
		}
	}
	return c.recertify(ctx, s, peer, r, rec.Value, lifetimes.Stretch, turn, cause)
}
