package workloadapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/jwtsvid"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/workload/tokens"
	"github.com/fealty-io/fealty/internal/workload/workloadapi"
	"github.com/fealty-io/fealty/internal/workload/workloadtest"
	"github.com/fealty-io/fealty/snapshot"
)

// node is what a server is made over.
type node struct {
	*workloadtest.Node
	t      *testing.T
	ended  chan struct{}
	conn   *grpc.ClientConn
	client pb.SpiffeWorkloadAPIClient
	sign   atomic.Pointer[func() (string, error)]
}

func serve(t *testing.T) *node {
	t.Helper()
	n := &node{Node: workloadtest.New(t, slog.New(slog.DiscardHandler)), t: t, ended: make(chan struct{})}
	never := make(chan struct{})
	jwts, err := tokens.New(tokens.Config{
		Sign: func(_ context.Context, asks []tokens.Ask) ([]tokens.Answer, error) {
			text, err := (*n.sign.Load())()
			out := make([]tokens.Answer, len(asks))
			for i := range out {
				out[i].Token = text
			}
			return out, err
		},
		Statements: func(context.Context) ([]jwtsvid.Statement, error) { return nil, errors.New("none") },
		Trusted:    func() []snapshot.ConfigKey { return nil },
		Changed:    func() <-chan struct{} { return never },
		Banned:     func(identity.ID, identity.KeyID) bool { return false },
		Cluster:    "test.example", FS: durabletest.NewDisk().FS(), Dir: "w", Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	api := workloadapi.New(n.Callers, jwts, n.ended)
	n.conn = n.Serve(func(s *grpc.Server) { api.Register(s) },
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := api.Demand(ctx); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := api.Demand(s.Context()); err != nil {
				return err
			}
			return h(srv, s)
		}))
	n.client = pb.NewSpiffeWorkloadAPIClient(n.conn)
	return n
}

// signing has f sign the tokens from now on.
func (n *node) signing(f func() (string, error)) { n.sign.Store(&f) }

// token signs a token, after before.
func token(before func()) func() (string, error) {
	return func() (string, error) { before(); return "token", nil }
}

func (n *node) ctx() context.Context {
	return metadata.AppendToOutgoingContext(n.t.Context(), "workload.spiffe.io", "true")
}

// calls are all that the API has, each until its first answer.
func (n *node) calls() map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"FetchX509SVID": func(ctx context.Context) error { return first(n.client.FetchX509SVID(ctx, &pb.X509SVIDRequest{})) },
		"FetchX509Bundles": func(ctx context.Context) error {
			return first(n.client.FetchX509Bundles(ctx, &pb.X509BundlesRequest{}))
		},
		"FetchJWTSVID": func(ctx context.Context) error {
			_, err := n.client.FetchJWTSVID(ctx, &pb.JWTSVIDRequest{Audience: []string{"a"}})
			return err
		},
		"FetchJWTBundles": func(ctx context.Context) error { return first(n.client.FetchJWTBundles(ctx, &pb.JWTBundlesRequest{})) },
		"ValidateJWTSVID": func(ctx context.Context) error {
			_, err := n.client.ValidateJWTSVID(ctx, &pb.ValidateJWTSVIDRequest{Audience: "a", Svid: "x"})
			return err
		},
	}
}

func first[T any](s grpc.ServerStreamingClient[T], err error) error {
	if err == nil {
		_, err = s.Recv()
	}
	return err
}

// Every call needs the header, once and as it is written, and says nothing to one that nobody registers.
func TestRefusals(t *testing.T) {
	t.Parallel()
	n := serve(t)
	for name, call := range n.calls() {
		for header, ctx := range map[string]context.Context{
			"no header":     t.Context(),
			"another value": metadata.AppendToOutgoingContext(t.Context(), "workload.spiffe.io", "True"),
			"twice":         metadata.AppendToOutgoingContext(n.ctx(), "workload.spiffe.io", "true"),
		} {
			if err := call(ctx); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s, %s: %v", name, header, err)
			}
		}
		if err := call(n.ctx()); status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "no identity issued" {
			t.Errorf("%s, registered by nobody: %v", name, err)
		}
	}
	n.Register("a")
	wit := map[string]error{
		"FetchWITSVID":    first(n.client.FetchWITSVID(n.ctx(), &pb.WITSVIDRequest{})),
		"FetchWITBundles": first(n.client.FetchWITBundles(n.ctx(), &pb.WITBundlesRequest{})),
	}
	for name, err := range wit {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, req := range map[string]*pb.JWTSVIDRequest{
		"no audience": {}, "a blank one": {Audience: []string{""}}, "one twice": {Audience: []string{"a", "a"}},
		"many": {Audience: make([]string, 17)}, "no SPIFFE ID": {Audience: []string{"a"}, SpiffeId: "a"},
		"another scheme":      {Audience: []string{"a"}, SpiffeId: "https://test.example/workload/a"},
		"a trailing slash":    {Audience: []string{"a"}, SpiffeId: "spiffe://test.example/workload/a/"},
		"capitals in a name":  {Audience: []string{"a"}, SpiffeId: "spiffe://Test.example/workload/a"},
		"an escape in a path": {Audience: []string{"a"}, SpiffeId: "spiffe://test.example/workload/%61"},
		"a huge id":           {Audience: []string{"a"}, SpiffeId: "spiffe://test.example/" + strings.Repeat("a", 2048)},
	} {
		if _, err := n.client.FetchJWTSVID(n.ctx(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, req := range map[string]*pb.ValidateJWTSVIDRequest{
		"no audience": {Svid: "e30.e30.e30"}, "no token": {Audience: "a"}, "what is no token": {Audience: "a", Svid: "x"},
		"a line feed after it": {Audience: "a", Svid: "e30.e30.e30\n"},
	} {
		if _, err := n.client.ValidateJWTSVID(n.ctx(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is well formed is not called malformed, and of whom an id is, is not told.
	if _, err := n.client.FetchJWTSVID(n.ctx(), &pb.JWTSVIDRequest{Audience: []string{"a"},
		SpiffeId: "spiffe://test.example/workload/other"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the id of another: %v", err)
	}
	if _, err := n.client.ValidateJWTSVID(n.ctx(), &pb.ValidateJWTSVIDRequest{Audience: "a",
		Svid: "e30.e30.e30"}); status.Code(err) != codes.Unavailable {
		t.Errorf("no key is known: %v", err)
	}
}

// A caller whose workload is not certified yet waits, is told of all that follows, and its stream
// ends when it is a workload no more.
func TestStream(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	s, err := n.client.FetchX509SVID(n.ctx(), &pb.X509SVIDRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-n.Asked // and there is none
	one := n.Certify("a")
	got, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	key, _ := one.Key.PKCS8()
	if len(got.GetSvids()) != 1 || got.Svids[0].SpiffeId != n.ID("a").String() || got.Svids[0].Hint != "of-a" ||
		string(got.Svids[0].X509SvidKey) != string(key) || string(got.Svids[0].Bundle) != string(n.Auth.Root().Cert.Raw) ||
		string(got.Svids[0].X509Svid) != string(one.Chain[0].Raw)+string(one.Chain[1].Raw) {
		t.Errorf("got %v", got)
	}
	n.Touch() // nothing changed, so nothing is sent
	two := n.Certify("a")
	if got, err = s.Recv(); err != nil || string(got.Svids[0].X509Svid) != string(two.Chain[0].Raw)+string(two.Chain[1].Raw) {
		t.Errorf("renewed: %v, %v", got, err)
	}
	n.SetRoots(true)
	if _, err = s.Recv(); err != nil {
		t.Errorf("after another bundle: %v", err)
	}
	n.Register("b") // somebody else now, who has no certificate yet
	n.Certify("b")
	if got, err = s.Recv(); err != nil || len(got.Svids) != 1 || got.Svids[0].SpiffeId != n.ID("b").String() {
		t.Errorf("as another workload: %v, %v", got, err)
	}
	n.Register()
	if _, err = s.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("registered no more: %v", err)
	}
}

// A stream looks at its certificates when one was issued, and not for what others are registered for:
// there may be a thousand of them.
func TestOthersCostNoLook(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	n.Certify("a")
	stream, err := n.client.FetchX509SVID(n.ctx(), &pb.X509SVIDRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	n.Woken()
	n.Woken()
	looks := n.Looks()
	n.Register("a") // another set, in which this process is the same
	n.Woken()
	n.Woken()
	if more := n.Looks() - looks; more != 0 {
		t.Errorf("%d looks at certificates for changes of others", more)
	}
	want := n.Certify("a")
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if key, err := want.Key.PKCS8(); err != nil || !bytes.Equal(got.GetSvids()[0].GetX509SvidKey(), key) {
		t.Errorf("after that it is not the newest certificate: %v", err)
	}
}

// Streams end when the agent stops.
func TestStops(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	s, err := n.client.FetchX509Bundles(n.ctx(), &pb.X509BundlesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Recv(); err != nil || string(got.GetBundles()["spiffe://test.example"]) != string(n.Auth.Root().Cert.Raw) {
		t.Fatalf("%v, %v", got, err)
	}
	close(n.ended)
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
		t.Errorf("stopped: %v", err)
	}
}

// A caller of many identities gets as many tokens at a time as a coordinator signs in one call, and is
// told to ask for one where it has more.
func TestTokensAtATime(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.signing(token(func() {}))
	const most = 64
	names := make([]string, most+1)
	for i := range names {
		names[i] = fmt.Sprintf("w%03d", i)
	}
	ask := func(one string) (*pb.JWTSVIDResponse, error) {
		return n.client.FetchJWTSVID(n.ctx(), &pb.JWTSVIDRequest{Audience: []string{"a"}, SpiffeId: one})
	}
	n.Register(names[:most]...)
	if got, err := ask(""); err != nil || len(got.GetSvids()) != most {
		t.Errorf("%d identities: %d tokens, %v", most, len(got.GetSvids()), err)
	}
	n.Register(names...)
	if _, err := ask(""); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "ask for one of them") {
		t.Errorf("%d identities: %v", len(names), err)
	}
	if got, err := ask(n.ID(names[most]).String()); err != nil || len(got.GetSvids()) != 1 {
		t.Errorf("one of %d identities: %v, %v", len(names), got, err)
	}
}

// A token is for one who is the workload when it comes, and not only when it was asked for.
func TestTokenOfOneWhoIsItNoMore(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a", "b")
	n.signing(token(func() {}))
	ask := func(of string) (*pb.JWTSVIDResponse, error) {
		return n.client.FetchJWTSVID(n.ctx(), &pb.JWTSVIDRequest{Audience: []string{of}})
	}
	if got, err := ask("one"); err != nil || len(got.GetSvids()) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	n.signing(token(func() { n.Register("b") }))
	if got, err := ask("two"); err != nil || len(got.GetSvids()) != 1 || got.Svids[0].SpiffeId != n.ID("b").String() {
		t.Errorf("of two, one was taken away: %v, %v", got, err)
	}
	n.signing(token(func() { n.Register("c") }))
	if got, err := ask("three"); err == nil {
		t.Errorf("all were taken away: %v", got)
	}
	n.Register("a")
	n.signing(token(func() { n.Register() }))
	if got, err := ask("four"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("it is nothing any more: %v, %v", got, err)
	}
	n.Register("a")
	n.signing(func() (string, error) { return "", nil })
	if got, err := ask("five"); status.Code(err) != codes.Unavailable {
		t.Errorf("a blank token: %v, %v", got, err)
	}
	n.signing(func() (string, error) { return "", errors.New("away") })
	if got, err := ask("six"); status.Code(err) != codes.Unavailable {
		t.Errorf("in an outage: %v, %v", got, err)
	}
}
