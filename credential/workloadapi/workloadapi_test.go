package workloadapi_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/credential/workloadapi"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

// Nothing that a test started runs on after it; the last connections end a moment later.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		var left error
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
			if left = goleak.Find(); left == nil { // it tries for a second itself
				break
			}
		}
		if left != nil {
			fmt.Fprintln(os.Stderr, left)
			code = 1
		}
	}
	os.Exit(code)
}

// bad is what an agent can say that no source puts in use.
func (a *agent) bad(t testing.TB) []pkitest.Bad {
	edited := func(edit func(*pb.X509SVID)) func(testing.TB) {
		return func(testing.TB) {
			svid, _ := a.issue()
			edit(svid)
			a.send(svid)
		}
	}
	issued := func(edits ...func(*x509.Certificate)) func(testing.TB) {
		return func(testing.TB) { svid, _ := a.issue(edits...); a.send(svid) }
	}
	says := func(err error) func(testing.TB) {
		return func(testing.TB) { a.say(func(stream) error { return err }) }
	}
	stranger := pkitest.NewPKI(t, "stranger", nil)
	return []pkitest.Bad{
		{Name: "no identity", Reason: credential.Incomplete, Put: func(testing.TB) { a.send() }},
		{Name: "an empty identity", Reason: credential.OtherIdentity, Put: func(testing.TB) { a.send(new(pb.X509SVID)) }},
		{Name: "garbage for a certificate", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.X509Svid = []byte("no DER at all") })},
		{Name: "a certificate that is cut short", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.X509Svid = s.X509Svid[:len(s.X509Svid)-1] })},
		{Name: "no certificate", Reason: credential.Incomplete, Put: edited(func(s *pb.X509SVID) { s.X509Svid = nil })},
		{Name: "a huge chain", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.X509Svid = bytes.Repeat(s.X509Svid, 200) })},
		{Name: "a huge answer", Reason: credential.Unreadable,
			Put: edited(func(s *pb.X509SVID) { s.Bundle = bytes.Repeat([]byte{1}, 5<<20) })},
		{Name: "garbage for a key", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.X509SvidKey = []byte("no key at all") })},
		{Name: "no key", Reason: credential.Incomplete, Put: edited(func(s *pb.X509SVID) { s.X509SvidKey = nil })},
		{Name: "a huge key", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.X509SvidKey = make([]byte, 1<<20) })},
		{Name: "a key of another certificate", Reason: credential.KeyMismatch,
			Put: edited(func(s *pb.X509SVID) { s.X509SvidKey = pkcs8(t, pkitest.NewKey(t)) })},
		{Name: "a key of another kind", Reason: credential.KeyMismatch, Put: edited(func(s *pb.X509SVID) {
			key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			s.X509SvidKey = pkcs8(t, key)
		})},
		{Name: "two SPIFFE ids", Reason: credential.NoIdentity, Put: issued(uris(me, "spiffe://prod.example/workload/x"))},
		{Name: "no SPIFFE id", Reason: credential.NoIdentity, Put: issued(func(c *x509.Certificate) {})},
		{Name: "one who is ended", Reason: credential.Expired,
			Put: issued(uris(me), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })},
		{Name: "one who is not yet", Reason: credential.Expired,
			Put: issued(uris(me), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })},
		{Name: "another workload's", Reason: credential.OtherIdentity, Put: issued(uris("spiffe://prod.example/workload/x"))},
		{Name: "another cluster's", Reason: credential.OtherIdentity,
			Put: issued(uris("spiffe://test.example/workload/billing/api"))},
		{Name: "somebody else's under my name", Reason: credential.OtherIdentity, Put: func(testing.TB) {
			svid, _ := a.issue(uris("spiffe://test.example/workload/billing/api"))
			svid.SpiffeId = me
			a.send(svid)
		}},
		{Name: "a bundle without roots", Reason: credential.Incomplete, Put: edited(func(s *pb.X509SVID) { s.Bundle = nil })},
		{Name: "garbage for a bundle", Reason: credential.Malformed,
			Put: edited(func(s *pb.X509SVID) { s.Bundle = []byte("no DER at all") })},
		{Name: "a bundle of no CA", Reason: credential.Incomplete,
			Put: edited(func(s *pb.X509SVID) { _, leaf := a.issue(); s.Bundle = der(leaf) })},
		{Name: "a bundle of others", Reason: credential.Untrusted,
			Put: edited(func(s *pb.X509SVID) { s.Bundle = der(stranger.Root.Cert) })},
		{Name: "nobody any more", Reason: credential.NoIdentity, Put: says(status.Error(codes.PermissionDenied, "no identity issued"))},
		{Name: "a wrong request", Reason: credential.Unreadable, Put: says(status.Error(codes.InvalidArgument, "wrong"))},
		{Name: "cancelled", Reason: credential.Unreadable, Put: says(status.Error(codes.Canceled, "no more"))},
		{Name: "not served", Reason: credential.Unreadable, Put: says(status.Error(codes.Unimplemented, "what?"))},
		{Name: "the end of each stream", Reason: credential.Unreadable, Put: says(io.EOF)},
		{Name: "silence", Reason: credential.Unreadable, Put: func(testing.TB) {
			first := true
			a.say(func(s stream) error {
				if first { // of the stream that is open
					first = false
					return io.EOF
				}
				return nil
			})
		}},
		{Name: "no agent", Reason: credential.Unreadable, Put: func(testing.TB) { a.stop() }},
	}
}

// The source keeps what every source keeps, of an agent that says whatever it likes.
func TestWorkloadAPIIsASource(t *testing.T) {
	t.Parallel()
	pkitest.Run(t, func(t *testing.T) *pkitest.Subject {
		a := newAgent(t)
		a.rotate()
		source := a.open(a.config())
		down := false
		s := &pkitest.Subject{
			Source: source, Failure: source.Failure, Log: a.logged, Stop: func() { source.Close() },
			Rotate: func(testing.TB) *x509.Certificate {
				leaf := a.rotate()
				if down {
					down = false
					a.start()
				}
				return leaf
			},
			Restate: func(testing.TB) {
				a.mu.Lock()
				says := a.says
				a.mu.Unlock()
				said := make(chan struct{})
				once := sync.OnceFunc(func() { close(said) })
				a.say(func(s stream) error { defer once(); return says(s) })
				<-said // before anything else is
			},
			Bad: a.bad(t),
		}
		last := &s.Bad[len(s.Bad)-1]
		stop := last.Put
		last.Put = func(t testing.TB) { down = true; stop(t) }
		return s
	})
}

// At the start too it is told what an agent says wrong, and the start is bounded by its context.
func TestOpenTellsWhyThereIsNothing(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	for _, b := range a.bad(t) {
		want := b.Reason
		if b.Name == "an empty identity" {
			want = credential.Incomplete // of nobody in particular, there is no certificate
		}
		if b.Name == "another workload's" || b.Name == "another cluster's" {
			continue // whoever the agent says that we are
		}
		t.Run(b.Name, func(t *testing.T) {
			b.Put(t)
			if b.Name == "no agent" {
				defer a.start()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := a.config()
			cfg.OnFailure = func(r credential.Reason) {
				if r == want { // a slow machine may see another first
					cancel()
				}
			}
			s, err := cfg.Open(ctx)
			e, ok := errors.AsType[*credential.MaterialError](err)
			if s != nil || !ok || e.Reason != want || !errors.Is(err, context.Canceled) {
				t.Errorf("Open = %v, %v, want reason %s", s, err, want)
			}
		})
	}
	a.rotate()
	a.open(a.config()) // and it does when the agent does
}

// An agent that comes later than its process is waited for.
func TestOpenWaits(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.stop()
	opened := make(chan error, 1)
	go func() {
		s, err := a.config().Open(t.Context())
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	for len(a.reasons()) == 0 { // until it was tried
		<-time.After(time.Millisecond)
	}
	a.rotate()
	a.start()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
}

// Of several identities a source takes the one that is wanted, and else the first; and keeps it,
// wherever it stands in later answers.
func TestIdentity(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	const other = "spiffe://prod.example/workload/reports"
	mine, _ := a.issue()
	theirs, _ := a.issue(uris(other))
	broken, _ := a.issue(uris("spiffe://prod.example/workload/broken"))
	broken.X509Svid = []byte("no DER at all")
	a.send(theirs, broken, mine)
	cfg := a.config()
	first := a.open(cfg)
	var err error
	if cfg.ID, err = identity.Parse(me); err != nil {
		t.Fatal(err)
	}
	wanted := a.open(cfg)
	is := func(s *workloadapi.Source, id string) {
		t.Helper()
		if m, err := s.Current(t.Context()); err != nil || m.ID().String() != id {
			t.Errorf("it is %v, %v, want %s", m, err, id)
		}
	}
	is(first, other)
	is(wanted, me)
	changed := []<-chan struct{}{first.Changed(), wanted.Changed()}
	mine, _ = a.issue()
	theirs, _ = a.issue(uris(other))
	a.send(mine, theirs)
	for _, c := range changed {
		<-c
	}
	is(first, other)
	is(wanted, me)
	if cfg.ID, err = identity.Parse("spiffe://prod.example/workload/nobody"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.OnFailure = func(r credential.Reason) {
		if r == credential.OtherIdentity {
			cancel()
		}
	}
	_, err = cfg.Open(ctx)
	if e, ok := errors.AsType[*credential.MaterialError](err); !ok || e.Reason != credential.OtherIdentity ||
		!strings.Contains(err.Error(), me) {
		t.Errorf("of one who is not there: %v", err)
	}
}

// Material that ended is given to nobody: those who wait are woken, and are told why there is no
// other. Later material is in use again.
func TestEndedMaterial(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.rotate()
	var mu sync.Mutex
	ahead := time.Duration(0)
	cfg := a.config()
	cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(ahead) }
	svid, leaf := a.issue(uris(me), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(6 * time.Second) })
	a.send(svid)
	s := a.open(cfg)
	if m, err := s.Current(t.Context()); err != nil || !m.Chain()[0].Equal(leaf) {
		t.Fatal(m, err)
	}
	changed := s.Changed()
	a.say(func(stream) error { return status.Error(codes.Unavailable, "a coordinator is away") })
	<-changed // nothing but its end
	_, err := s.Current(t.Context())
	if e, ok := errors.AsType[*credential.MaterialError](err); !ok || e.Reason != credential.Expired ||
		!strings.Contains(err.Error(), "a coordinator is away") {
		t.Errorf("Current = %v", err)
	}
	changed = s.Changed()
	leaf = a.rotate()
	<-changed
	if m, err := s.Current(t.Context()); err != nil || !m.Chain()[0].Equal(leaf) {
		t.Errorf("Current = %v, %v", m, err)
	}
	// By the wall clock, without anybody who tells.
	mu.Lock()
	ahead = 10 * 365 * 24 * time.Hour
	mu.Unlock()
	if m, err := s.Current(t.Context()); err == nil {
		t.Errorf("%v after its end", m)
	}
}

// An agent that fell silent on an open stream is asked anew before the certificate ends.
func TestASilentStreamIsOpenedAnew(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	svid, _ := a.issue(uris(me), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(12 * time.Second) })
	a.send(svid)
	s := a.open(a.config())
	changed := s.Changed()
	next, leaf := a.issue()
	// For new streams alone: those that are open are not told.
	a.mu.Lock()
	a.says = func(s stream) error { return s.Send(&pb.X509SVIDResponse{Svids: []*pb.X509SVID{next}}) }
	a.mu.Unlock()
	<-changed
	if m, err := s.Current(t.Context()); err != nil || !m.Chain()[0].Equal(leaf) {
		t.Errorf("Current = %v, %v: only told of its end", m, err)
	}
}

// The same mistake is told once, however often the agent repeats it, and the agent's words are
// neither many nor lines of the log.
func TestMistakesAreToldOnce(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.rotate()
	cfg := a.config()
	cfg.Hurry(time.Minute)
	s := a.open(cfg)
	a.say(func(stream) error {
		return status.Error(codes.Unavailable, "x\nlevel=ERROR "+strings.Repeat("y", 4000))
	})
	for before := a.opened(); a.opened() < before+5; {
		<-time.After(time.Millisecond)
	}
	if got := a.reasons(); len(got) != 1 || got[0] != credential.Unreadable {
		t.Errorf("told %v", got)
	}
	if text := s.Failure().Error(); len(text) > 700 || strings.Contains(text, "\n") {
		t.Errorf("the agent fills the log: %d bytes, %q", len(text), text)
	}
}

// Peers that have their identities from agents speak to each other, over a rotation of both.
func TestHandshake(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.rotate()
	s := a.open(a.config())
	id, err := identity.Parse(me)
	if err != nil {
		t.Fatal(err)
	}
	client, err := credential.ClientTLS(s, credential.ExactID(id), credential.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	server := credential.ServerTLS(s, credential.ServerOptions{})
	for range 2 {
		near, far := net.Pipe()
		if err := shake(near, far, client, server); err != nil {
			t.Fatal(err)
		}
		changed := s.Changed()
		a.rotate()
		<-changed
	}
}

func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"": "SPIFFE_ENDPOINT_SOCKET", "/run/x.sock": "unix:///PATH", "unix:x": "unix:///PATH", "unix://x": "unix:///PATH",
		"unix://x/y": "unix:///PATH", "unix:///x?y": "unix:///PATH", "unix:///x#y": "unix:///PATH",
		"unix://u@/x": "unix:///PATH", "tcp://localhost:1": "tcp://IP:PORT", "tcp://127.0.0.1": "tcp://IP:PORT",
		"tcp://127.0.0.1:1/x": "tcp://IP:PORT", "https://127.0.0.1:1": "unix:///PATH", "%": "unix:///PATH",
		"tcp://192.0.2.1:1": "plaintext", "tcp://[::ffff:192.0.2.1]:1": "plaintext", "tcp://0.0.0.0:1": "plaintext",
	} {
		t.Setenv("SPIFFE_ENDPOINT_SOCKET", "")
		if s, err := (workloadapi.Config{Address: address}).Open(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", address, s, err, want)
		}
	}
	a := newAgent(t)
	a.rotate()
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", strings.Replace(a.address, "unix://", "unix:", 1))
	cfg := a.config()
	cfg.Address = ""
	a.open(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := a.server
	go func() { _ = server.Serve(l) }()
	cfg.Address = "tcp://" + l.Addr().String()
	a.open(cfg)
}

// A certificate without an end (RFC 5280 §4.1.2.5 writes that as the year 9999) is no reason to ask
// again and again, nor to look at the clock.
func TestALongLife(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	never := func(c *x509.Certificate) { c.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }
	root := a.pki.CA(t, "eternal", nil, never)
	key := pkitest.NewKey(t)
	chain := a.pki.IssueBy(t, root, key, func(c *x509.Certificate) { never(c); uris(me)(c) })
	a.send(&pb.X509SVID{SpiffeId: me, X509Svid: der(chain...), X509SvidKey: pkcs8(t, key), Bundle: der(root.Cert)})
	cfg := a.config()
	cfg.Hurry(time.Minute) // a slow agent is asked once too
	var looks atomic.Int64
	cfg.Now = func() time.Time {
		looks.Add(1)
		return time.Now()
	}
	a.open(cfg)
	select {
	case <-time.After(200 * time.Millisecond): // 20 times what would do
	case <-t.Context().Done():
	}
	if n := a.opened(); n != 1 {
		t.Errorf("%d streams were opened", n)
	}
	if n := looks.Load(); n > 100 {
		t.Errorf("the clock was looked at %d times", n)
	}
}

// late is a stream whose one answer comes at the moment when it was waited for long enough.
type late struct {
	pb.SpiffeWorkloadAPIClient
	grpc.ServerStreamingClient[pb.X509SVIDResponse]
	ctx    context.Context
	answer *pb.X509SVIDResponse
}

func (l *late) FetchX509SVID(ctx context.Context, _ *pb.X509SVIDRequest, _ ...grpc.CallOption) (
	grpc.ServerStreamingClient[pb.X509SVIDResponse], error) {
	l.ctx = ctx
	return l, nil
}

func (l *late) Recv() (*pb.X509SVIDResponse, error) {
	<-l.ctx.Done()
	answer := l.answer
	if l.answer = nil; answer != nil {
		return answer, nil
	}
	return nil, l.ctx.Err()
}

// An agent that answered is not called silent.
func TestAnAnswerAtTheLastMoment(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	svid, _ := a.issue()
	cfg := a.config()
	cfg.Now = time.Now
	cfg.Hurry(time.Millisecond)
	good, err := cfg.Listen(t.Context(), &late{answer: &pb.X509SVIDResponse{Svids: []*pb.X509SVID{svid}}})
	if !good || err != nil {
		t.Errorf("good %v, %v", good, err)
	}
	if good, err := cfg.Listen(t.Context(), new(late)); good || err == nil {
		t.Errorf("of silence: good %v, %v", good, err)
	}
}

// A certificate that cannot be read fills no log with what stands in it.
func TestTheWordsOfACertificateAreBounded(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	a.rotate()
	cfg := a.config()
	cfg.Hurry(time.Minute)
	s := a.open(cfg)
	svid, _ := a.issue(uris("spiffe://aaa/" + strings.Repeat("y", 30<<10)))
	svid.SpiffeId, svid.X509Svid = me, bytes.Replace(svid.X509Svid, []byte("://aaa"), []byte("://%zz"), 1)
	a.send(svid)
	for len(a.reasons()) == 0 {
		<-time.After(time.Millisecond)
	}
	if e, ok := errors.AsType[*credential.MaterialError](s.Failure()); !ok || len(e.Error()) > 700 {
		t.Errorf("%d bytes: %.200v", len(e.Error()), e)
	}
}
