package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/snapshot"
	"github.com/fealty-io/fealty/test/wait"
)

// named answers every health check, and counts them.
type named struct {
	healthpb.UnimplementedHealthServer
	mu    sync.Mutex
	calls int
}

func (n *named) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (n *named) called() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

// peerServer runs a server that is m until the test ends.
func peerServer(t *testing.T, m *agentFolder) (addr string, n *named) {
	t.Helper()
	server, err := m.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n = new(named)
	healthpb.RegisterHealthServer(server, n)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	return l.Addr().String(), n
}

// A member calls its peers where the signed directory says that they are, goes on to those that it
// says next, and believes none that does not prove itself.
func TestPeerDirectory(t *testing.T) {
	t.Parallel()
	f := coordinatortest.ReadyFleet(t, nil)
	if err := f.Set(f.Manifest("  - {name: plain, kind: data, match: [\"token:plain\"]}\n")); err != nil {
		t.Fatal(err)
	}
	a, b, c := joinUnder(t, f, "plain", "node-a"), joinUnder(t, f, "plain", "node-b"), joinUnder(t, f, "plain", "node-c")
	atB, isB := peerServer(t, b)
	atC, isC := peerServer(t, c)
	put := func(name, member, class string, addrs ...string) {
		t.Helper()
		record := fmt.Sprintf("kind: peer\nname: %s\nmember: data/%s\nclass: %s\naddresses: [%q]\n", name, member, class,
			strings.Join(addrs, `", "`))
		if _, err := fealtyv1.NewConfigServiceClient(f.LocalConn()).PutConfig(t.Context(),
			&fealtyv1.PutConfigRequest{Records: [][]byte{[]byte(record)}}); err != nil {
			t.Fatal(err)
		}
	}
	put("self", "node-a", "active", atC) // which is not to be called for it
	put("b", "node-b", "active", atB)
	put("lost", "node-c", "active", atB) // somebody else answers there
	put("spare", "node-c", "bootstrap", atC)
	wait.Until(t, "the directory arrives", func() bool {
		got, err := a.Snapshot(t.Context(), snapshot.ScopePeerDirectory)
		return err == nil && strings.Contains(string(got.JSON), `"spare"`)
	})

	pool := a.NewPool()
	defer pool.Close()
	check := func(conn grpc.ClientConnInterface) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	}
	dial := func(target string, expect ...identity.ID) *mesh.Conn {
		t.Helper()
		conn, err := pool.Dial(target, a.Source(), credential.AnyOf(expect...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	active := dial("peers:///", b.ID(), c.ID())
	for range 50 {
		if err := check(active); err != nil {
			t.Fatal(err)
		}
	}
	if isB.called() != 50 || isC.called() != 0 {
		t.Fatalf("active peers were called %d times, and others %d", isB.called(), isC.called())
	}
	if err := check(dial("peers://bootstrap/", b.ID(), c.ID())); err != nil || isC.called() != 1 {
		t.Fatalf("peers of another list: %v, %d", err, isC.called())
	}
	if err := check(dial("peers:///spare", c.ID())); err != nil || isC.called() != 2 {
		t.Fatalf("a peer by its name: %v, %d", err, isC.called())
	}
	err := check(dial("peers:///lost", c.ID()))
	if h, ok := errors.AsType[*mesh.HandshakeError](err); !ok || h.Reason != mesh.IdentityMismatch || h.Endpoint != atB {
		t.Fatalf("a peer at the address of another: %v", err)
	}
	if err := check(dial("peers://nowhere/", b.ID())); err == nil || !strings.Contains(err.Error(), "use active, bootstrap, warm") {
		t.Fatalf("a list that is none: %v", err)
	}
	// The directory changes, and the client follows.
	moving := dial("peers:///lost", b.ID(), c.ID())
	if err := check(moving); err != nil {
		t.Fatal(err)
	}
	before := isC.called()
	put("lost", "node-c", "active", atC)
	wait.Until(t, "calls go where the directory says now", func() bool {
		if err := check(moving); err != nil {
			t.Fatal(err)
		}
		return isC.called() > before
	})
	// A client that is the node's own has the same targets.
	own, err := a.Dial("peers:///spare", credential.ExactID(c.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := check(own); err != nil {
		t.Fatal(err)
	}
}
