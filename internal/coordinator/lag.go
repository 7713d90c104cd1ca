package coordinator

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/instant"
	decide "github.com/fealty-io/fealty/internal/replica"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/watch"
)

// A ready coordinator that was shown another head has not fallen into recovery mode: most
// often somebody set a manifest elsewhere, and what is in memory leads to it. Until that
// head is in force here the state of before serves reads, and whatever changes something
// or certifies anybody waits for it.

const (
	// followPatience is how long a call waits for the head that the store shows. After
	// that it is refused, and status says that this coordinator does not get there.
	followPatience = decide.FollowFor
	// followTries is how many heads a call follows by itself, one after the other, before
	// it leaves that to the loop that follows the head.
	followTries = 8
)

// lag says which state is not that of the newest head that the store showed. The zero
// value says that there is none.
type lag struct {
	of   atomic.Pointer[authority.State]
	at   instant.Last // since when, while of is set
	over watch.Signal // it is up with the store after all

	began time.Duration // at, on the clock that only goes forward; owned by who holds setting
}

// State returns the state in force, which is never nil.
func (c *Head) State() *authority.State { return c.state.Load() }

// Put makes s the state in force, and tells whoever waits for another one. confirmed is when
// the store was asked and showed its head; the zero value: it was not.
func (c *Head) Put(s *authority.State, confirmed time.Time) {
	c.state.Store(s)
	if !confirmed.IsZero() {
		c.headConfirmed.Set(confirmed)
	}
	c.stateChanged.Notify()
}

// Changed returns a channel that is closed when another state is in force.
func (c *Head) Changed() <-chan struct{} { return c.stateChanged.Wait() }

// LookAgain has the head that the store shows looked at now.
func (c *Head) LookAgain() { c.headDue.Notify() }

// Due returns a channel that is closed when the head is to be looked at.
func (c *Head) Due() <-chan struct{} { return c.headDue.Wait() }

// Confirmed returns when the store was last asked and showed the head in force; the zero
// time: it never did.
func (c *Head) Confirmed() time.Time { return c.headConfirmed.Get() }

// ConfirmedAge is how long before now that was.
func (c *Head) ConfirmedAge(now time.Time) time.Duration { return c.headConfirmed.Age(now) }

// BehindSince returns since when the store shows a newer head than the one in force.
func (c *Head) BehindSince() time.Time { return c.lag.at.Get() }

// Behind is for how long, on the clock that only goes forward. The caller holds setting.
func (c *Head) Behind() time.Duration { return c.cfg.Elapsed() - c.lag.began }

// fallBehind notes that the store shows another head than that of s. The caller holds
// setting.
func (c *Head) fallBehind(s *authority.State) {
	if s.Phase != authority.Ready || c.lag.of.Load() == s {
		return
	}
	c.lag.at.Set(c.cfg.Now())
	c.lag.began = c.cfg.Elapsed()
	c.lag.of.Store(s)
}

// lingers returns for how much longer the state in force stays for reads while the secrets
// of the head that w leads to are looked for elsewhere; 0: no longer. The caller holds
// setting.
//
// Nothing vouches for w but the seed in force: a history that this does not vouch for keeps
// no state from giving way.
func (c *Authority) lingers(ctx context.Context, w *way) time.Duration {
	s := c.cfg.Head.State()
	if s.Phase != authority.Ready || w.restore != nil {
		return 0
	}
	c.cfg.Head.fallBehind(s)
	lagged := c.cfg.Head.Behind()
	if !decide.Lingers(memory{c, s}, decide.HeadOf(&w.claimed), w.admitted, lagged) {
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

// caughtUp notes that the store shows the head of s, which was read since c.setting was
// taken: what was read before that may be older than what made s fall behind.
func (c *Head) caughtUp(s *authority.State) {
	if c.lag.of.CompareAndSwap(s, nil) {
		c.lag.over.Notify()
	}
}

// acts reports whether something may be changed or certified under s.
func (c *Head) acts(s *authority.State) bool {
	last := decide.Same
	if c.lag.of.Load() == s {
		last = decide.Another
	}
	return decide.Acts(s.Phase, last)
}

// inForce returns the state to change something under, or to certify somebody. If the
// store showed a newer head it waits until that is in force here, for as long as ctx and
// followPatience allow.
func (c *Head) inForce(ctx context.Context) (*authority.State, error) {
	deadline := time.Now().Add(followPatience)
	for {
		changed, over := c.stateChanged.Wait(), c.lag.over.Wait()
		s, err := c.ready()
		if err != nil || c.acts(s) {
			return s, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, explain.New(explain.HeadNotFollowed)
		}
		if _, err := watch.Wait(ctx, left, changed, over); err != nil {
			return nil, err
		}
	}
}

// atHead is inForce for who acts on what the head of the history is: the store is asked
// for it. While the store is out of reach that is the head in memory.
func (c *Head) atHead(ctx context.Context) (*authority.State, error) {
	if _, err := c.ready(); err != nil {
		return nil, err
	}
	asking, cancel := c.patience(ctx)
	defer cancel()
	if !c.headHolds(asking) {
		c.cfg.Leave(asking)
	}
	return c.inForce(ctx)
}

// headTurn takes setting, for a change of the head that the store shows. In recovery mode
// it returns that state at once.
func (c *Authority) headTurn(ctx context.Context) (s *authority.State, release func(), err error) {
	for {
		if s := c.cfg.Head.State(); s.Phase == authority.Recovery { // it need not wait for who looks for the keys
			return s, func() {}, nil
		}
		if release, err = c.settingTurn(ctx); err != nil {
			return nil, nil, err
		}
		c.toHead(ctx)
		if s = c.cfg.Head.State(); s.Phase != authority.Ready || c.cfg.Head.acts(s) {
			return s, release, nil
		}
		release() // for who follows the head
		if _, err := c.cfg.Head.inForce(ctx); err != nil && !errors.Is(err, explain.RecoveryMode) {
			return nil, nil, err
		}
	}
}

// lost reports whether err, with which the adoption of a head ended, says that somebody
// else was first.
func lost(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, explain.StoreBusy)
}

// lostPause is how long to wait before a head is looked at again whose adoption was lost
// to somebody for the n-th time in a row.
func lostPause(n int) time.Duration {
	most := record.ConflictPause
	for range min(n, 16) {
		most = min(2*most, headPollPause)
	}
	return mathrand.N(most)
}

// headIfFree returns the state to answer a peer with that is at another head. It does not
// wait for setting: two coordinators that prepare each other would wait for each other.
func (c *Authority) headIfFree(ctx context.Context) (*authority.State, error) {
	select {
	case c.setting <- struct{}{}:
		c.toHead(ctx)
		<-c.setting
	default:
		c.cfg.Head.LookAgain()
	}
	return c.cfg.Head.ready()
}
