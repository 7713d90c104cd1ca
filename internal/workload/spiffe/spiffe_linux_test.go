package spiffe_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/identity/identitytest"
	"github.com/fealty-io/fealty/internal/durable/durabletest"
	"github.com/fealty-io/fealty/internal/node/dir"
	"github.com/fealty-io/fealty/internal/tokenkey"
	"github.com/fealty-io/fealty/internal/watch"
	"github.com/fealty-io/fealty/internal/workload"
	"github.com/fealty-io/fealty/internal/workload/caller"
	"github.com/fealty-io/fealty/internal/workload/spiffe"
	"github.com/fealty-io/fealty/internal/workload/tokens"
	"github.com/fealty-io/fealty/snapshot"
)

// node is what a server is made over.
type node struct {
	t       *testing.T
	auth    *identitytest.Authority
	changed watch.Signal
	asked   chan struct{} // has one each time a certificate is asked for that there is not
	ended   chan struct{}
	client  pb.SpiffeWorkloadAPIClient

	mu    sync.Mutex
	set   *caller.Set               // guarded by mu
	svid  map[identity.ID]*dir.SVID // guarded by mu
	roots *caller.Roots             // guarded by mu
	sign  func() (string, error)    // guarded by mu
}

func (n *node) Set() *caller.Set {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.set
}

func (n *node) SVID(id identity.ID) (*dir.SVID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.svid[id]; s != nil {
		return s, nil
	}
	select {
	case n.asked <- struct{}{}:
	default:
	}
	return nil, errors.New("none yet")
}

func (n *node) Roots() *caller.Roots {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.roots
}

func (n *node) Changed() <-chan struct{} { return n.changed.Wait() }

func (n *node) change(f func()) {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	n.changed.Notify()
}

func serve(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, auth: identitytest.NewAuthority(t, "test.example"), asked: make(chan struct{}, 1),
		ended: make(chan struct{}), svid: make(map[identity.ID]*dir.SVID)}
	n.roots = &caller.Roots{Cluster: "test.example"}
	n.roots.Certificates = append(n.roots.Certificates, n.auth.Root().Cert)
	never := make(chan struct{})
	jwts, err := tokens.New(tokens.Config{
		Sign: func(_ context.Context, asks []tokens.Ask) ([]tokens.Answer, error) {
			n.mu.Lock()
			sign := n.sign
			n.mu.Unlock()
			text, err := sign()
			out := make([]tokens.Answer, len(asks))
			for i := range out {
				out[i].Token = text
			}
			return out, err
		},
		Statements: func(context.Context) ([]tokenkey.Statement, error) { return nil, errors.New("none") },
		Trusted:    func() []snapshot.ConfigKey { return nil },
		Changed:    func() <-chan struct{} { return never },
		Banned:     func(identity.ID, identity.KeyID) bool { return false },
		Cluster:    "test.example", FS: durabletest.NewDisk().FS(), Dir: "w", Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	callers := caller.New(caller.Config{Source: n, Log: slog.New(slog.DiscardHandler), Refused: func(string) {}})
	api := spiffe.New(callers, jwts, n.ended)
	folder, err := os.MkdirTemp("", "s") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(callers),
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
	api.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	n.client = pb.NewSpiffeWorkloadAPIClient(conn)
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		<-done
		os.RemoveAll(folder)
	})
	return n
}

func (n *node) id(name string) identity.ID { return n.auth.ID(n.t, identity.Workload, name) }

// register makes this process the workloads of names.
func (n *node) register(names ...string) {
	uid := uint32(os.Getuid())
	var all []workload.Registration
	for _, name := range names {
		all = append(all, workload.Registration{Service: "of-" + name, ID: n.id(name), Selector: workload.Selector{UID: &uid}})
	}
	n.change(func() { n.set = caller.NewSet(all) })
}

// certified is a certificate of a workload.
func (n *node) certified(name string) *dir.SVID {
	n.t.Helper()
	key, err := dir.NewKeyPair()
	if err != nil {
		n.t.Fatal(err)
	}
	chain, _ := n.auth.Issue(n.t, n.id(name), identitytest.WithKey(key.Signer()))
	return &dir.SVID{Key: key, Chain: append(chain, n.auth.Root().Cert)}
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
	n.register("a")
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
		"many": {Audience: make([]string, 17)},
	} {
		if _, err := n.client.FetchJWTSVID(n.ctx(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A caller whose workload is not certified yet waits, is told of all that follows, and its stream
// ends when it is a workload no more.
func TestStream(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.register("a")
	s, err := n.client.FetchX509SVID(n.ctx(), &pb.X509SVIDRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-n.asked // and there is none
	one := n.certified("a")
	n.change(func() { n.svid[n.id("a")] = one })
	got, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	key, _ := one.Key.PKCS8()
	if len(got.GetSvids()) != 1 || got.Svids[0].SpiffeId != n.id("a").String() || got.Svids[0].Hint != "of-a" ||
		string(got.Svids[0].X509SvidKey) != string(key) || string(got.Svids[0].Bundle) != string(n.auth.Root().Cert.Raw) ||
		string(got.Svids[0].X509Svid) != string(one.Chain[0].Raw)+string(one.Chain[1].Raw) {
		t.Errorf("got %v", got)
	}
	n.changed.Notify() // nothing changed, so nothing is sent
	two := n.certified("a")
	n.change(func() { n.svid[n.id("a")] = two })
	if got, err = s.Recv(); err != nil || string(got.Svids[0].X509Svid) != string(two.Chain[0].Raw)+string(two.Chain[1].Raw) {
		t.Errorf("renewed: %v, %v", got, err)
	}
	n.change(func() { n.roots = &caller.Roots{Cluster: "test.example", Certificates: n.roots.Certificates} })
	if _, err = s.Recv(); err != nil {
		t.Errorf("after another bundle: %v", err)
	}
	n.register("b") // somebody else now, who has no certificate yet
	n.change(func() { n.svid[n.id("b")] = n.certified("b") })
	if got, err = s.Recv(); err != nil || len(got.Svids) != 1 || got.Svids[0].SpiffeId != n.id("b").String() {
		t.Errorf("as another workload: %v, %v", got, err)
	}
	n.register()
	if _, err = s.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("registered no more: %v", err)
	}
}

// Streams end when the agent stops.
func TestStops(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.register("a")
	s, err := n.client.FetchX509Bundles(n.ctx(), &pb.X509BundlesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Recv(); err != nil || string(got.GetBundles()["spiffe://test.example"]) != string(n.auth.Root().Cert.Raw) {
		t.Fatalf("%v, %v", got, err)
	}
	close(n.ended)
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
		t.Errorf("stopped: %v", err)
	}
}

// A token is for one who is the workload when it comes, and not only when it was asked for.
func TestTokenOfOneWhoIsItNoMore(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.register("a", "b")
	n.change(func() { n.sign = func() (string, error) { return "token", nil } })
	ask := func(of string) (*pb.JWTSVIDResponse, error) {
		return n.client.FetchJWTSVID(n.ctx(), &pb.JWTSVIDRequest{Audience: []string{of}})
	}
	if got, err := ask("one"); err != nil || len(got.GetSvids()) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	n.change(func() { n.sign = func() (string, error) { n.register("b"); return "token", nil } })
	if got, err := ask("two"); err != nil || len(got.GetSvids()) != 1 || got.Svids[0].SpiffeId != n.id("b").String() {
		t.Errorf("of two, one was taken away: %v, %v", got, err)
	}
	n.change(func() { n.sign = func() (string, error) { n.register("c"); return "token", nil } })
	if got, err := ask("three"); err == nil {
		t.Errorf("all were taken away: %v", got)
	}
	n.register("a")
	n.change(func() { n.sign = func() (string, error) { n.register(); return "token", nil } })
	if got, err := ask("four"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("it is nothing any more: %v, %v", got, err)
	}
	n.register("a")
	n.change(func() { n.sign = func() (string, error) { return "", nil } })
	if got, err := ask("five"); status.Code(err) != codes.Unavailable {
		t.Errorf("a blank token: %v, %v", got, err)
	}
	n.change(func() { n.sign = func() (string, error) { return "", errors.New("away") } })
	if got, err := ask("six"); status.Code(err) != codes.Unavailable {
		t.Errorf("in an outage: %v, %v", got, err)
	}
}
