package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/errcode"
)

// A wait that ends is told as that, with the last failure that was one of its own.
func TestUntil(t *testing.T) {
	refused, busy := errcode.New(errcode.Denied), errcode.New(errcode.RecoveryMode)
	type answer struct {
		done bool
		err  error
		hang bool // until the context ends
	}
	for _, tt := range []struct {
		name    string
		wait    time.Duration
		answers []answer
		want    errcode.Code
		calls   int
	}{
		{"done at once", 0, []answer{{done: true}}, "", 1},
		{"without a wait it is tried once", 0, []answer{{err: busy}}, errcode.RecoveryMode, 1},
		{"without a wait, not done", 0, []answer{{}}, "", 1},
		{"done later", time.Minute, []answer{{err: busy}, {}, {done: true}}, "", 3},
		{"refused for good", time.Minute, []answer{{err: busy}, {done: true, err: refused}}, errcode.Denied, 2},
		{"never done", 20 * time.Millisecond, []answer{{err: busy}}, errcode.WaitRanOut, 0},
		{"cut off by its end", 20 * time.Millisecond, []answer{{done: true, hang: true, err: refused}}, errcode.WaitRanOut, 1},
	} {
		n := 0
		pause := time.Millisecond
		_, err := client.Until(t.Context(), client.WaitFlag{D: tt.wait}, "x", func(ctx context.Context) (int, bool, error) {
			a := tt.answers[min(n, len(tt.answers)-1)]
			n++
			if a.hang {
				<-ctx.Done()
				return 0, a.done, a.err
			}
			return n, a.done, a.err
		}, &pause)
		got := errcode.Code("")
		if err != nil {
			got = errcode.Of(err).Code
		}
		if got != tt.want || tt.calls > 0 && n != tt.calls {
			t.Errorf("%s: %v after %d calls; want %q after %d", tt.name, err, n, tt.want, tt.calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	pause := time.Millisecond
	_, err := client.Until(ctx, client.WaitFlag{D: time.Minute}, "x", func(context.Context) (int, bool, error) { cancel(); return 0, false, busy }, &pause)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
