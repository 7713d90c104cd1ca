package desktest

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
)

// TrustService is the service of the signing keys.
func TrustService(d *coordinatortest.Desk) fealtyv1.TrustServiceServer {
	return coordinatortest.Served[fealtyv1.TrustServiceServer](d.C.Rooms().Trust.RegisterServices)
}

// Rotate begins to rotate the key that signs snapshots.
func Rotate(d *coordinatortest.Desk, deadline time.Duration) *fealtyv1.RotateConfigKeyResponse {
	d.T.Helper()
	resp, err := TrustService(d).RotateConfigKey(context.Background(),
		&fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(deadline), Reason: "test"})
	if err != nil {
		d.T.Fatalf("rotate: %v", err)
	}
	return resp
}
