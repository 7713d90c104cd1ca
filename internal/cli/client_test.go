package cli_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli/clitest"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/coordinator/member/condition"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/test/testlane"
)

// The answer of a coordinator, or what came instead of it, decides the status.
func TestExitStatusOfAnswers(t *testing.T) {
	lose := errors.New("the connection is cut")
	create, list := []string{"token", "create", "--entry", "e"}, []string{"member", "list"}
	for _, tt := range []struct {
		name   string
		args   []string
		answer error // nil: none before the deadline
		exit   errcode.Exit
		code   errcode.Code
	}{
		{"denied", list, errcode.New(errcode.Denied), errcode.ExitDenied, errcode.Denied},
		{"no identity", list, errcode.New(errcode.Unauthenticated), errcode.ExitDenied, errcode.Unauthenticated},
		{"not found", list, errcode.New(errcode.NotFound), errcode.ExitNotFound, errcode.NotFound},
		{"conflict", create, errcode.New(errcode.Conflict), errcode.ExitConflict, errcode.Conflict},
		{"refused", create, errcode.New(errcode.JoinEntryFull), errcode.ExitRefused, errcode.JoinEntryFull},
		{"recovering", list, errcode.New(errcode.RecoveryMode), errcode.ExitUnreachable, errcode.RecoveryMode},
		{"outcome unknown there", create, errcode.New(errcode.StoreOutcomeUnknown), errcode.ExitOutcomeUnknown, errcode.StoreOutcomeUnknown},
		{"a status without a code", create, status.Error(codes.PermissionDenied, "no"), errcode.ExitDenied, errcode.Denied},
		{"banned while it ran", list, &mesh.CutError{Reason: mesh.PeerBanned}, errcode.ExitDenied, errcode.CallerBanned},
		{"expired while it ran", list, &mesh.CutError{Reason: mesh.CertificateExpired}, errcode.ExitDenied, errcode.CallerExpired},
		{"its root replaced while it ran", list, &mesh.CutError{Reason: mesh.RootRetired}, errcode.ExitDenied, errcode.CallerOutlived},
		{"a code of another release", list, status.Error(codes.Internal, "x"), errcode.ExitFailed, errcode.Internal},
		{"a change without an answer", create, nil, errcode.ExitOutcomeUnknown, errcode.OutcomeUnknown},
		{"a dry run without an answer", append(create, "--dry-run"), nil, errcode.ExitUnreachable, errcode.Unreachable},
		{"a question without an answer", list, nil, errcode.ExitUnreachable, errcode.Unreachable},
		{"a change whose connection is lost", create, lose, errcode.ExitOutcomeUnknown, errcode.OutcomeUnknown},
		{"a question whose connection is lost", list, lose, errcode.ExitUnreachable, errcode.Unreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &clitest.Answering{}
			c.Hook = func(ctx context.Context, _ string, _ any) error {
				switch tt.answer {
				case nil:
					<-ctx.Done()
					return ctx.Err()
				case lose:
					go c.Srv.Stop()
					<-ctx.Done()
					return ctx.Err()
				}
				return tt.answer
			}
			timeout := "20s"
			if tt.answer == nil {
				timeout = "300ms"
			}
			socket := c.Listen(t)
			r := clitest.Run(t, append(tt.args, "--socket", socket, "--timeout", timeout, "-o", "json")...).Want(t, int(tt.exit))
			if got := clitest.JSONOf(t, r.Stderr)["error"].(map[string]any)["code"]; got != string(tt.code) {
				t.Errorf("code %v, want %s", got, tt.code)
			}
			if r.Stdout != "" {
				t.Errorf("a command that failed printed data: %s", r.Stdout)
			}
		})
	}
}

// A change whose outcome is not known says where to look. It has time to be sent, on a busy machine.
func TestOutcomeUnknownSaysWhereToLook(t *testing.T) {
	c := &clitest.Answering{Hook: func(ctx context.Context, _ string, _ any) error { <-ctx.Done(); return ctx.Err() }}
	clitest.Run(t, "token", "create", "--entry", "e", "--socket", c.Listen(t), "--timeout", "2s").
		Want(t, int(errcode.ExitOutcomeUnknown), "there was no answer to CreateToken", "look before you try again: fealty token list")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &clitest.Answering{Hook: func(call context.Context, _ string, _ any) error { cancel(); <-call.Done(); return call.Err() }}
	clitest.Fixture{}.Run(ctx, "token", "create", "--entry", "e", "--socket", c.Listen(t)).Want(t, int(errcode.ExitInterrupted), "FE-U111")
}

func TestUnreachable(t *testing.T) {
	dir := clitest.ShortDir(t)
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for path, why := range map[string]string{
		filepath.Join(dir, "none.sock"): "there is no such socket",
		dead:                            "nothing listens there",
	} {
		r := clitest.Run(t, "token", "create", "--entry", "e", "--socket", path).Want(t, int(errcode.ExitUnreachable), "FE-X101", why)
		if strings.Contains(r.Stderr, "FE-X102") {
			t.Error("a change that was never sent is of unknown outcome")
		}
		if strings.Contains(r.Stderr, "firewall") || !strings.Contains(r.Stderr, "do:  start the process, or name where it is: --data DIR") {
			t.Errorf("a socket of this machine: %s", r.Stderr)
		}
	}
	clitest.Run(t, "status", "--socket", "/"+strings.Repeat("x", 200)).Want(t, int(errcode.ExitUsage), "at most 107")
}

// A socket that belongs to another user is not the network's fault; an address that a
// firewall refuses is.
func TestSocketOfAnotherUser(t *testing.T) {
	t.Parallel()
	for kind, firewall := range map[string]bool{"unix": false, "tcp": true} {
		dial := &net.OpError{Op: "dial", Net: kind, Err: os.NewSyscallError("connect", syscall.EACCES)}
		said := render.Unreachable(dial, "there", dial).Lines()
		if got := strings.Contains(said[2], "firewall"); got != firewall {
			t.Errorf("%s: %q", kind, said)
		}
		if got := strings.Contains(said[0], "FE-U122: the socket there may not be opened by this user"); got == firewall {
			t.Errorf("%s: %q", kind, said)
		}
	}
}

// Where this process may open no more files nobody else is to blame, whatever that was taken for; what somebody answered
// stays what it was.
func TestNoFilesLeftIsNoFaultOfOthers(t *testing.T) {
	t.Parallel()
	none := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	for what, err := range map[string]error{
		"a connection":  render.Unreachable(errors.New("the status of a call"), "there", none),
		"a file":        errcode.Wrap(&fs.PathError{Op: "open", Path: "m.yaml", Err: syscall.ENFILE}, errcode.FileMissing, "file", "m.yaml"),
		"a login":       errcode.Wrap(none, errcode.LoginNeeded),
		"a coordinator": errcode.Wrap(errors.Join(none, errors.New("x")), errcode.NodeNoCoordinator),
		"nothing known": fmt.Errorf("x: %w", none),
	} {
		if got := render.Of("fealty status", err); got.Code != errcode.NoFilesLeft || strings.Contains(got.What, "cannot be reached") {
			t.Errorf("%s: %v", what, got.Lines())
		}
	}
	for _, code := range []errcode.Code{errcode.CallerBanned, errcode.TokenSpent, errcode.OutcomeUnknown} {
		if got := render.Of("fealty status", errcode.Wrap(none, code)); got.Code != code {
			t.Errorf("%s became %v", code, got.Lines())
		}
	}
}

// The dev cluster in the current folder is the one default, and it is said.
func TestDevClusterIsFound(t *testing.T) {
	c := &clitest.Answering{Members: &fealtyv1.ListMembersResponse{}}
	socket := c.Listen(t)
	dir := filepath.Dir(socket)
	// The first coordinator is down, the second recovers, the third serves.
	recovering := &clitest.Answering{Status: &fealtyv1.GetStatusResponse{Phase: "recovery", ClusterId: "second"}, Hook: func(_ context.Context, method string, _ any) error {
		if method == "GetStatus" {
			return nil
		}
		return errcode.New(errcode.RecoveryMode)
	}}
	for i, to := range []string{filepath.Join(dir, "nobody"), recovering.Listen(t), socket} {
		coordinator := filepath.Join(dir, ".fealty-dev", fmt.Sprintf("coordinator-%d", i+1))
		if err := errors.Join(os.MkdirAll(coordinator, 0o700), os.Symlink(to, filepath.Join(coordinator, "admin.sock"))); err != nil {
			t.Fatal(err)
		}
	}
	c.Status = &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "third"}
	if r := (clitest.Fixture{Dir: dir}).Run(t.Context(), "status").Want(t, 0); !strings.Contains(r.Stdout, "third") {
		t.Errorf("the status is not that of the coordinator that is ready:\n%s", r.Stdout)
	}
	c.Status.Phase = "recovery"
	if r := (clitest.Fixture{Dir: dir}).Run(t.Context(), "status", "-o", "json").Want(t, 0); !strings.Contains(r.Stdout, "second") || strings.Contains(r.Stdout, "third") {
		t.Errorf("with none that is ready, the first that answers counts:\n%s", r.Stdout)
	}
	clitest.Fixture{Dir: dir}.Run(t.Context(), "member", "list").Want(t, 0, "no coordinator is named: asking the local cluster in .fealty-dev")
	r := clitest.Fixture{Dir: dir}.Run(t.Context(), "member", "list", "--socket", socket).Want(t, 0)
	if strings.Contains(r.Stderr, ".fealty-dev") {
		t.Errorf("the dev cluster was taken though another one is named: %s", r.Stderr)
	}
	clitest.Fixture{Dir: dir, Env: []string{"FEALTY_SOCKET=" + filepath.Join(dir, "none")}}.Run(t.Context(), "member", "list").Want(t, int(errcode.ExitUnreachable))
	clitest.Fixture{Dir: dir}.Run(t.Context(), "member", "list", "--identity", filepath.Join(dir, "nobody")).Want(t, int(errcode.ExitConfig), "FE-C104")
}

// A stream is begun at the next coordinator where the first is not reached, not ready,
// or silent, and what ends it later names the one that it came from. A silent one is waited for in real
// time, and so at night alone: in the quick lane the test of package client has one, in virtual time.
func TestStreamElsewhere(t *testing.T) {
	dir := clitest.ShortDir(t)
	dev := func(sockets ...string) clitest.Fixture {
		t.Helper()
		dir := t.TempDir()
		for i, to := range sockets {
			coordinator := filepath.Join(dir, ".fealty-dev", fmt.Sprintf("coordinator-%d", i+1))
			if err := errors.Join(os.MkdirAll(coordinator, 0o700), os.Symlink(to, filepath.Join(coordinator, "admin.sock"))); err != nil {
				t.Fatal(err)
			}
		}
		return clitest.Fixture{Dir: dir}
	}
	type stream = grpc.ServerStreamingServer[fealtyv1.CreateBackupResponse]
	head := &fealtyv1.CreateBackupResponse{Part: &fealtyv1.CreateBackupResponse_Head{Head: &fealtyv1.BackupHead{ClusterId: "third"}}}
	sum := sha256.Sum256(nil)
	serving := &clitest.Answering{Backup: func(s stream) error {
		return errors.Join(s.Send(head), s.Send(&fealtyv1.CreateBackupResponse{Part: &fealtyv1.CreateBackupResponse_End{End: &fealtyv1.BackupEnd{Sha256: sum[:]}}}))
	}}
	recovering := &clitest.Answering{Backup: func(stream) error { return errcode.New(errcode.RecoveryMode) }}
	silent := &clitest.Answering{Backup: func(s stream) error { <-s.Context().Done(); return s.Context().Err() }}
	refusing := &clitest.Answering{Backup: func(stream) error { return errcode.New(errcode.Denied) }}
	breaking := &clitest.Answering{Backup: func(s stream) error {
		return errors.Join(s.Send(head), errcode.New(errcode.StoreUnreachable, "what", "the backup"))
	}}
	good := serving.Listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	asked := []string{filepath.Join(dir, "nobody"), recovering.Listen(t), good}
	if testlane.Full() {
		asked = slices.Insert(asked, 2, silent.Listen(t))
	}
	r := dev(asked...).Run(ctx, "backup", "create", "x.backup", "--timeout=5s").Want(t, 0)
	if !strings.Contains(r.Stdout, "third") {
		t.Errorf("it is not of the one that answers:\n%s", r.Stdout)
	}
	dev(refusing.Listen(t), good).Run(t.Context(), "backup", "create", "x.backup").Want(t, int(errcode.ExitDenied))
	dev(breaking.Listen(t), good).Run(t.Context(), "backup", "create", "x.backup").Want(t, int(errcode.ExitUnreachable), "FE-S103")
	dev(recovering.Listen(t), filepath.Join(dir, "nobody")).Run(t.Context(), "backup", "create", "x.backup").Want(t, int(errcode.ExitUnreachable))
}

func TestWhichCoordinator(t *testing.T) {
	c := &clitest.Answering{Members: &fealtyv1.ListMembersResponse{}}
	socket := c.Listen(t)
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		exit errcode.Exit
	}{
		{"socket by flag", nil, []string{"--socket", socket}, 0},
		{"socket by environment", []string{"FEALTY_SOCKET=" + socket}, nil, 0},
		{"a flag counts more than the environment", []string{"FEALTY_COORDINATOR=127.0.0.1:1", "FEALTY_IDENTITY=x"}, []string{"--socket", socket}, 0},
		{"and the other way round", []string{"FEALTY_SOCKET=" + socket}, []string{"--coordinator", "127.0.0.1:1"}, errcode.ExitUsage},
		{"two flags", nil, []string{"--socket", socket, "--coordinator", "127.0.0.1:1"}, errcode.ExitUsage},
		{"two variables", []string{"FEALTY_SOCKET=" + socket, "FEALTY_IDENTITY=x"}, nil, errcode.ExitUsage},
		{"nothing", nil, nil, errcode.ExitConfig},
	} {
		r := clitest.Fixture{Env: tt.env, Dir: t.TempDir()}.Run(t.Context(), append([]string{"member", "list"}, tt.args...)...)
		if r.Exit != int(tt.exit) {
			t.Errorf("%s: exit status %d, want %d: %s", tt.name, r.Exit, tt.exit, r.Stderr)
		}
	}
}

// A change that one coordinator made, and could not tell all of, is made once.
func TestChangeIsMadeOnce(t *testing.T) {
	rotated := 0
	answer := func(err error) *clitest.Answering {
		return &clitest.Answering{Status: &fealtyv1.GetStatusResponse{Phase: "ready"}, Hook: func(_ context.Context, method string, _ any) error {
			if method != "RotateMeshKey" {
				return nil
			}
			rotated++
			return err
		}}
	}
	for _, tt := range []struct {
		name  string
		first error
		calls int
	}{
		{"recovering", errcode.New(errcode.RecoveryMode), 2},
		{"done, and recovering since", errcode.New(errcode.DoneNotInForce), 1},
		{"unknown", errcode.New(errcode.StoreOutcomeUnknown), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			second := errors.New("asked a second time")
			for i, to := range []string{answer(tt.first).Listen(t), answer(second).Listen(t)} {
				coordinator := filepath.Join(dir, ".fealty-dev", fmt.Sprintf("coordinator-%d", i+1))
				if err := errors.Join(os.MkdirAll(coordinator, 0o700), os.Symlink(to, filepath.Join(coordinator, "admin.sock"))); err != nil {
					t.Fatal(err)
				}
			}
			rotated = 0
			r := clitest.Fixture{Dir: dir}.Run(t.Context(), "trust", "rotate", "--mesh", "--yes")
			if rotated != tt.calls {
				t.Errorf("it was asked for %d times, want %d: %s", rotated, tt.calls, r.Stderr)
			}
		})
	}
}

// members of every condition, at testNow.
func someMembers() []*fealtyv1.Member {
	later, before := timestamppb.New(clitest.Now.Add(25*time.Hour)), timestamppb.New(clitest.Now.Add(-time.Hour))
	m := func(kind, name string, edit func(*fealtyv1.Member)) *fealtyv1.Member {
		x := &fealtyv1.Member{SpiffeId: "spiffe://c/" + kind + "/" + name, Kind: kind, Name: name, State: "active", Entry: "nodes", JoinedBy: "token:nodes",
			KeyId: strings.Repeat("0123456789abcdef", 4), SvidNotAfter: later, JoinedAt: before}
		edit(x)
		return x
	}
	report := func(connected bool) *fealtyv1.Live {
		return &fealtyv1.Live{LastReport: timestamppb.New(clitest.Now.Add(-90 * time.Second)), Connected: connected, Release: "1.2.3",
			Held: []*fealtyv1.HeldVersion{{Scope: "trust_bundle", AuthorityEpoch: 1, ConfigVersion: 4, Freshness: "fresh"}, {Scope: "route_policy", AuthorityEpoch: 1, ConfigVersion: 2, Freshness: "stale"}}}
	}
	return []*fealtyv1.Member{
		m("data", "a", func(x *fealtyv1.Member) {
			x.Live = report(true)
			x.ReportedHost, x.ReportedOs, x.ReportedAddresses, x.SeenAddress, x.Labels = "web-7", "linux/amd64", []string{"10.0.0.7"}, "192.0.2.1", []string{"rack=r2"}
		}),
		m("data", "b", func(x *fealtyv1.Member) { x.Live = report(false) }),
		m("data", "c", func(*fealtyv1.Member) {}),
		m("data", "d", func(x *fealtyv1.Member) { x.SvidNotAfter = before; x.Live = report(true) }),
		m("data", "e", func(x *fealtyv1.Member) { x.State = "replacing" }),
		m("data", "f", func(x *fealtyv1.Member) { x.Banned, x.BanReason = true, "lost\x1b[2J"; x.SvidNotAfter = before }),
		m("admin", "alice", func(*fealtyv1.Member) {}),
	}
}

func TestMemberListGolden(t *testing.T) {
	c := &clitest.Answering{Members: &fealtyv1.ListMembersResponse{Members: someMembers()}}
	socket := c.Listen(t)
	r := clitest.Run(t, "member", "list", "--socket", socket).Want(t, 0)
	if want := `STATE        MEMBER       SVID      REPORT      SCOPES       HOST
● connected  data/a       in 1d 1h  1m 30s ago  1/2 current  web-7
▲ not heard  data/b       in 1d 1h  1m 30s ago  -            -
? unknown    data/c       in 1d 1h  -           -            -
✖ expired    data/d       1h ago    1m 30s ago  1/2 current  -
◌ replacing  data/e       in 1d 1h  -           -            -
✖ banned     data/f       1h ago    -           -            -
● certified  admin/alice  in 1d 1h  -           -            -
`; r.Stdout != want {
		t.Errorf("\n%s\nwant\n%s", r.Stdout, want)
	}
	r = clitest.Run(t, "member", "list", "--socket", socket, "-o", "wide", "--host", "WEB-7", "--label", "rack=r2").Want(t, 0)
	for _, want := range []string{"192.0.2.1", "linux/amd64", "rack=r2", "trust_bundle 1.4, route_policy 1.2"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("-o wide does not show %s:\n%s", want, r.Stdout)
		}
	}
	c.Member = &fealtyv1.GetMemberResponse{Member: someMembers()[0]}
	r = clitest.Run(t, "member", "show", "data/a", "--socket", socket).Want(t, 0)
	for _, want := range []string{"reported host       web-7, linux/amd64", "reported addresses  10.0.0.7", "joined from         192.0.2.1", "labels              rack=r2"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("member show does not say %q:\n%s", want, r.Stdout)
		}
	}
	c.Member = &fealtyv1.GetMemberResponse{Member: someMembers()[5]}
	r = clitest.Run(t, "member", "show", "data/f", "--socket", socket).Want(t, 0)
	if !strings.Contains(r.Stdout, `banned for  lost\u001b[2J`) {
		t.Errorf("a reason is shown as it came:\n%q", r.Stdout)
	}
}

// The first line is the verdict: what it promises was asked and seen, and since when.
func TestStatusBeginsWithTheVerdict(t *testing.T) {
	at := timestamppb.New(clitest.Now.Add(-5 * time.Minute))
	since := ", since " + at.AsTime().Format(time.RFC3339) + ", 5m ago."
	warning := []*fealtyv1.Finding{{Code: "FE-M105", Severity: "warning"}}
	members := someMembers()
	for _, tt := range []struct {
		name string
		edit func(*fealtyv1.GetStatusResponse)
		want string
		exit errcode.Exit
	}{
		{"well", func(s *fealtyv1.GetStatusResponse) { s.Verdict.State = "well" },
			"Cluster c is ready: 2 nodes, 1 connected; nothing needs attention" + since, errcode.ExitOK},
		{"attention", func(s *fealtyv1.GetStatusResponse) { s.Verdict.State, s.Findings = "attention", warning },
			"Cluster c is ready: 2 nodes, 1 connected; 1 thing needs attention" + since, errcode.ExitDegraded},
		{"settling", func(s *fealtyv1.GetStatusResponse) {
			s.Verdict.State, s.Verdict.SettlesIn = "settling", durationpb.New(40*time.Second)
			s.Verdict.Unknown = []string{"whether coordinator-2 can be reached", "whether 3 nodes can be reached"}
		}, "Cluster c is ready: 2 nodes, 1 connected; settling, 40s: not known is whether coordinator-2 can be reached; " +
			"whether 3 nodes can be reached.", errcode.ExitDegraded},
		{"unknown", func(s *fealtyv1.GetStatusResponse) {
			s.Verdict.State, s.Verdict.Unknown = "unknown", []string{"whether 1 node can be reached"}
		}, "Cluster c is ready: 2 nodes, 1 connected; not known is whether 1 node can be reached" + since, errcode.ExitDegraded},
		{"nothing can be changed", func(s *fealtyv1.GetStatusResponse) {
			s.Verdict.State = "unchangeable"
			s.Findings = []*fealtyv1.Finding{{Code: "FE-S112", Severity: "critical"}}
		}, "Nothing can be changed in cluster c, which serves what it knows: 1 thing needs attention" + since, errcode.ExitUnhealthy},
		{"an earlier release that does not know all", func(s *fealtyv1.GetStatusResponse) {
			s.Verdict, s.Contacts = nil, &fealtyv1.Contacts{Unknown: 1}
		}, "Cluster c is ready: 2 nodes, at least 1 connected and 1 unknown; not known is whether 1 node can be reached.",
			errcode.ExitDegraded},
		{"banned ones and people are no nodes", func(s *fealtyv1.GetStatusResponse) {
			s.Verdict.State = "well"
			banned := proto.CloneOf(members[0])
			banned.Name, banned.Banned, banned.State = "x", true, "banned"
			person := &fealtyv1.Member{Kind: "admin", Name: "alice", State: "active", SvidNotAfter: members[0].SvidNotAfter}
			s.Members = append(s.Members, banned, person)
		}, "Cluster c is ready: 2 nodes, 1 connected; nothing needs attention" + since, errcode.ExitOK},
	} {
		st := &fealtyv1.GetStatusResponse{ClusterId: "c", Phase: "ready", Now: timestamppb.New(clitest.Now),
			StartedAt: timestamppb.New(clitest.Now.Add(-time.Hour)), Members: slices.Clone(members[:2]),
			Baseline: &fealtyv1.Baseline{Met: true, State: "met"}, Verdict: &fealtyv1.Verdict{Since: at}}
		tt.edit(st)
		c := &clitest.Answering{Status: st}
		r := clitest.Run(t, "status", "--exit-code", "--socket", c.Listen(t)).Want(t, int(tt.exit))
		if line, _, _ := strings.Cut(r.Stdout, "\n"); line != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, line, tt.want)
		}
		if tt.name == "banned ones and people are no nodes" &&
			!strings.Contains(r.Stdout, "\nmembers      2 data; apart from these 1 banned, 1 person or tool\n") {
			t.Errorf("%s: no count of them:\n%s", tt.name, r.Stdout)
		}
	}
}

// Who leads and how many coordinators may be lost stands above them; members that need
// somebody come by how long they work alone.
func TestStatusSaysWhatMayBeLost(t *testing.T) {
	member := func(name string, alone time.Duration, connected bool) *fealtyv1.Member {
		m := &fealtyv1.Member{Kind: "data", Name: name, State: "active", Contact: "not heard",
			SvidNotAfter: timestamppb.New(clitest.Now.Add(time.Hour)),
			Live:         &fealtyv1.Live{AutonomousUntil: timestamppb.New(clitest.Now.Add(alone)), Connected: connected}}
		if connected {
			m.Contact = "connected"
		}
		return m
	}
	st := &fealtyv1.GetStatusResponse{ClusterId: "c", Phase: "ready", Now: timestamppb.New(clitest.Now),
		StartedAt: timestamppb.New(clitest.Now.Add(-time.Hour)),
		Leader:    &fealtyv1.Leader{Name: "one", Term: 7, Since: timestamppb.New(clitest.Now.Add(-time.Minute))},
		Members: []*fealtyv1.Member{member("later", 50*time.Minute, false), member("well", time.Minute, true),
			member("soon", 10*time.Minute, false), member("over", -time.Minute, false)},
		Replicas: []*fealtyv1.Replica{{Name: "one", Phase: "ready", Self: true}, {Name: "two", Phase: "ready"}, {Name: "three", Phase: "ready"}},
	}
	c := &clitest.Answering{Status: st}
	socket := c.Listen(t)
	for _, tt := range []struct {
		unheard []time.Duration
		want    string
	}{
		{[]time.Duration{0, 0}, "one leads, term 7, since 1m ago; 3 of 3 are ready: 2 more may be lost\n"},
		{[]time.Duration{0, time.Minute}, "one leads, term 7, since 1m ago; 2 of 3 are ready: 1 more may be lost\n"},
		{[]time.Duration{time.Minute, time.Minute},
			"one leads, term 7, since 1m ago; 1 of 3 is left: the next loss stops joins, renewals and changes\n"},
	} {
		for i, d := range tt.unheard {
			st.Replicas[i+1].UnheardFor = durationpb.New(d)
		}
		if r := clitest.Run(t, "status", "--socket", socket).Want(t, 0); !strings.Contains(r.Stdout, "\n"+tt.want) {
			t.Errorf("%v unheard:\n%s\nwant %q", tt.unheard, r.Stdout, tt.want)
		}
	}
	r := clitest.Run(t, "status", "--socket", socket).Want(t, 0)
	_, need, _ := strings.Cut(r.Stdout, "members that need somebody\n")
	var names []string
	for _, m := range regexp.MustCompile(`data/(\w+)`).FindAllStringSubmatch(need[:strings.Index(need, "\ncluster\n")], -1) {
		names = append(names, m[1])
	}
	if want := []string{"over", "soon", "later"}; !slices.Equal(names, want) {
		t.Errorf("they are %v, want %v:\n%s", names, want, r.Stdout)
	}
}

// On a terminal what is advised wraps at its width, at 80 columns where that is not known, and
// a command in it stays whole; elsewhere nothing is wrapped, as scripts read lines.
func TestAdviceWraps(t *testing.T) {
	const command = "fealty token create --entry a-rather-long-name --name a-member-of-the-fleet --ttl 15m --reason because"
	st := &fealtyv1.GetStatusResponse{ClusterId: "c", Phase: "ready", Now: timestamppb.New(clitest.Now),
		StartedAt: timestamppb.New(clitest.Now), Findings: []*fealtyv1.Finding{{Code: "FE-M105", Severity: "warning",
			Summary: strings.Repeat("words ", 40), Remedy: "let somebody in who is to be there in the next days: " + command + "; or wait for it"}}}
	c := &clitest.Answering{Status: st}
	socket := c.Listen(t)
	for _, tt := range []struct {
		name      string
		terminals []any
		width     int
		longest   int // of a line without the command; 0: no limit
	}{
		{"a pipe", nil, 0, 0},
		{"a terminal that says its width", []any{"stdout", "stderr"}, 60, 60},
		{"one that does not", []any{"stdout", "stderr"}, 0, 80},
	} {
		f := clitest.Fixture{Terminals: tt.terminals, Width: tt.width}
		r := f.Run(t.Context(), "status", "--socket", socket)
		failed := f.Run(t.Context(), "status", "--socket", "/nowhere/"+strings.Repeat("words ", 20)+"/admin.sock")
		if !strings.Contains(r.Stdout, command) {
			t.Errorf("%s: the command is broken:\n%s", tt.name, r.Stdout)
		}
		if said := stripColour(failed.Stderr); !strings.Contains(said, "\nfealty:   why: ") || !strings.Contains(said, "\nfealty:   do:  ") {
			t.Errorf("%s: what is said does not stand in one column:\n%s", tt.name, said)
		}
		if tt.longest == 0 {
			if n := strings.Count(r.Stdout+failed.Stderr, "\n"); n != 12 {
				t.Errorf("%s: %d lines:\n%s%s", tt.name, n, r.Stdout, failed.Stderr)
			}
			continue
		}
		for line := range strings.Lines(stripColour(r.Stdout + failed.Stderr)) {
			if n := term.Columns(strings.TrimSuffix(line, "\n")); n > tt.longest && !strings.Contains(line, "fealty token") {
				t.Errorf("%s: %d columns: %s", tt.name, n, line)
			}
		}
	}
}

// A page is as wide as the terminal: its paragraphs are filled, and what stands in a block of code is not broken.
func TestExplainFillsItsLines(t *testing.T) {
	const width = 60
	for _, code := range errcode.Codes() {
		f := clitest.Fixture{Terminals: []any{"stdout"}, Width: width}
		r := f.Run(t.Context(), "explain", string(code))
		piped := (&clitest.Fixture{}).Run(t.Context(), "explain", string(code))
		if got, want := strings.Fields(r.Stdout), strings.Fields(piped.Stdout); !slices.Equal(got, want) {
			t.Errorf("%s: it says other words:\n%s", code, r.Stdout)
		}
		lines, block := strings.Split(r.Stdout, "\n"), false
		for i, line := range lines[:len(lines)-1] {
			next := lines[i+1]
			switch word, _, _ := strings.Cut(strings.TrimLeft(next, " "), " "); {
			case strings.HasPrefix(line, "```"):
				block = !block
			case block && !strings.Contains(piped.Stdout, line+"\n"):
				t.Errorf("%s: in a block: %q", code, line)
			case block || line == "" || next == "" || strings.ContainsAny(line[:1], "#|0123456789") || strings.ContainsAny(next[:1], "#-|`0123456789"):
			case term.Columns(line)+1+term.Columns(word) <= width && !strings.Contains(next, "fealty "):
				t.Errorf("%s: %q ends before %q", code, line, next)
			}
		}
	}
}

func TestStatusGolden(t *testing.T) {
	st := &fealtyv1.GetStatusResponse{
		ClusterId: "prod.example", Phase: "ready", AuthorityEpoch: 2, HistoryIndex: 5, Head: make([]byte, 32), RootPin: make([]byte, 32), MeshCaKey: make([]byte, 32),
		Release: "1.2.3", Now: timestamppb.New(clitest.Now), StartedAt: timestamppb.New(clitest.Now.Add(-time.Hour)), Store: "sqlite:/x", Members: someMembers()[:2],
		Baseline:  &fealtyv1.Baseline{DataMembers: 2, Needed: 3},
		Findings:  []*fealtyv1.Finding{{Code: "FE-M105", Severity: "warning", Summary: "too few", Remedy: "add one"}, {Code: "FE-M106", Severity: "critical", Summary: "gone", Remedy: "look"}},
		Addresses: []string{"c1:7443"}, EnrolmentKey: "ed25519:x",
	}
	zero := strings.Repeat("0", 64)
	want := `Cluster prod.example is ready: 2 nodes, 1 connected; 2 things need attention.

needs attention
  ▲ FE-M105 warning: too few
            do: add one
  ✖ FE-M106 critical: gone
            do: look

members that need somebody
STATE        MEMBER  WORKS ALONE  SVID      REPORT      SCOPES       HOST
● connected  data/a  not known    in 1d 1h  1m 30s ago  1/2 current  web-7
▲ not heard  data/b  not known    in 1d 1h  1m 30s ago  -            -

cluster
cluster      prod.example
members      2 data
baseline     not met: 2 of 3 data members
coordinator  1.2.3, up for 1h
store        sqlite:/x
`
	c := &clitest.Answering{Status: st}
	socket := c.Listen(t)
	if r := clitest.Run(t, "status", "--socket", socket).Want(t, 0); r.Stdout != want {
		t.Errorf("\n%s\nwant\n%s", r.Stdout, want)
	}
	coloured := clitest.Fixture{Terminals: []any{"stdout"}, Width: 200}.Run(t.Context(), "status", "--socket", socket)
	if !strings.Contains(coloured.Stdout, "\x1b[") || stripColour(coloured.Stdout) != want {
		t.Errorf("colour changes the text:\n%s", stripColour(coloured.Stdout))
	}
	// Hashes and keys are for who compares them.
	wide := clitest.Run(t, "status", "--socket", socket, "-o", "wide").Want(t, 0).Stdout
	for _, line := range []string{"phase          ready\n", "authority      epoch 2, history index 5\n", "head           " + zero,
		"root pin       " + zero, "mesh CA        " + zero, "addresses      c1:7443\n", "enrolment key  ed25519:x\n"} {
		if !strings.Contains(wide, "\n"+line) {
			t.Errorf("-o wide has no %q:\n%s", line, wide)
		}
	}
	// The status tells how it is, if it is asked to.
	for _, tt := range []struct {
		edit func(*fealtyv1.GetStatusResponse)
		exit errcode.Exit
	}{
		{func(*fealtyv1.GetStatusResponse) {}, errcode.ExitUnhealthy},
		{func(s *fealtyv1.GetStatusResponse) { s.Findings = s.Findings[:1] }, errcode.ExitDegraded},
		{func(s *fealtyv1.GetStatusResponse) { s.Findings = nil }, errcode.ExitOK},
		{func(s *fealtyv1.GetStatusResponse) { s.Phase, s.PhaseReason = "recovery", "no seed" }, errcode.ExitUnhealthy},
		{func(s *fealtyv1.GetStatusResponse) { s.Phase = "uninitialized" }, errcode.ExitUnhealthy},
	} {
		tt.edit(st)
		r := clitest.Run(t, "status", "--socket", socket, "--exit-code").Want(t, int(tt.exit))
		if r.Stderr != "" || r.Stdout == "" {
			t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
		}
		clitest.Run(t, "status", "--socket", socket).Want(t, 0)
	}
}

// A watch goes on through failures, and ends when it is told to, which is no error.
func TestWatch(t *testing.T) {
	looks := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &clitest.Answering{Status: &fealtyv1.GetStatusResponse{Phase: "uninitialized", Now: timestamppb.New(clitest.Now)}}
	c.Hook = func(context.Context, string, any) error {
		looks++
		switch looks {
		case 2:
			return errcode.New(errcode.RecoveryMode)
		case 3:
			cancel()
		}
		return nil
	}
	r := clitest.Fixture{}.Run(ctx, "status", "--watch", "--socket", c.Listen(t)).Want(t, 0, "FE-R101")
	if n := strings.Count(r.Stdout, "no cluster yet"); n < 1 {
		t.Errorf("%d pages:\n%s", n, r.Stdout)
	}
	c2 := &clitest.Answering{Hook: func(context.Context, string, any) error { return errcode.New(errcode.Denied) }}
	clitest.Run(t, "status", "--watch", "--socket", c2.Listen(t)).Want(t, int(errcode.ExitDenied))
}

func TestNodeStatus(t *testing.T) {
	n := &fealtyv1.GetNodeResponse{
		SpiffeId: "spiffe://c/data/a", SvidNotBefore: timestamppb.New(clitest.Now.Add(-time.Hour)), SvidNotAfter: timestamppb.New(clitest.Now.Add(time.Hour)),
		KeyId: "k", Connected: true, Coordinator: "c1:7443", Held: []*fealtyv1.HeldSnapshot{{Scope: "trust_bundle", AuthorityEpoch: 1, ConfigVersion: 4, ContentHash: []byte{1}}},
	}
	c := &clitest.Answering{Node: n}
	dir := filepath.Dir(c.Listen(t))
	for _, tt := range []struct {
		name string
		edit func()
		exit errcode.Exit
		says string
	}{
		{"connected", func() {}, errcode.ExitOK, "● connected spiffe://c/data/a is connected to c1:7443."},
		{"refused something", func() {
			n.Refusals = []*fealtyv1.Refusal{{Scope: "trust_bundle", Reason: "signature", Detail: "bad\n"}}
		}, errcode.ExitDegraded, "▲ signature"},
		{"alone", func() { n.Refusals, n.Connected, n.LastError = nil, false, "no route" }, errcode.ExitDegraded, "▲ away"},
		{"nothing held", func() { n.Held = nil }, errcode.ExitUnhealthy, "works on its own"},
		{"expired", func() { n.SvidNotAfter = timestamppb.New(clitest.Now) }, errcode.ExitUnhealthy, "✖ expired"},
	} {
		tt.edit()
		r := clitest.Run(t, "status", "--data", dir, "--exit-code").Want(t, int(tt.exit))
		if !strings.Contains(r.Stdout, tt.says) {
			t.Errorf("%s: no %q in\n%s", tt.name, tt.says, r.Stdout)
		}
	}
}

// A command that takes something away asks first, and a dry run does not.
func TestConfirm(t *testing.T) {
	for _, tt := range []struct {
		name     string
		answer   string
		terminal bool
		args     []string
		exit     errcode.Exit
		sent     bool
	}{
		{"nobody to ask", "", false, nil, errcode.ExitRefused, false},
		{"an answer that nobody was asked for", "y\n", false, nil, errcode.ExitRefused, false},
		{"yes", "y\n", true, nil, 0, true},
		{"Yes", "Yes\n", true, nil, 0, true},
		{"no", "n\n", true, nil, errcode.ExitRefused, false},
		{"return", "\n", true, nil, errcode.ExitRefused, false},
		{"end of input", "", true, nil, errcode.ExitRefused, false},
		{"something else", "yeah\n", true, nil, errcode.ExitRefused, false},
		{"said beforehand", "", false, []string{"--yes"}, 0, true},
		{"dry run", "", false, []string{"--dry-run"}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := false
			c := &clitest.Answering{Hook: func(context.Context, string, any) error { sent = true; return nil }}
			f := clitest.Fixture{Stdin: strings.NewReader(tt.answer)}
			if tt.terminal {
				f.Terminals = []any{"stdin"}
			}
			r := f.Run(t.Context(), append([]string{"member", "ban", "data/a", "--reason", "r", "--socket", c.Listen(t)}, tt.args...)...)
			if r.Exit != int(tt.exit) || sent != tt.sent {
				t.Errorf("exit status %d, sent %v; want %d, %v\n%s", r.Exit, sent, tt.exit, tt.sent, r.Stderr)
			}
		})
	}
}

// A ban tells at which coordinator it ended what, and what nobody knows.
func TestMemberBanTellsWhereItEnded(t *testing.T) {
	at := func(name string, n uint32) *fealtyv1.EndedConnections {
		return &fealtyv1.EndedConnections{Coordinator: name, Answered: true, Connections: n}
	}
	silent := &fealtyv1.EndedConnections{Coordinator: "c3"}
	for _, tt := range []struct {
		ended []*fealtyv1.EndedConnections
		want  string
	}{
		{nil, "the coordinator that was asked ended 2 connections of it"},
		{[]*fealtyv1.EndedConnections{at("c1", 1)}, "1 connection of it ended at c1"},
		{[]*fealtyv1.EndedConnections{at("c1", 0), at("c2", 2)}, "2 connections of it ended at c2; none at c1"},
		{[]*fealtyv1.EndedConnections{at("c1", 0), at("c2", 0)}, "it had no connection at c1, c2"},
		{[]*fealtyv1.EndedConnections{at("c1", 0), silent}, "it had no connection at c1; not known of c3, which did not answer"},
		{[]*fealtyv1.EndedConnections{at("c1", 1), at("c2", 2), silent},
			"1 connection of it ended at c1; 2 connections of it ended at c2; not known of c3, which did not answer"},
	} {
		c := &clitest.Answering{Ended: tt.ended}
		r := clitest.Run(t, "member", "ban", "data/a", "--reason", "r", "--yes", "--socket", c.Listen(t)).Want(t, 0)
		if want := "data/a is banned: " + tt.want + "\n"; r.Stdout != want {
			t.Errorf("it prints %q, want %q", r.Stdout, want)
		}
	}
}

// A manifest that is not the one that its transition names is not passed on.
func TestManifestGetVerifies(t *testing.T) {
	text := []byte(clitest.Manifest)
	sum := sha256.Sum256(text)
	c := &clitest.Answering{}
	socket := c.Listen(t)
	for _, tt := range []struct {
		name string
		resp *fealtyv1.GetManifestResponse
		exit errcode.Exit
	}{
		{"as named", &fealtyv1.GetManifestResponse{Manifest: text, Transition: &fealtyv1.Transition{ManifestHash: sum[:]}}, 0},
		{"another", &fealtyv1.GetManifestResponse{Manifest: append(text[:len(text):len(text)], '\n'), Transition: &fealtyv1.Transition{ManifestHash: sum[:]}}, errcode.ExitRefused},
		{"none", &fealtyv1.GetManifestResponse{Transition: &fealtyv1.Transition{ManifestHash: sum[:]}}, errcode.ExitRefused},
		{"no transition", &fealtyv1.GetManifestResponse{Manifest: text}, errcode.ExitRefused},
	} {
		c.Get = tt.resp
		r := clitest.Run(t, "manifest", "get", "--socket", socket).Want(t, int(tt.exit))
		if tt.exit == 0 && r.Stdout != string(text) || tt.exit != 0 && r.Stdout != "" {
			t.Errorf("%s: %q", tt.name, r.Stdout)
		}
	}
}

func TestWaitEnds(t *testing.T) {
	answers := []error{errcode.New(errcode.NotFound), errcode.New(errcode.RecoveryMode), nil}
	c := &clitest.Answering{Member: &fealtyv1.GetMemberResponse{Member: someMembers()[0]}}
	n := 0
	c.Hook = func(context.Context, string, any) error {
		n++
		return answers[min(n, len(answers))-1]
	}
	clitest.Run(t, "member", "wait", "data/a", "--wait=60s", "--socket", c.Listen(t)).Want(t, 0, "data/a is not a member", "data/a is connected")

	denied := &clitest.Answering{Hook: func(context.Context, string, any) error { return errcode.New(errcode.Denied) }}
	clitest.Run(t, "member", "wait", "data/a", "--wait=60s", "--socket", denied.Listen(t)).Want(t, int(errcode.ExitDenied))

	never := &clitest.Answering{Hook: func(context.Context, string, any) error { return errcode.New(errcode.NotFound) }}
	clitest.Run(t, "member", "wait", "data/a", "--wait=200ms", "--socket", never.Listen(t)).Want(t, int(errcode.ExitWaitRanOut), "FE-U110")
	clitest.Run(t, "member", "wait", "data/a", "--for", "gone", "--wait=60s", "--socket", never.Listen(t)).Want(t, 0)
}

// trust rotate --mesh --wait ends when every member is certified under the new key, and
// not by what a coordinator says that has not heard of the new epoch.
func TestRotateMeshWaits(t *testing.T) {
	key := strings.Repeat("ab", 32)
	at := func(epoch uint64, renewed uint32, missing ...string) *fealtyv1.Trust {
		return &fealtyv1.Trust{AuthorityEpoch: epoch, ConfigVersion: 7, MeshKeys: []*fealtyv1.TrustMeshKey{{KeyId: key, AuthorityEpoch: epoch}},
			MeshRollout: &fealtyv1.MeshRollout{Members: 2, Renewed: renewed, Missing: missing}}
	}
	behind := &fealtyv1.Trust{AuthorityEpoch: 1, ConfigVersion: 6, MeshKeys: []*fealtyv1.TrustMeshKey{{KeyId: "before", AuthorityEpoch: 1}}}
	c := &clitest.Answering{Trust: []*fealtyv1.Trust{at(2, 0, "data/a", "data/b"), behind, at(2, 1, "data/b"), at(2, 1, "data/b"), at(2, 2)}}
	asked := 0
	c.Hook = func(_ context.Context, method string, _ any) error {
		if asked++; asked == 3 {
			return errcode.New(errcode.RecoveryMode)
		}
		return nil
	}
	r := clitest.Run(t, "trust", "rotate", "--mesh", "--wait=60s", "--socket", c.Listen(t))
	r.Want(t, 0, "authority epoch 2 began, with mesh CA key "+key, "1 of 2 members are certified under it",
		"2 of 2 members are certified under it")
	if !strings.Contains(r.Stdout, "of authority epoch 2") || strings.Contains(r.Stdout, "to renew") {
		t.Errorf("it shows\n%s", r.Stdout)
	}
	if n := strings.Count(r.Stderr, "1 of 2 members"); n != 1 || len(c.Trust) != 1 {
		t.Errorf("it said %d times that one renewed, and %d answers were not awaited:\n%s", n, len(c.Trust)-1, r.Stderr)
	}

	// Nobody to wait for.
	alone := &clitest.Answering{Trust: []*fealtyv1.Trust{{AuthorityEpoch: 2, MeshKeys: []*fealtyv1.TrustMeshKey{{KeyId: key, AuthorityEpoch: 2}}, MeshRollout: &fealtyv1.MeshRollout{}}}}
	clitest.Run(t, "trust", "rotate", "--mesh", "--wait=60s", "--socket", alone.Listen(t)).Want(t, 0, "0 of 0 members are certified under it")

	never := &clitest.Answering{Trust: []*fealtyv1.Trust{at(2, 1, "data/b")}}
	clitest.Run(t, "trust", "rotate", "--mesh", "--wait=300ms", "--socket", never.Listen(t)).Want(t, int(errcode.ExitWaitRanOut), "FE-U110")
}

// trust rotate --wait is not over by what a coordinator says that has not heard of it.
func TestRotateWaits(t *testing.T) {
	at := func(version uint64, confirmed int) *fealtyv1.Trust {
		tr := &fealtyv1.Trust{AuthorityEpoch: 1, ConfigVersion: version}
		if confirmed >= 0 {
			tr.Rotation = &fealtyv1.ConfigKeyRotation{Members: 1, Confirmed: uint32(confirmed)}
		}
		return tr
	}
	// Of an epoch that ended, whatever its versions were.
	earlier := &fealtyv1.Trust{AuthorityEpoch: 0, ConfigVersion: 9}
	c := &clitest.Answering{Trust: []*fealtyv1.Trust{at(7, 0), earlier, at(6, -1), at(8, 1), at(9, -1)}}
	r := clitest.Run(t, "trust", "rotate", "--wait=60s", "--socket", c.Listen(t))
	r.Want(t, 0, "1 of 1 member hold everything under the new key")
	if len(c.Trust) != 1 {
		t.Errorf("%d answers were not awaited", len(c.Trust)-1)
	}
}

// trust export writes what verifiers need, again in place of what was there, and nothing where there is no
// issuer.
func TestTrustExport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "www")
	none := &clitest.Answering{Trust: []*fealtyv1.Trust{{}}}
	clitest.Run(t, "trust", "export", "--oidc", dir, "--socket", none.Listen(t)).Want(t, int(errcode.ExitNotFound), "FE-U108",
		"no issuer of tokens", "these tokens name none", "workloads.token_issuer", "fealty manifest set")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
	clitest.Run(t, "trust", "export", "--socket", none.Listen(t)).Want(t, int(errcode.ExitUsage), "--oidc")
	for i := range 2 {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(private.Public())
		if err != nil {
			t.Fatal(err)
		}
		kid := fmt.Sprintf("key-%d", i)
		c := &clitest.Answering{Trust: []*fealtyv1.Trust{{TokenIssuer: "https://id.example",
			TokenKeys: []*fealtyv1.TrustTokenKey{{KeyId: kid, Key: der}}}}}
		r := clitest.Run(t, "trust", "export", "--oidc", dir, "--socket", c.Listen(t))
		r.Want(t, 0)
		for _, want := range []string{"https://id.example", kid, filepath.Join(dir, ".well-known", "openid-configuration")} {
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("%q is not in\n%s", want, r.Stdout)
			}
		}
		var set jose.JSONWebKeySet
		raw, err := os.ReadFile(filepath.Join(dir, ".well-known", "jwks.json"))
		if err == nil {
			err = json.Unmarshal(raw, &set)
		}
		if err != nil || len(set.Keys) != 1 || set.Keys[0].KeyID != kid || !private.PublicKey.Equal(set.Keys[0].Key) {
			t.Errorf("%s, %v", raw, err)
		}
	}
	// Keys that cannot be read are not left out without a word.
	bad := &clitest.Answering{Trust: []*fealtyv1.Trust{{TokenIssuer: "https://id.example",
		TokenKeys: []*fealtyv1.TrustTokenKey{{KeyId: "x", Key: []byte("no key")}}}}}
	clitest.Run(t, "trust", "export", "--oidc", dir, "--socket", bad.Listen(t)).Want(t, int(errcode.ExitFailed))
	// Where nothing can be written, it says where and why.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := &clitest.Answering{Trust: []*fealtyv1.Trust{{TokenIssuer: "https://id.example"}}}
	clitest.Run(t, "trust", "export", "--oidc", file, "--socket", again.Listen(t)).Want(t, int(errcode.ExitFailed), "FE-U116", file)
}

func TestMemberArg(t *testing.T) {
	for in, want := range map[string]string{"data/a": "data a", "spiffe://c.example/data/a": "data a", "witness/x.y": "witness x.y"} {
		kind, name, err := command.MemberArg(in)
		if err != nil || kind+" "+name != want {
			t.Errorf("command.MemberArg(%q) = %q, %q, %v", in, kind, name, err)
		}
	}
	for _, in := range []string{"", "data", "data/", "/a", "king/a", "spiffe://c.example/king/a"} {
		if _, _, err := command.MemberArg(in); !errors.Is(err, errcode.BadValue) {
			t.Errorf("command.MemberArg(%q): %v", in, err)
		}
	}
}

// A record that was altered in the store hides no other member: the list shows the rest and says who is left out, and
// status names the record with what to do.
func TestAlteredMemberIsNamed(t *testing.T) {
	finding := errcode.New(errcode.StoreForged, "what", "member/data/node-a")
	c := &clitest.Answering{Members: &fealtyv1.ListMembersResponse{Members: someMembers(), Altered: []string{"data/node-a"}},
		Status: &fealtyv1.GetStatusResponse{Phase: "ready", ClusterId: "prod.example", Members: someMembers(),
			Findings: []*fealtyv1.Finding{{Code: string(finding.Code), Severity: "critical", Summary: finding.What + ": " + finding.Why,
				Remedy: finding.Do}}}}
	socket := c.Listen(t)
	shown := someMembers()[0].GetKind() + "/" + someMembers()[0].GetName()
	r := clitest.Fixture{}.Run(t.Context(), "member", "list", "--socket", socket).Want(t, 0,
		"left out, because their records were altered in the store (fealty explain FE-S105 says what to do): data/node-a")
	if !strings.Contains(r.Stdout, shown) || strings.Contains(r.Stdout, "left out") {
		t.Errorf("the list is\n%s", r.Stdout)
	}
	r = clitest.Fixture{}.Run(t.Context(), "member", "list", "--socket", socket, "-o", "json").Want(t, 0)
	if !strings.Contains(r.Stdout, `"altered": [`) {
		t.Errorf("in JSON the list is\n%s", r.Stdout)
	}
	r = clitest.Fixture{}.Run(t.Context(), "status", "--socket", socket, "-o", "wide").Want(t, 0)
	if out := strings.Join(strings.Fields(r.Stdout), " "); !strings.Contains(out, "FE-S105 critical") ||
		!strings.Contains(out, "member/data/node-a") || !strings.Contains(out, "find out who can write to the store") {
		t.Errorf("status is\n%s", r.Stdout)
	}
}

// A member whose log is lost needs somebody, and is shown with why.
func TestLostLogOfAMemberIsShown(t *testing.T) {
	m := &fealtyv1.Member{Kind: "data", Name: "node-a", State: "active", Contact: "connected",
		SvidNotAfter: timestamppb.New(clitest.Now.Add(time.Hour)), Live: &fealtyv1.Live{Connected: true}}
	if need := condition.NeedSomebody([]*fealtyv1.Member{m}, clitest.Now); len(need) > 0 {
		t.Errorf("one that is well needs somebody")
	}
	m.Live.LogProblem, m.Live.LogDropped = "nobody reads it any more", 7
	m.Live.LogProblemSince = timestamppb.New(clitest.Now.Add(-time.Minute))
	if need := condition.NeedSomebody([]*fealtyv1.Member{m}, clitest.Now); len(need) != 1 {
		t.Errorf("one whose log is lost needs nobody")
	}
	c := &clitest.Answering{Member: &fealtyv1.GetMemberResponse{Member: m}}
	r := clitest.Fixture{}.Run(t.Context(), "member", "show", "data/node-a", "--socket", c.Listen(t)).Want(t, 0)
	if out := strings.Join(strings.Fields(r.Stdout), " "); !strings.Contains(out, "7 lines left out: nobody reads it any more (FE-U120)") {
		t.Errorf("it is shown as\n%s", r.Stdout)
	}
}
