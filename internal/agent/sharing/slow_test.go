package sharing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/agent/sharing"
	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// A caller that stops reading loses its place in seconds, and one that crawls when the time of the
// whole content is over; one that reads at the pace that is asked for is given all of it.
func TestSlowCallersLoseTheirPlace(t *testing.T) {
	const size = 8 << 20
	content := strings.Repeat("x", size)
	const forever = 24 * time.Hour
	for name, tt := range map[string]struct {
		piece func(sent int) time.Duration // that the next piece takes
		holds time.Duration                // zero: it is given all
	}{
		"reads nothing": {func(int) time.Duration { return forever }, sharing.StallTime},
		"stops in the middle": {func(sent int) time.Duration {
			if sent >= size/2 {
				return forever
			}
			return time.Millisecond
		}, size/2/(16<<10)*time.Millisecond + sharing.StallTime},
		"crawls":                  {func(int) time.Duration { return sharing.StallTime - time.Second }, ratelimit.TransferTime(size)},
		"reads at the least pace": {func(int) time.Duration { return (16 << 10) * time.Second / ratelimit.TransferRate }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, over := context.WithCancel(t.Context()) // of the call: gRPC ends it when the handler returned
				began, sent := time.Now(), 0
				err := sharing.InPieces(ctx, content, func(piece []byte) error {
					select {
					case <-time.After(tt.piece(sent)):
						sent += len(piece)
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				took := time.Since(began)
				over()
				synctest.Wait()
				switch {
				case tt.holds == 0 && (err != nil || sent != size):
					t.Errorf("after %v, with %d of %d bytes: %v", took, sent, size, err)
				case tt.holds > 0 && (!errors.Is(err, context.DeadlineExceeded) || took != tt.holds):
					t.Errorf("it held its place for %v, want %v: %v", took, tt.holds, err)
				}
			})
		})
	}
}
