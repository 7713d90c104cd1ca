package coordinatortest

import (
	"context"
	"errors"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki"
)

// RenewRecorded asks for the recorded key, as an agent does that was told that a new one cannot
// be recorded. The guard of a listener comes first.
func RenewRecorded(m *Machine) error {
	m.Desk.T.Helper()
	if !m.Desk.Clock().Before(m.Leaf.NotAfter) || m.Desk.C.Parts().Bundle.View().Bundle.Banned(m.ID,
		identity.KeyOf(m.Leaf)) {
		return ErrCut
	}
	csr, err := pki.NewCSR(m.Key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	resp, err := Served[fealtyv1.AdmissionServiceServer](
		m.Desk.C.Parts().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.ID.Name(), Csr: csr, RecordedKey: true})
	if err != nil {
		return err
	}
	return m.Adopt(resp.GetChain())
}

// RenewPastGuard asks for the recorded key, as a member does whose connection the guard of a
// listener let through a moment ago.
func RenewPastGuard(d *Desk, m *Machine) error {
	csr, err := pki.NewCSR(m.Key)
	if err != nil {
		return err
	}
	ctx := identity.NewContext(context.Background(), identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)})
	_, err = Served[fealtyv1.AdmissionServiceServer](d.C.Parts().Admission.RegisterServices).Renew(ctx,
		&fealtyv1.RenewRequest{Name: m.ID.Name(), Csr: csr, RecordedKey: true})
	return err
}

// WantOutage fails the test unless err has this code, or is that of a change whose outcome is unknown
// because the store went away under it.
func WantOutage(t *testing.T, what string, err error, want errcode.Code) {
	t.Helper()
	if !errors.Is(err, want) && !errors.Is(err, errcode.StoreOutcomeUnknown) && !errors.Is(err,
		ErrDown) &&
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}
