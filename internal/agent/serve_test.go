package agent_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/agent/fetch"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/node/nodetest"
	"github.com/fealty-io/fealty/internal/node/state"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/signed/signedtest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/wait"
)

// socketDir returns a folder whose path is short enough for a socket.
func socketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "fealty")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// served runs an agent with its socket, and returns a client of it.
func served(t *testing.T, f *nodetest.Fleet, n *node) (*agent.Agent, fealtyv1.NodeServiceClient, func() error) {
	t.Helper()
	a := n.mustOpen()
	a.Serve(filepath.Join(socketDir(t), dir.SocketName), "")
	stop := n.run(a)
	wait.Until(t, "the socket is served", func() bool { return accepts(a.Socket()) })
	conn, err := mesh.DialLocal(a.Socket())
	f.Must(err)
	t.Cleanup(func() { conn.Close() })
	return a, fealtyv1.NewNodeServiceClient(conn), stop
}

func TestGetNode(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	r := n.MustJoin()
	a, client, _ := served(t, f, n)
	wait.Until(t, "it is connected", func() bool {
		resp, err := client.GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
		return err == nil && resp.GetConnected()
	})
	f.Must(take(t.Context(), a, "trust_bundle", []byte("garbage")))
	resp, err := client.GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
	f.Must(err)
	leaf := a.Node().SVID().Leaf()
	if resp.GetSpiffeId() != r.ID.String() || resp.GetJoined() != fealtyv1.JoinOutcome_JOIN_OUTCOME_ADMITTED ||
		resp.GetCoordinator() != signedtest.Coordinator ||
		!resp.GetSvidNotAfter().AsTime().Equal(leaf.NotAfter) ||
		!resp.GetSvidNotBefore().AsTime().Equal(leaf.NotBefore) ||
		resp.GetKeyId() != a.Node().SVID().Key.ID.String() ||
		resp.GetRelease() != "v0.1.0" || resp.GetAuthorityEpoch() != 1 || len(resp.GetHeld()) != 2 ||
		len(resp.GetRefusals()) != 1 || resp.GetLastError() != "" {
		t.Errorf("node %v", resp)
	}
	if next := resp.GetNextRenewal().AsTime(); next.Before(f.Clock().Add(20*time.Minute)) ||
		next.After(f.Clock().Add(40*time.Minute)) {
		t.Errorf("next renewal at %v", next)
	}
	if info, err := os.Stat(a.Socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", info.Mode(), err)
	}
}

func TestRenewIdentity(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a, client, _ := served(t, f, n)
	before := a.Node().SVID().Key.ID
	resp, err := client.RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{})
	f.Must(err)
	if resp.GetKeyId() == before.String() || resp.GetKeyId() != a.Node().SVID().Key.ID.String() {
		t.Errorf("renewed to %s", resp.GetKeyId())
	}
	f.Do(func() { f.Faults.RefuseRenew = errcode.New(errcode.RenewEntryGone, "identity", "x") })
	_, err = client.RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{})
	if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.RenewEntryGone {
		t.Errorf("the coordinator's reason does not arrive: %v", err)
	}
	// A person's wish does not wait for the pause that follows a refusal.
	f.Do(func() { f.Faults.RefuseRenew = nil })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := client.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{}); err != nil {
		t.Error(err)
	}
}

// The outcomes of a request to leave, and whether it worked.
func TestLeave(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func() error // nil: none, the ban cuts the connection
	}{
		{"the connection is cut", nil},
		{"denied", func() error { return status.Error(codes.PermissionDenied, "mesh: banned") }},
		{"banned", func() error { return errcode.New(errcode.CallerBanned) }},
		{"unauthenticated", func() error { return status.Error(codes.Unauthenticated, "who are you") }},
		{"the answer is lost", func() error { return status.Error(codes.Unavailable, "the connection broke") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := nodetest.New(t)
			f.Faults.LeaveError = c.answer
			n := newNode(f)
			r := n.MustJoin()
			a := n.mustOpen()
			a.Serve(filepath.Join(socketDir(t), dir.SocketName), "")
			done := make(chan error, 1)
			go func() { done <- a.Run(context.Background()) }()
			wait.Until(t, "the socket is served", func() bool { return accepts(a.Socket()) })
			conn, err := mesh.DialLocal(a.Socket())
			f.Must(err)
			defer conn.Close()
			if _, err := fealtyv1.NewNodeServiceClient(conn).LeaveCluster(t.Context(),
				&fealtyv1.LeaveClusterRequest{}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("Run returns %v", err)
			}
			if m := f.Member(r.ID); !m.ID.IsZero() {
				t.Error("it is still a member")
			}
			names, err := n.Disk.FS().ReadDir(signedtest.DataDir + "/identity")
			if err != nil || len(names) != 0 {
				t.Errorf("left behind in identity: %v, %v", names, err)
			}
			names, err = n.Disk.FS().ReadDir(signedtest.DataDir + "/snapshots")
			if err != nil || len(names) != 0 {
				t.Errorf("left behind in snapshots: %v, %v", names, err)
			}
			if _, err := n.open(); !errors.Is(err, errcode.NodeNotJoined) {
				t.Errorf("after leaving: %v", err)
			}
		})
	}
}

// A node that cannot leave stays a member in full.
func TestLeaveRefused(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a, client, _ := served(t, f, n)
	f.Do(func() { f.Faults.Down["all"] = true })
	_, err := client.LeaveCluster(t.Context(), &fealtyv1.LeaveClusterRequest{})
	if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.NodeNoCoordinator {
		t.Errorf("with nobody there: %v", err)
	}
	f.Do(func() {
		f.Faults.Down["all"] = false
		f.Faults.RefuseLeave = errcode.New(errcode.MemberOwnsDomains, "member", "x")
	})
	_, err = client.LeaveCluster(t.Context(), &fealtyv1.LeaveClusterRequest{})
	if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.MemberOwnsDomains {
		t.Errorf("with domains: %v", err)
	}
	f.Do(func() { f.Faults.RefuseLeave = errcode.New(errcode.Denied, "method", "Leave") })
	_, err = client.LeaveCluster(t.Context(), &fealtyv1.LeaveClusterRequest{})
	if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.Denied {
		t.Errorf("a kind that may not: %v", err)
	}
	if !n.Has(dir.SVIDName) || a.Unready() != "" {
		t.Error("the identity is gone")
	}
	if _, err := client.RenewIdentity(t.Context(), &fealtyv1.RenewIdentityRequest{}); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
}

func TestLeftDecision(t *testing.T) {
	rejected := &mesh.HandshakeError{Reason: mesh.ClientRejected}
	for _, c := range []struct {
		name         string
		err          error
		sent, inDate bool
		want         bool
	}{
		{"answered", nil, false, true, true},
		{"rejected, never asked", rejected, false, true, false},
		{"rejected, asked before", rejected, true, true, true},
		{"rejected, asked before, expired", rejected, true, false, false},
		{"untrusted coordinator", &mesh.HandshakeError{Reason: mesh.PeerUntrusted}, true, true, false},
		{"cut", status.Error(codes.PermissionDenied, ""), false, true, true},
		{"expired amid the call", status.Error(codes.Unauthenticated, ""), false, false, false},
		{"authorization", errcode.New(errcode.Denied), true, true, false},
		{"another name", errcode.New(errcode.CallerMismatch), true, true, false},
		{"no such member", errcode.New(errcode.NotFound), false, true, true},
		{"unreachable", status.Error(codes.Unavailable, ""), true, true, false},
		{"no answer in time", context.DeadlineExceeded, true, true, false},
	} {
		if got := agent.Left(c.err, c.sent, c.inDate); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A power cut while the files go leaves a node that left, or one that is a member
// of nobody who would have it: never a half.
func TestWipeCrash(t *testing.T) {
	f := nodetest.New(t)
	joined := joinedNode(f)
	var n *node
	nodetest.Crash(t, durabletest.Afters(), func() (disk *durabletest.Disk, op func() error) {
		n = joined.clone()
		store, err := state.OpenStore(n.Disk.FS(), n.Dir)
		f.Must(err)
		return n.Disk, store.Wipe
	}, func(t *testing.T, done bool) {
		a, err := n.open()
		switch {
		case err == nil && done:
			t.Error("still a member")
		case err == nil:
			a.Close()
		case !errors.Is(err, errcode.NodeNotJoined):
			t.Errorf("neither a member nor not: %v", err)
		}
	})
}

func TestSocketPath(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	a.Serve("/tmp/"+strings.Repeat("x", 200), "")
	err := a.Run(t.Context())
	if !errors.Is(err, errcode.BadValue) || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("a socket path that is too long: %v", err)
	}
	// It gave the directory back.
	a = n.mustOpen()
	a.Close()
}

// How often mirrors are asked is bounded on both sides, by an error that names the setting.
func TestMirrorEveryIsBounded(t *testing.T) {
	for _, tc := range []struct {
		every   time.Duration
		refused bool
	}{
		{-time.Second, true}, {time.Nanosecond, true}, {fetch.MinMirrorEvery - 1, true}, {fetch.MinMirrorEvery, false},
		{0, false}, {fetch.MaxMirrorEvery, false}, {fetch.MaxMirrorEvery + 1, true},
	} {
		// The folder is of no member: with a value that is taken, that is what is told.
		_, err := agent.Open(t.Context(), agent.Config{DataDir: "/d", FS: durabletest.NewDisk().FS(), MirrorEvery: tc.every,
			Log: slog.New(slog.DiscardHandler)})
		want := errcode.NodeNotJoined
		if tc.refused {
			want = errcode.BadValue
		}
		if !errors.Is(err, want) || tc.refused && !strings.Contains(err.Error(), "snapshot_source_every") {
			t.Errorf("%v: %v, want %s", tc.every, err, want)
		}
	}
}

// A socket file that a dead agent left is in nobody's way.
func TestSocketLeftBehind(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	a.Serve(filepath.Join(socketDir(t), dir.SocketName), "")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: a.Socket(), Net: "unix"})
	f.Must(err)
	dead.SetUnlinkOnClose(false)
	f.Must(dead.Close())
	stop := n.run(a)
	conn, err := mesh.DialLocal(a.Socket())
	f.Must(err)
	defer conn.Close()
	wait.Until(t, "it answers", func() bool {
		_, err := fealtyv1.NewNodeServiceClient(conn).GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
		return err == nil
	})
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A socket that another process put in the place of the agent's is told in readiness and by the agent, for as long as
// that one serves there.
func TestTakenSocketIsTold(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	a.Serve(filepath.Join(socketDir(t), dir.SocketName), "")
	probes, err := net.Listen("tcp", "127.0.0.1:0")
	f.Must(err)
	a.ServeMetrics(probes)
	n.run(a)
	wait.Until(t, "the socket is served", func() bool { return accepts(a.Socket()) })
	conn, err := mesh.DialLocal(a.Socket())
	f.Must(err)
	t.Cleanup(func() { conn.Close() })
	lost := func() []string {
		resp, err := fealtyv1.NewNodeServiceClient(conn).GetNode(t.Context(), &fealtyv1.GetNodeRequest{})
		f.Must(err)
		return resp.GetLostSockets()
	}
	readiness := func() (int, string) {
		resp, err := http.Get("http://" + probes.Addr().String() + "/probe/readiness")
		f.Must(err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		f.Must(err)
		return resp.StatusCode, string(body)
	}
	if code, body := readiness(); code != 200 || len(lost()) != 0 {
		t.Fatalf("at first: %d %s, lost %v", code, body, lost())
	}
	wait.Until(t, "the service serves", func() bool { return a.ServiceHealth().Serves })
	aside := a.Socket() + ".other"
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: aside, Net: "unix"})
	f.Must(err)
	defer other.Close()
	other.SetUnlinkOnClose(false)
	f.Must(os.Rename(aside, a.Socket()))
	// The connection from before leads to the agent still.
	wait.Until(t, "the agent tells of it", func() bool { return len(lost()) == 1 && strings.Contains(lost()[0], a.Socket()) })
	if code, body := readiness(); code != 503 || !strings.Contains(body, a.Socket()) {
		t.Errorf("readiness: %d %s", code, body)
	}
	if h := a.ServiceHealth(); !h.Serves || !strings.Contains(h.Status, a.Socket()) {
		t.Errorf("systemd is told %+v: it would end an agent that takes its socket back by itself, or hears nothing of it", h)
	}
	f.Must(other.Close())
	wait.Until(t, "it is taken back", func() bool { return len(lost()) == 0 })
	if code, body := readiness(); code != 200 {
		t.Errorf("readiness after that: %d %s", code, body)
	}
}

// Every method of the agent's socket says who may call it, and those of the fleet
// are not there.
func TestLocalAuthorization(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a, _, _ := served(t, f, n)
	services, err := authz.Services(agent.Services()...)
	f.Must(err)
	table, err := authz.NewTable(services...)
	f.Must(err)
	for _, rule := range table.Rows() {
		if !rule.Local || rule.Open || len(rule.Kinds) != 0 {
			t.Errorf("%s is for others than this machine", rule.Method)
		}
	}
	conn, err := mesh.DialLocal(a.Socket())
	f.Must(err)
	defer conn.Close()
	_, err = fealtyv1.NewAdmissionServiceClient(conn).Renew(t.Context(), &fealtyv1.RenewRequest{})
	if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.Denied {
		t.Errorf("a method of somebody else: %v", err)
	}
	plain, err := net.Dial("unix", a.Socket())
	f.Must(err)
	plain.Close()
}

func TestProbes(t *testing.T) {
	f := nodetest.New(t)
	n := newNode(f)
	n.MustJoin()
	a := n.mustOpen()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	f.Must(err)
	a.ServeMetrics(l)
	n.run(a)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + l.Addr().String() + path)
		f.Must(err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		f.Must(err)
		return resp.StatusCode, string(body)
	}
	if code, body := get("/probe/liveness"); code != 200 {
		t.Errorf("liveness: %d %s", code, body)
	}
	if code, body := get("/probe/readiness"); code != 200 {
		t.Errorf("readiness: %d %s", code, body)
	}
	f.Must(take(t.Context(), a, "trust_bundle", []byte("garbage")))
	_, body := get("/metrics")
	for _, want := range []string{
		`fealty_snapshot_rejected_total{reason="malformed",scope="trust_bundle"} 1`,
		`fealty_snapshot_config_version{scope="trust_bundle"} 10`,
		"fealty_agent_ready 1", "fealty_svid_not_after_seconds",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	f.Do(func() { f.Faults.Down["all"] = true })
	f.Shift.Store(int64(26 * time.Hour))
	if code, body := get("/probe/readiness"); code != 503 || !strings.Contains(body, "certificate") {
		t.Errorf("readiness with an expired identity: %d %s", code, body)
	}
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("profiles are served: %d", code)
	}
}

// accepts reports whether a server listens on the socket: a file that is there is
// not enough, for it comes a moment earlier.
func accepts(socket string) bool {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
