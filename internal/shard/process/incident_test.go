package process_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/shard/process"
)

// way is a way to coordinators that fails as often as it is said.
type way struct {
	grpc.ClientConnInterface
	fails int
	at    []time.Time
	said  []*fealtyv1.ReportFencedRequest
}

func (w *way) Invoke(_ context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	w.at = append(w.at, time.Now())
	w.said = append(w.said, args.(*fealtyv1.ReportFencedRequest))
	if len(w.at) <= w.fails {
		return status.Error(codes.Unavailable, "nobody is there")
	}
	return nil
}

// A shard that was fenced while no coordinator answers tells one as soon as it can, ever more
// rarely, says the same each time, and says so again while it is there.
func TestFencedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sender, err := fence.NewSender(fence.Life{Epoch: 1<<32 | 1, Incarnation: fence.NewIncarnation()})
		if err != nil {
			t.Fatal(err)
		}
		refused := fmt.Errorf("%w: %s", fence.ErrEnded, strings.Repeat("é", 400))
		if err := sender.Heard(refused); !errors.Is(err, fence.ErrEnded) {
			t.Fatal(err)
		}
		w := &way{fails: 9}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			process.TellFenced(ctx, w, "eu-1", sender, slog.New(slog.NewTextHandler(io.Discard, nil)))
		}()
		time.Sleep(4 * time.Hour)
		cancel()
		<-over
		var waits []time.Duration
		for i := range w.at[1:] {
			waits = append(waits, w.at[i+1].Sub(w.at[i]))
		}
		const s, m, h = time.Second, time.Minute, time.Hour
		want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, m, m, m, h, h, h}
		if !slices.Equal(waits, want) {
			t.Errorf("between two calls were %v, want %v", waits, want)
		}
		for _, r := range w.said {
			if r.GetName() != "eu-1" || r.GetIncarnation() != sender.Life().Incarnation.String() ||
				r.GetEpoch() != 1<<32|1 || len(r.GetProblem()) > 512 || !strings.Contains(r.GetProblem(), "fenced") {
				t.Fatalf("it said %v", r)
			}
		}
	})
}
