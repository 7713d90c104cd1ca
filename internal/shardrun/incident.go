package shardrun

import (
	"context"
	"strings"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// How a shard that was fenced tells the coordinators.
const (
	firstPause  = time.Second // after a call that failed; each one after it doubles it
	lastPause   = time.Minute
	tellAgain   = time.Hour // while it is there: what people are told ends a day after it stops
	tellTimeout = 15 * time.Second
	maxProblem  = 512 // bytes
)

// tellFenced tells a coordinator that this process was fenced, once it was, until one heard it,
// and then again while the process is there. It returns when ctx ends. Nobody waits for it: a
// process that was fenced acts no more, whoever hears of it.
func (r *running) tellFenced(ctx context.Context) {
	select {
	case <-r.shard.Fenced():
	case <-ctx.Done():
		return
	}
	life, problem := r.sender.Life(), ""
	if err := r.sender.Err(); err != nil {
		problem = err.Error()
	}
	if len(problem) > maxProblem {
		problem = strings.ToValidUTF8(problem[:maxProblem], "")
	}
	client := fealtyv1.NewIncidentServiceClient(r.cfg.Coordinators)
	for pause, told := firstPause, false; ; {
		asking, cancel := context.WithTimeout(ctx, tellTimeout)
		_, err := client.ReportFenced(asking, &fealtyv1.ReportFencedRequest{Name: r.cfg.ID.Name(),
			Incarnation: life.Incarnation.String(), Epoch: uint64(life.Epoch), Problem: problem})
		cancel()
		wait := tellAgain
		switch {
		case err == nil && !told:
			told = true
			r.cfg.Log.Info("a coordinator was told that this shard was fenced")
		case err != nil:
			wait, pause = pause, min(2*pause, lastPause)
			r.cfg.Log.Warn("no coordinator was told yet that this shard was fenced", "err", err, "pause", wait)
		}
		if err == nil {
			pause = firstPause
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
