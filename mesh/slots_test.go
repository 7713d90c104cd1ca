package mesh_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	internalmesh "github.com/fealty-io/fealty/internal/mesh"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc/test/bufconn"
)

// crowd is a listener in memory whose connections come from chosen addresses.
type crowd struct {
	*bufconn.Listener
	mu   sync.Mutex // held while one connection is made
	from chan string
}

func newCrowd() *crowd {
	return &crowd{Listener: bufconn.Listen(1 << 16), from: make(chan string, 1)}
}

func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return addressed{conn, net.TCPAddr{IP: net.ParseIP(<-c.from), Port: 7}}, nil
}

// connect makes one connection from an address.
func (c *crowd) connect(ctx context.Context, from string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn, err := c.DialContext(ctx)
	if err == nil {
		c.from <- from
	}
	return conn, err
}

// dial returns a client at an address. Without material it is a stranger.
func (c *crowd) dial(t *testing.T, from string, m *credential.Material) *mesh.Conn {
	t.Helper()
	return dial(t, "passthrough:///c1", credential.Static(m), credential.AnyOfKind(identity.Coordinator),
		mesh.Options{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return c.connect(ctx, from) }})
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.TCPAddr
}

func (a addressed) RemoteAddr() net.Addr { return &a.from }

// wantFull waits for a refusal and compares it.
func (s *serving) wantFull(t *testing.T, want mesh.FullError) {
	t.Helper()
	err := receive(t, s.refusals, "the refusal")
	if full, ok := errors.AsType[*mesh.FullError](err); !ok || *full != want {
		t.Fatalf("refused with %v, want %v", err, &want)
	}
}

// wantTaken compares what is taken once everything has settled.
func (s *serving) wantTaken(t *testing.T, handshakes, conns, strangers int) {
	t.Helper()
	synctest.Wait()
	h, c, st, holders := s.guard.Taken()
	if h != handshakes || c != conns || st != strangers || holders > h+c+st {
		t.Fatalf("%d handshakes, %d connections, %d strangers and %d holders, want %d, %d, %d and no more holders",
			h, c, st, holders, handshakes, conns, strangers)
	}
}

// Connections that never shake hands take the slots of their source, and then of
// all handshakes, for as long as a handshake may last; none of a member.
func TestHalfOpenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln := newCrowd()
		s := serve(t, ln, mesh.GuardConfig{
			Source:   credential.Static(material(t, a, identity.Coordinator, "c1")),
			MaxConns: 4, MaxStrangers: 4, MaxHandshakes: 7, HandshakesPerSource: 3,
		})
		halfOpen := func(from string) {
			t.Helper()
			c, err := ln.connect(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		for i := range 9 {
			halfOpen(fmt.Sprintf("2001:db8::%d", i)) // one /64
		}
		for range 6 {
			s.wantFull(t, mesh.FullError{Limit: 3, Handshakes: true, Of: "2001:db8::/64"})
		}
		s.wantTaken(t, 3, 0, 0)
		n1 := material(t, a, identity.Data, "n1")
		for _, m := range []*credential.Material{n1, trustOnly(t, a.Bundle())} {
			if _, err := who(t, ln.dial(t, "2001:db8:0:1::1", m)); err != nil {
				t.Fatalf("kept out by another source: %v", err)
			}
		}
		s.wantTaken(t, 3, 1, 1)
		for i := range 4 {
			halfOpen(fmt.Sprintf("192.0.2.%d", i))
		}
		halfOpen("198.51.100.1")
		s.wantFull(t, mesh.FullError{Limit: 7, Handshakes: true})
		s.wantTaken(t, 7, 1, 1)
		time.Sleep(internalmesh.HandshakeTimeout)
		s.wantTaken(t, 0, 1, 1)
		if _, err := who(t, ln.dial(t, "2001:db8::1", n1)); err != nil {
			t.Fatalf("after the handshakes ended: %v", err)
		}
	})
}

// A stranger that does not call makes room; one that calls stays, and is idle
// only from the end of its last call.
func TestIdleStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln := newCrowd()
		s := serve(t, ln, mesh.GuardConfig{
			Source:       credential.Static(material(t, a, identity.Coordinator, "c1")),
			MaxStrangers: 3, StrangersPerSource: 2,
		})
		nobody := trustOnly(t, a.Bundle())
		member := ln.dial(t, "192.0.2.9", material(t, a, identity.Data, "n1"))
		if _, err := who(t, member); err != nil {
			t.Fatal(err)
		}
		busy, _, err := talk(t, ln.dial(t, "192.0.2.1", nobody), talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
			if _, err := who(t, ln.dial(t, from, nobody)); err != nil {
				t.Fatal(err)
			}
		}
		third := ln.dial(t, "192.0.2.1", nobody)
		if _, err := who(t, third); err == nil {
			t.Fatal("a third stranger of one source is let in")
		}
		third.Close()
		s.wantFull(t, mesh.FullError{Limit: 2, Strangers: true, Of: "192.0.2.1"})
		fourth := ln.dial(t, "192.0.2.3", nobody)
		if _, err := who(t, fourth); err == nil {
			t.Fatal("a fourth stranger is let in")
		}
		fourth.Close()
		s.wantFull(t, mesh.FullError{Limit: 3, Strangers: true})

		s.wantTaken(t, 0, 1, 3)
		time.Sleep(mesh.DefaultStrangerIdle + time.Millisecond)
		s.wantTaken(t, 0, 1, 1)
		for _, from := range []string{"192.0.2.1", "192.0.2.3"} {
			if _, err := who(t, ln.dial(t, from, nobody)); err != nil {
				t.Fatalf("after the idle ones were closed: %v", err)
			}
		}
		time.Sleep(10 * time.Minute) // less than after which gRPC rests of itself
		if err := echo(busy, "still here"); err != nil {
			t.Fatalf("a stranger that calls: %v", err)
		}
		s.wantTaken(t, 0, 1, 1)
		if err := busy.CloseSend(); err != nil {
			t.Fatal(err)
		}
		receive(t, s.ended, "the call")
		time.Sleep(mesh.DefaultStrangerIdle - time.Millisecond)
		s.wantTaken(t, 0, 1, 1)
		time.Sleep(2 * time.Millisecond)
		s.wantTaken(t, 0, 1, 0)
		if _, err := who(t, member); err != nil || len(s.cuts) != 0 {
			t.Fatalf("an idle member: %v, and %d cuts", err, len(s.cuts))
		}
	})
}

// Without a watch, Sweep closes idle strangers by the guard's clock.
func TestSweepClosesIdleStrangers(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	clock := newClock()
	s := serveUnswept(t, loopback(t), mesh.GuardConfig{
		Source: credential.Static(material(t, a, identity.Coordinator, "c1")), Now: clock.now, MaxStrangers: 1, StrangerIdle: time.Minute,
	})
	start := clock.now()
	stranger := func() *mesh.Conn {
		return dial(t, s.addr, credential.Static(trustOnly(t, a.Bundle())), credential.AnyOfKind(identity.Coordinator), mesh.Options{})
	}
	first := stranger()
	if _, err := who(t, first); err != nil {
		t.Fatal(err)
	}
	clock.set(start.Add(time.Minute))
	s.guard.Sweep(t.Context())
	if n := s.guard.Live(); n != 1 {
		t.Fatalf("%d stand after exactly a minute, want 1", n)
	}
	clock.set(start.Add(time.Minute + 1))
	s.guard.Sweep(t.Context())
	if n := s.guard.Live(); n != 0 {
		t.Fatalf("%d stand after more than a minute", n)
	}
	if _, err := who(t, stranger()); err != nil {
		t.Fatalf("in the slot of the idle one: %v", err)
	}
}

// One identity, with however many certificates, takes its own slots alone. The
// same goes for a certificate that identifies nobody.
func TestSlotsOfOneIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln := newCrowd()
		s := serve(t, ln, mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c1"))})
		evil := material(t, a, identity.Data, "evil")
		var conns []*mesh.Conn
		for i := range mesh.DefaultMaxPerIdentity {
			if i == mesh.DefaultMaxPerIdentity/2 {
				evil = material(t, a, identity.Data, "evil") // another key
			}
			c := ln.dial(t, fmt.Sprintf("192.0.2.%d", i), evil)
			if _, err := who(t, c); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		more := ln.dial(t, "198.51.100.1", evil)
		if _, err := who(t, more); err == nil {
			t.Fatal("one connection more is let in")
		}
		more.Close()
		s.wantFull(t, mesh.FullError{Limit: mesh.DefaultMaxPerIdentity, Of: evil.ID().String()})
		s.wantTaken(t, 0, mesh.DefaultMaxPerIdentity, 0)
		if _, err := who(t, ln.dial(t, "192.0.2.1", material(t, a, identity.Data, "n1"))); err != nil {
			t.Fatalf("another member: %v", err)
		}
		conns[0].Close()
		s.wantTaken(t, 0, mesh.DefaultMaxPerIdentity, 0)
		if _, err := who(t, ln.dial(t, "192.0.2.1", evil)); err != nil {
			t.Fatalf("after a slot became free: %v", err)
		}

		chain, key := a.IssueRaw(t, sans())
		for range mesh.DefaultMaxPerIdentity + 1 {
			raw, err := ln.connect(t.Context(), "192.0.2.1")
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			c := tls.Client(raw, &tls.Config{Certificates: []tls.Certificate{pkitest.TLS(chain, key)}, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			if err := c.Handshake(); err != nil {
				t.Fatal(err)
			}
		}
		s.wantFull(t, mesh.FullError{Limit: mesh.DefaultMaxPerIdentity, Of: identity.KeyOf(chain[0]).String()})
	})
}

func TestSourceOf(t *testing.T) {
	for _, tc := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 2}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6"), Port: 3}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 4, Zone: "eth0"}, "fe80::/64"},
		{&net.UnixAddr{Name: "@", Net: "unix"}, "unix"},
	} {
		if got := mesh.SourceOf(tc.addr); got != tc.want {
			t.Errorf("%v is counted as %s, want %s", tc.addr, got, tc.want)
		}
	}
}
