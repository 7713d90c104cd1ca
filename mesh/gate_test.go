package mesh_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
)

// gated is two servers behind a gate: one for members, one for strangers.
type gated struct {
	members, strangers *service
	guard              *mesh.Guard
	failures           chan *mesh.HandshakeError
	refusals           chan error
}

// serveGate runs a gate before ln, with its servers, until the test ends.
func serveGate(t *testing.T, ln net.Listener, a *pkitest.Authority, cfg mesh.GateConfig) *gated {
	t.Helper()
	s := &gated{members: newService(), strangers: newService(), failures: make(chan *mesh.HandshakeError, 64), refusals: make(chan error, 64)}
	var err error
	s.guard, err = mesh.NewGuard(mesh.GuardConfig{
		Source:    credential.Static(material(t, a, identity.Coordinator, "c1")),
		OnFailure: func(e *mesh.HandshakeError) { s.failures <- e }, OnRefused: func(err error) { s.refusals <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := s.guard.NewGate(ln, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { gate.Run(ctx) })
	var stops []func()
	for l, svc := range map[net.Listener]*service{gate.Members(): s.members, gate.Strangers(): s.strangers} {
		server := grpc.NewServer(s.guard.ServerOptions()...)
		server.RegisterService(&desc, svc)
		all.Go(func() { server.Serve(l) })
		stops = append(stops, func() { svc.unblock(); server.Stop() })
	}
	t.Cleanup(func() {
		cancel()
		for _, stop := range stops {
			stop()
		}
		all.Wait()
	})
	return s
}

// Each connection reaches the server that is for it, with all that is known about it.
func TestGateHandsOver(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ln := newCrowd()
	s := serveGate(t, ln, a, mesh.GateConfig{})
	member := ln.dial(t, "10.0.0.1", material(t, a, identity.Data, "n1"))
	if id, err := who(t, member); err != nil || id != a.ID(t, identity.Data, "n1").String() {
		t.Fatalf("a member is %q, %v", id, err)
	}
	if p := s.members.last(); p.Addr != "10.0.0.1:7" {
		t.Errorf("it comes from %s", p.Addr)
	}
	stranger := ln.dial(t, "10.0.0.2", trustOnly(t, a.Bundle()))
	if id, err := who(t, stranger); err != nil || id != "" {
		t.Fatalf("a stranger is %q, %v", id, err)
	}
	if p := s.strangers.last(); p.Leaf != nil || p.Addr != "10.0.0.2:7" {
		t.Errorf("the stranger is %+v", p)
	}
}

// Those who begin no handshake, or do not end it, give way to who comes from elsewhere,
// and run out of time.
func TestHalfOpenConnectionsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln := newCrowd()
		s := serveGate(t, ln, a, mesh.GateConfig{MaxSockets: 4, MaxHandshakes: 3})
		ended := make(chan time.Duration, 64)
		halfOpen := func(from string, text []byte) {
			c, err := ln.connect(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := c.Write(text); err != nil {
				t.Fatal(err)
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
				ended <- time.Since(began)
			}()
			synctest.Wait()
		}
		for range 9 {
			halfOpen("10.0.0.1", nil)
		}
		for range 5 {
			s.wantFull(t, mesh.FullError{Limit: 4, Handshakes: true})
			if d := <-ended; d != 0 {
				t.Errorf("one that gives way stood for %v after it had to", d)
			}
		}
		if id, err := who(t, ln.dial(t, "10.0.1.1", material(t, a, identity.Data, "n1"))); err != nil || id == "" {
			t.Fatalf("a member of another network is %q, %v", id, err)
		}
		s.wantFull(t, mesh.FullError{Limit: 4, Handshakes: true})
		<-ended
		if id, err := who(t, ln.dial(t, "10.0.0.1", material(t, a, identity.Data, "n2"))); err != nil || id == "" {
			t.Fatalf("a member at the address of the crowd is %q, %v", id, err)
		}
		for range 3 {
			if d := <-ended; d > 2*time.Second {
				t.Errorf("one that says nothing stood for %v", d)
			}
		}
		hello := hello(t)
		for range 5 {
			halfOpen("10.0.0.1", hello)
		}
		for range 2 {
			s.wantFull(t, mesh.FullError{Limit: 3, Handshakes: true})
			<-ended
		}
		if id, err := who(t, ln.dial(t, "10.0.1.1", material(t, a, identity.Data, "n3"))); err != nil || id == "" {
			t.Fatalf("a member of another network is %q, %v", id, err)
		}
		s.wantFull(t, mesh.FullError{Limit: 3, Handshakes: true})
		for range 3 {
			if d := <-ended; d > 3*time.Second {
				t.Errorf("one that does not answer stood for %v", d)
			}
		}
	})
}

func (s *gated) wantFull(t *testing.T, want mesh.FullError) {
	t.Helper()
	(&serving{refusals: s.refusals}).wantFull(t, want)
}

// hello returns what a client of TLS says first.
func hello(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	buf := make([]byte, 16<<10)
	n, err := far.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	near.Close()
	far.Close()
	<-ended
	return buf[:n]
}

// Strangers who hold their slots give way to others, unless they are kept.
func TestStrangersGiveWayToStrangers(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ln := newCrowd()
	s := serveGate(t, ln, a, mesh.GateConfig{MaxStrangers: 4})
	kept := make(chan bool, 1)
	s.strangers.onTalk = func(ctx context.Context) []byte {
		info, _ := mesh.FromContext(ctx)
		if identity.FromContext(ctx).Addr == "10.0.0.9:7" {
			_, ok := info.Keep()
			kept <- ok
		}
		return []byte("hello")
	}
	hold := func(from string) grpc.ClientStream {
		st, _, err := talk(t, ln.dial(t, from, trustOnly(t, a.Bundle())), talkMethod)
		if err != nil {
			t.Fatalf("a stranger at %s finds no slot: %v", from, err)
		}
		return st
	}
	proven := hold("10.0.0.9")
	if !<-kept {
		t.Fatal("it is not kept")
	}
	for range 9 {
		hold("10.0.0.1")
	}
	if err := echo(hold("10.0.1.1"), "elsewhere"); err != nil {
		t.Error(err)
	}
	if err := echo(proven, "kept"); err != nil {
		t.Error(err)
	}
}

// A stranger's open calls are bounded, and a member's are not.
func TestStrangersSendLittle(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ln := newCrowd()
	serveGate(t, ln, a, mesh.GateConfig{StrangerBytes: 8 << 10})
	large := string(bytes.Repeat([]byte("x"), 16<<10))
	for _, m := range []*credential.Material{trustOnly(t, a.Bundle()), material(t, a, identity.Data, "n1")} {
		st, _, err := talk(t, ln.dial(t, "10.0.0.1", m), talkMethod)
		if err != nil {
			t.Fatal(err)
		}
		if err := echo(st, "small"); err != nil {
			t.Fatal(err)
		}
		if err := echo(st, large); (err == nil) != (len(m.Chain()) > 0) {
			t.Errorf("16 KiB of who has %d certificates: %v", len(m.Chain()), err)
		}
	}
}

// What a stranger may send is bounded for the calls that are open: those that were answered do not count, though
// there is always one that is open. One that stays open counts for as long.
func TestAnsweredCallsGiveBackWhatWasSent(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ln := newCrowd()
	s := serveGate(t, ln, a, mesh.GateConfig{StrangerBytes: 8 << 10})
	conn := ln.dial(t, "10.0.0.1", trustOnly(t, a.Bundle()))
	text := string(bytes.Repeat([]byte("x"), 1<<10))
	// The next call is open before the last one ends.
	open, _, err := talk(t, conn, talkMethod)
	for i := range 40 {
		if err == nil {
			err = echo(open, text)
		}
		last := open
		if err == nil {
			open, _, err = talk(t, conn, talkMethod)
		}
		if err == nil {
			err = errors.Join(last.CloseSend(), wantEnd(last))
		}
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		<-s.strangers.ended
	}
	for i := range 40 {
		if err := echo(open, text); err != nil {
			if i > 8 {
				t.Errorf("%d KiB of one call were taken", i)
			}
			return
		}
	}
	t.Error("40 KiB of one call were taken")
}

// wantEnd is nil if the stream ended without an error.
func wantEnd(st grpc.ClientStream) error {
	if err := st.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream did not end: %w", err)
	}
	return nil
}

// A proxy says whom it speaks for; nobody else may, and it has to.
func TestProxies(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	from := func(version byte, source string) []byte {
		h := proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(source)), net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:7443")))
		raw, err := h.Format()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	local, err := (&proxyproto.Header{Version: 2, Command: proxyproto.LOCAL, TransportProtocol: proxyproto.UNSPEC}).Format()
	if err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		at   string
		head []byte
		want string // whom the server sees; empty: nobody
	}{
		"a proxy for a client":                   {"10.9.0.7", from(2, "203.0.113.5:4711"), "203.0.113.5:4711"},
		"a proxy for itself":                     {"10.9.0.7", local, "10.9.0.7:7"},
		"a proxy without a header":               {"10.9.0.7", nil, ""},
		"a proxy with version 1":                 {"10.9.0.7", from(1, "203.0.113.5:4711"), ""},
		"a client that says it is somebody else": {"10.8.0.7", from(2, "203.0.113.5:4711"), ""},
		"a client that speaks for itself":        {"10.8.0.7", nil, "10.8.0.7:7"},
		"a proxy with an address over IPv6":      {"10.9.0.8", from(2, "[2001:db8::5]:4711"), "[2001:db8::5]:4711"},
	} {
		t.Run(what, func(t *testing.T) {
			ln := newCrowd()
			s := serveGate(t, ln, a, mesh.GateConfig{Proxies: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}})
			conn := dial(t, "passthrough:///c1", credential.Static(material(t, a, identity.Data, "n1")), credential.AnyOfKind(identity.Coordinator), mesh.Options{
				Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
					c, err := ln.connect(ctx, tc.at)
					if err == nil {
						_, err = c.Write(tc.head)
					}
					return c, err
				}})
			_, err := who(t, conn)
			if tc.want == "" {
				if err == nil {
					t.Fatal("it was served")
				}
				if f := receive(t, s.failures, "the failure"); f.Reason != mesh.Protocol {
					t.Errorf("it failed by %s, want %s", f.Reason, mesh.Protocol)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p := s.members.last(); p.Addr != tc.want {
				t.Errorf("the server sees %s, want %s", p.Addr, tc.want)
			}
		})
	}
}

// Bytes that are no hello, or one without an end, are refused before anything is computed.
func TestHellosAreBounded(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	ln := newCrowd()
	s := serveGate(t, ln, a, mesh.GateConfig{})
	for what, text := range map[string][]byte{
		"a hello that announces 64 KiB": {22, 3, 1, 0, 4, 1, 0, 255, 255},
		"another protocol":              []byte("GET / HTTP/1.1\r\n\r\n"),
		"records of one byte":           bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 8<<10),
	} {
		c, err := ln.connect(t.Context(), "10.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		go c.Write(text) // it may be refused before it has all
		if f := receive(t, s.failures, "the failure of "+what); f.Reason != mesh.Protocol {
			t.Errorf("%s failed by %s", what, f.Reason)
		}
		io.Copy(io.Discard, c)
		c.Close()
	}
}

// Handshakes of one network begin at its rate, and those of others are not delayed.
func TestHandshakesBeginAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pkitest.NewAuthority(t, cluster)
		ln := newCrowd()
		s := serveGate(t, ln, a, mesh.GateConfig{HandshakeRate: 1, HandshakeBurst: 2})
		began := time.Now()
		in := func(from string) time.Duration {
			t.Helper()
			if _, err := who(t, ln.dial(t, from, trustOnly(t, a.Bundle()))); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		for i, want := range []time.Duration{0, 0, time.Second, 2 * time.Second} {
			if got := in(fmt.Sprintf("10.0.0.%d", i+1)); got != want {
				t.Errorf("handshake %d was over after %v, want %v", i+1, got, want)
			}
		}
		if got := in("10.0.1.1"); got != 2*time.Second {
			t.Errorf("that of another network after %v", got)
		}
		hello := hello(t)
		for range 6 { // more than have a turn within the time that one waits
			c, err := ln.connect(t.Context(), "10.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			go c.Write(hello)
		}
		err := receive(t, s.refusals, "the refusal")
		if full, ok := errors.AsType[*mesh.FullError](err); !ok || full.Of != "10.0.0.0/24" {
			t.Errorf("refused with %v", err)
		}
	})
}
