package client

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/fealty-io/fealty/internal/cli/settings"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/platform/humanize"
)

// Default is --wait without a duration.
const Default = 5 * time.Minute

// WaitFlag is --wait[=DURATION]: 0 is no wait.
type WaitFlag struct{ D time.Duration }

func (w *WaitFlag) String() string {
	if w == nil || w.D == 0 {
		return ""
	}
	return w.D.String()
}

func (w *WaitFlag) Type() string { return "duration" }

func (w *WaitFlag) Set(text string) error {
	d, err := settings.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("it is not above 0")
	}
	if err == nil {
		w.D = d
	}
	return err
}

// Add adds --wait to cmd.
func (w *WaitFlag) Add(cmd *cobra.Command, help string) {
	cmd.Flags().Var(w, "wait", help)
	cmd.Flags().Lookup("wait").NoOptDefVal = Default.String()
}

// Until tries f again until it is done, fails for good, or the wait is over: then
// the last failure is the reason. Without a wait f is tried once. The pause between
// tries grows to ten seconds.
func Until[T any](ctx context.Context, w WaitFlag, what string, f func(context.Context) (v T, done bool, err error),
	pause *time.Duration) (T, error) {
	started := time.Now()
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if w.D > 0 {
		bounded, cancel = context.WithTimeout(ctx, w.D)
	}
	defer cancel()
	var last error
	for {
		v, done, err := f(bounded)
		switch {
		case ctx.Err() != nil:
			return v, ctx.Err()
		case w.D == 0, err == nil && done, done && bounded.Err() == nil:
			return v, err
		case err != nil && bounded.Err() == nil:
			last = err // one that the end of the wait caused says nothing
		}
		select {
		case <-time.After(*pause):
		case <-bounded.Done():
		}
		if ctx.Err() != nil {
			return v, ctx.Err()
		}
		if bounded.Err() != nil {
			pairs := []any{"what", what, "waited", humanize.Span(time.Since(started))}
			if last != nil {
				e := errcode.Of(last)
				if t := render.Translate(last); t != nil {
					e = t
				}
				pairs = append(pairs, "problem", "the last try: "+e.What)
			}
			return v, errcode.Wrap(last, errcode.WaitRanOut, pairs...)
		}
		*pause = min(*pause*2, 10*time.Second)
	}
}

// MayPass reports whether a join that failed can succeed without anybody changing
// the request.
func MayPass(err error) bool {
	for _, code := range []errcode.Code{
		errcode.NodeNoCoordinator, errcode.Unreachable, errcode.RecoveryMode, errcode.HeadNotFollowed,
		errcode.RateLimited, errcode.StoreUnreachable,
		errcode.HistoryUninitialized, errcode.PeerRejectedUs, errcode.ProofStale, errcode.StoreBusy, errcode.StoreFull,
		errcode.StoreRefuses,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// WaitDuration is a flag with a duration above 0.
type WaitDuration struct{ D time.Duration }

func (l *WaitDuration) String() string {
	if l == nil || l.D == 0 {
		return ""
	}
	return l.D.String()
}

func (l *WaitDuration) Type() string { return "duration" }

func (l *WaitDuration) Set(text string) error { return (*WaitFlag)(l).Set(text) }
