package coordinatortest

import (
	"context"
	"crypto/ed25519"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/snapshot"
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
		Reason: "test", Signatures: SignChangeIn(f, p.GetChange(), f.Signer)}
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

// SignChangeIn signs a change of root.
func SignChangeIn(f *Fleet, change []byte,
	signers ...ed25519.PrivateKey) (out []*fealtyv1.ManifestSignature) {
	for _, signer := range signers {
		key, err := manifest.NewKey(signer.Public().(ed25519.PublicKey))
		if err != nil {
			f.T.Fatal(err)
		}
		out = append(out, &fealtyv1.ManifestSignature{Key: key.String(),
			Signature: ed25519.Sign(signer,
				snapshot.PAE(snapshot.TypeRootChange, Cluster, change))})
	}
	return out
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
		&fealtyv1.CommitReseedRequest{Change: p.GetChange(), Reason: "test", Signatures: SignChangeAt(d,
			p.GetChange())})
	return err
}

// SignChangeAt signs a change of root, as the signer of the desk.
func SignChangeAt(d *Desk, change []byte) []*fealtyv1.ManifestSignature {
	d.T.Helper()
	key, err := manifest.NewKey(d.Signer.Public().(ed25519.PublicKey))
	if err != nil {
		d.T.Fatal(err)
	}
	return []*fealtyv1.ManifestSignature{{Key: key.String(),
		Signature: ed25519.Sign(d.Signer,
			snapshot.PAE(snapshot.TypeRootChange, Cluster, change))}}
}
