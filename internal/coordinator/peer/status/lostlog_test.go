package status_test

import (
	"io"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/logging"
	"github.com/fealty-io/fealty/test/wait"
)

// full is a stream that takes nothing while it is full.
type full struct{ atomic.Bool }

func (f *full) Write(p []byte) (int, error) {
	if f.Load() {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// A coordinator whose log is lost is named by whichever coordinator is asked, until its log is taken again.
func TestLostLogIsFound(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	var disk full
	output := logging.Start(&disk)
	t.Cleanup(func() { output.Close(t.Context()) })
	r := coordinatortest.NewReplica(t, f)
	r.Config = func(cfg *coordinator.Config) { cfg.Monitoring.Output = output }
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	r.AwaitHead(f)
	coordinatortest.AwaitReplica(r, func(r peer.Record) bool { return r.Phase == "ready" })
	found := func(at *coordinatortest.Fleet) bool {
		f.C.Parts().Peers.Ask(f.Context(), f.State())
		for _, x := range coordinatortest.GetStatus(at).GetFindings() {
			if x.GetCode() == string(errcode.LogFailing) {
				return true
			}
		}
		return false
	}
	for _, lost := range []bool{false, true, false} {
		disk.Store(lost)
		if lost {
			_, _ = io.WriteString(output, "a line\n")
		}
		for name, at := range map[string]*coordinatortest.Fleet{"itself": r, "the other one": f} {
			wait.Until(t, name+" says what is so", func() bool { return found(at) == lost })
		}
	}
}
