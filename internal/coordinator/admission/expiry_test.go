package admission_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/proof"
)

// An expired SVID does not renew, one of the epoch before does, and within grace
// the last key brings its member back, over real connections.
func TestExpiryAndGrace(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n, late := f.Member("node-a"), f.Member("node-b")
	if err := f.Set(f.Manifest(coordinatortest.CoordinatorEntry(t, 2))); err != nil {
		t.Fatal(err)
	}
	if err := n.Renew(true); err != nil {
		t.Fatalf("an SVID of the epoch before: %v", err)
	}
	f.Advance(26 * time.Hour)
	s := f.State()
	if err := errors.Join(f.C.Parts().Bundle.RenewIdentity(f.Context(), s),
		f.C.Parts().Bundle.Refresh(f.Context(), s, true)); err != nil {
		t.Fatal(err)
	}
	// Its own material is refused before it is dialed with, so ask as a thief would.
	csr, err := coordinatortest.NewTestCSR()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := coordinatortest.NewClients(rawConn(f, n)).Admission.Renew(f.Context(),
		&fealtyv1.RenewRequest{Name: "node-a", Csr: csr}); err == nil {
		t.Fatal("an expired SVID was renewed")
	}
	if err := n.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-a", n.Key)); err != nil {
		t.Fatalf("the last key in grace: %v", err)
	}
	if err := n.Renew(true); err != nil {
		t.Fatalf("after the rejoin: %v", err)
	}
	f.Advance(8 * 24 * time.Hour)
	if err := errors.Join(f.C.Parts().Bundle.RenewIdentity(f.Context(), s),
		f.C.Parts().Bundle.Refresh(f.Context(), s, true)); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantCode(t, late.Join(identity.Data, proof.NewSVIDProver(identity.Data, "node-b", late.Key)),
		errcode.RejoinGraceOver)
}

// rawConn dials with the node's certificate, whatever its dates say.
func rawConn(f *coordinatortest.Fleet, n *coordinatortest.Node) coordinatortest.Conn {
	f.T.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.Addr, grpc.WithTransportCredentials(coordinatortest.RawCredentials(
		n)))
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return conn
}
