package host_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/test/member"
	"github.com/fealty-io/fealty/test/wait"
)

var quiet = slog.New(slog.DiscardHandler)

// TestMain lets the test binary be a workload of its own: see [program].
func TestMain(m *testing.M) {
	if socket := os.Getenv("FEALTY_TEST_WORKLOAD"); socket != "" {
		os.Exit(workload(socket))
	}
	os.Exit(m.Run())
}

// workload is a process that prints its identities, or why it gets none, until it is told to stop.
func workload(socket string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		cancel()
	}()
	client, err := workloadapi.New(ctx, workloadapi.WithAddr("unix://"+socket))
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	defer client.Close()
	_ = client.WatchX509Context(ctx, printer{})
	return 0
}

type printer struct{}

func (printer) OnX509ContextUpdate(c *workloadapi.X509Context) {
	var ids []string
	for _, s := range c.SVIDs {
		ids = append(ids, fmt.Sprintf("%s(%s)#%x", s.ID, s.Hint, s.Certificates[0].SerialNumber))
	}
	fmt.Println("svid", strings.Join(ids, " "))
}

func (printer) OnX509ContextWatchError(err error) {
	if status.Code(err) != codes.Canceled {
		fmt.Println("error", status.Code(err), status.Convert(err).Message())
	}
}

// fleet is a coordinator whose members can be assigned services.
func fleet(t testing.TB) *coordinatortest.Fleet {
	t.Helper()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest(`  - {name: runners, kind: data, match: ["token:runners"], roles: [egress]}
`)); err != nil {
		t.Fatal(err)
	}
	return f
}

// machine is a member of a fleet whose agent serves workloads.
type machine struct {
	*member.Member
	t      testing.TB
	socket string
}

func joined(t testing.TB, f *coordinatortest.Fleet, name string) *machine {
	t.Helper()
	m := enrolled(t, f, name)
	m.start()
	return m
}

// enrolled is a node that joined, and whose agent was never started.
func enrolled(t testing.TB, f *coordinatortest.Fleet, name string) *machine {
	t.Helper()
	// The path of a socket is short.
	short, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	return &machine{Member: member.Join(t, f, "runners", name), t: t, socket: filepath.Join(short, "s")}
}

func (m *machine) start() {
	m.t.Helper()
	m.Start(func(c *agent.Config) { c.Sockets.Workloads, c.Log, c.Now = m.socket, logger(m.t), nil })
}

// serves returns once the socket does.
func (m *machine) serves() {
	m.t.Helper()
	for {
		conn, err := net.Dial("unix", m.socket)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-m.t.Context().Done():
			m.t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
}

// program starts a workload, and returns what it prints, line by line.
func (m *machine) program() *lines {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FEALTY_TEST_WORKLOAD="+m.socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return &lines{m.t, bufio.NewScanner(out)}
}

type lines struct {
	t testing.TB
	s *bufio.Scanner
}

// next reads one line.
func (l *lines) next() string {
	l.t.Helper()
	if !l.s.Scan() {
		l.t.Fatalf("the program said nothing more: %v", l.s.Err())
	}
	return l.s.Text()
}

// until reads lines until one has all of the words, and returns it.
func (l *lines) until(words ...string) string {
	l.t.Helper()
	for l.s.Scan() {
		all := true
		for _, w := range words {
			all = all && strings.Contains(l.s.Text(), w)
		}
		if all {
			return l.s.Text()
		}
	}
	l.t.Fatalf("the workload never said %q", words)
	return ""
}

func put(t testing.TB, f *coordinatortest.Fleet, text string) {
	t.Helper()
	if _, err := fealtyv1.NewConfigServiceClient(f.LocalConn()).PutConfig(t.Context(), &fealtyv1.PutConfigRequest{Records: [][]byte{[]byte(text)}}); err != nil {
		t.Fatal(err)
	}
}

func service(name, more string) string {
	return "kind: service\nname: " + name + "\ntype: process\n" + more
}

// A process of a member gets the identity of the service that registers it, by an unmodified
// go-spiffe client; one that nobody registers gets none, and gets it once somebody does.
func TestProcessGetsItsIdentity(t *testing.T) {
	t.Parallel()
	f := fleet(t)
	m := joined(t, f, "node-a")
	p := m.program()
	p.until("error PermissionDenied no identity issued")
	put(t, f, service("billing", fmt.Sprintf("workload: {id: billing/api, uid: %d, path: %s}\n", os.Getuid(), os.Args[0])))
	first := p.until("svid spiffe://test.example/workload/billing/api(billing)#")

	// Everybody in the fleet verifies the certificate, which says who vouched for it.
	client, err := workloadapi.New(t.Context(), workloadapi.WithAddr("unix://"+m.socket))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	svid, err := client.FetchX509SVID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bundles, err := client.FetchX509Bundles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if id, _, err := x509svid.Verify(svid.Certificates, bundles); err != nil || id.String() != "spiffe://test.example/workload/billing/api" {
		t.Errorf("go-spiffe says %v, %v", id, err)
	}
	voucher, _, err := identity.VoucherOf(svid.Certificates[0])
	if err != nil || voucher.String() != "spiffe://test.example/data/node-a" {
		t.Errorf("vouched for by %v, %v", voucher, err)
	}
	// Another identity comes beside it at once, and what is taken away goes at once.
	put(t, f, service("reports", fmt.Sprintf("workload: {uid: %d}\n", os.Getuid())))
	both := p.until("workload/billing/api(billing)", "workload/reports(reports)")
	if serial := strings.TrimPrefix(first, "svid "); !strings.Contains(both, serial) {
		t.Errorf("%q became %q though nothing of it changed", first, both)
	}
	put(t, f, service("billing", "workload: {id: billing/api, uid: 4000000000}\n"))
	if only := p.until("svid"); strings.Contains(only, "billing") {
		t.Errorf("still %q", only)
	}
	put(t, f, service("reports", ""))
	p.until("error PermissionDenied")
}

// A restarted agent serves from disk at once, with every coordinator away.
func TestRestartedAgentServesFromDisk(t *testing.T) {
	t.Parallel()
	f := fleet(t)
	m := joined(t, f, "node-a")
	put(t, f, service("billing", fmt.Sprintf("workload: {uid: %d}\n", os.Getuid())))
	first := m.program().until("svid")
	var kept []string
	wait.UntilNil(t, "it is on disk", func() (err error) {
		if kept, err = filepath.Glob(filepath.Join(m.Dir, "workloads", "*.pem")); len(kept) != 1 {
			return fmt.Errorf("%v, %v", kept, err)
		}
		return err
	})
	if info, err := os.Stat(kept[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	m.Stop()
	f.Stop()
	m.start()
	if again := m.program().until("svid"); again != first {
		t.Errorf("after the restart %q, before %q", again, first)
	}
}

// logger writes into what is shown of a test that fails.
func logger(t testing.TB) *slog.Logger {
	if _, ok := t.(*testing.B); ok {
		return quiet // of a benchmark it is always shown
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// JWT-SVIDs are signed for the audience that is asked for, verified by the keys that the Workload
// API gives, and refused once the member that vouches for them is banned.
func TestTokens(t *testing.T) {
	t.Parallel()
	f := fleet(t)
	a, b := joined(t, f, "node-a"), joined(t, f, "node-b")
	put(t, f, service("billing", fmt.Sprintf("workload: {id: billing/api, uid: %d}\n", os.Getuid())))
	a.program().until("svid")
	b.program().until("svid")
	connect := func(m *machine) *workloadapi.Client {
		client, err := workloadapi.New(t.Context(), workloadapi.WithAddr("unix://"+m.socket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	of, by := connect(a), connect(b)
	svid, err := of.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "ledger"})
	if err != nil {
		t.Fatal(err)
	}
	const id = "spiffe://test.example/workload/billing/api"
	left := time.Until(svid.Expiry)
	if svid.ID.String() != id || left <= 0 || left > 5*time.Minute || svid.Claims["vouched_by"] != "spiffe://test.example/data/node-a" {
		t.Errorf("got %+v", svid)
	}
	again, err := of.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "ledger"})
	if err != nil || again.Marshal() != svid.Marshal() {
		t.Errorf("a second token within half a life, %v", err)
	}
	bundles, err := by.FetchJWTBundles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := jwtsvid.ParseAndValidate(svid.Marshal(), bundles, []string{"ledger"}); err != nil || got.ID.String() != id {
		t.Errorf("by the bundles: %v, %v", got, err)
	}
	if got, err := by.ValidateJWTSVID(t.Context(), svid.Marshal(), "ledger"); err != nil || got.ID.String() != id {
		t.Errorf("by the other agent: %v, %v", got, err)
	}
	broken := svid.Marshal()[:len(svid.Marshal())-4] + "AAAA"
	for name, tc := range map[string][2]string{
		"another audience": {svid.Marshal(), "shop"}, "a broken signature": {broken, "ledger"}, "no token": {"x", "ledger"},
		"no algorithm": {"eyJhbGciOiJub25lIn0." + strings.Split(svid.Marshal(), ".")[1] + ".", "ledger"},
	} {
		if got, err := by.ValidateJWTSVID(t.Context(), tc[0], tc[1]); status.Code(errors.Unwrap(err)) != codes.InvalidArgument && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	other, _ := spiffeid.FromString("spiffe://test.example/workload/reports")
	if got, err := of.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "ledger", Subject: other}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("of another workload: %v, %v", got, err)
	}
	if got, err := of.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: strings.Repeat("x", 300)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("for a long audience: %v, %v", got, err)
	}
	// With every coordinator away it is given on, and verified.
	f.Stop()
	if again, err := of.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "ledger"}); err != nil || again.Marshal() != svid.Marshal() {
		t.Errorf("in an outage: %v", err)
	}
	b.Stop()
	b.start()
	b.program().until("svid") // it serves again
	if got, err := connect(b).ValidateJWTSVID(t.Context(), svid.Marshal(), "ledger"); err != nil || got.ID.String() != id {
		t.Errorf("by a restarted agent in an outage: %v, %v", got, err)
	}
	f.Start()
	if _, err := f.Local().Member.BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	last := connect(b)
	for {
		_, err := last.ValidateJWTSVID(t.Context(), svid.Marshal(), "ledger")
		if err != nil {
			if !strings.Contains(err.Error(), "banned") {
				t.Errorf("after the ban: %v", err)
			}
			break
		}
	}
}
