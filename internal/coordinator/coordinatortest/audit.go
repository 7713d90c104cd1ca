package coordinatortest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	auditlogstore "github.com/fealty-io/fealty/internal/auditlog/store"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/store"
)

// AuditReport is what fealty audit verify finds by now in the log of st, under the trust bundle
// in force at c.
func AuditReport(t TB, c *coordinator.Coordinator, st store.Store, now time.Time,
	known ...auditlog.Known) *auditlog.Report {
	t.Helper()
	s, view := c.Parts().Head.State(), c.Parts().Bundle.View()
	bundle, _, err := s.Bundle.Open(view.Signed)
	WantOnlyNil(t, err)
	v := auditlog.NewVerifier(s.Manifest.Cluster, bundle.ConfigKeys, known...)
	_, err = auditlogstore.Read(context.Background(), st, time.Time{}, now, func(i auditlogstore.Item) error {
		v.Add(i.Key, i.Value)
		return nil
	})
	WantOnlyNil(t, err)
	return v.Close()
}

// Checkpointed has the leader of d vouch for its log, and returns what verifies then.
func Checkpointed(d *Desk) *auditlog.Report {
	d.T.Helper()
	d.Lead(d.C)
	WantOnlyNil(d.T, d.C.Parts().Audit.Look(context.Background(), d.State()))
	WantOnlyNil(d.T, d.C.Parts().Audit.Checkpoint(context.Background(), d.State(), 0))
	return AuditReport(d.T, d.C, d.Store, d.Clock())
}

// WantWholeLog wants nothing wrong in a log, and all of its entries behind a checkpoint.
func WantWholeLog(t TB, st *MemStore, r *auditlog.Report) {
	t.Helper()
	if r.Wrong != 0 || r.Uncovered != 0 {
		t.Fatalf("%d behind no checkpoint, %d wrong: %v", r.Uncovered, r.Wrong, r.Problems)
	}
	if n := len(st.Keys(auditlog.ChainPrefix)); uint64(n) != r.Covered {
		t.Fatalf("%d of %d entries are vouched for", r.Covered, n)
	}
}

// AuditDesk is a desk with a log of a few entries behind checkpoints, and the keys of these.
func AuditDesk(t *testing.T) (d *Desk, entries []string) {
	t.Helper()
	d = PoolDesk(t)
	for i := range 3 {
		d.Joined(fmt.Sprint("n", i))
		WantWholeLog(t, d.Store, Checkpointed(d))
	}
	return d, d.Store.Keys(auditlog.ChainPrefix)
}

// BrokenLog are the findings of the coordinator at the desk that the audit log was altered.
func BrokenLog(d *Desk) (problems []string) {
	for _, f := range d.C.Parts().Audit.Findings() {
		problems = append(problems, f.GetSummary())
	}
	return problems
}
