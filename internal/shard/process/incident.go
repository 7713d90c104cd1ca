package process

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
)

// How a shard that was fenced tells the coordinators.
const (
	firstPause  = time.Second // after a call that failed; each one after it doubles it
	lastPause   = time.Minute
	tellAgain   = time.Hour // while it is there: what people are told ends a day after it stops
	tellTimeout = 15 * time.Second
	maxProblem  = 512 // bytes
)

// tellFenced tells a coordinator that the process of a sender was fenced, until one heard it, and
// then again while the process is there. It returns when ctx ends. Nobody waits for it: a process
// that was fenced acts no more, whoever hears of it.
func tellFenced(ctx context.Context, conn grpc.ClientConnInterface, name string, sender *fence.Sender,
	log *slog.Logger) {
	life, problem := sender.Life(), ""
	if err := sender.Err(); err != nil {
		problem = err.Error()
	}
	if len(problem) > maxProblem {
		problem = strings.ToValidUTF8(problem[:maxProblem], "")
	}
	client := fealtyv1.NewIncidentServiceClient(conn)
	for pause, told := firstPause, false; ; {
		asking, cancel := context.WithTimeout(ctx, tellTimeout)
		_, err := client.ReportFenced(asking, &fealtyv1.ReportFencedRequest{Name: name,
			Incarnation: life.Incarnation.String(), Epoch: uint64(life.Epoch), Problem: problem})
		cancel()
		wait := tellAgain
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait, pause = pause, min(2*pause, lastPause)
			log.Warn("no coordinator was told yet that this shard was fenced", "err", err, "pause", wait)
		default:
			if !told {
				log.Info("a coordinator was told that this shard was fenced")
			}
			pause, told = firstPause, true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
