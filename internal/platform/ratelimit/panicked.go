package ratelimit

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/fealty-io/fealty/internal/errcode"
)

// Panicked words what the handler of method panicked with, and logs where.
func Panicked(ctx context.Context, log *slog.Logger, method string, p any) error {
	log.LogAttrs(ctx, slog.LevelError, "a handler panicked", slog.String("method", method), slog.Any("panic", p),
		slog.String("stack", string(debug.Stack())))
	return errcode.New(errcode.Internal, "what", method)
}
