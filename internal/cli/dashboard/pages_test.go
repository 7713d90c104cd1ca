package dashboard_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/test/wait"
)

// everyPage are the pages of the navigation.
var everyPage = []string{"", "members", "config", "control", "history", "actuation", "incidents", "audit"}

// Each page shows what a real coordinator has of its subject, and each is reached from each.
func TestPagesOfARealCoordinator(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	f.Member("b")
	if err := f.Set(f.Manifest("  - {name: more, kind: witness, match: [\"token:more\"]}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Local().Member.BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "lost"}); err != nil {
		t.Fatal(err)
	}
	b := serve(t, f.C.AdminSocket(), nil)
	for path, says := range map[string][]string{
		"members":            {"2 members of 2", "data/a", "banned", "data/b", "By label site", "By release"},
		"members?q=A":        {"data/a"},
		"members/data/a":     {"data/a", "banned for lost", "spiffe://test.example/data/a"},
		"members/data/nope":  {"nope"},
		"config":             {"There is no record.", "Versions on nodes"},
		"control":            {"leads, term", "root pin", "Enrolment key", "Terms"},
		"history":            {"2 transitions verified by this dashboard", "1 · genesis", "2 · set", "signed by", "more"},
		"actuation":          {"Domains", "Shards", "Quotas", "Providers", "There is none."},
		"incidents":          {"No process is known to be fenced."},
		"audit":              {"member.ban", "member.admit", "spiffe://test.example/data/a"},
		"audit?action=token": {"token.create"},
	} {
		page := b.page(path)
		want(t, page, says...)
		onlyOurs(t, b, page)
		for _, other := range everyPage {
			if !strings.Contains(page, `href="/`+strings.Split(b.url, "/")[3]+"/"+other+`"`) {
				t.Errorf("%q does not lead to %q", path, other)
			}
		}
	}
	for path, not := range map[string]string{"members?q=a&state=connected": "data/a", "audit?action=token": "member.ban", "members?kind=shard": "data/b"} {
		if strings.Contains(words(t, b.page(path)), not) {
			t.Errorf("%s shows %s", path, not)
		}
	}
}

// many answers with so many members.
func many(n int, hostile string) *clitest.Answering {
	now := time.Now()
	all := &fealtyv1.ListMembersResponse{}
	for i := range n {
		m := &fealtyv1.Member{SpiffeId: "spiffe://prod.example/data/x", Kind: "data", Name: fmt.Sprintf("n-%05d", i), State: "active", Contact: "connected",
			SvidNotAfter: timestamppb.New(now.Add(time.Hour + time.Duration(n-i)*time.Second)), ReportedHost: fmt.Sprintf("host-%05d.example", i),
			Labels: []string{fmt.Sprintf("rack=r%d%s", i%40, hostile)}, Live: &fealtyv1.Live{Connected: true, Release: "1.2.3" + hostile, LastReport: timestamppb.New(now)}}
		for _, scope := range []string{"node_runtime", "trust_bundle" + hostile} {
			m.Live.Held = append(m.Live.Held, &fealtyv1.HeldVersion{Scope: scope, AuthorityEpoch: 1, ConfigVersion: uint64(i % 30), Freshness: "fresh"})
		}
		all.Members = append(all.Members, m)
	}
	return &clitest.Answering{Status: status(), Members: all, Member: &fealtyv1.GetMemberResponse{Member: &fealtyv1.Member{Kind: "data", Name: hostile,
		Labels: []string{hostile}, BanReason: hostile, Banned: true, Live: &fealtyv1.Live{LastRefusal: hostile}}, Unknown: []string{hostile}}}
}

// Of ten thousand members a page shows a few, says how many there are, and finds one by name, host and label.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	b := serve(t, many(10_000, "").Listen(t), nil)
	page := b.page("members")
	want(t, page, "10000 members of 10000", "page 1 of 200", "n-00049")
	if n := strings.Count(page, "host-"); n != 50 || strings.Contains(page, "n-00050") {
		t.Errorf("it shows %d members", n)
	}
	for path, says := range map[string][]string{
		"members?page=200": {"n-09999", "page 200 of 200"}, "members?page=999": {"page 200 of 200"}, "members?page=-1": {"page 1 of 200"}, "members?page=x": {"page 1 of 200"},
		"members?q=N-01234": {"1 member of 10000", "n-01234"}, "members?q=host-04321": {"1 member of 10000", "n-04321"},
		"members?q=rack%3Dr7": {"250 members of 10000", "n-00007"}, "members?q=nobody": {"0 members of 10000"},
		"members?sort=alone": {"n-09999"}, "members?by=rack": {"By label rack", "r0 250 250", "29 others"}, "config": {"node_runtime", "19 others"},
	} {
		got := b.page(path)
		want(t, got, says...)
		if len(got) > 100<<10 {
			t.Errorf("%s has %d bytes", path, len(got))
		}
	}
}

// Text of the fleet and of who asks is text on every page.
func TestEveryPageShowsTextAsText(t *testing.T) {
	t.Parallel()
	const hostile = `"><script src="https://evil.example/x.js"></script><img src=x onerror=alert(1)>`
	b := serve(t, many(3, hostile).Listen(t), nil)
	for _, path := range everyPage {
		q := url.Values{}
		for _, name := range []string{"q", "state", "kind", "by", "sort", "page", "member", "action", "since", "after", "before"} {
			q.Set(name, hostile)
		}
		for _, query := range []string{"", "?" + q.Encode()} {
			onlyOurs(t, b, b.page(path+query))
		}
	}
	page := b.page("members/" + url.PathEscape(hostile) + "/" + url.PathEscape(hostile))
	onlyOurs(t, b, page)
	if n := strings.Count(words(t, page), hostile); n < 4 {
		t.Errorf("the text is shown %d times", n)
	}
	want(t, b.page("members"), "1.2.3"+hostile)
}

// A page whose call fails says so, and the rest of it and the other pages are there.
func TestPartOfItFails(t *testing.T) {
	t.Parallel()
	server := many(3, "")
	server.Hook = func(_ context.Context, method string, _ any) error {
		if method == "ListMembers" {
			return fmt.Errorf("no list today")
		}
		return nil
	}
	b := serve(t, server.Listen(t), nil)
	want(t, b.page("members"), "no list today")
	want(t, b.page("actuation"), "Domains", "no list today", "Quotas") // this server has none of these services
	want(t, b.page(""), "nothing needs attention")
}

// Who led, and when nobody did, is kept while somebody looks.
func TestTerms(t *testing.T) {
	t.Parallel()
	next := status()
	next.Leader = &fealtyv1.Leader{Name: "c-2", EnrolmentKey: "ed25519:2", Term: 9, Since: timestamppb.Now()}
	var over atomic.Bool
	server := &clitest.Answering{Status: status()}
	server.Hook = func(_ context.Context, method string, _ any) error {
		if method == "GetStatus" && over.Load() {
			server.Status = next
		}
		return nil
	}
	b := serve(t, server.Listen(t), nil)
	want(t, b.page("control"), "c-1 7")
	over.Store(true)
	wait.Until(t, "the next term stands before the one before", func() bool {
		got := words(t, b.page("control"))
		return strings.Contains(got, "c-2 9") && strings.Index(got, "c-2 9") < strings.Index(got, "c-1 7")
	})
}
