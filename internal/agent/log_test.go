package agent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/platform/logging"
)

// fullDisk takes nothing while it is full.
type fullDisk struct{ atomic.Bool }

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.Load() {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// An agent whose log is lost says so in its reports, and says it no more once its log is taken again.
func TestLostLogIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := nodetest.New(t)
		n := newNode(f)
		n.MustJoin()
		var disk fullDisk
		output := logging.Start(&disk)
		a, err := agent.Open(t.Context(), agent.Config{DataDir: n.Dir, FS: n.Disk.FS(), Now: f.Clock, Log: nodetest.Quiet(),
			Dial: f.Dial, Release: "v0.1.0", Output: output})
		f.Must(err)
		a.Serve("", "")
		stop := n.run(a)
		for i, lost := range []bool{false, true, false} {
			disk.Store(lost)
			fmt.Fprintln(output, "a line")
			time.Sleep(15 * time.Second) // sooner than the next report is due
			f.Do(func() {
				last := f.Seen.Reports[len(f.Seen.Reports)-1]
				if (last.GetLogProblem() == "there is no space left where it is kept") != lost ||
					(last.GetLogProblemSince() != nil) != lost || (last.GetLogDropped() > 0) != lost {
					t.Errorf("report %d: %v", i, last)
				}
				f.Seen.Reports = []*fealtyv1.ConnectRequest{last}
			})
		}
		_ = stop()
		output.Close(context.WithoutCancel(t.Context()))
	})
}
