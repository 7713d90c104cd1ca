package status

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/member"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/cli/term/message"
)

// pages answers with pages as they come from the wire. The token is the number of the page.
type pages struct{ raw [][]byte }

func (p pages) GetStatus(_ context.Context, req *fealtyv1.GetStatusRequest, _ ...grpc.CallOption) (*fealtyv1.GetStatusResponse, error) {
	i, _ := strconv.Atoi(req.GetPageToken())
	resp := new(fealtyv1.GetStatusResponse)
	return resp, proto.Unmarshal(p.raw[i], resp)
}

// pagesOf are the pages of n members, of which one in a thousand needs somebody.
func pagesOf(b *testing.B, n int, now time.Time) (p pages) {
	b.Helper()
	for at := 0; at < n; at += command.PageSize {
		resp := &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Now: timestamppb.New(now)}
		for i := at; i < min(n, at+command.PageSize); i++ {
			name := fmt.Sprintf("n-%05d", i)
			m := &fealtyv1.Member{SpiffeId: "spiffe://prod.example/data/" + name, Kind: "data", Name: name, State: "active", Entry: "pool", JoinedBy: "token:pool",
				JoinedAt: timestamppb.New(now.Add(-time.Hour)), SvidNotAfter: timestamppb.New(now.Add(time.Hour)),
				KeyId:   "93b3b42c4be0c9e5ee7ad4ecdeaf9bbf0d1e0cf1a2b55f8a3b5fb12d30a7c2d7",
				Contact: "connected", ReportedHost: name + ".example", SeenAddress: "10.0.0.7", Live: &fealtyv1.Live{Connected: i%1000 != 0, Release: "dev",
					LastReport: timestamppb.New(now), AutonomousUntil: timestamppb.New(now.Add(time.Hour))}}
			if i%1000 == 0 {
				m.Contact = "not heard"
			}
			for _, scope := range []string{"node_bootstrap", "node_runtime", "peer_directory", "trust_bundle"} {
				m.Live.Held = append(m.Live.Held, &fealtyv1.HeldVersion{Scope: scope, AuthorityEpoch: 1, ConfigVersion: uint64(i), Generation: 9, Freshness: "fresh"})
			}
			resp.Members = append(resp.Members, m)
		}
		if at+command.PageSize < n {
			resp.NextPageToken = strconv.Itoa(len(p.raw) + 1)
		}
		raw, err := proto.Marshal(resp)
		if err != nil {
			b.Fatal(err)
		}
		p.raw = append(p.raw, raw)
	}
	return p
}

// BenchmarkPages is what the commands do with all members, from the bytes of the pages to those of the terminal or of
// a file. The time of a member is the same at each size.
func BenchmarkPages(b *testing.B) {
	now := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	page := func() *term.Page {
		return &term.Page{W: io.Discard, Width: 120, Called: func(s string) string { return s }, Program: "fealty"}
	}
	for _, n := range []int{1000, 10_000, 50_000} {
		p := pagesOf(b, n, now)
		for _, c := range []struct {
			name string
			show func(*fealtyv1.GetStatusResponse) error
		}{
			{"fetched", func(*fealtyv1.GetStatusResponse) error { return nil }},
			{"status", func(st *fealtyv1.GetStatusResponse) error { return showStatus(page(), st) }},
			{"list", func(st *fealtyv1.GetStatusResponse) error {
				return page().Table(member.Table(st.GetMembers(), now, false))
			}},
			{"json", func(st *fealtyv1.GetStatusResponse) error { return term.WriteJSON(io.Discard, message.Of(st)) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					st, err := client.GetStatus(b.Context(), p, command.PageSize)
					if err == nil {
						err = c.show(st)
					}
					if err != nil || len(st.GetMembers()) != n {
						b.Fatal(len(st.GetMembers()), err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/member")
			})
		}
	}
}
