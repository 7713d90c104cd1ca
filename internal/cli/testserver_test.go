package cli_test

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

// answering is a server that answers as a test says. What is under test is how
// commands take its answers; how a real one answers is tested with a real one.
type answering struct {
	fealtyv1.UnimplementedMemberServiceServer
	fealtyv1.UnimplementedTokenServiceServer
	fealtyv1.UnimplementedStatusServiceServer
	fealtyv1.UnimplementedManifestServiceServer
	fealtyv1.UnimplementedNodeServiceServer
	fealtyv1.UnimplementedTrustServiceServer
	fealtyv1.UnimplementedBackupServiceServer

	members *fealtyv1.ListMembersResponse
	member  *fealtyv1.GetMemberResponse
	status  *fealtyv1.GetStatusResponse
	node    *fealtyv1.GetNodeResponse
	get     *fealtyv1.GetManifestResponse
	trust   []*fealtyv1.Trust // one for each time that it is asked for; the last one stays
	// hook is called before every answer with the method's name and the request; its
	// error is the answer.
	hook func(ctx context.Context, method string, req any) error

	// ended is what BanMember says of each coordinator.
	ended []*fealtyv1.EndedConnections

	// backup answers CreateBackup.
	backup func(grpc.ServerStreamingServer[fealtyv1.CreateBackupResponse]) error

	srv *grpc.Server
}

func (c *answering) ListMembers(context.Context, *fealtyv1.ListMembersRequest) (*fealtyv1.ListMembersResponse, error) {
	return c.members, nil
}

func (c *answering) GetMember(context.Context, *fealtyv1.GetMemberRequest) (*fealtyv1.GetMemberResponse, error) {
	return c.member, nil
}

func (c *answering) BanMember(_ context.Context, req *fealtyv1.BanMemberRequest) (*fealtyv1.BanMemberResponse, error) {
	return &fealtyv1.BanMemberResponse{ConnectionsClosed: 2, Ended: c.ended}, nil
}

func (c *answering) CreateToken(_ context.Context, req *fealtyv1.CreateTokenRequest) (*fealtyv1.CreateTokenResponse, error) {
	return &fealtyv1.CreateTokenResponse{Token: &fealtyv1.Token{Id: "abc", Entry: req.GetEntry(), Uses: 1}, Line: "fealty1_line"}, nil
}

func (c *answering) GetStatus(context.Context, *fealtyv1.GetStatusRequest) (*fealtyv1.GetStatusResponse, error) {
	return c.status, nil
}

func (c *answering) GetManifest(context.Context, *fealtyv1.GetManifestRequest) (*fealtyv1.GetManifestResponse, error) {
	return c.get, nil
}

func (c *answering) GetTrust(context.Context, *fealtyv1.GetTrustRequest) (*fealtyv1.GetTrustResponse, error) {
	return &fealtyv1.GetTrustResponse{Trust: c.nextTrust()}, nil
}

func (c *answering) nextTrust() *fealtyv1.Trust {
	now := c.trust[0]
	if len(c.trust) > 1 {
		c.trust = c.trust[1:]
	}
	return now
}

func (c *answering) RotateMeshKey(context.Context, *fealtyv1.RotateMeshKeyRequest) (*fealtyv1.RotateMeshKeyResponse, error) {
	t := c.nextTrust()
	return &fealtyv1.RotateMeshKeyResponse{AuthorityEpoch: t.GetAuthorityEpoch(), MeshKeyId: t.GetMeshKeys()[0].GetKeyId(), Trust: t}, nil
}

func (c *answering) RotateConfigKey(context.Context, *fealtyv1.RotateConfigKeyRequest) (*fealtyv1.RotateConfigKeyResponse, error) {
	return &fealtyv1.RotateConfigKeyResponse{KeyId: "new", Trust: c.nextTrust()}, nil
}

func (c *answering) CreateBackup(_ *fealtyv1.CreateBackupRequest, stream grpc.ServerStreamingServer[fealtyv1.CreateBackupResponse]) error {
	return c.backup(stream)
}

func (c *answering) GetNode(context.Context, *fealtyv1.GetNodeRequest) (*fealtyv1.GetNodeResponse, error) {
	return c.node, nil
}

// listen serves on a socket and returns its path, which is short enough for one.
func (c *answering) listen(t testing.TB) string {
	t.Helper()
	socket := filepath.Join(shortDir(t), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if c.hook != nil {
			if err := c.hook(ctx, path.Base(info.FullMethod), req); err != nil {
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
	c.srv = srv
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return socket
}

// shortDir returns a folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fealty-cli-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
