package node_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/trust"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/node"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/member"
	"github.com/fealty-io/fealty/test/wait"
)

var quiet = slog.New(slog.DiscardHandler)

// agentFolder is a real agent of a real coordinator, and its folder as a program sees it.
type agentFolder struct {
	*member.Member
	*node.Node
	f *coordinatortest.Fleet
}

func join(t testing.TB, f *coordinatortest.Fleet, name string) *agentFolder {
	t.Helper()
	return joinUnder(t, f, "pool", name)
}

// joinUnder is join under an entry of the manifest.
func joinUnder(t testing.TB, f *coordinatortest.Fleet, entry, name string) *agentFolder {
	t.Helper()
	m := &agentFolder{Member: member.Join(t, f, entry, name), f: f}
	m.Start()
	var err error
	if m.Node, err = node.Open(m.Dir, node.Options{Now: f.Clock, Log: quiet}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// renew has the agent renew, and returns once the program follows.
func (m *agentFolder) renew(t *testing.T) {
	t.Helper()
	before := m.material(t)
	conn, err := mesh.DialLocal(filepath.Join(m.Dir, dir.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wait.Until(t, "the agent renews", func() bool {
		_, err := fealtyv1.NewNodeServiceClient(conn).RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{})
		return err == nil
	})
	m.Look()
	if m.material(t).Pin() == before.Pin() {
		t.Fatal("the program has the certificate of before")
	}
}

func (m *agentFolder) material(t *testing.T) *credential.Material {
	t.Helper()
	material, err := m.Source().Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return material
}

func (m *agentFolder) ban(t *testing.T, name string) {
	t.Helper()
	_, err := fealtyv1.NewMemberServiceClient(m.f.LocalConn()).BanMember(t.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: name, Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	banned, err := identity.New(m.ID().Cluster(), identity.Data, name)
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the ban is followed", func() bool {
		m.Look()
		return m.material(t).Bundle().Banned(banned, identity.KeyID{})
	})
}

// health tells each caller's key.
type health struct {
	healthpb.UnimplementedHealthServer
	keys chan identity.KeyID
}

func (h health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	peer := identity.FromContext(ctx)
	if !peer.Identified() {
		return nil, status.Error(codes.Unauthenticated, "this is for members")
	}
	h.keys <- peer.Key
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (h health) Watch(_ *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	if err := s.Send(&healthpb.HealthCheckResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return context.Cause(s.Context())
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A program calls and serves as its member over gRPC. It survives a renewal, and the one on the
// other end sees it; a wrong server is refused, and who is banned loses what it has open and gets nothing
// more.
func TestGRPC(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := join(t, f, "node-a"), join(t, f, "node-b")
	server, err := a.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	h := health{keys: make(chan identity.KeyID, 1)}
	healthpb.RegisterHealthServer(server, h)
	l := listen(t)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := b.Dial(l.Addr().String(), credential.ExactID(a.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	called := func(want identity.KeyID) {
		t.Helper()
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := <-h.keys; got != want {
			t.Errorf("the server saw key %s, want %s", got, want)
		}
	}
	first := b.material(t).Pin()
	called(first)
	stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	b.renew(t)
	a.renew(t)
	called(b.material(t).Pin())

	wrong, err := b.Dial(l.Addr().String(), credential.ExactID(b.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	_, err = healthpb.NewHealthClient(wrong).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if failed, ok := errors.AsType[*mesh.HandshakeError](err); !ok || failed.Reason != mesh.IdentityMismatch {
		t.Errorf("a wrong server: %v", err)
	}

	a.ban(t, "node-b")
	if _, err = stream.Recv(); status.Code(err) != codes.PermissionDenied || reasonOf(t, err) != mesh.PeerBanned {
		t.Errorf("a stream of the banned: %v", err)
	}
	// On the connection while it has its grace, and on a new one after; its end may come under the call.
	wait.Until(t, "the banned is refused", func() bool {
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err == nil {
			t.Fatal("the banned was served")
		}
		if underCall(err) {
			return false
		}
		if got := reasonOf(t, err); got != mesh.PeerBanned && got != mesh.ClientRejected {
			t.Errorf("the banned was refused for %q: %v", got, err)
		}
		return true
	})
}

// The same over net/http.
func TestHTTP(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := join(t, f, "node-a"), join(t, f, "node-b")
	l := listen(t)
	began, cause := make(chan struct{}), make(chan error, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		peer := identity.FromContext(r.Context())
		fmt.Fprint(w, peer.Identified(), " ", peer.Key, " ", r.TLS.Version == tls.VersionTLS13)
	})
	mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		cause <- context.Cause(r.Context())
	})
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.ServeHTTP(ctx, l, &http.Server{Handler: mux}) }()
	transport, err := b.NewHTTPTransport(credential.ExactID(a.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(client *http.Client, path string) (string, error) {
		answer, err := client.Get("https://" + l.Addr().String() + path)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.Status + " " + string(body), err
	}
	for range 2 {
		want := fmt.Sprint("200 OK true ", b.material(t).Pin(), " true")
		if got, err := get(client, "/who"); err != nil || got != want {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
		b.renew(t)
	}
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer stranger.CloseIdleConnections()
	if got, err := get(stranger, "/who"); err != nil || got != fmt.Sprint("200 OK false ", identity.KeyID{}, " true") {
		t.Errorf("a stranger: %q, %v", got, err)
	}
	wrong, err := b.NewHTTPTransport(credential.ExactID(b.ID()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = get(&http.Client{Transport: wrong}, "/who")
	if failed, ok := errors.AsType[*mesh.HandshakeError](err); !ok || failed.Reason != mesh.IdentityMismatch {
		t.Errorf("a wrong server: %v", err)
	}

	waited := make(chan error, 1)
	go func() {
		_, err := get(client, "/wait")
		waited <- err
	}()
	<-began
	a.ban(t, "node-b")
	if cut, ok := errors.AsType[*mesh.CutError](<-cause); !ok || cut.Reason != mesh.PeerBanned {
		t.Errorf("the request of the banned ended for %v", cut)
	}
	<-waited // the handler answered within its grace, or not
	cut := mesh.CutError{Reason: mesh.PeerBanned, ID: b.ID()}
	if got, err := get(client, "/who"); err == nil && got != "403 Forbidden "+cut.Error()+"\n" {
		t.Errorf("the banned was answered %q", got)
	} else if err != nil && reasonOf(t, err) != mesh.ClientRejected {
		t.Errorf("the banned was refused for another reason: %v", err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Config in use comes from the agent alone, and so does permission.
func TestConfig(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := join(t, f, "node-a")
	var got node.Content
	wait.Until(t, "there is config", func() bool {
		var err error
		got, err = a.Snapshot(t.Context(), snapshot.ScopeNodeRuntime)
		return err == nil
	})
	if got.Scope != snapshot.ScopeNodeRuntime || got.ConfigVersion == 0 || got.Freshness != snapshot.Fresh ||
		len(got.JSON) == 0 || got.Expires.Before(f.Clock()) || snapshot.DigestOf(got.JSON) != got.Hash {
		t.Errorf("got %+v", got)
	}
	refused := func(err error, code string) {
		t.Helper()
		if e, ok := errors.AsType[*node.RefusedError](err); !ok || e.Code != code || e.Reason == "" {
			t.Errorf("%v, want code %s", err, code)
		}
	}
	_, err := a.Snapshot(t.Context(), "no_scope")
	refused(err, "FE-U107")
	_, err = a.Snapshot(t.Context(), snapshot.ScopeRoutePolicy) // nobody configured any
	refused(err, "FE-N110")
	if err := a.Permit(t.Context(), "start_services"); err != nil {
		t.Error(err)
	}
	refused(a.Permit(t.Context(), "no_action"), "FE-N113") // in contact too
	for _, r := range guard.ActionRules() {
		if err := a.Permit(t.Context(), node.Action(r.Action)); err != nil && strings.Contains(err.Error(), "FE-N113") {
			t.Errorf("package node does not know the action %s: %v", r.Action, err)
		}
	}
	var decoded snapshot.NodeRuntime
	if err := got.Decode(&decoded); err != nil || string(decoded.Kind) != "data" {
		t.Errorf("the content decodes to %+v, %v", decoded, err)
	}
	if err := got.Decode(new(snapshot.RoutePolicy)); err == nil {
		t.Error("content of one scope was decoded as that of another")
	}
	refused(a.ReportVerdict(t.Context(), got, false, "it is slow"), "FE-U107")

	// A watch tells at once, that the agent went away, and what its successor says.
	var told []string
	for c, err := range a.Watch(t.Context(), snapshot.ScopeNodeRuntime) {
		switch {
		case err == nil && c.ConfigVersion < got.ConfigVersion:
			t.Errorf("the watch went back to %+v", c)
		case err == nil:
			told = append(told, "content")
		default:
			if _, ok := errors.AsType[*node.RefusedError](err); ok {
				t.Errorf("the watch: %v", err)
			}
			told = append(told, "away")
		}
		switch len(told) {
		case 1:
			a.Stop()
		case 2:
			if err := a.Permit(t.Context(), "start_services"); err == nil {
				t.Error("permitted without an agent")
			} else if _, ok := errors.AsType[*node.RefusedError](err); ok {
				t.Errorf("without an agent: %v", err)
			}
			a.Start()
		}
		if len(told) == 3 {
			break
		}
	}
	if fmt.Sprint(told) != "[content away content]" {
		t.Errorf("the watch told %v", told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range a.Watch(ctx, snapshot.ScopeNodeRuntime) {
		t.Errorf("a watch without time: %v", err)
	}
	if _, err := a.Snapshot(ctx, snapshot.ScopeNodeRuntime); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
}

// Signed content is verified by what is in the folder, without anybody.
func TestVerify(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a, b := join(t, f, "node-a"), join(t, f, "node-b")
	read := func(m *agentFolder) (raw []byte) {
		t.Helper()
		wait.Until(t, "there is config", func() bool {
			_, err := m.Snapshot(t.Context(), snapshot.ScopeNodeRuntime)
			return err == nil
		})
		raw, err := os.ReadFile(filepath.Join(m.Dir, "snapshots", "node_runtime.active"))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	own, foreign := read(a), read(b)
	a.Stop()
	f.Stop()
	v, err := a.Verify(own)
	if err != nil || v.Header().ScopeType != snapshot.ScopeNodeRuntime {
		t.Fatalf("%v, %v", v, err)
	}
	altered := append([]byte{}, own...)
	for i := range altered { // in its content
		if i+4 < len(altered) && string(altered[i:i+4]) == "data" {
			altered[i] = 'D'
			break
		}
	}
	for name, raw := range map[string][]byte{"of another node": foreign, "altered": altered, "nothing": nil} {
		if v, err := a.Verify(raw); err == nil {
			t.Errorf("%s: verified as %v", name, v.Header())
		} else if name != "nothing" && !errors.Is(err, snapshot.ErrRejected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, marks := range []string{"marks.a", "marks.b"} {
		if err := os.WriteFile(filepath.Join(a.Dir, marks), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Verify(own); err == nil {
		t.Error("verified without marks")
	}
}

// A folder that no agent filled, or that is not there, is an error.
func TestNoAgent(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if n, err := node.Open(dir, node.Options{Log: quiet}); err == nil {
			n.Close()
			t.Error("opened")
		}
	}
}

// Somebody else's program names no option of fealty's commands in what it logs of a folder that is of no use: it
// names the page that says what to do, or advice that has none.
func TestErrorsNameNoOptions(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := join(t, f, "node-a")
	a.Stop()
	anchor := filepath.Join(a.Dir, dir.AnchorName)
	option := regexp.MustCompile(`(?:^|\s)--?[a-z]`)
	for _, step := range []struct {
		name, says string
		spoil      func() error
	}{
		{"a folder that others can read", "chmod", func() error { return os.Chmod(filepath.Join(a.Dir, dir.SVIDName), 0o644) }},
		{"a damaged anchor", "fealty explain FE-N102 says what to do", func() error { return os.WriteFile(anchor, []byte("{"), 0o600) }},
		{"no identity", "fealty explain FE-N101 says what to do", func() error { return os.RemoveAll(filepath.Dir(anchor)) }},
	} {
		if err := step.spoil(); err != nil {
			t.Fatal(err)
		}
		a.Look()
		n, err := node.Open(a.Dir, node.Options{Now: f.Clock, Log: quiet})
		if err == nil {
			n.Close()
			t.Fatalf("%s: opened", step.name)
		}
		for which, err := range map[string]error{"open": err, "failure": a.Failure()} {
			if err == nil || !strings.Contains(err.Error(), step.says) || option.MatchString(err.Error()) {
				t.Errorf("%s, %s: %v, want %q and no option", step.name, which, err, step.says)
			}
		}
	}
	// The agent, asked by a program, answers with one of these.
	for _, code := range errcode.Codes() {
		e := errcode.New(code)
		if text := e.What + " " + e.Why; strings.HasPrefix(string(code), "FE-N") && option.MatchString(text) {
			t.Errorf("%s: %s", code, text)
		}
	}
}

// An older trust bundle does not come back into a program that runs, and vouches for nothing: a
// ban that was known stays.
func TestTrustDoesNotGoBack(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := join(t, f, "node-a")
	join(t, f, "node-b")
	a.ban(t, "node-b")
	banned, err := identity.New(a.ID().Cluster(), identity.Data, "node-b")
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "there is config", func() bool {
		_, err := a.Snapshot(t.Context(), snapshot.ScopeNodeRuntime)
		return err == nil
	})
	a.Stop()
	runtime, err := os.ReadFile(filepath.Join(a.Dir, "snapshots", "node_runtime.active"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(runtime); err != nil {
		t.Fatal(err)
	}
	active := filepath.Join(a.Dir, "snapshots", "trust_bundle.active")
	if err := os.Truncate(active, 100); err != nil {
		t.Fatal(err)
	}
	a.Look()
	if !a.material(t).Bundle().Banned(banned, identity.KeyID{}) {
		t.Error("a bundle of before lifted the ban")
	}
	if v, err := a.Verify(runtime); err == nil {
		t.Errorf("a bundle that is out of use vouched for %v", v.Header())
	}
}

// A closed node says so, to who watches too, and may be closed again.
func TestClosed(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := join(t, f, "node-a")
	ended := make(chan error)
	began := make(chan struct{}, 8)
	go func() {
		var last error
		for _, err := range a.Watch(context.Background(), snapshot.ScopeNodeRuntime) {
			last = err
			began <- struct{}{}
		}
		ended <- last
	}()
	<-began
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; !errors.Is(err, node.ErrClosed) {
		t.Errorf("the watch ended with %v", err)
	}
	if err := a.Permit(t.Context(), "start_services"); !errors.Is(err, node.ErrClosed) {
		t.Errorf("after it: %v", err)
	}
}

// emergency puts a statement of the signers into the folder, which bans a member and takes the config
// keys of the bundle in force away. The agent does not run.
func (m *agentFolder) emergency(t *testing.T, banned identity.ID) {
	t.Helper()
	out, err := state.ReadTrustView(durable.OS(), m.Dir, m.f.Clock())
	if err != nil {
		t.Fatal(err)
	}
	bundle, _ := out.Trust.Bundle.TrustBundle()
	e := trust.Emergency{ClusterID: m.ID().Cluster(), Root: m.f.Pin(), Number: 1,
		IssuedAt: m.f.Clock().UTC().Truncate(time.Second), Reason: "stolen", Nodes: []identity.ID{banned}}
	for _, k := range bundle.ConfigKeys {
		e.ConfigKeys = append(e.ConfigKeys, snapshot.DigestOf(k.Key))
	}
	statement := &trust.SignedEmergency{}
	if statement.Statement, err = e.Encode(); err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := statement.Sign(key); err != nil { // whose signatures count was judged when it was accepted
		t.Fatal(err)
	}
	raw, err := statement.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := (&state.Store{FS: durable.OS(), Dir: m.Dir}).WriteEmergencies([][]byte{raw}); err != nil {
		t.Fatal(err)
	}
}

// An emergency statement of the signers, which the agent keeps beside its trust bundle, bans for a
// program too, and takes away what a revoked key signed.
func TestEmergency(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	a := join(t, f, "node-a")
	wait.Until(t, "there is config", func() bool {
		_, err := a.Snapshot(t.Context(), snapshot.ScopeNodeRuntime)
		return err == nil
	})
	a.Stop()
	signed, err := os.ReadFile(filepath.Join(a.Dir, "snapshots", "node_runtime.active"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify(signed); err != nil {
		t.Fatal(err)
	}
	banned, err := identity.New(a.ID().Cluster(), identity.Data, "node-b")
	if err != nil {
		t.Fatal(err)
	}
	a.emergency(t, banned)
	a.Look()
	if !a.material(t).Bundle().Banned(banned, identity.KeyID{}) {
		t.Error("the statement bans nobody")
	}
	if v, err := a.Verify(signed); err == nil {
		t.Errorf("verified, by a revoked key: %v", v.SignerKeyIDs())
	}
}
