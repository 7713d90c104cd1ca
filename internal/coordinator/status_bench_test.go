package coordinator_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/snapshot"
)

// fleetOf returns a desk with n members that are connected and well, but for each thousandth, which is away.
func fleetOf(tb testing.TB, n int) *coordinatortest.Desk {
	tb.Helper()
	d := coordinatortest.ReadyDesk(tb, coordinatortest.PoolEntries)
	tb.Cleanup(func() { d.C.Close() })
	s, live := d.State(), d.C.Parts().Membership.Live()
	var recs []record.Versioned[record.Member]
	for i := 0; i < n; {
		ch, from := s.Records.NewChange(s.HeadVersion), i
		for ; i < min(n, from+500); i++ {
			r := record.Member{Kind: identity.Data, Name: fmt.Sprintf("n-%06d", i), State: record.Active, Entry: "pool",
				JoinedAt: d.Clock(), NotAfter: d.Clock().Add(time.Hour)}
			ch.Put(record.MemberKey(r.Kind, r.Name), 0, r)
			recs = append(recs, record.Versioned[record.Member]{Value: r})
		}
		rev, err := ch.Commit(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		for ; from < i; from++ {
			recs[from].Version = rev
		}
	}
	d.C.Parts().Membership.Roster().Fill(recs, d.Store.Revision())
	report := &fealtyv1.ConnectRequest{Release: "dev", AutonomousUntil: timestamppb.New(d.Clock().Add(time.Hour)),
		AutonomyLimit: "svid", SvidNotAfter: timestamppb.New(d.Clock().Add(time.Hour))}
	for _, scope := range snapshot.Scopes() {
		report.Held = append(report.Held, &fealtyv1.HeldSnapshot{Scope: string(scope), AuthorityEpoch: 1, ConfigVersion: 2,
			Freshness: string(snapshot.Fresh)})
	}
	for i := range recs {
		if i%1000 == 0 {
			continue
		}
		id, err := identity.New(s.Manifest.Cluster, identity.Data, recs[i].Value.Name)
		if err != nil {
			tb.Fatal(err)
		}
		live.Opened(id, "")
		live.Reported(id, report, d.Clock())
	}
	return d
}

// BenchmarkStatus measures what a coordinator does to answer who looks at a fleet: a first page of its status, and a
// page of the list of its members, the first and one after that. The store is in memory and there is no network: calls of
// the store, and the records that those read, are counted. A hundred identities are banned.
func BenchmarkStatus(b *testing.B) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint("members=", n), func(b *testing.B) {
			d := fleetOf(b, n)
			ch := d.State().Records.NewChange(d.State().HeadVersion)
			for i := range 100 {
				ch.Put(record.BanIDKey(identity.Data, fmt.Sprintf("n-%06d", 9*i)), 0, record.Ban{Reason: "stolen"})
			}
			if _, err := ch.Commit(b.Context()); err != nil {
				b.Fatal(err)
			}
			first, err := d.Members().ListMembers(b.Context(), &fealtyv1.ListMembersRequest{PageSize: 100})
			if err != nil {
				b.Fatal(err)
			}
			status := func(req *fealtyv1.GetStatusRequest) func() error {
				return func() error {
					_, err := d.C.Parts().Shown.Status.GetStatus(b.Context(), req)
					return err
				}
			}
			list := func(req *fealtyv1.ListMembersRequest) func() error {
				return func() error {
					_, err := d.Members().ListMembers(b.Context(), req)
					return err
				}
			}
			for _, c := range []struct {
				name string
				ask  func() error
			}{
				{"status-short", status(&fealtyv1.GetStatusRequest{PageSize: 20, NeedSomebody: true})},
				{"status-page", status(&fealtyv1.GetStatusRequest{PageSize: member.MaxPageSize})},
				{"list-first", list(&fealtyv1.ListMembersRequest{PageSize: 100})},
				{"list-next", list(&fealtyv1.ListMembersRequest{PageSize: 100, PageToken: first.GetNextPageToken()})},
			} {
				b.Run(c.name, func(b *testing.B) {
					calls := d.Store.Calls()
					b.ReportAllocs()
					for b.Loop() {
						if err := c.ask(); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(d.Store.Calls()-calls)/float64(b.N), "store-calls/op")
					for name, prefix := range map[string]string{"members": record.MemberPrefix, "bans": record.BanIDPrefix,
						"trust": bundle.Prefix} {
						d.Store.CountReads(prefix)
						if err := c.ask(); err != nil {
							b.Fatal(err)
						}
						b.ReportMetric(float64(d.Store.ReadSince()), name+"-read/op")
					}
				})
			}
		})
	}
}
