package attest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/attest"
)

// source is what a node knows.
type source struct {
	mu   sync.Mutex
	set  *attest.Set               // guarded by mu
	svid map[identity.ID]*dir.SVID // guarded by mu
}

func (s *source) Set() *attest.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

func (s *source) SVID(id identity.ID) (*dir.SVID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if svid := s.svid[id]; svid != nil {
		return svid, nil
	}
	return nil, errors.New("none yet")
}

func (s *source) Roots() *attest.Roots     { return nil }
func (s *source) Issued() <-chan struct{}  { return nil }
func (s *source) Changed() <-chan struct{} { return nil }

// door is a socket with callers behind it.
type door struct {
	t       *testing.T
	l       net.Listener
	callers *attest.Callers
	source  *source
	refused map[string]int
}

func newDoor(t *testing.T) *door {
	t.Helper()
	folder, err := os.MkdirTemp("", "c") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(folder) })
	d := &door{t: t, l: l, source: new(source), refused: make(map[string]int)}
	d.callers = attest.NewCallers(attest.Config{Source: d.source, Log: slog.New(slog.DiscardHandler),
		Refused: func(reason string) { d.refused[reason]++ }})
	return d
}

// enter connects this process.
func (d *door) enter() (client, server net.Conn, info credentials.AuthInfo, err error) {
	d.t.Helper()
	if client, err = net.Dial("unix", d.l.Addr().String()); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { client.Close() })
	raw, err := d.l.Accept()
	if err != nil {
		d.t.Fatal(err)
	}
	server, info, err = d.callers.ServerHandshake(raw)
	if err == nil {
		d.t.Cleanup(func() { server.Close() })
	}
	return client, server, info, err
}

// call is the context of a call of this process.
func (d *door) call() context.Context {
	d.t.Helper()
	_, _, info, err := d.enter()
	if err != nil {
		d.t.Fatal(err)
	}
	return grpcpeer.NewContext(d.t.Context(), &grpcpeer.Peer{AuthInfo: info})
}

func idOf(t *testing.T, name string) identity.ID {
	t.Helper()
	id, err := identity.New("test.example", identity.Workload, name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (d *door) register(all ...workload.Registration) {
	d.source.mu.Lock()
	defer d.source.mu.Unlock()
	d.source.set = attest.NewSet(all)
}

// Connections are bounded, in all and of one user, and given back once.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		all, ofUser int
	}{{"in all", 2, 9}, {"of one user", 9, 2}} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDoor(t)
			d.callers.Limit(tc.all, tc.ofUser)
			_, first, _, err := d.enter()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, _, err := d.enter(); err != nil {
				t.Fatal(err)
			}
			client, _, _, err := d.enter()
			if err == nil || d.refused[attest.ReasonCrowded] != 1 {
				t.Fatalf("a third one: %v, refused %v", err, d.refused)
			}
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("a third one reads %v, want its end", err)
			}
			first.Close()
			first.Close()
			if _, _, _, err := d.enter(); err != nil {
				t.Errorf("after one was closed: %v", err)
			}
			if _, _, _, err := d.enter(); err == nil {
				t.Error("one that was closed twice gave two places back")
			}
		})
	}
	d := newDoor(t)
	if all, one := d.callers.Limits(); all < 2 || all > attest.MaxConnections || one != min(all/2, attest.MaxUserConnections) {
		t.Errorf("%d connections, %d of one user", all, one)
	}
}

// Calls under way are bounded for one user, whatever its connections, and given back.
func TestCallsOfOneUser(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	calls := []context.Context{d.call(), d.call()}
	var end func()
	for i := range attest.MaxUserCalls {
		var err error
		if end, err = d.callers.Begin(calls[i%2]); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if _, err := d.callers.Begin(calls[0]); status.Code(err) != codes.ResourceExhausted || d.refused[attest.ReasonCrowded] != 1 {
		t.Fatalf("one more: %v, refused %v", err, d.refused)
	}
	end()
	if _, err := d.callers.Begin(calls[1]); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if _, err := d.callers.Begin(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("of nobody: %v", err)
	}
}

// At the end all connections are closed, and those that come later.
func TestClose(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	client, _, _, err := d.enter()
	if err != nil {
		t.Fatal(err)
	}
	d.callers.Close()
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("reads %v, want its end", err)
	}
	if _, _, _, err := d.enter(); err == nil {
		t.Error("one came in after the end")
	}
}

// A caller is the workloads that it fits, each once; it learns nothing of others.
func TestIdentify(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	ctx, me, other := d.call(), uint32(os.Getuid()), uint32(os.Getuid()+1)
	if _, err := d.callers.Identify(ctx); status.Code(err) != codes.PermissionDenied {
		t.Errorf("with nothing in use: %v", err)
	}
	d.register(workload.Registration{Service: "x", ID: idOf(t, "x"), Selector: workload.Selector{UID: &other}})
	_, err := d.callers.Identify(ctx)
	if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "no identity issued" ||
		d.refused[attest.ReasonUnregistered] != 2 {
		t.Errorf("of another user: %v, refused %v", err, d.refused)
	}
	mine := workload.Selector{UID: &me}
	d.register(workload.Registration{Service: "a", ID: idOf(t, "a"), Selector: mine},
		workload.Registration{Service: "a2", ID: idOf(t, "a"), Selector: mine},
		workload.Registration{Service: "b", ID: idOf(t, "b"), Selector: workload.Selector{UID: &other}},
		workload.Registration{Service: "c", ID: idOf(t, "c"), Selector: mine})
	who, err := d.callers.Identify(ctx)
	if err != nil || !slices.Equal(who.IDs, []identity.ID{idOf(t, "a"), idOf(t, "c")}) ||
		!slices.Equal(who.Services, []string{"a", "c"}) {
		t.Fatalf("%+v, %v", who, err)
	}
	// Those without a certificate are left out, until there is none.
	if all, pending, err := d.callers.Identities(who); !pending || status.Code(err) != codes.Unavailable || len(all) != 0 {
		t.Errorf("with no certificate: %v, %v, %v", all, pending, err)
	}
	d.source.svid = map[identity.ID]*dir.SVID{idOf(t, "c"): new(dir.SVID)}
	if all, _, err := d.callers.Identities(who); err != nil || len(all) != 1 || all[0].ID != idOf(t, "c") || all[0].Service != "c" {
		t.Errorf("with one certificate: %v, %v", all, err)
	}
	if _, err := d.callers.Identify(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("on no connection: %v", err)
	}
}

// Registrations for one user, and those for any, are looked at in one order: each workload once.
func TestIdentitiesAreSorted(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	me, mine, other := uint32(os.Getuid()), uint32(os.Getgid()), uint32(os.Getuid()+1)
	of := func(service, id string, s workload.Selector) workload.Registration {
		return workload.Registration{Service: service, ID: idOf(t, id), Selector: s}
	}
	d.register(of("a", "a", workload.Selector{GID: &mine}), of("b", "b", workload.Selector{UID: &me}),
		of("b2", "b", workload.Selector{GID: &mine}), of("c", "c", workload.Selector{UID: &other}),
		of("d", "d", workload.Selector{GID: &mine}), of("e", "e", workload.Selector{UID: &me, GID: &mine}))
	who, err := d.callers.Identify(d.call())
	want := []identity.ID{idOf(t, "a"), idOf(t, "b"), idOf(t, "d"), idOf(t, "e")}
	if err != nil || !slices.Equal(who.IDs, want) || !slices.Equal(who.Services, []string{"a", "b", "d", "e"}) {
		t.Errorf("%+v, %v", who, err)
	}
}

// A caller stands as long as the same is registered for its user, whatever is for others.
func TestStands(t *testing.T) {
	t.Parallel()
	me, mine, other := uint32(os.Getuid()), uint32(os.Getgid()), uint32(os.Getuid()+1)
	of := func(service, id string, s workload.Selector) workload.Registration {
		return workload.Registration{Service: service, ID: idOf(t, id), Selector: s}
	}
	also := mine // equal, and at another place
	first := []workload.Registration{of("a", "a", workload.Selector{UID: &me}), of("b", "b", workload.Selector{GID: &mine}),
		of("c", "c", workload.Selector{UID: &other})}
	with := func(n int, r workload.Registration) []workload.Registration {
		all := slices.Clone(first)
		all[n] = r
		return all
	}
	for _, tc := range []struct {
		name string
		all  []workload.Registration
		want bool
	}{
		{"the same", slices.Clone(first), true},
		{"with the same group", with(1, of("b", "b", workload.Selector{GID: &also})), true},
		{"something else of another user", with(2, of("c2", "c", workload.Selector{UID: &other, Path: "/bin/x"})), true},
		{"nothing of another user", first[:2], true},
		{"one more of another user", append(slices.Clone(first), of("d", "d", workload.Selector{UID: &other})), true},
		{"one more", append(slices.Clone(first), of("d", "d", workload.Selector{UID: &me})), false},
		{"one more of any user", append(slices.Clone(first), of("d", "d", workload.Selector{GID: &other})), false},
		{"one less", first[1:], false},
		{"by another service", with(0, of("a2", "a", workload.Selector{UID: &me})), false},
		{"another workload", with(0, of("a", "a2", workload.Selector{UID: &me})), false},
		{"a path", with(0, of("a", "a", workload.Selector{UID: &me, Path: "/bin/x"})), false},
		{"a hash", with(0, of("a", "a", workload.Selector{UID: &me, SHA256: "x"})), false},
		{"a unit", with(0, of("a", "a", workload.Selector{UID: &me, Unit: "x.service"})), false},
		{"a container", with(0, of("a", "a", workload.Selector{UID: &me, Container: "x"})), false},
		{"a group", with(0, of("a", "a", workload.Selector{UID: &me, GID: &mine})), false},
		{"another group", with(1, of("b", "b", workload.Selector{GID: &other})), false},
		{"another user", with(0, of("a", "a", workload.Selector{UID: &other})), false},
	} {
		d := newDoor(t)
		d.register(first...)
		who, err := d.callers.Identify(d.call())
		if err != nil {
			t.Fatal(err)
		}
		if got := who.Stands(attest.NewSet(tc.all)); got != tc.want {
			t.Errorf("%s: it stands: %v, want %v", tc.name, got, tc.want)
		}
		if who.Stands(nil) {
			t.Error("it stands where nothing may be used")
		}
		who.Facts.Unread = map[string]string{"path": "not now"}
		if who.Stands(d.source.Set()) || who.Stands(attest.NewSet(slices.Clone(first))) {
			t.Error("it stands on what could not be read")
		}
	}
}

// A stream that stands for days keeps no set but the last one, with all that it registers.
func TestStandingKeepsNoOldSet(t *testing.T) {
	t.Parallel()
	d, me := newDoor(t), uint32(os.Getuid())
	mine := workload.Registration{Service: "a", ID: idOf(t, "a"), Selector: workload.Selector{UID: &me}}
	d.register(mine)
	who, err := d.callers.Identify(d.call())
	if err != nil {
		t.Fatal(err)
	}
	old := weak.Make(d.source.Set())
	d.register(mine)
	if !who.Stands(d.source.Set()) {
		t.Fatal("it does not stand")
	}
	runtime.GC()
	if old.Value() != nil {
		t.Error("the set of before is still there")
	}
	runtime.KeepAlive(who)
}

// No more is read of a caller than what tells whether it is one of the workloads of its user.
func TestReadsWhatIsLookedAt(t *testing.T) {
	t.Parallel()
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	me, mine, other := uint32(os.Getuid()), uint32(os.Getgid()), uint32(os.Getuid()+1)
	for _, tc := range []struct {
		name string
		s    workload.Selector
		ids  int
		path bool
	}{
		{"its user", workload.Selector{UID: &me}, 2, false},
		{"a path of another user", workload.Selector{UID: &other, Path: path}, 1, false},
		{"a path of another group", workload.Selector{UID: &me, GID: &other, Path: path}, 1, false},
		{"its path", workload.Selector{UID: &me, GID: &mine, Path: path}, 2, true},
		{"the path of everybody", workload.Selector{Path: path}, 2, true},
		{"another path", workload.Selector{UID: &me, Path: "/bin/other"}, 1, true},
		{"a unit", workload.Selector{UID: &me, Unit: "none-such.service"}, 1, false},
	} {
		d := newDoor(t)
		d.register(workload.Registration{Service: "p", ID: idOf(t, "p"), Selector: workload.Selector{UID: &me}},
			workload.Registration{Service: "q", ID: idOf(t, "q"), Selector: tc.s})
		who, err := d.callers.Identify(d.call())
		if err != nil || len(who.IDs) != tc.ids || (who.Facts.Path != "") != tc.path {
			t.Errorf("%s: %+v, %v", tc.name, who, err)
		}
	}
}

// The executable of a caller is read only if its hash could make it a workload.
func TestHashOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(raw)
	sum, me, other := hex.EncodeToString(digest[:]), uint32(os.Getuid()), uint32(os.Getuid()+1)
	plain := workload.Registration{Service: "p", ID: idOf(t, "p"), Selector: workload.Selector{UID: &me}}
	for _, tc := range []struct {
		name string
		s    workload.Selector
		ids  int
		want bool
	}{
		{"nobody asks", workload.Selector{UID: &me}, 2, false},
		{"of another user", workload.Selector{UID: &other, SHA256: sum}, 1, false},
		{"of another path", workload.Selector{Path: "/bin/other", SHA256: sum}, 1, false},
		{"of this user", workload.Selector{UID: &me, SHA256: sum}, 2, true},
		{"of everybody", workload.Selector{SHA256: sum}, 2, true},
		{"another hash", workload.Selector{SHA256: hex.EncodeToString(make([]byte, 32))}, 1, true},
	} {
		d := newDoor(t)
		d.register(plain, workload.Registration{Service: "q", ID: idOf(t, "q"), Selector: tc.s})
		who, err := d.callers.Identify(d.call())
		if err != nil || len(who.IDs) != tc.ids || (who.Facts.SHA256 != "") != tc.want {
			t.Errorf("%s: %+v, %v", tc.name, who, err)
		}
	}
}
