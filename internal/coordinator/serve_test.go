package coordinator_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/mesh/pinned"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/wait"
)

func TestFirstSetFromElsewhere(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	tok, _ := f.SetupToken()
	m := f.Manifest("")
	other, err := proof.NewSetupToken(nil, proof.SetupToken{Addresses: tok.Addresses, KeyHash: tok.KeyHash})
	if err != nil {
		t.Fatal(err)
	}
	var recorded *fealtyv1.FirstSetRequest
	for _, tc := range []struct {
		name  string
		tok   proof.SetupToken
		alter func(*fealtyv1.FirstSetRequest)
		want  errcode.Code
	}{
		{"another token", other, nil, errcode.SetupRefused},
		{"no proof", tok, func(r *fealtyv1.FirstSetRequest) { r.Evidence = nil }, errcode.SetupRefused},
		{"another manifest than was proven", tok, func(r *fealtyv1.FirstSetRequest) {
			recorded = proto.Clone(r).(*fealtyv1.FirstSetRequest)
			r.Set.Manifest = append(slices.Clone(r.Set.Manifest), '\n')
		}, errcode.SetupRefused},
		{"replay on another connection", tok,
			func(r *fealtyv1.FirstSetRequest) { proto.Reset(r); proto.Merge(r, recorded) }, errcode.SetupRefused},
		{"no manifest", tok, func(r *fealtyv1.FirstSetRequest) { r.Set = nil }, errcode.SetupRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			coordinatortest.WantCode(t, f.FirstSet(tc.tok, m, tc.alter), tc.want)
			if phase, _ := f.C.Phase(); phase != "uninitialized" {
				t.Fatalf("phase %s", phase)
			}
		})
	}
	if err := f.FirstSet(tok, m, nil); err != nil {
		t.Fatal(err)
	}
	if phase, reason := f.C.Phase(); phase != "ready" {
		t.Fatalf("phase %s: %s", phase, reason)
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "coordinator", authority.SetupTokenFile)); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("the file of the setup token is still there: %v", err)
	}
	// A second use: the certificate that it pins is gone, and the token with it.
	if err := f.FirstSet(tok, m, nil); err == nil {
		t.Fatal("the setup token worked twice")
	}
	conn, err := mesh.DialPinned(f.Addr, pinned.Root(coordinatortest.Cluster, f.Pin()),
		mesh.Options{Now: f.Clock})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := fealtyv1.NewManifestServiceClient(conn).FirstSet(f.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv() // no challenge: nothing is read there any more
	coordinatortest.WantCode(t, err, errcode.HistoryInitialized)
}

// Before the first manifest every RPC but those that lead to it says so.
func TestBeforeTheFirstManifest(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	services, err := authz.Services(coordinator.Services()...)
	if err != nil {
		t.Fatal(err)
	}
	local, err := mesh.DialLocal(f.C.AdminSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	tok, _ := f.SetupToken()
	stranger, err := mesh.DialPinned(f.Addr, pinned.Leaf(tok.KeyHash), mesh.Options{Now: f.Clock})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	for _, svc := range services {
		for i := range svc.Methods().Len() {
			m := svc.Methods().Get(i)
			rule := proto.GetExtension(m.Options(), fealtyv1.E_Authorization).(*fealtyv1.Authorization)
			var conn grpc.ClientConnInterface = local
			if rule.GetOpen() {
				conn = stranger
			} else if !rule.GetLocal() {
				continue // needs a certificate, which nobody has yet
			}
			err := call(f.Context(), conn, m, rule.GetBind(), "x")
			switch m.Name() {
			case "GetStatus", "FirstSet":
				if err != nil {
					t.Errorf("%s: %v", m.FullName(), err)
				}
			case "SetManifest":
				if got := errcode.Of(err).Code; got != errcode.ManifestInvalid {
					t.Errorf("%s: %v", m.FullName(), err)
				}
			default:
				if got := errcode.Of(err).Code; got != errcode.HistoryUninitialized {
					t.Errorf("%s: %s (%v), want %s", m.FullName(), got, err, errcode.HistoryUninitialized)
				}
			}
		}
	}
}

// probe asks the metrics listener.
func probe(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestProbesAndMetrics(t *testing.T) {
	t.Parallel()
	var metrics string
	f := coordinatortest.NewFleet(t, func(c *coordinator.Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		metrics, c.Monitoring.Listener = l.Addr().String(), l
	})
	want := func(path string, code int, text string) {
		t.Helper()
		got, body := probe(t, metrics, path)
		if got != code || !strings.Contains(body, text) {
			t.Errorf("%s: %d %s, want %d with %q", path, got, body, code, text)
		}
		if strings.HasPrefix(path, "/probe") && !json.Valid([]byte(body)) {
			t.Errorf("%s: no JSON: %s", path, body)
		}
	}
	want("/probe/startup", 200, "uninitialized")
	want("/probe/readiness", 503, "no manifest was set")
	want("/probe/liveness", 200, "")
	want("/debug/pprof/heap", 404, "")
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	want("/probe/readiness", 200, `"store":"ok"`)
	n := f.Member("node-a")
	if err := n.Renew(true); err != nil {
		t.Fatal(err)
	}
	coordinatortest.WantCode(t, f.Node().Join(identity.Data,
		proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool",
			Name: "node-a"}))), errcode.JoinNameTaken)
	for _, line := range []string{
		`fealty_joins_total{outcome="admitted"} 1`, `fealty_joins_total{outcome="` + string(errcode.JoinNameTaken) +
			`"} 1`, `fealty_renewals_total{outcome="renewed"} 1`,
		"fealty_coordinator_ready 1", "fealty_coordinator_recovery_mode 0", "fealty_authority_epoch " +
			"1", "fealty_history_index 1", "fealty_trust_bundle_version ",
	} {
		want("/metrics", 200, line)
	}
	// A keeper whose key file is gone: not ready, with the reason, and alive.
	if err := os.Remove(filepath.Join(f.Dir, "keeper.key")); err != nil {
		t.Fatal(err)
	}
	f.Restart()
	want("/probe/readiness", 503, "keeper.key is missing")
	want("/probe/liveness", 200, "recovery")
	want("/metrics", 200, "fealty_coordinator_recovery_mode 1")
	_, err := f.Local().Token.CreateToken(f.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool"})
	coordinatortest.WantCode(t, err, errcode.RecoveryMode)
}

// A coordinator starts alone, without the key of its keeper, and the two others are dead: what can be mended on its
// machine is told first and whole; that nobody else helps is one line, in which they come last.
func TestMissingKeeperIsToldBeforeDeadPeers(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	others := []*coordinatortest.Fleet{coordinatortest.NewReplica(t, f), coordinatortest.NewReplica(t, f)}
	if err := f.Set(f.Manifest("")); err != nil {
		t.Fatal(err)
	}
	for _, r := range others {
		r.Start()
		r.Await(authority.Ready)
	}
	for _, r := range others {
		coordinatortest.AwaitReplica(r, func(rec peer.Record) bool { return rec.Phase == "ready" })
	}
	for _, r := range others {
		r.Kill()
	}
	f.Stop()
	if err := os.Remove(f.KeeperFile()); err != nil {
		t.Fatal(err)
	}
	f.Start()
	var told, recovery *fealtyv1.Finding
	wait.Until(t, "the peers were asked", func() bool {
		st, err := f.C.Parts().Shown.Status.GetStatus(t.Context(), &fealtyv1.GetStatusRequest{})
		if err != nil || len(st.GetFindings()) < 2 {
			return false
		}
		told, recovery = st.GetFindings()[0], st.GetFindings()[1]
		return strings.Contains(recovery.GetSummary(), "peer")
	})
	if told.GetCode() != string(errcode.KeeperUnusable) || !strings.Contains(told.GetSummary(), "keeper.key is missing") ||
		told.GetRemedy() == "" {
		t.Errorf("the first finding is %v", told)
	}
	said := recovery.GetSummary()
	keeper, peers := strings.Index(said, "its keeper opens nothing ("+string(errcode.KeeperUnusable)+")"), strings.Index(said, "peer")
	if recovery.GetCode() != string(errcode.RecoveryMode) || keeper < 0 || peers < keeper || strings.Contains(said, "\n") {
		t.Errorf("the second finding is %v", recovery)
	}
}

// Strangers that hold as many joins as they can, and say nothing or nonsense, stop
// neither renewals nor the joins of others.
func TestFloodOfJoins(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	n := f.Member("node-a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var idle sync.WaitGroup
	for range 4 {
		conn, err := mesh.DialPinned(f.Addr, pinned.Root(coordinatortest.Cluster, f.Pin()),
			mesh.Options{Now: f.Clock})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range admission.JoinsAtOnce {
			idle.Go(func() {
				stream, err := fealtyv1.NewAdmissionServiceClient(conn).Join(ctx)
				if err == nil {
					_, err = stream.Recv() // the challenge; no answer follows
				}
				if err != nil {
					t.Errorf("an idle join: %v", err)
				}
			})
		}
	}
	idle.Wait()
	// All joins that are decided are stuck as well.
	reached, release := f.Faults.Block("join.before-commit")
	defer release()
	var stuck sync.WaitGroup
	defer stuck.Wait()
	defer release()
	for range admission.JoinsAtOnce {
		tok := f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})
		m := f.Node()
		stuck.Go(func() {
			if err := m.Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
				t.Errorf("a join that was stuck: %v", err)
			}
		})
	}
	<-reached
	if err := n.Renew(true); err != nil {
		t.Fatalf("a renewal under a flood of joins: %v", err)
	}
	release()
	f.Faults.Disarm("join.before-commit")
	f.Member("node-b")
}

func TestJoinsAreLimitedBySource(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, func(c *coordinator.Config) {
		c.Rates = coordinator.Rates{PerSource: 0.001,
			SourceBurst: 3}
	})
	n := f.Member("node-a")
	refused := 0
	for range 6 {
		err := f.Node().Join(identity.Data, proof.NewTokenProver(f.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"})))
		if err != nil {
			coordinatortest.WantCode(t, err, errcode.RateLimited)
			refused++
		}
	}
	if refused != 4 {
		t.Fatalf("%d of 7 joins were refused, want 4", refused)
	}
	if err := n.Renew(true); err != nil {
		t.Fatalf("renewals are limited as joins: %v", err)
	}
}

// The answer to a caller for errors that nobody worded: that there was one. Peers
// that go away are not logged as failures.
func TestErrorsAreWorded(t *testing.T) {
	var b bytes.Buffer
	c := unopened(t, slog.New(slog.NewTextHandler(&b, nil)))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx    context.Context
		err    error
		want   codes.Code
		logged bool
	}{
		{t.Context(), nil, codes.OK, false},
		{t.Context(), errcode.New(errcode.JoinBanned), codes.PermissionDenied, false},
		{t.Context(), fmt.Errorf("open /secret/path: %w", os.ErrPermission), codes.Internal, true},
		{t.Context(), context.DeadlineExceeded, codes.DeadlineExceeded, false},
		{t.Context(), io.EOF, codes.Canceled, false},
		{gone, errors.New("/secret/path"), codes.Canceled, false},
	} {
		b.Reset()
		err := c.Word(tc.ctx, "/method", tc.err)
		if status.Code(err) != tc.want || (b.Len() > 0) != tc.logged {
			t.Errorf("%v became %v, logged %q; want %v, logged %v", tc.err, err, b.String(), tc.want, tc.logged)
		}
		if err != nil && strings.Contains(err.Error(), "/secret/path") {
			t.Errorf("the caller is told: %v", err)
		}
	}
	err := c.WordStream(nil, fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/method"},
		func(any, grpc.ServerStream) error { panic("boom") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("a panic became %v", err)
	}
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

// silentStream is a stream whose caller sends nothing more.
type silentStream struct{ fakeStream }

func (s silentStream) RecvMsg(any) error { <-s.ctx.Done(); return s.ctx.Err() }

// A request that its caller does not end is given up, with what it holds.
func TestRequestOfAStreamIsReadInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		if err := coordinator.ReadRequest(silentStream{fakeStream{ctx: ctx}}, nil, cancel); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	})
}

// Every goroutine that a coordinator starts is gone when Run returns.
func TestNothingIsLeftRunning(t *testing.T) {
	// Not in parallel: it looks at every goroutine of the process.
	ignore := goleak.IgnoreCurrent()
	func() {
		f := coordinatortest.ReadyFleet(t, nil)
		n := f.Member("node-a")
		conn := n.Conn().(*mesh.Conn)
		ctx, cancel := context.WithCancel(f.Context())
		stream, err := coordinatortest.NewClients(conn).Agent.Connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&fealtyv1.ConnectRequest{Name: "node-a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		// A join that hangs, too.
		stranger, err := mesh.DialPinned(f.Addr, pinned.Root(coordinatortest.Cluster, f.Pin()),
			mesh.Options{Now: f.Clock})
		if err != nil {
			t.Fatal(err)
		}
		hanging, err := fealtyv1.NewAdmissionServiceClient(stranger).Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hanging.Recv(); err != nil {
			t.Fatal(err)
		}
		f.Restart()
		f.Stop()
		for err == nil {
			_, err = stream.Recv()
		}
		if c := status.Code(err); c != codes.Unavailable {
			t.Errorf("the stream of a coordinator that stopped ended with %v", err)
		}
		cancel()
		conn.Close()
		stranger.Close()
		for _, c := range f.Dialed {
			c.Close()
		}
	}()
	wait.UntilNil(t, "every goroutine has ended", func() error { return goleak.Find(ignore) })
}

// logs collects what is logged, as text and as JSON.
type logs struct {
	mu         sync.Mutex
	text, json bytes.Buffer
}

func (l *logs) writer(b *bytes.Buffer) io.Writer { return lockedWriter{l, b} }

type lockedWriter struct {
	l *logs
	b *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	return w.b.Write(p)
}

// After a life with everything in it, no secret is in the store, in a log, in a
// metric, in an error or in the data directory, in any spelling (I8).
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	var out logs
	var metrics string
	f := coordinatortest.NewFleet(t, func(c *coordinator.Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		metrics, c.Monitoring.Listener = l.Addr().String(), l
		c.Log = slog.New(slog.NewMultiHandler(
			slog.NewTextHandler(out.writer(&out.text), &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}),
			slog.NewJSONHandler(out.writer(&out.json), &slog.HandlerOptions{Level: slog.LevelDebug})))
	})
	secrets := make(map[string][]byte)
	setup, setupLine := f.SetupToken()
	secrets["setup token"] = secretOfLine(t, setupLine)
	if err := f.FirstSet(setup, f.Manifest(""), nil); err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	fail := func(err error) { fmt.Fprintf(&errs, "%v\n%+v\n%#v\n", err, err, err) }
	n := f.Member("node-a")
	line, err := f.Local().Token.CreateToken(f.Context(), &fealtyv1.CreateTokenRequest{Entry: "pool", Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	secrets["join token"] = secretOfLine(t, line.GetLine())
	tok, err := proof.ParseJoinToken(line.GetLine())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Node().Join(identity.Data, proof.NewTokenProver(tok)); err != nil {
		t.Fatal(err)
	}
	fail(f.Node().Join(identity.Witness, proof.NewTokenProver(tok)))
	fail(f.FirstSet(setup, f.Manifest(""), nil))
	fail(n.Renew(true))
	if err := f.Set(f.Manifest(coordinatortest.CoordinatorEntry(t, 2))); err != nil {
		t.Fatal(err)
	}
	_, err = f.Local().Manifest.SetManifest(f.Context(), &fealtyv1.SetManifestRequest{Manifest: []byte("cluster: [")})
	fail(err)
	_, err = f.Local().Member.BanMember(f.Context(),
		&fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "test"})
	fail(err)
	collect := func(epoch string) {
		s := f.State()
		thief := coordinatortest.Steal(s)
		secrets["seed"] = thief.Seed.Reveal()
		secrets["record MAC key"] = thief.Keys.RecordMAC()
		secrets["store seal key"] = thief.Keys.StoreSeal()
		key := s.MeshCA().Key()
		raw, err := key.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		secrets["mesh CA key of "+epoch] = raw
		if secrets["mesh CA key of "+epoch+" in PKCS #8"], err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			t.Fatal(err)
		}
	}
	collect("epoch 2")
	for _, v := range []any{f.State().Secrets, *f.State().Secrets,
		f.State(), f.State().MeshCA()} {
		fmt.Fprintf(&errs, "%v %+v %#v\n", v, v, v)
		f.C.Log().Info("printed", "value", v)
	}
	_, exposed := probe(t, metrics, "/metrics")
	keeper, err := os.ReadFile(filepath.Join(f.Dir, "keeper.key"))
	if err != nil {
		t.Fatal(err)
	}
	if secrets["keeper's key"], err = base64.StdEncoding.DecodeString(strings.Fields(string(keeper))[1]); err != nil {
		t.Fatal(err)
	}
	f.Stop()
	places := map[string][]byte{"text log": out.text.Bytes(), "JSON log": out.json.Bytes(), "metrics": []byte(exposed),
		"errors and prints": []byte(errs.String())}
	err = filepath.WalkDir(f.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Base(path) == "keeper.key" {
			return err
		}
		data, err := os.ReadFile(path)
		places[path] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(places["text log"]) == 0 || len(places["JSON log"]) == 0 || len(exposed) == 0 {
		t.Fatal("nothing was collected")
	}
	scan := func(places map[string][]byte) (found []string) {
		for _, name := range slices.Sorted(maps.Keys(secrets)) {
			for spelling, needle := range spellings(secrets[name]) {
				for place, data := range places {
					if bytes.Contains(data, needle) || bytes.Contains(bytes.ToLower(data), needle) {
						found = append(found, fmt.Sprintf("%s is in %s, as %s", name, place, spelling))
					}
				}
			}
		}
		return found
	}
	if found := scan(places); len(found) > 0 {
		t.Errorf("secrets got out:\n%s", strings.Join(found, "\n"))
	}
	// The scan finds what is there.
	planted := append([]byte("x"), base64.RawURLEncoding.EncodeToString(append([]byte{7}, secrets["seed"]...))...)
	if found := scan(map[string][]byte{"plant": planted}); len(found) == 0 {
		t.Error("the scan does not find a planted secret")
	}
}

// secretOfLine takes the secret out of a token's line: it stands before the
// checksum.
func secretOfLine(t *testing.T, line string) []byte {
	t.Helper()
	at := strings.LastIndexByte(line[:20], '_')
	for ; at < len(line); at++ {
		raw, err := base64.RawURLEncoding.DecodeString(line[at+1:])
		if err == nil && len(raw) > 36 {
			return raw[len(raw)-36 : len(raw)-4]
		}
	}
	t.Fatalf("no secret found in a token's line")
	return nil
}

// spellings returns how secret could be written. Base64 is looked for at each of
// the three places that it can have in a longer text, less the characters that
// its neighbours decide.
func spellings(secret []byte) map[string][]byte {
	out := map[string][]byte{
		"bytes":   secret,
		"hex":     []byte(hex.EncodeToString(secret)),
		"numbers": []byte(strings.Trim(fmt.Sprint(secret[:16]), "[]")),
	}
	for shift := range 3 {
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding,
			"base64url": base64.RawURLEncoding} {
			text := enc.EncodeToString(append(make([]byte, shift), secret...))
			from := []int{0, 2, 3}[shift]
			out[fmt.Sprintf("%s, shifted by %d", name, shift)] = []byte(text[from : len(text)-2])
		}
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: secret})
	out["PEM"] = bytes.Split(block, []byte("\n"))[1]
	return out
}
