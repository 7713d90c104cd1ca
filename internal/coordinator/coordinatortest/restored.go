package coordinatortest

import (
	"context"
	"errors"
	"io"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/backup"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/mesh"
)

// RestoreClient is a stranger's client for what a restore lost.
func RestoreClient(f *Fleet) fealtyv1.RestoreServiceClient {
	f.T.Helper()
	conn, err := mesh.DialPinned(f.Addr, pinned.Unproven(), mesh.Options{Now: f.Clock})
	if err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { conn.Close() })
	return fealtyv1.NewRestoreServiceClient(conn)
}

// Present shows a trust bundle as a stranger.
func Present(f *Fleet, raw []byte) (first, done *fealtyv1.PresentTrustResponse, err error) {
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
func BanIn(f *Fleet, n *Node) {
	f.T.Helper()
	if _, err := f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: string(n.ID.Kind()), Name: n.ID.Name(), Reason: "test"}); err != nil {
		f.T.Fatal(err)
	}
}

// CopyOf is a copy of a store in memory, which goes back to it.
func CopyOf(m *MemStore) (back func()) {
	was := m.db.Dump()
	return func() { m.db.GoBack(was) }
}

// RestoreInPlace does what fealty backup restore --in-place does.
func RestoreInPlace(d *Desk, st store.Store, signer any) {
	d.T.Helper()
	ctx := context.Background()
	found, err := backup.PlanInPlace(ctx, Lifted{MemStore: d.Store}, d.Clock(),
		func(m *manifest.Manifest) (store.Revision, error) { return peer.SeenIn(ctx, st, m) }, "test", "test")
	if err != nil {
		d.T.Fatal(err)
	}
	request, err := found.Intent.Request(found.Manifest)
	if err != nil {
		d.T.Fatal(err)
	}
	if signer != nil {
		f, err := request.Sign(d.Signer)
		if err != nil {
			d.T.Fatal(err)
		}
		found.Intent.Signatures = append(found.Intent.Signatures, f.Signature)
	}
	if err := backup.RestoreInPlace(ctx, Lifted{MemStore: d.Store}, found, nil); err != nil {
		d.T.Fatal(err)
	}
}

// Lifted is a MemStore whose revisions can be raised.
type Lifted struct{ *MemStore }

func (l Lifted) Raise(context.Context, store.Revision) error { return store.ErrNotEmpty }

func (l Lifted) Lift(ctx context.Context, floor store.Revision) error {
	return l.Lifter().Lift(ctx, floor)
}

// TryBan bans a member, or says why not.
func TryBan(d *Desk, id identity.ID) error {
	_, err := d.Members().BanMember(context.Background(),
		&fealtyv1.BanMemberRequest{Kind: string(id.Kind()), Name: id.Name(), Reason: "test"})
	return err
}
