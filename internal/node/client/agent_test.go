package client_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/test/member"
	"github.com/fealty-io/fealty/test/wait"
)

var quiet = slog.New(slog.DiscardHandler)

// joined has a real agent join a real coordinator, and run until the test ends.
func joined(t *testing.T, f *coordinatortest.Fleet, name string) (folder string) {
	t.Helper()
	m := member.Join(t, f, "pool", name)
	m.Start(func(c *agent.Config) {
		c.Sockets.Config = filepath.Join(m.Dir, "c.sock")
	})
	return m.Dir
}

// A program beside an agent is the agent's member to a coordinator, believes what it believes,
// follows it, and goes on with the last good state when it cannot be read.
func TestBesideAnAgent(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	folder := joined(t, f, "node-a")
	f.Member("node-b")
	var failures atomic.Int32
	a, err := client.Open(client.Config{Dir: folder, Now: f.Clock, Log: quiet,
		OnFailure: func(credential.Reason) { failures.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	if a.ID().String() != "spiffe://test.example/data/node-a" {
		t.Fatalf("it is %s", a.ID())
	}
	link := client.New(client.LinkConfig{Source: a.Source(), Addresses: func() []string {
		// Those that do not answer are passed over.
		return append([]string{"127.0.0.1:1"}, a.Coordinators()...)
	}})
	defer link.Close()
	got, err := fealtyv1.NewGrantServiceClient(link).Grant(t.Context(), &fealtyv1.GrantRequest{Name: "node-a",
		Incarnation: fence.NewIncarnation().String()})
	if err != nil {
		t.Fatal(err)
	}
	authority := a.Authority()
	if verified, err := authority.OpenGrant(got.GetGrant()); err != nil {
		t.Error(err)
	} else if grant, _ := verified.Get(); grant.Holder != a.ID().String() {
		t.Errorf("the grant is of %s", grant.Holder)
	}

	// It believes a ban that the fleet does: also while the identity is of no use.
	svid := filepath.Join(folder, filepath.FromSlash(dir.SVIDName))
	good, err := os.ReadFile(svid)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, good[:len(good)/2], []byte("no PEM at all"), append([]byte{}, good[1:]...)} {
		if err := os.WriteFile(svid, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		a.Look()
		if m, err := a.Source().Current(t.Context()); err != nil || m.ID() != a.ID() || m.Key() == nil {
			t.Fatalf("with %d bytes of a certificate: %v, %v", len(bad), m, err)
		}
	}
	_, err = fealtyv1.NewMemberServiceClient(f.LocalConn()).BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "node-b",
		Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	banned, err := identity.New("test.example", identity.Data, "node-b")
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the ban is believed", func() bool {
		a.Look()
		m, err := a.Source().Current(t.Context())
		return err == nil && m.Bundle().Banned(banned, identity.KeyID{})
	})
	if err := os.WriteFile(svid, good, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Look()
	if m, err := a.Source().Current(t.Context()); err != nil || !m.Bundle().Banned(banned, identity.KeyID{}) {
		t.Errorf("with the certificate again: %v, %v", m, err)
	}
	if _, err := authority.OpenGrant(got.GetGrant()); err != nil {
		t.Errorf("the grant of before: %v", err)
	}
	if _, err := fealtyv1.NewGrantServiceClient(link).Grant(t.Context(), &fealtyv1.GrantRequest{Name: "node-a",
		Incarnation: fence.NewIncarnation().String()}); err != nil {
		t.Errorf("it is nobody to the coordinator any more: %v", err)
	}
}

// put copies the files of a folder into another one.
func put(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		at, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, at), 0o700)
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the agent put another one in its place
		}
		return errors.Join(err, os.WriteFile(filepath.Join(to, at), text, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A folder that is as it was before a ban is not believed, and that is told, also if all of it was
// in use once.
func TestAFolderOfBefore(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	folder := joined(t, f, "node-a")
	f.Member("node-b")
	old, seen := t.TempDir(), t.TempDir()
	put(t, folder, old)
	put(t, old, seen)
	open := func(folder string) *client.Agent {
		a, err := client.Open(client.Config{Dir: folder, Now: f.Clock, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, live := open(seen), open(folder)
	banned, err := identity.New("test.example", identity.Data, "node-b")
	if err != nil {
		t.Fatal(err)
	}
	bans := func(a *client.Agent) bool {
		a.Look()
		m, err := a.Source().Current(t.Context())
		return err == nil && m.Bundle().Banned(banned, identity.KeyID{})
	}
	if bans(a) || a.Failure() != nil {
		t.Fatal("before the ban:", a.Failure())
	}
	_, err = fealtyv1.NewMemberServiceClient(f.LocalConn()).BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data",
		Name: "node-b", Reason: "stolen"})
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the agent believes the ban", func() bool { return bans(live) })
	put(t, folder, seen)
	if err := os.Remove(filepath.Join(seen, filepath.FromSlash(dir.SVIDName))); err != nil {
		t.Fatal(err)
	}
	if !bans(a) || !errors.As(a.Failure(), new(*credential.MaterialError)) {
		t.Fatal("with the ban alone:", a.Failure())
	}
	if err := os.RemoveAll(seen); err != nil {
		t.Fatal(err)
	}
	put(t, old, seen)
	if !bans(a) || a.Failure() == nil {
		t.Error("with what was there before:", a.Failure())
	}
}

// A folder that no agent filled is an error with a remedy.
func TestNoAgent(t *testing.T) {
	t.Parallel()
	_, err := client.Open(client.Config{Dir: t.TempDir(), Log: quiet})
	if !errors.Is(errcode.Of(err), errcode.NodeNotJoined) {
		t.Errorf("%v", err)
	}
}
