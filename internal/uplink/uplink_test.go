package uplink_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/identitytest"
	"github.com/fealty-io/fealty/internal/uplink"
	"github.com/fealty-io/fealty/mesh"
)

// server answers a call that nobody has to be asked for.
type server struct {
	fealtyv1.UnimplementedDomainServiceServer
	answer func() error
	calls  int
}

func (s *server) ListDomains(context.Context, *fealtyv1.ListDomainsRequest) (*fealtyv1.ListDomainsResponse, error) {
	s.calls++
	return &fealtyv1.ListDomainsResponse{}, s.answer()
}

// A call goes to the coordinator that answered last, and to each other one while none does; an
// answer that says no is an answer.
func TestWhoeverAnswers(t *testing.T) {
	t.Parallel()
	authority := identitytest.NewAuthority(t, "prod.example")
	source := func(kind identity.Kind, name string) credential.Source {
		chain, key := authority.Issue(t, authority.ID(t, kind, name))
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
		if err != nil {
			t.Fatal(err)
		}
		return credential.Static(m)
	}
	serve := func(kind identity.Kind, s *server) (address string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source(kind, "c")})
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer(guard.ServerOptions()...)
		fealtyv1.RegisterDomainServiceServer(g, s)
		go g.Serve(l) //nolint:errcheck // it ends with the test
		t.Cleanup(g.Stop)
		return l.Addr().String()
	}
	fine := func() error { return nil }
	older := func() error { return explain.New(explain.Denied, "denied", "unknown-method") }
	a, b, impostor := &server{answer: fine}, &server{answer: fine}, &server{answer: fine}
	at := []string{"127.0.0.1:1", serve(identity.Data, impostor), serve(identity.Coordinator, a),
		serve(identity.Coordinator, b)}
	link := uplink.New(uplink.Config{Source: source(identity.Shard, "s"), Addresses: func() []string { return slices.Clone(at) }})
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
	if a.calls != 3 || b.calls != 0 || impostor.calls != 0 {
		t.Errorf("%d calls at the first one, %d at the other, %d at one that is no coordinator", a.calls, b.calls,
			impostor.calls)
	}
	a.answer = func() error { return status.Error(codes.PermissionDenied, "no") }
	if err := call(); status.Code(err) != codes.PermissionDenied || b.calls != 0 {
		t.Errorf("an answer was not believed: %v, and %d calls at the other one", err, b.calls)
	}
	a.answer = func() error { return status.Error(codes.Unavailable, "not now") }
	for range 2 {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	if a.calls != 5 || b.calls != 2 {
		t.Errorf("%d calls at the first one, want 5, and %d at the other one, want 2", a.calls, b.calls)
	}
	// In the middle of an upgrade one does not know the call yet, and the next one does.
	a.answer, b.answer, a.calls = fine, older, 0
	if err := call(); err != nil || a.calls != 1 {
		t.Errorf("beside a newer one: %v, %d calls there", err, a.calls)
	}
	a.answer = older
	if err := call(); !errors.Is(err, explain.Denied) {
		if e, ok := explain.FromStatus(err); !ok || e.Code != explain.Denied {
			t.Errorf("all of them are older: %v", err)
		}
	}
	at = at[:2]
	if err := call(); !errors.Is(err, uplink.ErrNobody) || status.Code(err) != codes.Unavailable {
		t.Errorf("with no coordinator left: %v", err)
	}
	at = nil
	if err := call(); !errors.Is(err, uplink.ErrNobody) {
		t.Errorf("with none known: %v", err)
	}
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	if err := call(); err == nil {
		t.Error("a closed link calls")
	}
}
