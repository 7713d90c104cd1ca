package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	internalsnapshot "github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// routed is a node that holds routes, with all that degraded mode can allow.
func routed(f *nodetest.Fleet) (*node, signedtest.Member) {
	f.TB.Helper()
	n := newNode(f)
	m := f.Member(n.MustJoin().ID)
	a := n.mustOpen()
	defer a.Close()
	var runtime, routes *fealtyv1.SignedSnapshot
	f.Do(func() {
		runtime = f.Runtime(&m, allAllowed, func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
			c.Companions = []snapshot.Scope{snapshot.ScopeRoutePolicy}
		})
		routes = f.Companion(&m, snapshot.ScopeRoutePolicy, routesTo("web"))
	})
	f.Must(n.take(a, runtime))
	f.Must(n.take(a, routes))
	if refused := a.Node().Status().Refusals(); len(refused) != 0 {
		f.TB.Fatalf("refused: %v", refused)
	}
	return n, m
}

func routesTo(service string) *snapshot.RoutePolicy {
	return &snapshot.RoutePolicy{Routes: []snapshot.Route{{Name: "r", Service: service, Match: "/",
		To: []string{"db-1"}, TTL: time.Hour}}}
}

// localConfig runs a with its socket for local services, and returns a client of it.
func localConfig(t *testing.T, f *nodetest.Fleet, n *node, a *agent.Agent) fealtyv1.LocalConfigServiceClient {
	t.Helper()
	a.Serve("", filepath.Join(socketDir(t), agent.ConfigSocketName))
	n.run(a)
	wait.Until(t, "the socket is served", func() bool { return accepts(a.ConfigSocket()) })
	conn, err := mesh.DialLocal(a.ConfigSocket())
	f.Must(err)
	t.Cleanup(func() { conn.Close() })
	return fealtyv1.NewLocalConfigServiceClient(conn)
}

// A local service gets what is in use, with all that it has to know of it, and an
// error by name for what is not.
func TestGetScope(t *testing.T) {
	f := nodetest.New(t)
	n, m := routed(f)
	a := n.mustOpen()
	client := localConfig(t, f, n, a)
	get := func(scope snapshot.Scope) (*fealtyv1.ScopeContent, error) {
		resp, err := client.GetScope(t.Context(), &fealtyv1.GetScopeRequest{Scope: string(scope)})
		return resp.GetContent(), err
	}
	got, err := get(snapshot.ScopeRoutePolicy)
	f.Must(err)
	v := a.Node().TrustState().Active[snapshot.ScopeRoutePolicy].Verified
	header := v.Header()
	if string(got.GetContent()) != v.ContentJSON() || got.GetConfigVersion() != header.ConfigVersion ||
		got.GetAuthorityEpoch() != 1 || got.GetGeneration() == 0 ||
		got.GetFreshness() != string(snapshot.Fresh) || !got.GetExpiresAt().AsTime().Equal(header.ExpiresAt) ||
		!slices.Equal(got.GetContentHash(), header.ContentHash[:]) {
		t.Errorf("routes %v", got)
	}
	for _, tc := range []struct {
		scope snapshot.Scope
		code  errcode.Code
	}{
		{snapshot.ScopeQoSPolicy, errcode.ActionBoundOver}, // it has none
		{"routes", errcode.RequestField},
		{"", errcode.RequestField},
	} {
		_, err := get(tc.scope)
		if e, ok := errcode.FromStatus(err); !ok || e.Code != tc.code {
			t.Errorf("%q: %v, want %s", tc.scope, err, tc.code)
		}
	}
	// A revoked entry is not given, though it is signed.
	revoke := f.Content()
	revoke.Revoked = []snapshot.Revoked{{Kind: internalsnapshot.RevokedService, Name: "web"}}
	h := f.TrustHeader()
	h.ConfigVersion++
	f.Must(n.take(a, f.SignTrust(h, revoke)))
	if got, err = get(snapshot.ScopeRoutePolicy); err != nil || strings.Contains(string(got.GetContent()), "web") {
		t.Errorf("a revoked service: %s, %v", got.GetContent(), err)
	}
	// A scope that the node_runtime no longer lists is given no more.
	var runtime *fealtyv1.SignedSnapshot
	f.Do(func() { runtime = f.Runtime(&m, allAllowed) })
	f.Must(n.take(a, runtime))
	if _, err = get(snapshot.ScopeRoutePolicy); !refusedAs(err, errcode.ActionBoundOver) {
		t.Errorf("a scope that was taken away: %v", err)
	}
	if _, err := client.PermitAction(t.Context(), &fealtyv1.PermitActionRequest{Action: "become_root"}); !refusedAs(err,
		errcode.ActionUnknown) {
		t.Errorf("an unknown action: %v", err)
	}
}

func refusedAs(err error, code errcode.Code) bool {
	e, ok := errcode.FromStatus(err)
	return ok && e.Code == code
}

// A watcher gets what is in use, then the newest each time, and hears when it is over.
func TestWatchScope(t *testing.T) {
	f := nodetest.New(t)
	f.BundleLife = 1000 * time.Hour
	n, m := routed(f)
	a := n.mustOpen()
	f.Do(func() { f.Faults.Down["all"] = true })
	client := localConfig(t, f, n, a)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := client.WatchScope(ctx, &fealtyv1.WatchScopeRequest{Scope: string(snapshot.ScopeRoutePolicy)})
	f.Must(err)
	next := func() *fealtyv1.WatchScopeResponse {
		t.Helper()
		m, err := stream.Recv()
		f.Must(err)
		return m
	}
	if got := next(); !strings.Contains(string(got.GetContent().GetContent()), "web") {
		t.Fatalf("at first %v", got)
	}
	take := func(service string) {
		t.Helper()
		var s *fealtyv1.SignedSnapshot
		f.Do(func() { s = f.Companion(&m, snapshot.ScopeRoutePolicy, routesTo(service)) })
		f.Must(n.take(a, s))
	}
	take("mail")
	for got := next(); !strings.Contains(string(got.GetContent().GetContent()), "mail"); got = next() {
	}
	// A watcher that does not read misses what came between, and gets the newest.
	for range 50 {
		take("between")
	}
	take("last")
	seen := 0
	for got := next(); !strings.Contains(string(got.GetContent().GetContent()), "last"); got = next() {
		seen++
	}
	if seen > 50 {
		t.Errorf("%d between", seen)
	}
	// Time passes without news: the routes are over, and the watcher hears it without
	// a question.
	f.Shift.Store(int64(2 * time.Hour))
	a.Node().Autonomy.Changed.Notify()
	got := next()
	if got.GetOver().GetReason() != string(guard.BoundOver) || got.GetOver().GetBound() != string(guard.RouteBound) {
		t.Errorf("over: %v", got)
	}
	if _, err := client.GetScope(t.Context(),
		&fealtyv1.GetScopeRequest{Scope: string(snapshot.ScopeRoutePolicy)}); !refusedAs(err, errcode.ActionBoundOver) {
		t.Errorf("routes that are over are given: %v", err)
	}
	state.Notify(a.Node().Trials.Changed)
	wait.Until(t, "the file of the routes is gone",
		func() bool { return !n.Has(dir.CurrentName(snapshot.ScopeRoutePolicy)) })
	// Others of the agent's own are not served there.
	conn, err := mesh.DialLocal(a.ConfigSocket())
	f.Must(err)
	defer conn.Close()
	if _, err := fealtyv1.NewNodeServiceClient(conn).GetNode(t.Context(),
		&fealtyv1.GetNodeRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the socket for services tells of the node: %v", err)
	}
}

// A consumer that finds new config bad has the one before back; its verdict on what is
// not on trial is refused.
func TestReportVerdict(t *testing.T) {
	f := nodetest.New(t)
	n, m := routed(f)
	a := n.mustOpen()
	f.Do(func() { f.Faults.Down["all"] = true })
	client := localConfig(t, f, n, a)
	get := func() *fealtyv1.ScopeContent {
		t.Helper()
		resp, err := client.GetScope(t.Context(), &fealtyv1.GetScopeRequest{Scope: string(snapshot.ScopeRoutePolicy)})
		f.Must(err)
		return resp.GetContent()
	}
	verdict := func(version uint64, works bool) error {
		_, err := client.ReportVerdict(t.Context(),
			&fealtyv1.ReportVerdictRequest{Scope: string(snapshot.ScopeRoutePolicy), ConfigVersion: version,
				Works: works, Reason: "no\nroute"})
		return err
	}
	before := get()
	if err := verdict(before.GetConfigVersion(), false); !refusedAs(err, errcode.RequestField) || before.GetOnTrial() {
		t.Fatalf("a verdict on what is not on trial: %v", err)
	}
	var messages []*fealtyv1.SignedSnapshot
	f.Do(func() {
		messages = append(messages, f.Runtime(&m, allAllowed,
			func(_ *snapshot.Header, c *snapshot.NodeRuntime, _ *snapshot.Record) {
				c.Companions = []snapshot.Scope{snapshot.ScopeDegradedModePolicy, snapshot.ScopeRoutePolicy}
			}), f.Companion(&m, snapshot.ScopeDegradedModePolicy,
			&snapshot.DegradedModePolicy{Trials: []snapshot.Trial{{Scope: snapshot.ScopeRoutePolicy,
				Duration: time.Minute}}}),
			f.Companion(&m, snapshot.ScopeRoutePolicy, routesTo("bad")))
	})
	for _, s := range messages {
		f.Must(n.take(a, s))
	}
	tried := get()
	if !tried.GetOnTrial() || !strings.Contains(string(tried.GetContent()), "bad") {
		t.Fatalf("on trial: %v; refused %v", tried, a.Node().Status().Refusals())
	}
	f.Must(verdict(tried.GetConfigVersion(), true))
	if err := verdict(tried.GetConfigVersion()+1, false); !refusedAs(err, errcode.RequestField) {
		t.Errorf("a verdict on another version: %v", err)
	}
	f.Must(verdict(tried.GetConfigVersion(), false))
	if got := get(); got.GetOnTrial() || string(got.GetContent()) != string(before.GetContent()) ||
		got.GetConfigVersion() != before.GetConfigVersion() {
		t.Errorf("after the verdict: %v", got)
	}
}

// Every method of the socket for local services is for this machine alone, and the
// file is open to others only where there are consumers.
func TestConfigSocket(t *testing.T) {
	services, err := authz.Services(agent.ConfigServices()...)
	if err != nil {
		t.Fatal(err)
	}
	table, err := authz.NewTable(services...)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range table.Rows() {
		if !rule.Local || !rule.Consumers || rule.Open || len(rule.Kinds) != 0 {
			t.Errorf("%s is for others than this machine", rule.Method)
		}
	}
	f := nodetest.New(t)
	n, _ := routed(f)
	for _, tc := range []struct {
		consumers []agent.Consumer
		want      os.FileMode
	}{{nil, 0o600}, {[]agent.Consumer{{ID: 1000}}, 0o666}} {
		c := n.clone()
		a := c.mustOpen()
		a.Admit(tc.consumers)
		localConfig(t, f, c, a)
		wait.Until(t, "the mode is set", func() bool {
			info, err := os.Stat(a.ConfigSocket())
			return err == nil && info.Mode().Perm() == tc.want
		})
	}
}
