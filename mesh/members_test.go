package mesh_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// answering says that all is well.
type answering struct {
	healthpb.UnimplementedHealthServer
}

func (answering) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// A server of members alone serves them, and closes the connections of those without a
// certificate; it ends with its context, and when its listener fails.
func TestListenMembers(t *testing.T) {
	t.Parallel()
	authority := pkitest.NewAuthority(t, "prod.example")
	source := func(kind identity.Kind, name string) credential.Source {
		chain, key := authority.Issue(t, authority.ID(t, kind, name))
		m, err := credential.NewMaterial(credential.MaterialConfig{Chain: chain, Key: key, Bundle: authority.Bundle()})
		if err != nil {
			t.Fatal(err)
		}
		return credential.Static(m)
	}
	guard, err := mesh.NewGuard(mesh.GuardConfig{Source: source(identity.Provider, "p")})
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"its context", "its listener"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		members, wait, err := guard.ListenMembers(ctx, l, mesh.GateConfig{})
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(guard.ServerOptions()...)
		healthpb.RegisterHealthServer(server, answering{})
		served := make(chan error, 1)
		go func() { served <- server.Serve(members) }()

		conn, err := mesh.Dial(l.Addr().String(), source(identity.Shard, "s"), credential.AnyOfKind(identity.Provider),
			mesh.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("a member: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		stranger, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, //nolint:gosec // a stranger
			NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
		if err == nil {
			_ = stranger.SetDeadline(time.Now().Add(2 * time.Minute)) // it is open
			_, err = io.ReadAll(stranger)                             // until it is closed
			stranger.Close()
		}
		if netErr := net.Error(nil); errors.As(err, &netErr) && netErr.Timeout() {
			t.Errorf("a stranger is let wait: %v", err)
		}

		if end == "its context" {
			cancel()
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := wait(); (err == nil) != (end == "its context") {
			t.Errorf("when %s ends: %v", end, err)
		}
		<-served
		server.Stop()
		cancel()
	}
	if _, _, err := guard.ListenMembers(t.Context(), nil, mesh.GateConfig{MaxSockets: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
}
