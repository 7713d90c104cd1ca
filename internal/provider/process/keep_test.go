package process // inside: it is a loop of the provider that nothing outside sees

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/fence/durable"
)

// full are marks on a disk that has no room for some tries.
type full struct {
	broken error
	tries  int // that fail
	made   int
}

func (f *full) Status() durable.LedgerStatus { return durable.LedgerStatus{Broken: f.broken} }

func (f *full) Rewrite(context.Context) error {
	if f.made++; f.made <= f.tries {
		return errors.New("no space left on device")
	}
	f.broken = nil
	return nil
}

// Marks that could not be saved are written anew until the disk takes them, and not after.
func TestMarksAreWrittenAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Provider{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
		marks := &full{broken: durable.ErrBroken, tries: 2}
		ctx, stop := context.WithTimeout(t.Context(), 10*rewriteEvery)
		defer stop()
		p.keepMarks(ctx, marks)
		if marks.broken != nil || marks.made != 3 {
			t.Errorf("after %d tries: %v", marks.made, marks.broken)
		}
	})
}
