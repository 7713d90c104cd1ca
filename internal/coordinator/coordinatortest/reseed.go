package coordinatortest

import (
	"context"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// ReseedClient is a client for new seeds.
func ReseedClient(f *Fleet) fealtyv1.ReseedServiceClient {
	f.T.Helper()
	return fealtyv1.NewReseedServiceClient(f.LocalConn())
}

// PrepareReseed has the coordinator make a seed, and returns what commits it, signed.
func PrepareReseed(f *Fleet, m []byte) *fealtyv1.CommitReseedRequest {
	f.T.Helper()
	p, err := ReseedClient(f).PrepareReseed(f.Context(), &fealtyv1.PrepareReseedRequest{Manifest: m})
	if err != nil {
		f.T.Fatalf("prepare: %v", err)
	}
	return &fealtyv1.CommitReseedRequest{Change: p.GetChange(),
		Reason: "test", Signatures: SignChange(f.T, p.GetChange(), f.Signer)}
}

// ReseedIn gives the fleet a new seed.
func ReseedIn(f *Fleet) *fealtyv1.CommitReseedResponse {
	f.T.Helper()
	resp, err := ReseedClient(f).CommitReseed(f.Context(), PrepareReseed(f, nil))
	if err != nil {
		f.T.Fatalf("reseed: %v", err)
	}
	return resp
}

// ReseedAt gives the desk a new seed under the manifest m; nil: the one in force.
func ReseedAt(d *Desk, m []byte) error {
	d.T.Helper()
	ctx := context.Background()
	p, err := Served[fealtyv1.ReseedServiceServer](
		d.C.Parts().Moves.Manifests.RegisterServices).PrepareReseed(
		ctx,
		&fealtyv1.PrepareReseedRequest{Manifest: m})
	if err != nil {
		return err
	}
	_, err = Served[fealtyv1.ReseedServiceServer](
		d.C.Parts().Moves.Manifests.RegisterServices).CommitReseed(
		ctx,
		&fealtyv1.CommitReseedRequest{Change: p.GetChange(), Reason: "test", Signatures: SignChange(d.T, p.GetChange(), d.Signer)})
	return err
}
