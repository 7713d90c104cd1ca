package cluster

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// settle gives the one coordinator of a cluster to be an address which nobody else gets while it is down.
func settle(t *testing.T, dir string) {
	t.Helper()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, coordinatorNames(1)[0])
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, AddressFile), []byte(addr+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// Three coordinators share one store. Each is a coordinator of its own: what one
// certifies and signs the others stand by, and any of them serves alone.
func TestCoordinators(t *testing.T) {
	ctx := t.Context()
	c, err := Start(ctx, Options{Members: []string{"node-a", "node-b"}, Release: "test", Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	names := c.CoordinatorNames()
	var enrolment, addresses []string
	for _, name := range names {
		st, err := c.StatusOf(ctx, name)
		must(err)
		if st.GetPhase() != "ready" || st.GetAuthorityEpoch() != 1 {
			t.Errorf("%s is %s at epoch %d", name, st.GetPhase(), st.GetAuthorityEpoch())
		}
		enrolment, addresses = append(enrolment, st.GetEnrolmentKey()), append(addresses, st.GetAddresses()[0])
	}
	for _, all := range [][]string{enrolment, addresses} {
		if slices.Sort(all); len(slices.Compact(all)) != len(names) {
			t.Errorf("coordinators share something of their own: %v", all)
		}
	}
	// Down to any one of them: the members find it, and a new one joins at it.
	for i, name := range names {
		others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
		must(c.StopCoordinator(others[0]))
		must(c.KillCoordinator(others[1]))
		if err := c.KillCoordinator(others[1]); err == nil {
			t.Error("a coordinator that does not run was killed once more")
		}
		must(c.AwaitConnected(ctx, "node-a", "node-b"))
		if joined, err := c.Join(ctx, []string{"node-x", "node-y", "node-z"}[i]); err != nil || !joined {
			t.Errorf("a join with %s alone: %v, %v", name, joined, err)
		}
		must(c.StartCoordinators(ctx))
		must(c.AwaitReady(ctx))
	}
	st, err := c.Status(ctx)
	must(err)
	if len(st.GetMembers()) != 5 || st.GetAuthorityEpoch() != 1 {
		t.Errorf("%d members at epoch %d", len(st.GetMembers()), st.GetAuthorityEpoch())
	}
	if _, err := c.AddressOf("coordinator-9"); err == nil {
		t.Error("a coordinator that is not there has an address")
	}
}

// A coordinator whose old address is taken gets another one, and members who know only
// the old one find it.
func TestAddressTaken(t *testing.T) {
	ctx := t.Context()
	opts := Options{DataDir: t.TempDir(), Coordinators: 1, Members: []string{"node-a"}, Release: "test", Log: quiet()}
	settle(t, opts.DataDir)
	c, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	old := c.Address()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 { // it is known for longer than one start
		if c, err = Start(ctx, opts); err != nil {
			t.Fatal(err)
		}
		if c.Address() == old {
			t.Error("two listen at one address")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The folder of a release with one coordinator is refused with a word on what to do,
// and left as it is.
func TestOldLayout(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "coordinator"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: dir, Release: "test", Log: quiet()})
	if e := errcode.Of(err); !errors.Is(e, errcode.BadValue) {
		t.Fatalf("%v", err)
	}
	if l, _ := os.ReadDir(dir); len(l) != 1 {
		t.Errorf("%v was made in it", l)
	}
}
