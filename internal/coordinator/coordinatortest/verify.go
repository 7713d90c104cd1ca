package coordinatortest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/owner"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/keyring/recovery"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
)

// VerifyAt verifies the cluster that answers at addr, as fealty verify does.
func VerifyAt(t testing.TB, addr string, want recovery.Expected) (*recovery.Cluster, error) {
	t.Helper()
	conn, err := mesh.DialPinned(addr, pinned.Unproven(), mesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return recovery.Verify(ctx, conn, want, addr, time.Now())
}

// Impostor answers who verifies in place of a coordinator.
type Impostor struct {
	fealtyv1.UnimplementedVerifyServiceServer
	Answer func(nonce, binding []byte) (*fealtyv1.VerifyClaim, *history.History, error)
}

// Verify answers one call.
func (l *Impostor) Verify(req *fealtyv1.VerifyRequest, stream fealtyv1.VerifyService_VerifyServer) error {
	cs, _ := proof.ConnectionState(stream.Context())
	binding, err := proof.Binding(cs)
	if err != nil {
		return err
	}
	claim, h, err := l.Answer(req.GetNonce(), binding)
	if err != nil {
		return err
	}
	if err := stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_Claim{Claim: claim}}); err != nil {
		return err
	}
	return owner.Pages(h, func(page *fealtyv1.RecoveryHistory) error {
		return stream.Send(&fealtyv1.VerifyResponse{Step: &fealtyv1.VerifyResponse_History{History: page}})
	})
}

// Serve serves the impostor until the test ends, and returns its address.
func (l *Impostor) Serve(t *testing.T) string {
	t.Helper()
	return ServeAlone(t, func(to grpc.ServiceRegistrar) { fealtyv1.RegisterVerifyServiceServer(to, l) })
}
