// These tests are inside the package for its clocks, and for the networks of members.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/agent"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/enroll"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/mesh"
)

// presented returns the chain that a coordinator presents.
func (c *Cluster) presented(ctx context.Context, name string) ([]*x509.Certificate, error) {
	addr, err := c.AddressOf(name)
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

// A fleet that slept for longer than every certificate of it is back by itself: those of
// members, of coordinators, and of the mesh CA, and the trust bundles too.
func TestWholeFleetSleeps(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	members := []string{"node-a", "node-b"}
	c := started(t, Options{Members: members})
	if err := c.AwaitConnected(ctx, members...); err != nil {
		t.Fatal(err)
	}
	before := make(map[string]time.Time)
	for _, name := range members {
		n, err := c.Node(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = n.GetSvidNotAfter().AsTime()
	}
	var last time.Time // certificate to end
	for _, name := range c.CoordinatorNames() {
		chain, err := c.presented(ctx, name)
		if err != nil || len(chain) < 2 {
			t.Fatalf("%s presents %d certificates, %v", name, len(chain), err)
		}
		for _, cert := range chain[:2] {
			if cert.NotAfter.After(last) {
				last = cert.NotAfter
			}
		}
	}
	c.clock.pass(last.Sub(c.clock.now()) + 12*time.Hour)
	now := c.clock.now()
	err := c.Await(ctx, "the fleet to be back", func(ctx context.Context) (bool, error) {
		for _, name := range c.CoordinatorNames() {
			chain, err := c.presented(ctx, name)
			if err != nil {
				return false, err
			}
			for _, cert := range chain[:2] {
				if !cert.NotAfter.After(now) {
					return false, fmt.Errorf("%s presents %s, which ended at %v", name, cert.Subject, cert.NotAfter)
				}
			}
		}
		for _, name := range members {
			n, err := c.Node(ctx, name)
			if err != nil {
				return false, err
			}
			if end := n.GetSvidNotAfter().AsTime(); !end.After(now) || !end.After(before[name]) || !n.GetConnected() || n.GetFreshness() != "fresh" {
				return false, fmt.Errorf("%s is certified until %v, connected: %v, %s; %s", name, end, n.GetConnected(), n.GetFreshness(), n.GetLastError())
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A node on a full disk has the key certified again that it holds, by real coordinators,
// which take it for no copy of itself; and it changes the key when there is space.
func TestNodeOnAFullDisk(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := started(t, Options{Members: []string{}, Coordinators: 1})
	tok, err := c.Token(ctx, &fealtyv1.CreateTokenRequest{Entry: PoolEntry, Name: "full"})
	if err != nil {
		t.Fatal(err)
	}
	disk, dir := durabletest.NewDisk(), t.TempDir()
	const state = "/state"
	if _, err := enroll.Join(ctx, enroll.JoinConfig{DataDir: state, Proof: enroll.ByToken(tok), Kind: identity.Data, Log: quiet(), Now: c.clock.now, FS: disk.FS()}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "a.sock")
	local, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.Open(ctx, agent.Config{DataDir: state, FS: disk.FS(), Local: local, Sockets: agent.Sockets{Config: filepath.Join(dir, "c.sock")}, Log: quiet(), Now: c.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	run, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(run) }() // waited for below
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	var conn fealtyv1.NodeServiceClient
	err = c.Await(ctx, "the agent", func(ctx context.Context) (bool, error) {
		l, err := mesh.DialLocal(socket)
		if err != nil {
			return false, err
		}
		conn = fealtyv1.NewNodeServiceClient(l)
		n, err := conn.GetNode(ctx, &fealtyv1.GetNodeRequest{})
		if err != nil || !n.GetConnected() {
			l.Close()
			return false, err
		}
		t.Cleanup(func() { l.Close() })
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	node := func() *fealtyv1.GetNodeResponse {
		t.Helper()
		n, err := conn.GetNode(ctx, &fealtyv1.GetNodeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := node()
	for i, full := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT} {
		disk.Refuse(full)
		was := node()
		c.clock.pass(time.Minute) // certificates end at whole seconds
		_, err := conn.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{})
		if e, ok := errcode.FromStatus(err); !ok || e.Code != errcode.NodeDiskRefuses {
			t.Fatalf("%v: %v", full, err)
		}
		if n := node(); n.GetKeyId() != first.GetKeyId() || !n.GetSvidNotAfter().AsTime().After(was.GetSvidNotAfter().AsTime()) {
			t.Fatalf("%d %v: key %s until %v, before %s until %v", i, full, n.GetKeyId(), n.GetSvidNotAfter().AsTime(), was.GetKeyId(), was.GetSvidNotAfter().AsTime())
		}
	}
	disk.Refuse(nil)
	if _, err := conn.RenewIdentity(ctx, &fealtyv1.RenewIdentityRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := node(); n.GetKeyId() == first.GetKeyId() {
		t.Error("with space on the disk the key is not changed")
	}
}
