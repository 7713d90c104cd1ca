package succession

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/decide"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/store"
)

// A ready coordinator that was shown another head has not fallen into recovery mode: most
// often somebody set a manifest elsewhere, and what is in memory leads to it. Until that
// head is in force here the state of before serves reads, and whatever changes something
// or certifies anybody waits for it.

// followTries is how many heads a call follows by itself, one after the other, before
// it leaves that to the loop that follows the head.
const followTries = 8

// lingers returns for how much longer the state in force stays for reads while the secrets
// of the head that w leads to are looked for elsewhere; 0: no longer. The caller has
// the turn.
//
// Nothing vouches for w but the seed in force: a history that this does not vouch for keeps
// no state from giving way.
func (c *Succession) lingers(ctx context.Context, w *claim) time.Duration {
	s := c.cfg.Head.State()
	if s.Phase != authority.Ready || w.restore != nil {
		return 0
	}
	c.cfg.Head.FallBehind(s)
	lagged := c.cfg.Head.Behind()
	if !decide.Lingers(c.cfg.Keys.Memory(s), decide.HeadOf(&w.link), w.admitted, lagged) {
		return 0
	}
	verified, _, err := c.verify(ctx, w, s.Secrets)
	if err != nil || slices.ContainsFunc(verified.Links(), func(l history.Link) bool {
		return l.Kind == history.KindRestore && l.Index > s.Head.Index // what is read here is not what was restored
	}) {
		return 0
	}
	return decide.FollowFor - lagged
}

// Take takes the turn, for a change of the head that the store shows, and returns the state in force. In
// recovery mode it does not wait for who looks for the keys: the error is [errcode.RecoveryMode] at once.
func (c *Succession) Take(ctx context.Context) (s *authority.State, release func(), err error) {
	for {
		if s := c.cfg.Head.State(); s.Phase == authority.Recovery {
			return nil, nil, errcode.New(errcode.RecoveryMode, "reason", s.Reason)
		}
		if release, err = c.cfg.Turn.Take(ctx); err != nil {
			return nil, nil, err
		}
		c.toHead(ctx)
		s = c.cfg.Head.State()
		switch {
		case s.Phase == authority.Recovery:
			release()
			return nil, nil, errcode.New(errcode.RecoveryMode, "reason", s.Reason)
		case s.Phase != authority.Ready || c.cfg.Head.Acts(s):
			return s, release, nil
		}
		release() // for who follows the head
		if _, err := c.cfg.Head.InForce(ctx); err != nil && !errors.Is(err, errcode.RecoveryMode) {
			return nil, nil, err
		}
	}
}

// lost reports whether err, with which the adoption of a head ended, says that somebody
// else was first.
func lost(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, errcode.StoreBusy)
}

// lostPause is how long to wait before a head is looked at again whose adoption was lost
// to somebody for the n-th time in a row.
func lostPause(n int) time.Duration {
	most := record.ConflictPause
	for range min(n, 16) {
		most = min(2*most, PollPause)
	}
	return mathrand.N(most)
}

// IfFree returns the state to answer a peer with that is at another head. It does not
// wait for the turn: two coordinators that prepare each other would wait for each other.
func (c *Succession) IfFree(ctx context.Context) (*authority.State, error) {
	if release, ok := c.cfg.Turn.Try(); ok {
		c.toHead(ctx)
		release()
	} else {
		c.cfg.Head.LookAgain()
	}
	return c.cfg.Head.Ready()
}
