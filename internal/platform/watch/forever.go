package watch

import (
	"context"
	"log/slog"
)

// Forever runs f, which is called what, until ctx ends, and returns its error then. One that ends before
// is logged, and starts again after [RetryPause]: a store that is out of reach for a while must not end the
// process, and with it what is in its memory alone.
func Forever(ctx context.Context, log *slog.Logger, what string, f func() error) error {
	for {
		err := f()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.LogAttrs(ctx, slog.LevelWarn, "a loop failed and starts again", slog.String("loop", what),
			slog.Any("err", err))
		if err := Sleep(ctx, RetryPause); err != nil {
			return err
		}
	}
}
