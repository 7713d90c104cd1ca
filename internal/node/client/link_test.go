package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/errcode"
	nodeclient "github.com/fealty-io/fealty/internal/node/client"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// server answers a call that nobody has to be asked for.
type server struct {
	fealtyv1.UnimplementedDomainServiceServer
	answer func() error
	calls  atomic.Int32
}

func (s *server) ListDomains(context.Context, *fealtyv1.ListDomainsRequest) (*fealtyv1.ListDomainsResponse, error) {
	s.calls.Add(1)
	return &fealtyv1.ListDomainsResponse{}, s.answer()
}

// cluster issues identities, and serves under them.
type cluster struct {
	t         *testing.T
	authority *pkitest.Authority
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t, pkitest.NewAuthority(t, "prod.example")}
}

func (c *cluster) source(kind identity.Kind, name string) credential.Source {
	c.t.Helper()
	chain, key := c.authority.Issue(c.t, c.authority.ID(c.t, kind, name))
	m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: c.authority.Bundle()})
	if err != nil {
		c.t.Fatal(err)
	}
	return credential.Static(m)
}

func (c *cluster) serve(kind identity.Kind, s *server) (address string) {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: c.source(kind, "c")})
	if err != nil {
		c.t.Fatal(err)
	}
	g := grpc.NewServer(guard.ServerOptions()...)
	fealtyv1.RegisterDomainServiceServer(g, s)
	go g.Serve(l) //nolint:errcheck // it ends with the test
	c.t.Cleanup(g.Stop)
	return l.Addr().String()
}

// lines are those of a log; what nobody waits for is dropped.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

func (l lines) await(t *testing.T, want string) {
	t.Helper()
	for end := time.After(time.Minute); ; {
		select {
		case line := <-l:
			if strings.Contains(line, want) {
				return
			}
		case <-end:
			t.Fatalf("no line has %s", want)
		}
	}
}

// A call goes to the coordinator that answered last, and to each other one while none does; an
// answer that says no is an answer.
func TestWhoeverAnswers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	fine := func() error { return nil }
	older := func() error { return errcode.New(errcode.Denied, "denied", "unknown-method") }
	a, b, impostor := &server{answer: fine}, &server{answer: fine}, &server{answer: fine}
	at := []string{"127.0.0.1:1", c.serve(identity.Data, impostor), c.serve(identity.Coordinator, a),
		c.serve(identity.Coordinator, b)}
	log := make(lines, 64)
	link := nodeclient.New(nodeclient.LinkConfig{Source: c.source(identity.Shard, "s"), Addresses: func() []string { return slices.Clone(at) },
		Log: slog.New(slog.NewJSONHandler(log, nil))})
	client := fealtyv1.NewDomainServiceClient(link)
	call := func() error {
		_, err := client.ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{})
		return err
	}
	for range 3 {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	if a.calls.Load() != 3 || b.calls.Load() != 0 || impostor.calls.Load() != 0 {
		t.Errorf("%d calls at the first one, %d at the other, %d at one that is no coordinator", a.calls.Load(), b.calls.Load(),
			impostor.calls.Load())
	}
	// Who is rejected stands in the log of the process, in its format, and not in that of the library.
	log.await(t, `"msg":"endpoint rejected`)
	link.Close()
	link = nodeclient.New(nodeclient.LinkConfig{Source: c.source(identity.Shard, "s"), Addresses: func() []string { return slices.Clone(at) },
		Log: slog.New(slog.DiscardHandler)})
	client = fealtyv1.NewDomainServiceClient(link)
	a.answer = func() error { return status.Error(codes.PermissionDenied, "no") }
	if err := call(); status.Code(err) != codes.PermissionDenied || b.calls.Load() != 0 {
		t.Errorf("an answer was not believed: %v, and %d calls at the other one", err, b.calls.Load())
	}
	a.answer = func() error { return status.Error(codes.Unavailable, "not now") }
	for range 2 {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	if a.calls.Load() != 5 || b.calls.Load() != 2 {
		t.Errorf("%d calls at the first one, want 5, and %d at the other one, want 2", a.calls.Load(), b.calls.Load())
	}
	// In the middle of an upgrade one does not know the call yet, and the next one does.
	a.answer, b.answer = fine, older
	a.calls.Store(0)
	if err := call(); err != nil || a.calls.Load() != 1 {
		t.Errorf("beside a newer one: %v, %d calls there", err, a.calls.Load())
	}
	a.answer = older
	if err := call(); !errors.Is(err, errcode.Denied) {
		if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.Denied {
			t.Errorf("all of them are older: %v", err)
		}
	}
	at = at[:2]
	if err := call(); !errors.Is(err, nodeclient.ErrNobody) || status.Code(err) != codes.Unavailable {
		t.Errorf("with no coordinator left: %v", err)
	}
	at = nil
	if err := call(); !errors.Is(err, nodeclient.ErrNobody) {
		t.Errorf("with none known: %v", err)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	if err := call(); err == nil {
		t.Error("a closed link calls")
	}
}

// A call that waits for a coordinator which another call leaves is made again at the next one.
func TestLeftWhileCalling(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fine := &server{answer: func() error { return nil }}
	var at atomic.Pointer[string]
	known := func(address string) { at.Store(&address) }
	known(silent.Addr().String())
	link := nodeclient.New(nodeclient.LinkConfig{Source: c.source(identity.Shard, "s"), Addresses: func() []string { return []string{*at.Load()} }})
	defer link.Close()
	call := func() error {
		_, err := fealtyv1.NewDomainServiceClient(link).ListDomains(t.Context(), &fealtyv1.ListDomainsRequest{})
		return err
	}
	waits := make(chan error, 1)
	go func() { waits <- call() }()
	conn, err := silent.Accept() // and nothing is said
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	known(c.serve(identity.Coordinator, fine))
	if err := call(); err != nil {
		t.Error(err)
	}
	if err := <-waits; err != nil {
		t.Errorf("the one that waited: %v", err)
	}
	if fine.calls.Load() != 2 {
		t.Errorf("%d calls, want 2", fine.calls.Load())
	}
}
