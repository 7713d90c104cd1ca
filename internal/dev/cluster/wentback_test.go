package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/cli"
	"github.com/fealty-io/fealty/internal/cli/program"
	"github.com/fealty-io/fealty/internal/dev/cluster"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/store/postgres/pgtest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

// A database goes back under the same head of the history: nobody set a manifest in
// between. Acknowledged since then are a ban, a member and config. The ban stays in force
// all the time, status says what happened and what to type, and once that was typed every
// member is up to date again.

var stay = []string{"node-a", "node-b"}

// A dump is put back while everything is down.
func TestDumpPutBack(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	database := server.Database(t)
	testWentBack(t, server.URL(database), false, func() func() { return server.Copy(t, database) })
}

// The primary dies, and a standby that it did not wait for is promoted behind its address,
// under coordinators that run on.
func TestAsynchronousFailover(t *testing.T) {
	testlane.Nightly(t)
	t.Parallel()
	server := pgtest.New(t)
	testWentBack(t, server.URL(server.Database(t)), true, func() func() {
		standby := filepath.Join(filepath.Dir(server.Data()), "standby")
		// It has what the primary committed until now, and is cut off from then on.
		if out, err := server.Command("pg_basebackup", "--pgdata", standby, "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf",
			"--no-sync", "--dbname", server.SocketURL("postgres")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return func() {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Rename(server.Data(), server.Data()+".dead"), os.Rename(standby, server.Data()), server.Start()); err != nil {
				t.Fatal(err)
			}
			if out, err := server.Command("pg_ctl", "promote", "--wait", "--pgdata", server.Data()).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	})
}

// remedy is the command that status prints for a store that went back.
var remedy = regexp.MustCompile(`fealty backup restore --in-place --store (\S+) --sign-with (\S+)`)

func testWentBack(t *testing.T, url string, running bool, copied func() (back func())) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{
		DataDir: t.TempDir(), Store: url, Release: "test", Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	back := copied()

	// The changes newer than the copy.
	onAdmin(ctx, t, c, "ban node-c", func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-c", Reason: "after the copy"})
		return err
	})
	if _, err := c.Join(ctx, "late"); err != nil {
		t.Fatal(err)
	}
	if err := c.PutConfig(ctx, "kind: qos\nname: gold\npriority: 7\n"); err != nil {
		t.Fatal(err)
	}
	awaitBanned(ctx, t, c)
	before, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	versions := held(ctx, t, c)

	if running {
		back()
	} else {
		if err := c.StopCoordinators(); err != nil {
			t.Fatal(err)
		}
		back()
		if err := c.StartCoordinators(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var typed []string
	wantNamed := func(when string) {
		t.Helper()
		for _, name := range c.CoordinatorNames() {
			wait.UntilNil(t, name+" to say that the store went back, "+when, func() error {
				st, err := c.StatusOf(ctx, name)
				if err != nil {
					return err
				}
				for _, f := range st.GetFindings() {
					if f.GetCode() == string(errcode.StoreWentBack) {
						if typed = remedy.FindStringSubmatch(f.GetRemedy()); typed == nil {
							t.Fatalf("the remedy of %v names no command", f)
						}
						return nil
					}
				}
				return fmt.Errorf("%s: %s, %v", st.GetPhase(), st.GetPhaseReason(), st.GetFindings())
			})
		}
	}
	wantNamed("as it did")
	onAdminFails(ctx, t, c, errcode.StoreWentBack, func(conn *grpc.ClientConn) error {
		_, err := fealtyv1.NewMemberServiceClient(conn).UnbanMember(ctx, &fealtyv1.UnbanMemberRequest{Kind: "data", Name: "node-a"})
		if err == nil || errors.Is(errcode.Of(err), errcode.NotFound) {
			_, err = fealtyv1.NewMemberServiceClient(conn).BanMember(ctx, &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-a", Reason: "x"})
		}
		return err
	})
	awaitBanned(ctx, t, c)
	for name, was := range versions {
		if is := held(ctx, t, c)[name]; is < was {
			t.Errorf("%s went back from bundle %d to %d", name, was, is)
		}
	}
	if err := c.StopCoordinators(); err != nil {
		t.Fatal(err)
	}

	// The remedy, as it is printed; the password of the database is not.
	args := strings.Fields(strings.TrimPrefix(typed[0], "fealty "))
	for i, arg := range args {
		switch arg {
		case typed[1]:
			args[i] = url
		case typed[2]:
			args[i] = filepath.Join(c.Dir(), "signer.key")
		}
	}
	var out, errs bytes.Buffer
	if exit := cli.Run(ctx, program.Env{Stdout: &out, Stderr: &errs, Args: args, Dir: t.TempDir(), Environ: []string{"HOME=" + t.TempDir()}}); exit != 0 {
		t.Fatalf("%v: exit %d\n%s%s", args, exit, &out, &errs)
	}
	if err := c.StartCoordinators(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitReady(ctx, c.CoordinatorNames()...); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitConnected(ctx, stay...); err != nil {
		t.Fatal(err)
	}
	wait.UntilNil(t, "the ban to be in force, and all members up to date", func() error {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if st.GetAuthorityEpoch() <= before.GetAuthorityEpoch() {
			t.Fatalf("epoch %d after %d", st.GetAuthorityEpoch(), before.GetAuthorityEpoch())
		}
		for _, f := range st.GetFindings() {
			if f.GetCode() == string(errcode.StoreWentBack) || f.GetCode() == string(errcode.StoreClaimed) {
				return fmt.Errorf("it finds %v", f)
			}
		}
		banned := false
		for _, m := range st.GetMembers() {
			banned = banned || m.GetName() == "node-c" && m.GetBanned()
		}
		if !banned {
			return fmt.Errorf("node-c is not banned: %v", st.GetMembers())
		}
		for _, name := range stay {
			n, err := c.Node(ctx, name)
			if err != nil || n.GetAuthorityEpoch() != st.GetAuthorityEpoch() {
				return fmt.Errorf("%s is at epoch %d, not %d: %w", name, n.GetAuthorityEpoch(), st.GetAuthorityEpoch(), err)
			}
			for _, scope := range n.GetHeld() {
				if scope.GetAuthorityEpoch() != st.GetAuthorityEpoch() && scope.GetScope() != string(snapshot.ScopeNodeBootstrap) {
					return fmt.Errorf("%s holds %s of epoch %d", name, scope.GetScope(), scope.GetAuthorityEpoch())
				}
			}
		}
		return nil
	})
	awaitBanned(ctx, t, c)
	// It goes on: what is changed now is in use.
	if err := c.PutConfig(ctx, "kind: qos\nname: silver\npriority: 3\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Join(ctx, "next"); err != nil {
		t.Fatal(err)
	}
}

// awaitBanned waits until the members hold a bundle that bans node-c.
func awaitBanned(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, name := range stay {
		wait.UntilNil(t, name+" to know of the ban", func() error {
			signed, _, err := c.Active(ctx, name, snapshot.ScopeTrustBundle)
			if err == nil && !bytes.Contains(signed.Content, []byte("/data/node-c\"")) {
				err = errors.New("its bundle does not have it")
			}
			return err
		})
	}
}

// held returns the versions of the trust bundles that members hold.
func held(ctx context.Context, t *testing.T, c *cluster.Cluster) map[string]uint64 {
	t.Helper()
	out := make(map[string]uint64)
	for _, name := range stay {
		wait.UntilNil(t, name+" to say what it holds", func() error {
			_, h, err := c.Active(ctx, name, snapshot.ScopeTrustBundle)
			out[name] = h.GetConfigVersion()
			return err
		})
	}
	return out
}

// onAdmin does f at a coordinator, again while the store is away.
func onAdmin(ctx context.Context, t *testing.T, c *cluster.Cluster, what string, f func(*grpc.ClientConn) error) {
	t.Helper()
	wait.UntilNil(t, what, func() error {
		conn, err := mesh.DialLocal(c.AdminSocket())
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(conn)
	})
}

// onAdminFails wants f to be refused with code.
func onAdminFails(ctx context.Context, t *testing.T, c *cluster.Cluster, code errcode.Code, f func(*grpc.ClientConn) error) {
	t.Helper()
	conn, err := mesh.DialLocal(c.AdminSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := f(conn); !errors.Is(errcode.Of(err), code) {
		t.Errorf("it ended with %v, want %s", err, code)
	}
}
