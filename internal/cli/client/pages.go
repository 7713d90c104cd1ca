package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/command"
)

// ShownMembers is how many members that need somebody are shown at once.
const ShownMembers = 20

// NeedSomebody returns the status with the first of the members that need somebody, and the counts of all. A coordinator
// of an earlier release sends all members and no counts.
func NeedSomebody(ctx context.Context, status fealtyv1.StatusServiceClient) (*fealtyv1.GetStatusResponse, error) {
	first, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: ShownMembers, NeedSomebody: true})
	if err != nil {
		return nil, err
	}
	return withRest(ctx, status, first, command.PageSize)
}

// GetStatus returns the status with all members, which it asks for page by page.
// All but the members is of the first page.
func GetStatus(ctx context.Context, status fealtyv1.StatusServiceClient, size uint32) (*fealtyv1.GetStatusResponse,
	error) {
	first, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: size})
	if err != nil {
		return nil, err
	}
	return withRest(ctx, status, first, size)
}

// withRest adds to a first page the members of the pages after it.
func withRest(ctx context.Context, status fealtyv1.StatusServiceClient, all *fealtyv1.GetStatusResponse,
	size uint32) (*fealtyv1.GetStatusResponse, error) {
	for token := all.GetNextPageToken(); token != ""; {
		resp, err := status.GetStatus(ctx, &fealtyv1.GetStatusRequest{PageSize: size, PageToken: token})
		if err != nil {
			return nil, err
		}
		all.Members = append(all.Members, resp.GetMembers()...)
		if token = resp.GetNextPageToken(); len(resp.GetMembers()) == 0 {
			break
		}
	}
	all.NextPageToken = ""
	return all, nil
}

// ListMembers returns all members that req is about, which it asks for page by page.
func ListMembers(ctx context.Context, members fealtyv1.MemberServiceClient,
	req *fealtyv1.ListMembersRequest) (*fealtyv1.ListMembersResponse, error) {
	all := &fealtyv1.ListMembersResponse{}
	for token := ""; ; {
		page := proto.CloneOf(req)
		page.PageToken = token
		resp, err := members.ListMembers(ctx, page)
		if err != nil {
			return nil, err
		}
		all.Members = append(all.Members, resp.GetMembers()...)
		all.Altered = append(all.Altered, resp.GetAltered()...)
		if all.KnownAt == nil {
			all.KnownAt = resp.GetKnownAt()
		}
		if token = resp.GetNextPageToken(); token == "" || len(resp.GetMembers()) == 0 {
			return all, nil
		}
	}
}
