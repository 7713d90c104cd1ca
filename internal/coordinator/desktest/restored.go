package desktest

import (
	"errors"
	"io"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/mesh"
)

// RestoreClient is a stranger's client for what a restore lost.
func RestoreClient(f *coordinatortest.Fleet) fealtyv1.RestoreServiceClient {
	f.T.Helper()
	conn, err := mesh.DialPinned(f.Addr, credential.Unproven(), mesh.Options{Now: f.Clock})
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return fealtyv1.NewRestoreServiceClient(conn)
}

// Present shows a trust bundle as a stranger.
func Present(f *coordinatortest.Fleet, raw []byte) (first, done *fealtyv1.PresentTrustResponse, err error) {
	f.T.Helper()
	stream, err := RestoreClient(f).PresentTrust(f.Context())
	if err != nil {
		return nil, nil, err
	}
	if first, err = stream.Recv(); err != nil || !first.GetRestored() && !first.GetCompares() {
		return first, nil, err
	}
	if err := stream.Send(&fealtyv1.PresentTrustRequest{Bundle: &fealtyv1.SignedSnapshot{Scope: "trust_bundle",
		Envelope: raw}}); err != nil && !errors.Is(err, io.EOF) {
		return first, nil, err
	}
	done, err = stream.Recv()
	return first, done, err
}

// BanIn bans the member of a node.
func BanIn(f *coordinatortest.Fleet, n *coordinatortest.Node) {
	f.T.Helper()
	if _, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: string(n.ID.Kind()), Name: n.ID.Name(), Reason: "test"}); err != nil {
		f.T.Fatal(err)
	}
}
