package dashboard_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/html"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/dashboard"
	"github.com/fealty-io/fealty/internal/cli/summary"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/test/wait"
)

// browser is who looks at a dashboard.
type browser struct {
	t   testing.TB
	url string // of the first page
}

// serve serves a dashboard of the coordinator behind a socket until the test ends.
func serve(t testing.TB, socket string, alter func(*dashboard.Config)) *browser {
	t.Helper()
	return serveIn(context.Background(), t, socket, alter)
}

// serveIn is serve, until ctx ends.
func serveIn(ctx context.Context, t testing.TB, socket string, alter func(*dashboard.Config)) *browser {
	t.Helper()
	line, err := client.Dial(socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := dashboard.Config{Listener: l, Secret: dashboard.NewSecret(), Line: line, Called: func(s string) string { return s }}
	if alter != nil {
		alter(&cfg)
	}
	ctx, end := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := dashboard.Serve(ctx, cfg); err != context.Canceled {
			t.Errorf("the dashboard ended with %v", err)
		}
	})
	t.Cleanup(func() {
		end()
		serving.Wait()
		line.Close()
	})
	return &browser{t, cfg.URL()}
}

// ask sends a request for a page below the first one, as alter makes it.
func (b *browser) ask(path string, alter func(*http.Request)) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if alter != nil {
		alter(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp, string(body)
}

// page returns a page, which has to be there.
func (b *browser) page(path string) string {
	b.t.Helper()
	resp, body := b.ask(path, nil)
	if resp.StatusCode != http.StatusOK {
		b.t.Fatalf("page %q: %s\n%s", path, resp.Status, body)
	}
	return body
}

// words returns what a person reads of a page.
func words(t testing.TB, page string) string {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for n := range doc.Descendants() {
		switch {
		case n.Type == html.TextNode:
			b.WriteString(n.Data)
		case slices.Contains([]string{"td", "th", "dt", "dd", "li", "p", "h1", "h2", "h3", "option", "label", "section", "pre"}, n.Data):
			b.WriteByte(' ') // it begins on a line or in a cell of its own
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func want(t testing.TB, page string, texts ...string) {
	t.Helper()
	got := words(t, page)
	for _, s := range texts {
		if !strings.Contains(got, s) {
			t.Errorf("the page does not say %q:\n%s", s, got)
		}
	}
}

// status is one of a fleet that is well.
func status() *fealtyv1.GetStatusResponse {
	now := time.Now()
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	return &fealtyv1.GetStatusResponse{ClusterId: "prod.example", Phase: "ready", Now: at(0), StartedAt: at(-time.Hour),
		Verdict:  &fealtyv1.Verdict{State: "well", Since: at(-time.Hour)},
		Contacts: &fealtyv1.Contacts{Connected: 3}, Baseline: &fealtyv1.Baseline{Met: true, State: "met"},
		Counts:         &fealtyv1.MemberCounts{Nodes: 3, Connected: 3},
		Leader:         &fealtyv1.Leader{Name: "c-1", EnrolmentKey: "ed25519:1", Term: 7, Since: at(-time.Hour)},
		MeshCaNotAfter: at(48 * time.Hour), RootNotAfter: at(1000 * time.Hour), Upkeep: &fealtyv1.Upkeep{},
		Replicas: []*fealtyv1.Replica{{Name: "c-1", EnrolmentKey: "ed25519:1", Phase: "ready", HeardAt: at(0), Self: true},
			{Name: "c-2", EnrolmentKey: "ed25519:2", Phase: "ready", HeardAt: at(0), UnheardFor: durationpb.New(time.Second)}},
	}
}

// answering is a dashboard of a server that answers with a status.
func answering(t testing.TB, st *fealtyv1.GetStatusResponse) *browser {
	t.Helper()
	return serve(t, (&clitest.Answering{Status: st}).Listen(t), nil)
}

// Whoever has not got the address, or does not ask as a browser does that opened it, learns nothing, and changes nothing.
func TestWhoMayRead(t *testing.T) {
	t.Parallel()
	b := answering(t, status())
	secret := strings.Split(b.url, "/")[3]
	path := func(p string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = p } }
	for name, c := range map[string]struct {
		alter  func(*http.Request)
		status int
	}{
		"no secret":                 {path("/"), http.StatusNotFound},
		"another secret":            {path("/" + strings.Repeat("a", len(secret)) + "/"), http.StatusNotFound},
		"part of the secret":        {path("/" + secret[:25] + "/"), http.StatusNotFound},
		"the secret alone":          {path("/" + secret), http.StatusNotFound},
		"more after the secret":     {path("/" + secret + "x/"), http.StatusNotFound},
		"style without the secret":  {path("/style.css"), http.StatusNotFound},
		"stream without the secret": {path("/events"), http.StatusNotFound},
		"secret further down":       {path("/x/" + secret + "/"), http.StatusNotFound},
		"no such page":              {path("/" + secret + "/nothing"), http.StatusNotFound},
		"name of the web":           {func(r *http.Request) { r.Host = "evil.example" }, http.StatusMisdirectedRequest},
		"name of the web, our port": {func(r *http.Request) { r.Host = "evil.example:" + r.URL.Port() }, http.StatusMisdirectedRequest},
		"our name, another port":    {func(r *http.Request) { r.Host = "127.0.0.1:1" }, http.StatusMisdirectedRequest},
		"our name without a port":   {func(r *http.Request) { r.Host = "127.0.0.1" }, http.StatusMisdirectedRequest},
		"another loopback address":  {func(r *http.Request) { r.Host = "127.0.0.2:" + r.URL.Port() }, http.StatusMisdirectedRequest},
		"page of another site":      {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"page of another port":      {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusForbidden},
		"POST":                      {func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"PUT":                       {func(r *http.Request) { r.Method = http.MethodPut }, http.StatusMethodNotAllowed},
		"DELETE":                    {func(r *http.Request) { r.Method = http.MethodDelete }, http.StatusMethodNotAllowed},
		"OPTIONS":                   {func(r *http.Request) { r.Method = http.MethodOptions }, http.StatusMethodNotAllowed},
		"TRACE":                     {func(r *http.Request) { r.Method = http.MethodTrace }, http.StatusMethodNotAllowed},
		"a long search":             {func(r *http.Request) { r.URL.RawQuery = strings.Repeat("q", 4097) }, http.StatusRequestURITooLong},

		"as it is":            {func(*http.Request) {}, http.StatusOK},
		"as localhost":        {func(r *http.Request) { r.Host = "localhost:" + r.URL.Port() }, http.StatusOK},
		"typed":               {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, http.StatusOK},
		"from a page of ours": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, http.StatusOK},
		"HEAD":                {func(r *http.Request) { r.Method = http.MethodHead }, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			b := &browser{t, b.url}
			resp, body := b.ask("", c.alter)
			if resp.StatusCode != c.status {
				t.Fatalf("%s, want %d", resp.Status, c.status)
			}
			if c.status != http.StatusOK && (strings.Contains(body, "prod.example") || strings.Contains(body, secret)) {
				t.Errorf("a refusal tells %s", body)
			}
			if c.status == http.StatusNotFound && name != "no such page" && !strings.HasPrefix(body, "there is no such page") {
				t.Errorf("it is looked for among the pages: %s", body)
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none';", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
			} {
				if got := resp.Header.Get(name); !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q", name, got)
				}
			}
			if policy := resp.Header.Get("Content-Security-Policy"); strings.Contains(policy, "unsafe") ||
				!strings.Contains(policy, "require-trusted-types-for 'script'; trusted-types 'none'") {
				t.Errorf("the policy is %s", policy)
			}
			if len(resp.Cookies()) > 0 {
				t.Error("it sets a cookie")
			}
		})
	}
}

// With a certificate the dashboard is asked for under the names of that alone.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	chain, key := pkitest.NewAuthority(t, "prod.example").IssueRaw(t, func(c *x509.Certificate) { c.DNSNames = []string{"fleet.example"} })
	cert := pkitest.TLS(chain, key)
	cert.Leaf = chain[0]
	b := serve(t, (&clitest.Answering{Status: status()}).Listen(t), func(c *dashboard.Config) {
		c.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	})
	if !strings.HasPrefix(b.url, "https://fleet.example:") {
		t.Fatalf("its address is %s", b.url)
	}
	_, port, err := net.SplitHostPort(strings.Split(b.url, "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	browsers := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		}}}
	defer browsers.CloseIdleConnections()
	for host, want := range map[string]int{"fleet.example:" + port: 200, "fleet.example": 200, "127.0.0.1:" + port: 421, "evil.example": 421} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := browsers.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("as %s: %s, want %d", host, resp.Status, want)
		}
	}
}

// The first page of a real coordinator says what fealty status says, and a page that is open hears of a change.
func TestRealCoordinator(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	f.Member("b")
	b := serve(t, f.C.AdminSocket(), nil)
	st, err := f.Local().Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{NeedSomebody: true})
	if err != nil {
		t.Fatal(err)
	}
	want(t, b.page(""), coordinatortest.Cluster, "As ", "Last in the audit log")
	if sentence := summary.Sentence(st, st.GetNow().AsTime()); !strings.Contains(words(t, b.page("")), strings.Split(sentence, ", since")[0]) {
		t.Errorf("the page does not say %s", sentence)
	}
	wait.Until(t, "the admission stands on the page", func() bool {
		return strings.Contains(words(t, b.page("")), "member.admit spiffe://"+coordinatortest.Cluster+"/data/b")
	})
	events, end := b.events()
	defer end()
	first := <-events
	if _, err := f.Local().Member.BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "lost <b>it</b>"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the ban stands on the page of a version that the stream named", func() bool {
		next, ok := <-events
		return ok && next != first && strings.Contains(words(t, b.page("")), "member.ban") &&
			strings.Contains(words(t, b.page("")), "lost <b>it</b>")
	})
}

// events opens the stream and returns the versions that it names.
func (b *browser) events() (<-chan string, func()) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url+"events", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		resp.Body.Close()
		b.t.Fatalf("the stream is refused: %s", resp.Status)
	}
	out := make(chan string, 100)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(out)
		in := bufio.NewScanner(resp.Body)
		event := ""
		for in.Scan() {
			if name, ok := strings.CutPrefix(in.Text(), "event: "); ok {
				event = name
			}
			if data, ok := strings.CutPrefix(in.Text(), "data: "); ok && event == "version" {
				out <- data
			}
		}
	})
	return out, func() {
		resp.Body.Close()
		reading.Wait()
	}
}

// There are as many streams as there may be, and room again for another one when one ends.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	b := answering(t, status())
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	for range 16 {
		events, end := b.events()
		ends = append(ends, end)
		if version, ok := <-events; !ok || version == "" {
			t.Fatal("a stream names no version")
		}
	}
	if resp, _ := b.ask("events", nil); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("stream 17: %s", resp.Status)
	}
	ends[0]()
	ends = ends[1:]
	wait.Until(t, "there is room again", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+"events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// Text of the fleet is text on the page, wherever it stands: nothing of it becomes markup.
func TestTextsOfTheFleetStayText(t *testing.T) {
	t.Parallel()
	const hostile = `"><script src="https://evil.example/x.js"></script><img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a>`
	st := status()
	st.ClusterId, st.Release = hostile, hostile
	st.Findings = []*fealtyv1.Finding{{Code: hostile, Severity: "critical" + hostile, Summary: hostile, Remedy: "fealty " + hostile, Coordinator: hostile}}
	st.Leader.Name = hostile
	st.Replicas[0].Name, st.Replicas[0].Phase, st.Replicas[0].Release = hostile, hostile, hostile
	st.Counts.LeastAutonomous, st.Counts.LeastAutonomousUntil, st.Counts.LeastAutonomyLimit = hostile, timestamppb.New(time.Now().Add(time.Hour)), hostile
	st.OperatorCertificate = &fealtyv1.OperatorCertificate{Subject: hostile, NotAfter: timestamppb.New(time.Now().Add(time.Hour))}
	st.Verdict = &fealtyv1.Verdict{State: "unknown", Unknown: []string{hostile}}
	st.Members = []*fealtyv1.Member{{Kind: hostile, Name: hostile, State: hostile, ReportedHost: hostile, Contact: "not heard",
		SvidNotAfter: timestamppb.New(time.Now().Add(time.Hour)), Live: &fealtyv1.Live{Release: hostile, LastReport: timestamppb.Now()}}}
	b := answering(t, st)
	page := b.page("")
	if n := strings.Count(words(t, page), hostile); n < 12 {
		t.Errorf("the text is shown %d times", n)
	}
	onlyOurs(t, b, page)
}

// onlyOurs fails the test if a page has a script, an address or a handler that is not the dashboard's own, or lacks what
// somebody needs who hears it: one heading, names of tables and of what is to be filled in.
func onlyOurs(t testing.TB, b *browser, page string) {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	base := "/" + strings.Split(b.url, "/")[3] + "/"
	heads, ids := 0, map[string]bool{}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			if a.Key == "id" && ids[a.Val] {
				t.Errorf("two elements have the id %s", a.Val)
			} else if a.Key == "id" {
				ids[a.Val] = true
			}
		}
		switch n.Data {
		case "h1":
			heads++
		case "table":
			if n.FirstChild == nil || n.FirstChild.Data != "caption" {
				t.Error("a table says not what it is of")
			}
		case "input", "select":
			if n.Parent.Data != "label" {
				t.Errorf("%s has no label", n.Data)
			}
		}
		switch n.Data {
		case "img", "iframe", "style", "object", "embed", "base":
			t.Errorf("the page has an element %s", n.Data)
		case "script":
			if n.FirstChild != nil {
				t.Error("a script is written in the page")
			}
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("%s has an attribute %s", n.Data, a.Key)
			case a.Key == "href" || a.Key == "src" || a.Key == "action":
				if !strings.HasPrefix(a.Val, base) && !strings.HasPrefix(a.Val, "#") && !strings.HasPrefix(a.Val, "?") {
					t.Errorf("%s leads to %s", n.Data, a.Val)
				}
			}
		}
	}
	if heads != 1 {
		t.Errorf("the page has %d headings of the first order", heads)
	}
}

// Of much little is shown, and it says what is left out.
func TestFirstPageIsBounded(t *testing.T) {
	t.Parallel()
	st := status()
	for i := range 100 {
		st.Findings = append(st.Findings, &fealtyv1.Finding{Code: string(errcode.RecoveryMode), Severity: "warning", Summary: fmt.Sprintf("summary %d", i),
			Remedy: "fealty status"})
		st.Members = append(st.Members, &fealtyv1.Member{Kind: "data", Name: fmt.Sprintf("n-%d", i), Contact: "not heard",
			SvidNotAfter: timestamppb.New(time.Now().Add(time.Hour)), Live: &fealtyv1.Live{LastReport: timestamppb.Now()}})
		st.Replicas = append(st.Replicas, &fealtyv1.Replica{Name: fmt.Sprintf("x-%d", i), Phase: "ready"})
	}
	st.Counts.NeedSomebody = 10_000
	b := answering(t, st)
	page := b.page("")
	if n := strings.Count(words(t, page), "summary "); n != 5 {
		t.Errorf("%d findings are shown", n)
	}
	want(t, page, "and 95 more: fealty status", "and 9980 more: fealty member list")
	if len(page) > 100<<10 {
		t.Errorf("the page has %d bytes", len(page))
	}
	for _, file := range []string{"style.css", "live.js", "icon.svg"} {
		if n := len(b.page(file)); n == 0 || n > 20<<10 {
			t.Errorf("%s has %d bytes", file, n)
		}
	}
}

// What the fleet lacks is said, and not shown as a zero or as well.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alter func(*fealtyv1.GetStatusResponse)
		look  string
		says  []string
	}{
		"well": {func(*fealtyv1.GetStatusResponse) {}, "verdict ok", []string{"nothing needs attention", "c-1 leads, term 7", "1 more may be lost"}},
		"nobody leads": {func(st *fealtyv1.GetStatusResponse) {
			st.Leader = &fealtyv1.Leader{NobodyFor: durationpb.New(time.Minute)}
			st.Findings = []*fealtyv1.Finding{{Code: "FE-L101", Severity: "warning", Summary: "nobody leads", Remedy: "fealty leader show"}}
			st.Verdict.State = "attention"
		}, "verdict warn", []string{"nobody leads, for 1m", "1 thing needs attention", "do fealty leader show"}},
		"nothing can be changed": {func(st *fealtyv1.GetStatusResponse) {
			st.Verdict.State = "unchangeable"
			st.Findings = []*fealtyv1.Finding{{Code: "FE-S101", Severity: "critical", Summary: "the store is away", Remedy: "fealty check store"}}
		}, "verdict bad", []string{"Nothing can be changed in cluster prod.example"}},
		"in recovery": {func(st *fealtyv1.GetStatusResponse) { st.Phase, st.PhaseReason, st.Leader = "recovery", "no seed", nil },
			"verdict bad", []string{"This coordinator is recovering and changes nothing"}},
		"not known": {func(st *fealtyv1.GetStatusResponse) {
			st.Verdict, st.Contacts.Unknown = &fealtyv1.Verdict{State: "unknown", Unknown: []string{"whether 1 node can be reached"}}, 1
		}, "verdict warn", []string{"not known is whether 1 node can be reached", "≥ 3 of 3"}},
		"an earlier release": {func(st *fealtyv1.GetStatusResponse) { st.Counts, st.Upkeep, st.Verdict = nil, nil, nil },
			"verdict ok", []string{"unknown when the last backup was made", "unknown how long nodes work alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := status()
			c.alter(st)
			page := answering(t, st).page("")
			want(t, page, c.says...)
			if !strings.Contains(page, `class="`+c.look+`"`) {
				t.Errorf("it does not look %s", c.look)
			}
		})
	}
}

// While no coordinator answers the pages say so, with the error's code and how old the rest is, and go on when one does.
func TestNoCoordinatorAnswers(t *testing.T) {
	t.Parallel()
	b := serve(t, filepath.Join(clitest.ShortDir(t), "nobody"), nil)
	want(t, b.page(""), "No coordinator answers. Nothing is known of the fleet yet.", string(errcode.Unreachable), "How the fleet is, is not known")

	var mu sync.Mutex
	var broken error
	server := &clitest.Answering{Status: status(), Hook: func(context.Context, string, any) error {
		mu.Lock()
		defer mu.Unlock()
		return broken
	}}
	b = serve(t, server.Listen(t), nil)
	if page := b.page(""); strings.Contains(words(t, page), "No coordinator answers") {
		t.Fatalf("it says that no coordinator answers: %s", words(t, page))
	}
	mu.Lock()
	broken = errcode.New(errcode.StoreUnreachable)
	mu.Unlock()
	wait.Until(t, "it says that no coordinator answers, and shows what was known", func() bool {
		page := b.page("")
		got := words(t, page)
		return strings.Contains(got, "No coordinator answers. What is shown is as it was") && strings.Contains(got, "When it was last seen: Cluster") && strings.Contains(got, string(errcode.StoreUnreachable)) &&
			strings.Contains(got, "Cluster prod.example") && strings.Contains(page, `class="verdict quiet"`)
	})
	mu.Lock()
	broken = nil
	mu.Unlock()
	wait.Until(t, "it goes on", func() bool { return strings.Contains(b.page(""), `class="verdict ok"`) })
}

// A coordinator that takes long holds up no page: it shows what there is, and that an answer is missing.
func TestSlowCoordinator(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	server := &clitest.Answering{Status: status(), Hook: func(ctx context.Context, method string, _ any) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}}
	want(t, serve(t, server.Listen(t), nil).page(""), "No coordinator has answered for 2s. Nothing is known of the fleet yet.")
}

// Each code that a page names has its page, with what fealty explain says of it.
func TestHelp(t *testing.T) {
	t.Parallel()
	b := answering(t, status())
	for _, code := range errcode.Codes() {
		e, _ := errcode.Lookup(code)
		page := b.page("help/" + string(code))
		want(t, page, e.Title)
		if strings.Contains(words(t, page), "```") || strings.Contains(words(t, page), "`") {
			t.Errorf("%s: its page shows Markdown", code)
		}
		onlyOurs(t, b, page)
	}
	if resp, body := b.ask("help/FE-9999", nil); resp.StatusCode != http.StatusNotFound || !strings.Contains(body, "There is no code of this name") {
		t.Errorf("a code that does not exist: %s", resp.Status)
	}
}

// What only grows older makes no new version: a page that is open is not loaded anew for it.
func TestQuietFleetIsQuiet(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	server := &clitest.Answering{Status: status()}
	server.Hook = func(_ context.Context, method string, _ any) error {
		if method == "GetStatus" {
			looks.Add(1)
			next := proto.CloneOf(server.Status)
			next.Now, next.StoreLatency, next.HeadConfirmedAt = timestamppb.Now(), durationpb.New(time.Duration(looks.Load())), timestamppb.Now()
			next.Replicas[1].HeardAt, next.Replicas[1].UnheardFor = timestamppb.Now(), durationpb.New(time.Duration(looks.Load())*time.Millisecond)
			server.Status = next
		}
		return nil
	}
	b := serve(t, server.Listen(t), nil)
	// The server has no audit log, which is known from some look on.
	wait.Until(t, "the audit log was asked for", func() bool { return strings.Contains(words(t, b.page("")), "Unimplemented") || looks.Load() > 3 })
	events, end := b.events()
	defer end()
	<-events
	from := looks.Load()
	wait.Until(t, "five more looks", func() bool { return looks.Load() >= from+5 })
	more := 0
	for len(events) > 0 {
		<-events
		more++
	}
	if more > 1 { // one for the audit log
		t.Errorf("nothing happened, and there are %d new versions", more)
	}
}
