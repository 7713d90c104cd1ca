package member_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/member"
	livepkg "github.com/fealty-io/fealty/internal/coordinator/member/live"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
)

// enter writes a record as an admission would, without one.
func enter(d *coordinatortest.Desk, paths ...string) {
	d.T.Helper()
	for len(paths) > 0 {
		n := min(len(paths), 50)
		ch := d.State().Records.NewChange(d.State().HeadVersion)
		for _, path := range paths[:n] {
			kind, name := coordinatortest.SplitPath(path)
			ch.Put(record.MemberKey(identity.Kind(kind), name), 0,
				record.Member{Kind: identity.Kind(kind), Name: name, State: record.Active,
					Entry: "pool", NotAfter: d.Clock().Add(time.Hour)})
		}
		if _, err := ch.Commit(context.Background()); err != nil {
			d.T.Fatal(err)
		}
		paths = paths[n:]
	}
}

func paths(members []*fealtyv1.Member) []string {
	var out []string
	for _, m := range members {
		out = append(out, m.GetKind()+"/"+m.GetName())
	}
	return out
}

// More members than a page has: all come, once, in order, over both calls.
func TestMembersComeInPages(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	var want []string
	for i := range 230 {
		want = append(want, fmt.Sprintf("%s/n-%03d", []string{"data", "shard"}[i%2], i))
	}
	enter(d, want...)
	slices.Sort(want)
	list := func(size uint32, token string) ([]*fealtyv1.Member, string) {
		resp, err := d.Members().ListMembers(t.Context(),
			&fealtyv1.ListMembersRequest{PageSize: size, PageToken: token})
		coordinatortest.WantOnly(t, "list", err, "")
		return resp.GetMembers(), resp.GetNextPageToken()
	}
	status := func(size uint32, token string) ([]*fealtyv1.Member, string) {
		resp, err := d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{PageSize: size, PageToken: token})
		coordinatortest.WantOnly(t, "status", err, "")
		if first := token == ""; first != (resp.GetBaseline() != nil) || !first && len(resp.GetFindings()) > 0 {
			t.Fatalf("page after %q has baseline %v and %d findings", token, resp.GetBaseline(),
				len(resp.GetFindings()))
		}
		if n := resp.GetBaseline().GetDataMembers(); token == "" && n != 115 {
			t.Fatalf("the first page counts %d data members, want all 115", n)
		}
		return resp.GetMembers(), resp.GetNextPageToken()
	}
	for name, call := range map[string]func(uint32, string) ([]*fealtyv1.Member, string){"ListMembers": list,
		"GetStatus": status} {
		for _, size := range []uint32{0, 1, 7, 229, 230, 231, member.MaxPageSize} {
			var got []string
			token, pages := "", 0
			for {
				members, next := call(size, token)
				if size > 0 && len(members) > int(size) {
					t.Fatalf("%s: a page of %d has %d members", name, size, len(members))
				}
				got = append(got, paths(members)...)
				if pages++; next == "" || pages > 300 {
					break
				}
				token = next
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s by %d: %d members in %d pages, want %d", name, size, len(got), pages, len(want))
			}
		}
	}
	for _, tc := range []*fealtyv1.ListMembersRequest{
		{PageSize: member.MaxPageSize +
			1}, {PageToken: "data"}, {PageToken: "data/"}, {PageToken: "what/ever"}, {PageToken: "data/" +
			strings.Repeat("x", 4096)},
	} {
		_, err := d.Members().ListMembers(t.Context(), tc)
		coordinatortest.WantOnly(t, fmt.Sprintf("size %d, token %.20q", tc.GetPageSize(), tc.GetPageToken()), err,
			errcode.RequestField)
		_, err = d.C.Parts().Shown.Status.GetStatus(t.Context(),
			&fealtyv1.GetStatusRequest{PageSize: tc.GetPageSize(), PageToken: tc.GetPageToken()})
		coordinatortest.WantOnly(t, "the same of a status", err, errcode.RequestField)
	}
}

// A member that stays all the time comes exactly once, however others come and go
// between pages.
func TestPagesUnderChange(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.StringMatching(`[a-c]{1,3}(-[a-c])?`)
		draw := func(label string) map[string]bool {
			out := make(map[string]bool)
			for range rapid.IntRange(0, 12).Draw(r, label) {
				out[rapid.SampledFrom([]string{"data", "shard", "witness"}).Draw(r, "kind")+"/"+name.Draw(r,
					"name")] = true
			}
			return out
		}
		stay := draw("stay")
		size := rapid.IntRange(1, 5).Draw(r, "size")
		seen := make(map[string]int)
		token := ""
		for range 100 {
			x := member.NewRoster()
			there := make(map[string]record.Versioned[record.Member])
			for _, set := range []map[string]bool{stay, draw("come and go")} {
				for p := range set {
					kind, n := coordinatortest.SplitPath(p)
					there[p] = record.Versioned[record.Member]{Value: rec(identity.Kind(kind), n), Version: 1}
				}
			}
			x.Fill(slices.Collect(maps.Values(there)), 1)
			shown, more := x.Page("", token, size, nil)
			next := ""
			if more {
				next = shown[len(shown)-1].Path()
			}
			for _, m := range shown {
				seen[m.Path()]++
			}
			if token = next; token == "" {
				break
			}
		}
		for p := range stay {
			if seen[p] != 1 && token == "" {
				r.Fatalf("%s came %d times", p, seen[p])
			}
		}
	})
}

// A member's report is bounded, and decides nothing.
func TestReportsAreBounded(t *testing.T) {
	d := coordinatortest.PoolDesk(t)
	a := d.Joined("a")
	d.C.Parts().Membership.Live().Opened(a.ID, "")
	long := strings.Repeat("x", 1<<16)
	report := &fealtyv1.ConnectRequest{Release: long, AutonomyLimit: long,
		AutonomousUntil: timestamppb.New(d.Clock().Add(1000 * time.Hour)),
		SvidNotAfter:    &timestamppb.Timestamp{Seconds: 1 << 62}}
	for range 100 {
		report.Held = append(report.Held, &fealtyv1.HeldSnapshot{Scope: long})
		report.Refusals = append(report.Refusals, &fealtyv1.Refusal{Scope: long, Reason: long, Detail: long})
	}
	version := d.Record(identity.Data, "a").Version
	d.C.Parts().Membership.Live().Reported(a.ID, report, d.Clock())
	resp, err := d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "get", err, "")
	live := resp.GetMember().GetLive()
	if len(live.GetHeld()) != livepkg.MaxHeldReported || len(live.GetRelease()) != livepkg.MaxReleaseBytes ||
		len(live.GetAutonomyLimit()) > livepkg.MaxReleaseBytes ||
		len(live.GetLastRefusal()) > 2*livepkg.MaxReleaseBytes+livepkg.MaxDetailBytes+8 {
		t.Errorf("kept: %d held, release of %d, limit of %d, refusal of %d bytes", len(live.GetHeld()),
			len(live.GetRelease()), len(live.GetAutonomyLimit()), len(live.GetLastRefusal()))
	}
	if live.GetSvidNotAfter() != nil {
		t.Errorf("a time that is none was kept: %v", live.GetSvidNotAfter())
	}
	if end := resp.GetMember().GetSvidNotAfter().AsTime(); !live.GetAutonomousUntil().AsTime().Equal(end) ||
		live.GetAutonomyLimit() != "svid" {
		t.Errorf("it says that it works until %v by %q, and its certificate ends at %v",
			live.GetAutonomousUntil().AsTime(), live.GetAutonomyLimit(), end)
	}
	report.AutonomousUntil, report.AutonomyLimit = timestamppb.New(d.Clock().Add(time.Hour)), "degraded.max"
	d.C.Parts().Membership.Live().Reported(a.ID, report, d.Clock())
	resp, err = d.Members().GetMember(t.Context(), &fealtyv1.GetMemberRequest{Kind: "data", Name: "a"})
	coordinatortest.WantOnly(t, "get", err, "")
	if l := resp.GetMember().GetLive(); !l.GetAutonomousUntil().AsTime().Equal(d.Clock().Add(time.Hour)) ||
		l.GetAutonomyLimit() != "degraded.max" {
		t.Errorf("what it said within its certificate was changed: %v", l)
	}
	if d.Record(identity.Data, "a").Version != version {
		t.Error("a report wrote to its record")
	}
}

// A walk over all pages reads each record once: what a page costs does not grow with the
// members before and after it. And it misses nobody who is a member all the time, though
// the coordinator that makes the next page heard of nobody since the first.
func TestPagesReadEachRecordOnce(t *testing.T) {
	t.Parallel()
	const size = 100
	d := coordinatortest.PoolDesk(t)
	for _, n := range []int{1000, 2000} {
		var all []string
		for i := n - 1000; i < n; i++ {
			all = append(all, fmt.Sprintf("data/n-%05d", i))
		}
		enter(d, all...)
		for name, call := range map[string]func(token string) ([]*fealtyv1.Member, string){
			"ListMembers": func(token string) ([]*fealtyv1.Member, string) {
				resp, err := d.Members().ListMembers(t.Context(),
					&fealtyv1.ListMembersRequest{PageSize: size, PageToken: token})
				coordinatortest.WantOnly(t, "list", err, "")
				return resp.GetMembers(), resp.GetNextPageToken()
			},
			"GetStatus": func(token string) ([]*fealtyv1.Member, string) {
				resp, err := d.C.Parts().Shown.Status.GetStatus(
					t.Context(),
					&fealtyv1.GetStatusRequest{PageSize: size, PageToken: token})
				coordinatortest.WantOnly(t, "status", err, "")
				return resp.GetMembers(), resp.GetNextPageToken()
			},
		} {
			d.Store.CountReads(record.MemberPrefix)
			got, pages, token := 0, 0, ""
			for {
				members, next := call(token)
				got, pages = got+len(members), pages+1
				if read := d.Store.ReadSince(); pages > 1 && read != 0 {
					t.Errorf("%s: page %d of %d members reads %d records", name, pages, n, read)
				} else if pages == 1 && read > n {
					t.Errorf("%s: the first page of %d members reads %d records", name, n, read)
				}
				if token = next; token == "" {
					break
				}
			}
			if got != n || pages != n/size {
				t.Errorf("%s: %d members on %d pages, want %d on %d", name, got, pages, n, n/size)
			}
		}
	}
	// A page of a walk that another coordinator began is of no earlier time than that.
	resp, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{PageSize: 1})
	coordinatortest.WantOnly(t, "list", err, "")
	first, _, _ := strings.Cut(resp.GetNextPageToken(), "@")
	enter(d, "witness/late")
	late := d.Store.Version(record.MemberKey(identity.Witness, "late"))
	resp, err = d.Members().ListMembers(t.Context(),
		&fealtyv1.ListMembersRequest{Kind: "witness", PageToken: fmt.Sprintf("%s@%d", first, late)})
	coordinatortest.WantOnly(t, "list", err, "")
	if got := paths(resp.GetMembers()); !slices.Equal(got, []string{"witness/late"}) {
		t.Errorf("a page of the time at which it was a member shows %v", got)
	}
}

// The bans are read with the first page, and with the pages after it only if there was another one since: a page shows
// what was banned, and what was lifted, before it was asked for.
func TestPagesReadBansOnce(t *testing.T) {
	t.Parallel()
	d := coordinatortest.PoolDesk(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		d.Joined(name)
	}
	coordinatortest.BanAt(d, t, identity.Data, "b")
	coordinatortest.BanAt(d, t, identity.Data, "c")
	d.Store.CountReads(record.BanIDPrefix)
	token := ""
	next := func(wantName string, wantBanned bool, wantRead int) {
		t.Helper()
		resp, err := d.Members().ListMembers(t.Context(), &fealtyv1.ListMembersRequest{Kind: "data", PageSize: 1,
			PageToken: token})
		coordinatortest.WantOnly(t, "list", err, "")
		m := resp.GetMembers()[0]
		if read := d.Store.ReadSince(); m.GetName() != wantName || m.GetBanned() != wantBanned || read != wantRead {
			t.Errorf("%s is banned %v, and %d bans were read; want %s, %v and %d", m.GetName(), m.GetBanned(), read,
				wantName, wantBanned, wantRead)
		}
		token = resp.GetNextPageToken()
	}
	next("a", false, 2)
	next("b", true, 0)
	_, err := d.Members().UnbanMember(t.Context(), &fealtyv1.UnbanMemberRequest{Kind: "data", Name: "c"})
	coordinatortest.WantOnly(t, "unban", err, "")
	d.Store.ReadSince()
	next("c", false, 1)
	coordinatortest.BanAt(d, t, identity.Data, "d")
	d.Store.ReadSince()
	next("d", true, 2)
	next("e", false, 0)
	token = "data/d@0" // of an earlier release, which said of no time
	next("e", false, 2)
	before := d.Store.Snapshot()
	coordinatortest.BanAt(d, t, identity.Data, "e")
	d.Store.ReadSince()
	token = ""
	next("a", false, 3)
	d.Store.Revert(before) // what was read is newer than what there is, and counts no more
	next("b", true, 2)
	token = ""
	d.Store.Alter(record.BanIDKey(identity.Data, "b"), func(value []byte) []byte {
		value[len(value)-1] ^= 1
		return value
	})
	next("a", false, 2)
	next("b", true, 0)
}

// BenchmarkMemberPage measures a page in the middle, among 10,000 members in times of one
// among 1,000.
func BenchmarkMemberPage(b *testing.B) {
	took := make(map[int]time.Duration)
	for _, n := range []int{1000, 10_000} {
		d := coordinatortest.ReadyDesk(b, coordinatortest.PoolEntries)
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("data/n-%05d", i))
		}
		enter(d, all...)
		resp, err := d.Members().ListMembers(b.Context(), &fealtyv1.ListMembersRequest{PageSize: 500})
		if err != nil {
			b.Fatal(err)
		}
		req := &fealtyv1.ListMembersRequest{PageSize: 500, PageToken: resp.GetNextPageToken()}
		began := time.Now()
		for range b.N {
			if _, err := d.Members().ListMembers(b.Context(), req); err != nil {
				b.Fatal(err)
			}
		}
		took[n] = time.Since(began)
	}
	b.ReportMetric(float64(took[10_000])/float64(took[1000]), "10000/1000")
	b.ReportMetric(float64(took[10_000].Microseconds())/1000/float64(b.N), "ms/page")
}
