package node_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/guard"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/node"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// permits is a member of a fleet with a policy of degraded mode, which has its config, and is asked
// what it permits.
type permits struct {
	*agentFolder
	t *testing.T
}

func permitsUnder(t *testing.T, policy string) permits {
	t.Helper()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest("degraded: " + policy + "\n")); err != nil {
		t.Fatal(err)
	}
	a := join(t, f, "node-a")
	wait.Until(t, "there is a policy", func() bool {
		_, missing := a.Snapshot(t.Context(), snapshot.ScopeNodeRuntime)
		_, err := a.Snapshot(t.Context(), snapshot.ScopeDegradedModePolicy)
		return missing == nil && err == nil
	})
	return permits{a, t}
}

// refuses asks for an action, and wants it refused by a code and, where the code has several, a reason.
func (p permits) refuses(when string, action guard.Action, code errcode.Code, reason guard.RefusalReason) {
	p.t.Helper()
	err := p.Permit(p.t.Context(), node.Action(action))
	refused, ok := errors.AsType[*node.RefusedError](err)
	if !ok || refused.Code != string(code) || refused.Remedy == "" ||
		code != errcode.ActionNotAllowed && code != errcode.ActionUnknown && !strings.Contains(refused.Reason, "reason "+string(reason)+")") {
		p.t.Errorf("%s, %s: %v, want %s for the reason %s", when, action, err, code, reason)
	}
}

// begin starts the agent again, and returns once it answers.
func (p permits) begin() {
	p.t.Helper()
	p.Start()
	wait.Until(p.t, "the agent answers", func() bool {
		err := p.Permit(p.t.Context(), node.ReconnectPeers)
		_, ok := errors.AsType[*node.RefusedError](err)
		return err == nil || ok
	})
}

func (p permits) allows(when string, action guard.Action) {
	p.t.Helper()
	if err := p.Permit(p.t.Context(), node.Action(action)); err != nil {
		p.t.Errorf("%s, %s: %v", when, action, err)
	}
}

// The guard of the agent refuses an action to a program for each of its reasons, and the program is
// told which one it is.
func TestPermitRefuses(t *testing.T) {
	t.Parallel()
	t.Run("as time goes by", func(t *testing.T) {
		t.Parallel()
		a := permitsUnder(t, "{allow: [continue_services, reconnect_peers], max: 3h}")
		const there = "in contact"
		for _, action := range []guard.Action{guard.StartServices, guard.ContinueServices, guard.IssueCertificates} {
			a.allows(there, action)
		}
		a.refuses(there, "no_action", errcode.ActionUnknown, guard.UnknownAction)
		a.f.Stop()

		a.f.Advance(90 * time.Minute)
		const degraded = "its record is old"
		a.allows(degraded, guard.ContinueServices)
		a.refuses(degraded, guard.StartServices, errcode.ActionNeedsContact, guard.NeedsRecord)
		a.refuses(degraded, guard.ValidatePeers, errcode.ActionNotAllowed, guard.NotAllowed)
		a.refuses(degraded, guard.IssueCertificates, errcode.ActionNeedsContact, guard.ForbiddenAction)
		a.refuses(degraded, "no_action", errcode.ActionUnknown, guard.UnknownAction)
		a.f.Advance(2 * time.Hour)
		a.refuses("the policy's time is over", guard.ContinueServices, errcode.ActionBoundOver, guard.BoundOver)
		a.f.Advance(time.Hour)
		a.refuses("its certificate ended", guard.ContinueServices, errcode.ActionBoundOver, guard.IdentityOver)
		a.f.Advance(24 * time.Hour)
		a.refuses("its scopes ended", guard.ContinueServices, errcode.ActionBoundOver, guard.ScopeExpired)
		a.allows("its scopes ended", guard.ReconnectPeers) // the way back stays
	})
	t.Run("revocations are unknown", func(t *testing.T) {
		t.Parallel()
		a := permitsUnder(t, "{max: 5m}")
		a.f.Stop()
		a.f.Advance(45 * time.Minute) // the record is stale, and older than a node may be alone
		a.refuses("alone for too long", guard.StartServices, errcode.ActionNeedsContact, guard.RevocationsUnknown)
		a.allows("alone for too long", guard.ReportLater)
	})
	t.Run("the signers banned the member", func(t *testing.T) {
		t.Parallel()
		a := permitsUnder(t, "{max: 3h}")
		a.f.Stop()
		a.Stop()
		a.emergency(t, a.ID())
		a.begin()
		a.refuses("banned", guard.ContinueServices, errcode.ActionBoundOver, guard.Withdrawn)
		a.refuses("banned", guard.StartServices, errcode.ActionBoundOver, guard.Withdrawn)
	})
	t.Run("a scope is lost", func(t *testing.T) {
		t.Parallel()
		a := permitsUnder(t, "{max: 3h}")
		a.f.Stop()
		a.Stop()
		if err := os.Remove(filepath.Join(a.Dir, "snapshots", "trust_bundle.active")); err != nil {
			t.Fatal(err)
		}
		a.begin()
		a.refuses("it is lost", guard.ContinueServices, errcode.ActionBoundOver, guard.ScopeMissing)
	})
}

// reasonOf returns why a guard refused: its word for a call, or for a handshake.
func reasonOf(t *testing.T, err error) mesh.Reason {
	t.Helper()
	if failed, ok := errors.AsType[*mesh.HandshakeError](err); ok {
		return failed.Reason
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return mesh.Reason(info.GetReason())
		}
	}
	t.Errorf("no guard refused: %v", err)
	return ""
}

// rawly connects with a member's certificate, and looks at nobody else's. The error is that of the
// first byte after the handshake, which is where a server says what it thinks of a client.
func rawly(t *testing.T, address string, m *agentFolder, protocols ...string) error {
	t.Helper()
	own := tls.Certificate{PrivateKey: m.material(t).Key()}
	for _, c := range m.material(t).Chain() {
		own.Certificate = append(own.Certificate, c.Raw)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{Certificates: []tls.Certificate{own}, InsecureSkipVerify: true,
		MinVersion: tls.VersionTLS13, NextProtos: protocols})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Read(make([]byte, 1)) // of the settings that a server of HTTP/2 sends first (RFC 9113 §3.4)
	return err
}

// The guard of a member's server refuses a member whose certificate ended, on the connection that
// stands and on a new one, over gRPC and over net/http; a member of another cluster, and one that
// has too many connections. A ban is in [TestGRPC] and [TestHTTP].
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	f := coordinatortest.NewFleet(t, nil)
	if err := f.Set(f.Manifest("degraded: {max: 5m}\n")); err != nil {
		t.Fatal(err)
	}
	a, b, other := join(t, f, "node-a"), join(t, f, "node-b"), join(t, f, "node-c")
	address, served := peerServer(t, a)
	l := listen(t)
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go func() { _ = a.ServeHTTP(t.Context(), l, &http.Server{Handler: nothing}) }()
	conn, err := b.Dial(address, credential.ExactID(a.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func() error {
		_, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	transport, err := b.NewHTTPTransport(credential.ExactID(a.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer transport.CloseIdleConnections()
	get := func() (string, error) {
		answer, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.Status + " " + string(body), err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	if got, err := get(); got != "200 OK " || err != nil {
		t.Fatal(got, err)
	}

	foreign := join(t, coordinatortest.ReadyFleet(t, nil), "node-b") // the name counts for nothing
	if err := rawly(t, address, foreign, "h2"); !isAlert(err) {
		t.Errorf("a member of another cluster, over gRPC: %v", err)
	}
	if err := rawly(t, l.Addr().String(), foreign); !isAlert(err) {
		t.Errorf("a member of another cluster, over net/http: %v", err)
	}
	const most = 16 // of one identity
	for i := range most {
		if err := rawly(t, address, other, "h2"); err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
	}
	if err := rawly(t, address, other, "h2"); err == nil {
		t.Errorf("%d connections of one member", most+1)
	}

	end := b.material(t).NotAfter()
	b.Stop()
	f.Advance(40 * time.Minute)
	a.renew(t)
	f.Advance(end.Sub(f.Clock()) + time.Minute)
	before := served.called()
	// The client sees by its own clock that the certificate ended, and may end a connection before the answer is here.
	if err := call(); !underCall(err) {
		if got := reasonOf(t, err); got != mesh.CertificateExpired {
			t.Errorf("gRPC, on its connection: refused for %q", got)
		}
	}
	cut := mesh.CutError{Reason: mesh.CertificateExpired, ID: b.ID(), NotAfter: end}
	if got, err := get(); !errors.Is(err, net.ErrClosed) && (got != "401 Unauthorized "+cut.Error()+"\n" || err != nil) {
		t.Errorf("net/http, on its connection: %q, %v", got, err)
	}
	// The connection stands for its grace, and so long says the same.
	wait.Until(t, "gRPC makes a new connection", func() bool {
		err := call()
		if underCall(err) {
			return false
		}
		got := reasonOf(t, err)
		if got != mesh.CertificateExpired && got != mesh.ClientRejected {
			t.Fatalf("gRPC: refused for %q", got)
		}
		return got == mesh.ClientRejected
	})
	wait.Until(t, "net/http makes a new connection", func() bool {
		got, err := get()
		if err == nil && !strings.HasPrefix(got, "401 ") {
			t.Fatalf("net/http: answered %q", got)
		}
		return err != nil && reasonOf(t, err) == mesh.ClientRejected
	})
	if served.called() != before {
		t.Error("the handler was called")
	}
}

// underCall reports whether a connection ended under a call of gRPC, which says of nobody that he refused it.
func underCall(err error) bool {
	_, handshake := errors.AsType[*mesh.HandshakeError](err)
	said := status.Convert(err)
	return !handshake && said.Code() == codes.Unavailable && len(said.Details()) == 0
}

// isAlert reports whether the other end refused what it was shown in the handshake.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}
