package member_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	"github.com/fealty-io/fealty/internal/coordinator/record"
)

// BenchmarkMemberPages reads all pages of the members, of 1,000 and of 10,000 in turns.
// Each member is read of the store once, and costs as much where there are many: the
// ratio of the times for one member is about 1, and 10 where each page reads everybody.
func BenchmarkMemberPages(b *testing.B) {
	sizes := []int{1000, 10_000}
	var desks []*coordinatortest.Desk
	for _, n := range sizes {
		d := coordinatortest.ReadyDesk(b, coordinatortest.PoolEntries)
		defer d.C.Close()
		var paths []string
		for i := range n {
			paths = append(paths, fmt.Sprintf("data/n-%05d", i))
		}
		enter(d, paths...)
		d.Store.CountReads(record.MemberPrefix)
		desks = append(desks, d)
	}
	took := make([][]float64, len(sizes)) // seconds for one member
	read := make([]float64, len(sizes))   // records for one member
	b.ResetTimer()
	for b.Loop() {
		for i, d := range desks {
			began, seen, token := time.Now(), 0, ""
			d.Store.ReadSince()
			for {
				resp, err := d.Members().ListMembers(b.Context(),
					&fealtyv1.ListMembersRequest{PageSize: member.MaxPageSize, PageToken: token})
				if err != nil {
					b.Fatal(err)
				}
				seen += len(resp.GetMembers())
				if token = resp.GetNextPageToken(); token == "" {
					break
				}
			}
			if seen != sizes[i] {
				b.Fatalf("%d members in the pages, want %d", seen, sizes[i])
			}
			took[i] = append(took[i], time.Since(began).Seconds()/float64(seen))
			read[i] = float64(d.Store.ReadSince()) / float64(seen)
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	b.ReportMetric(0, "ns/op") // of both
	b.ReportMetric(read[1], "records-read/member")
	b.ReportMetric(took[1][len(took[1])/2]/took[0][len(took[0])/2], "10000/1000-time/member")
}
