package accept

import (
	"context"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
)

// lookEvery bounds how long a timer waits: it does not see a clock that is set, or a machine
// that slept.
const lookEvery = time.Minute

// Clock is the node's clock, whose floor outlives the process.
type Clock struct {
	*state.Clock
	store *state.Store
	log   *slog.Logger
}

// Keep makes the floor durable. Losing it costs the time since the last one that
// was signed, so that a failure is logged and no more.
func (c *Clock) Keep(ctx context.Context) {
	if err := c.store.WriteSealed(dir.ClockName, c.File()); err != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, "the time is not kept", slog.Any("err", err))
	}
}

// Watch writes the floor down now and then, and says when the machine's clock
// falls behind it or comes back.
func (c *Clock) Watch(ctx context.Context) error {
	t := time.NewTicker(state.ClockKeepEvery)
	defer t.Stop()
	wrong := false
	for {
		if d := c.Behind(); d > 0 != wrong {
			wrong = !wrong
			if wrong {
				c.log.LogAttrs(ctx, slog.LevelError, "the machine's clock is behind what was signed, going by that",
					slog.Duration("behind", d.Round(time.Second)), slog.Time("now", c.Now()))
			} else {
				c.log.LogAttrs(ctx, slog.LevelInfo, "the machine's clock is right again")
			}
		}
		c.Keep(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
