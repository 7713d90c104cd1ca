package coordinatortest

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/trust"
)

// TrustService is the service of the signing keys.
func TrustService(d *Desk) fealtyv1.TrustServiceServer {
	return Served[fealtyv1.TrustServiceServer](d.C.Parts().Trust.RegisterServices)
}

// Rotate begins to rotate the key that signs snapshots.
func Rotate(d *Desk, deadline time.Duration) *fealtyv1.RotateConfigKeyResponse {
	d.T.Helper()
	resp, err := TrustService(d).RotateConfigKey(context.Background(),
		&fealtyv1.RotateConfigKeyRequest{Deadline: durationpb.New(deadline), Reason: "test"})
	if err != nil {
		d.T.Fatalf("rotate: %v", err)
	}
	return resp
}

// Statement is one that the desk's signer signed.
func Statement(d *Desk, number uint64, edit func(*trust.Emergency)) []byte {
	d.T.Helper()
	e := trust.Emergency{ClusterID: Cluster, Root: d.State().RootPin, Number: number,
		IssuedAt: d.Clock().UTC(), Reason: "c1 was stolen"}
	edit(&e)
	s := &trust.SignedEmergency{}
	var err error
	if s.Statement, err = e.Encode(); err != nil {
		d.T.Fatal(err)
	}
	if err := s.Sign(d.Signer); err != nil {
		d.T.Fatal(err)
	}
	raw, err := s.Marshal()
	if err != nil {
		d.T.Fatal(err)
	}
	return raw
}

// ApplyEmergency applies a statement as an admin does; dry only checks it.
func ApplyEmergency(d *Desk, raw []byte, dry bool) (*fealtyv1.ApplyEmergencyResponse, error) {
	return TrustService(d).ApplyEmergency(context.Background(),
		&fealtyv1.ApplyEmergencyRequest{Statement: raw, DryRun: dry})
}

// Rekey has the desk's coordinator make a new mesh CA key, and move the head to it.
func Rekey(d *Desk) (*authority.State, error) {
	d.T.Helper()
	release, err := d.C.Parts().Moves.Turn.Take(context.Background())
	if err != nil {
		d.T.Fatal(err)
	}
	defer release()
	return d.C.Parts().Moves.Succession.Rekey(context.Background(), d.State(), "test", "test", nil)
}
