package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/internal/platform/ratelimit"
)

// lumps brings one lump of bytes after each pause, until its context ends.
type lumps struct {
	ctx   context.Context
	pause time.Duration
	lump  int
}

func (l lumps) Read(b []byte) (int, error) {
	select {
	case <-time.After(l.pause):
		return min(l.lump, len(b)), nil
	case <-l.ctx.Done():
		return 0, l.ctx.Err()
	}
}

// A transfer that is fast enough on the whole and in each window is let be; each other
// one ends at the end of the window that showed it, or of its time.
func TestTransfers(t *testing.T) {
	const size = 60 * ratelimit.TransferRate
	for _, tc := range []struct {
		name  string
		pause time.Duration
		lump  int
		want  time.Duration // when it is given up; 0: it is not
	}{
		{"at the rate", time.Second, ratelimit.TransferRate, 0},
		{"in lumps", 3 * time.Second, 3 * ratelimit.TransferRate, 0},
		{"a byte a second", time.Second, 1, ratelimit.Window},
		{"empty reads", time.Second, 0, ratelimit.Window},
		{"nothing", time.Hour, 1, ratelimit.Window},
		{"just what each window wants", time.Second, ratelimit.TransferRate * 6 / 10, ratelimit.TransferTime(size)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, transfer := ratelimit.BeginTransfer(t.Context(), size)
				defer transfer.End()
				_, err := io.CopyN(struct{ io.Writer }{io.Discard}, transfer.Reader(lumps{ctx, tc.pause, tc.lump}), size)
				if slow := tc.want > 0; transfer.Slow() != slow || (err != nil) != slow {
					t.Fatalf("slow is %v, and it came to %v", transfer.Slow(), err)
				}
				if took := time.Since(began); tc.want > 0 && took != tc.want {
					t.Errorf("it was given up after %v, want %v", took, tc.want)
				}
			})
		})
	}
}

// A caller that waits for the beginning is not there for ever; one that ends it is
// not slow; and the end of the caller is no fault of the sender.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, transfer := ratelimit.BeginTransfer(t.Context(), 0)
		<-ctx.Done()
		if took := time.Since(began); took != ratelimit.TransferGrace || !transfer.Slow() || !errors.Is(context.Cause(ctx), ratelimit.ErrSlowTransfer) {
			t.Errorf("it ended after %v: %v", took, context.Cause(ctx))
		}
		transfer.End()

		_, transfer = ratelimit.BeginTransfer(t.Context(), 1)
		transfer.Reader(nil)
		transfer.End()
		time.Sleep(time.Hour)
		if transfer.Slow() {
			t.Error("what was over was slow")
		}

		caller, cancel := context.WithCancel(t.Context())
		ctx, transfer = ratelimit.BeginTransfer(caller, 1)
		defer transfer.End()
		cancel()
		<-ctx.Done()
		if transfer.Slow() {
			t.Error("the caller's end was slow")
		}
	})
}
