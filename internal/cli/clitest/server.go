package clitest

import (
	"context"
	"net"
	"os"
	"path"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
)

// Answering is a server that answers as a test says. The commands' way with
// its answers is under test; how a real one answers is tested with a real one.
type Answering struct {
	fealtyv1.UnimplementedMemberServiceServer
	fealtyv1.UnimplementedTokenServiceServer
	fealtyv1.UnimplementedStatusServiceServer
	fealtyv1.UnimplementedManifestServiceServer
	fealtyv1.UnimplementedNodeServiceServer
	fealtyv1.UnimplementedTrustServiceServer
	fealtyv1.UnimplementedBackupServiceServer

	Members *fealtyv1.ListMembersResponse
	Member  *fealtyv1.GetMemberResponse
	Status  *fealtyv1.GetStatusResponse
	Node    *fealtyv1.GetNodeResponse
	Get     *fealtyv1.GetManifestResponse
	Preview *fealtyv1.PreviewManifestResponse
	Set     *fealtyv1.SetManifestResponse
	Trust   []*fealtyv1.Trust // one for each time that it is asked for; the last one stays
	// Hook is called before every answer with the method's name and the request; its
	// error is the answer.
	Hook func(ctx context.Context, method string, req any) error

	// Ended is what BanMember says of each coordinator.
	Ended []*fealtyv1.EndedConnections

	// Backup answers CreateBackup.
	Backup func(grpc.ServerStreamingServer[fealtyv1.CreateBackupResponse]) error

	Srv *grpc.Server
}

func (c *Answering) ListMembers(context.Context, *fealtyv1.ListMembersRequest) (*fealtyv1.ListMembersResponse, error) {
	return c.Members, nil
}

func (c *Answering) GetMember(context.Context, *fealtyv1.GetMemberRequest) (*fealtyv1.GetMemberResponse, error) {
	return c.Member, nil
}

func (c *Answering) BanMember(_ context.Context, req *fealtyv1.BanMemberRequest) (*fealtyv1.BanMemberResponse, error) {
	return &fealtyv1.BanMemberResponse{ConnectionsClosed: 2, Ended: c.Ended}, nil
}

func (c *Answering) CreateToken(_ context.Context, req *fealtyv1.CreateTokenRequest) (*fealtyv1.CreateTokenResponse,
	error) {
	return &fealtyv1.CreateTokenResponse{Token: &fealtyv1.Token{Id: "abc", Entry: req.GetEntry(), Uses: 1},
		Line: "fealty1_line"}, nil
}

func (c *Answering) GetStatus(context.Context, *fealtyv1.GetStatusRequest) (*fealtyv1.GetStatusResponse, error) {
	return c.Status, nil
}

func (c *Answering) GetManifest(context.Context, *fealtyv1.GetManifestRequest) (*fealtyv1.GetManifestResponse, error) {
	return c.Get, nil
}

func (c *Answering) PreviewManifest(context.Context,
	*fealtyv1.PreviewManifestRequest) (*fealtyv1.PreviewManifestResponse, error) {
	return c.Preview, nil
}

func (c *Answering) SetManifest(context.Context, *fealtyv1.SetManifestRequest) (*fealtyv1.SetManifestResponse, error) {
	return c.Set, nil
}

func (c *Answering) GetTrust(context.Context, *fealtyv1.GetTrustRequest) (*fealtyv1.GetTrustResponse, error) {
	return &fealtyv1.GetTrustResponse{Trust: c.NextTrust()}, nil
}

func (c *Answering) NextTrust() *fealtyv1.Trust {
	now := c.Trust[0]
	if len(c.Trust) > 1 {
		c.Trust = c.Trust[1:]
	}
	return now
}

func (c *Answering) RotateMeshKey(context.Context, *fealtyv1.RotateMeshKeyRequest) (*fealtyv1.RotateMeshKeyResponse,
	error) {
	t := c.NextTrust()
	return &fealtyv1.RotateMeshKeyResponse{AuthorityEpoch: t.GetAuthorityEpoch(),
		MeshKeyId: t.GetMeshKeys()[0].GetKeyId(), Trust: t}, nil
}

func (c *Answering) RotateConfigKey(context.Context,
	*fealtyv1.RotateConfigKeyRequest) (*fealtyv1.RotateConfigKeyResponse, error) {
	return &fealtyv1.RotateConfigKeyResponse{KeyId: "new", Trust: c.NextTrust()}, nil
}

func (c *Answering) CreateBackup(_ *fealtyv1.CreateBackupRequest,
	stream grpc.ServerStreamingServer[fealtyv1.CreateBackupResponse]) error {
	return c.Backup(stream)
}

func (c *Answering) GetNode(context.Context, *fealtyv1.GetNodeRequest) (*fealtyv1.GetNodeResponse, error) {
	return c.Node, nil
}

// Listen serves on a socket and returns its path, which is short enough for one. also registers other services.
func (c *Answering) Listen(t testing.TB, also ...func(*grpc.Server)) string {
	t.Helper()
	socket := filepath.Join(ShortDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		if c.Hook != nil {
			if err := c.Hook(ctx, path.Base(info.FullMethod), req); err != nil {
				return nil, err
			}
		}
		return next(ctx, req)
	}))
	fealtyv1.RegisterMemberServiceServer(srv, c)
	fealtyv1.RegisterTokenServiceServer(srv, c)
	fealtyv1.RegisterStatusServiceServer(srv, c)
	fealtyv1.RegisterManifestServiceServer(srv, c)
	fealtyv1.RegisterNodeServiceServer(srv, c)
	fealtyv1.RegisterTrustServiceServer(srv, c)
	fealtyv1.RegisterBackupServiceServer(srv, c)
	for _, register := range also {
		register(srv)
	}
	c.Srv = srv
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return socket
}

// ShortDir returns a folder whose path leaves room for a socket's name.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fealty-cli-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
