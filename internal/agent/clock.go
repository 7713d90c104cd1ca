package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/state"
)

// trustedNow is the time that every end, bound and age of the node is compared with.
func (a *Agent) trustedNow() time.Time { return a.clock.Now() }

// keepClock makes the floor durable. Losing it costs the time since the last one that
// was signed, so that a failure is logged and no more.
func (a *Agent) keepClock(ctx context.Context) {
	if err := a.store.WriteSealed(dir.ClockName, a.clock.File()); err != nil {
		a.log.LogAttrs(ctx, slog.LevelWarn, "the time is not kept", slog.Any("err", err))
	}
}

// watchClock writes the floor down now and then, and says when the machine's clock
// falls behind it or comes back.
func (a *Agent) watchClock(ctx context.Context) error {
	t := time.NewTicker(state.ClockKeepEvery)
	defer t.Stop()
	wrong := false
	for {
		if d := a.clock.Behind(); d > 0 != wrong {
			wrong = !wrong
			if wrong {
				a.log.LogAttrs(ctx, slog.LevelError, "the machine's clock is behind what was signed, going by that", slog.Duration("behind", d.Round(time.Second)), slog.Time("now", a.trustedNow()))
			} else {
				a.log.LogAttrs(ctx, slog.LevelInfo, "the machine's clock is right again")
			}
		}
		a.keepClock(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
