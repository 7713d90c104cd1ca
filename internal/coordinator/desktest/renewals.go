package desktest

import (
	"context"
	"errors"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/ca"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/explain"
)

// RenewRecorded asks for the recorded key, as an agent does that was told that a new one cannot
// be recorded. The guard of a listener comes first.
func RenewRecorded(m *coordinatortest.Machine) error {
	m.Desk.T.Helper()
	if !m.Desk.Clock().Before(m.Leaf.NotAfter) || m.Desk.C.Rooms().Bundle.View().Bundle.Banned(m.ID,
		identity.KeyOf(m.Leaf)) {
		return coordinatortest.ErrCut
	}
	csr, err := ca.NewCSR(m.Key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	resp, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](
		m.Desk.C.Rooms().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.ID.Name(), Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return m.Adopt(resp.GetChain())
}

// RenewPastGuard asks for the recorded key, as a member does whose connection the guard of a
// listener let through a moment ago.
func RenewPastGuard(d *coordinatortest.Desk, m *coordinatortest.Machine) error {
	csr, err := ca.NewCSR(m.Key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	_, err = coordinatortest.Served[fealtyv1.AdmissionServiceServer](d.C.Rooms().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.ID.Name(), Csr: csr, RecordedKey: true})
	return err
}

// WantOutage fails the test unless err has this code, or is that of a change whose outcome is unknown
// because the store went away under it.
func WantOutage(t *testing.T, what string, err error, want explain.Code) {
	t.Helper()
	if !errors.Is(err, want) && !errors.Is(err, explain.StoreOutcomeUnknown) && !errors.Is(err,
		coordinatortest.ErrDown) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}
