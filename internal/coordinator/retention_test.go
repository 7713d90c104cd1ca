package coordinator_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/audit"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// TestAuditNotesForgotten: that the notes of chains are removed which are over is no break, neither for who
// made them nor for who reads back.
func TestAuditNotesForgotten(t *testing.T) {
	t.Parallel()
	d, _ := coordinatortest.AuditDesk(t)
	for range 3 {
		d.Advance(14 * time.Hour)
		d.Restart()
		d.Lead(d.C)
		coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
		d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
		coordinatortest.WantOnly(t, "drop what is over", d.C.DropAudit(t.Context(), d.State(), d.Clock()), "")
		coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
	}
	if n := len(d.Store.Keys(auditlog.HeadPrefix)); n > 2 {
		t.Errorf("%d notes are kept", n)
	}
	if got := coordinatortest.BrokenLog(d); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}

// lateTrust is a trust bundle that is not there before it is read.
type lateTrust struct {
	audit.Trust
	read    bool
	changed chan struct{}
}

func (l *lateTrust) View() *bundle.View {
	if !l.read {
		return nil
	}
	return l.Trust.View()
}

func (l *lateTrust) Changed() <-chan struct{} { return l.changed }

// TestFirstCheckpointComesAtOnce: a coordinator vouches for the log, under the keys of a new seed, as soon as it
// leads and has read them, and not some time later.
func TestFirstCheckpointComesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := coordinatortest.AuditDesk(t)
		coordinatortest.WantOnlyNil(t, coordinatortest.ReseedAt(d, nil))
		s := d.State()
		late := &lateTrust{d.C.Parts().Bundle, false, make(chan struct{})}
		trail := audit.New(audit.Config{
			Store: d.C.Store(), Losses: d.C.Parts().StoreGuard, Authority: d.C.Parts().Head, Trust: late,
			Lead:     d.C.Parts().Election,
			Stopping: d.C.Stopping(), Now: d.Clock, Log: d.C.Log(), Failures: d.C.Failures(),
		})
		d.Lapse()
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { _ = trail.Run(ctx, s) })
		synctest.Wait()
		last := func() uint64 {
			last, err := store.Last(t.Context(), d.Store)
			coordinatortest.WantOnlyNil(t, err)
			return last.Number
		}
		before := last()
		d.Lead(d.C)
		synctest.Wait()
		if last() != before {
			t.Error("there is a checkpoint, and the keys are not read")
		}
		late.read = true
		close(late.changed)
		synctest.Wait()
		coordinatortest.WantWholeLog(t, d.Store, coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()))
		d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		d.Lapse()
		d.Lead(d.C) // the audit looks, as somebody else may have led meanwhile
		synctest.Wait()
		coordinatortest.WantWholeLog(t, d.Store, coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()))
		if took := time.Since(began); took != 0 || last() != before+2 {
			t.Errorf("it took %v, and %d checkpoints", took, last()-before)
		}
		cancel()
		loop.Wait()
	})
}

// TestAuditRetention: whole checkpoints and what is behind them go after 90 days, and the rest
// verifies. A crash between two of its transactions is made good the next time.
func TestAuditRetention(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	for i := range 4 {
		d.Joined(fmt.Sprint("old-", i))
		coordinatortest.Checkpointed(d)
	}
	old := d.Store.Keys(auditlog.ChainPrefix)
	d.Advance(coordinator.AuditRetention - time.Hour)
	d.Restart() // as the certificates and keys are over, and chains begin anew
	d.Lead(d.C)
	coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
	d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
	coordinatortest.WantWholeLog(t, d.Store, coordinatortest.Checkpointed(d))
	d.Advance(2 * time.Hour)
	coordinatortest.WantOnly(t, "bundle", d.C.Parts().Bundle.Refresh(t.Context(), d.State(), true), "")
	d.Lead(d.C)
	for n := 1; ; n++ {
		d.Store.FailAfter(n)
		err := d.C.DropAudit(t.Context(), d.State(), d.Clock())
		d.Store.FailAfter(-1)
		d.Store.SetDown(nil)
		if r := coordinatortest.AuditReport(t, d.C, d.Store, d.Clock()); r.Wrong != 0 {
			t.Fatalf("ended after %d calls: %v", n, r.Problems)
		}
		if err == nil {
			break
		}
		d.Lead(d.C)
	}
	for _, k := range old {
		if slices.Contains(d.Store.Keys(auditlog.ChainPrefix), k) {
			t.Errorf("%s is still there", k)
		}
	}
	if r := coordinatortest.Checkpointed(d); r.First <= 4 || r.Covered == 0 {
		t.Errorf("kept: %+v", r)
	}
	if n := len(d.Store.Keys(auditlog.CheckpointPrefix)); n > 3 {
		t.Errorf("%d checkpoints are kept", n)
	}
}
