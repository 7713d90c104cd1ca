package authority

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/coordinator/storeguard"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/timeout"
)

// Patience with a store that does not answer.
const (
	// StorePatience bounds how long a request waits for it, in
	// all its calls, so that it ends by name before its client gives up: see package
	// patience. It is also how long a call waits that need not wait for the store, and
	// StoreImpatience the same while the store is known to be out of reach.
	StorePatience   = 10 * time.Second
	StoreImpatience = 2 * time.Second

	// DegradedAfter it showed the head last, readiness says "store: degraded".
	DegradedAfter = 30 * time.Second
)

// Patience returns ctx with a bound on the wait for the store.
func (h *Head) Patience(ctx context.Context) (context.Context, context.CancelFunc) {
	wait := StorePatience
	if h.StoreSilent() {
		wait = StoreImpatience
	}
	return context.WithTimeout(ctx, wait)
}

// StoreSilent reports whether the store is known to be out of reach.
func (h *Head) StoreSilent() bool {
	return h.headConfirmed.Age(h.cfg.Now()) > DegradedAfter || !h.StoreAnswers()
}

// Granted returns ctx for a request: it waits for the store for so long in all, however
// many calls it takes.
func Granted(ctx context.Context) context.Context {
	return timeout.Grant(ctx, StorePatience)
}

// OutOfReach reports whether err means that the store did not answer a call that was
// made under asking, which [Head.Patience] made of ctx.
func OutOfReach(ctx, asking context.Context, err error) bool {
	if ctx.Err() != nil {
		return false // nobody waits any more
	}
	return errors.Is(err, timeout.ErrOver) || errors.Is(err, errcode.StoreUnreachable) || errors.Is(err,
		errcode.StoreOutcomeUnknown) ||
		asking.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled))
}

// Degraded is the error of a call that err of the store kept from being done.
func (h *Head) Degraded(what string, err error) error {
	if errors.Is(err, errcode.StoreOutcomeUnknown) || errors.Is(err, errcode.StoreWentBack) {
		return err
	}
	return h.cfg.StoreGuard.Unanswered(what, err)
}

// DegradedState returns the state to go on by without the store, or why that is over.
func (h *Head) DegradedState(what string, cause error) (*State, error) {
	s, err := h.Ready()
	if err != nil {
		return nil, err
	}
	if age := h.headConfirmed.Age(h.cfg.Now()); age > h.cfg.MaxHeadAge {
		why := fmt.Sprintf("it last confirmed the head of the history %s ago, and max_head_age is %s",
			age.Round(time.Second), h.cfg.MaxHeadAge)
		code := errcode.StoreUnreachable
		if o := h.cfg.StoreGuard.Outage(); o.Outage != 0 {
			code, why = storeguard.CodeOf(o.Outage), why+": "+o.Reason()
		}
		return nil, errcode.Wrap(cause, code, "what", what, "cause", why)
	}
	return s, nil
}
