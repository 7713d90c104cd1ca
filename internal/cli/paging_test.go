package cli_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
)

// pages serves members a page at a time, and no more than it is asked for.
type pages struct {
	fealtyv1.MemberServiceClient
	fealtyv1.StatusServiceClient
	members []*fealtyv1.Member
	calls   int
}

func (p *pages) page(size uint32, token string) ([]*fealtyv1.Member, string) {
	p.calls++
	var from int
	if token != "" {
		fmt.Sscan(token, &from)
	}
	to := min(from+int(size), len(p.members))
	if to == len(p.members) {
		return p.members[from:], ""
	}
	return p.members[from:to], fmt.Sprint(to)
}

func (p *pages) ListMembers(_ context.Context, req *fealtyv1.ListMembersRequest, _ ...grpc.CallOption) (*fealtyv1.ListMembersResponse, error) {
	m, next := p.page(req.GetPageSize(), req.GetPageToken())
	return &fealtyv1.ListMembersResponse{Members: m, NextPageToken: next}, nil
}

func (p *pages) GetStatus(_ context.Context, req *fealtyv1.GetStatusRequest, _ ...grpc.CallOption) (*fealtyv1.GetStatusResponse, error) {
	m, next := p.page(req.GetPageSize(), req.GetPageToken())
	out := &fealtyv1.GetStatusResponse{Members: m, NextPageToken: next}
	if req.GetPageToken() == "" {
		out.Findings = []*fealtyv1.Finding{{Code: "FE-M105"}}
	}
	return out, nil
}

func TestMembersAreAskedForInPages(t *testing.T) {
	p := &pages{}
	for i := range 23 {
		p.members = append(p.members, &fealtyv1.Member{Kind: "data", Name: fmt.Sprint(i)})
	}
	list, err := client.ListMembers(t.Context(), p, &fealtyv1.ListMembersRequest{PageSize: 5})
	if err != nil || len(list.GetMembers()) != 23 || p.calls != 5 || list.GetMembers()[22].GetName() != "22" {
		t.Fatalf("%d members in %d calls, %v", len(list.GetMembers()), p.calls, err)
	}
	p.calls = 0
	st, err := client.GetStatus(t.Context(), p, 5)
	if err != nil || len(st.GetMembers()) != 23 || p.calls != 5 || len(st.GetFindings()) != 1 || st.GetNextPageToken() != "" {
		t.Fatalf("%d members, %d findings in %d calls, %v", len(st.GetMembers()), len(st.GetFindings()), p.calls, err)
	}
}
