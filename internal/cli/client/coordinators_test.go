package client_test

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/client"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// Requests of an admin go to coordinators alone: a member of the same cluster that answers at the
// address of one hears nothing of them.
func TestOnlyCoordinatorsAreAsked(t *testing.T) {
	const cluster = "prod.example"
	a := pkitest.NewAuthority(t, cluster)
	source := func(kind identity.Kind, name string) credential.Source {
		chain, key := a.Issue(t, a.ID(t, kind, name))
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: a.Bundle()})
		if err != nil {
			t.Fatal(err)
		}
		return credential.Static(m)
	}
	var asked atomic.Int64
	serve := func(kind identity.Kind, name string) string {
		guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source(kind, name)})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(append(guard.ServerOptions(), grpc.UnknownServiceHandler(
			func(any, grpc.ServerStream) error { asked.Add(1); return nil }))...)
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		t.Cleanup(func() { server.Stop(); <-served })
		return l.Addr().String()
	}
	drain := func(at string) error {
		l, err := client.DialAs(enroll.LoginIdentity{ID: a.ID(t, identity.Admin, "alice"), Source: source(identity.Admin,
			"alice")}, []string{at}, time.Now, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, err = fealtyv1.NewMemberServiceClient(l).DrainMember(t.Context(), &fealtyv1.DrainMemberRequest{Kind: "data",
			Name: "node-a"})
		return err
	}
	err := drain(serve(identity.Data, "c1"))
	if h, ok := errors.AsType[*mesh.HandshakeError](err); !ok || h.Reason != mesh.IdentityMismatch || asked.Load() != 0 {
		t.Errorf("a member was asked %d times: %v", asked.Load(), err)
	}
	if _ = drain(serve(identity.Coordinator, "c1")); asked.Load() == 0 {
		t.Error("a coordinator was not asked: this test looks at nothing")
	}
}
