package workloadapi_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/credential/workloadapi"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
)

const me = "spiffe://prod.example/workload/billing/api"

// agent is one that says what it is told to, on a socket of its own.
type agent struct {
	pb.UnimplementedSpiffeWorkloadAPIServer
	t       testing.TB
	pki     *pkitest.PKI
	address string
	server  *grpc.Server

	mu      sync.Mutex
	says    func(stream) error // what a stream does until the next change; guarded by mu
	changed chan struct{}      // guarded by mu
	streams int                // that were opened; guarded by mu
	log     bytes.Buffer       // of the source; guarded by mu
	told    []credential.Reason
}

type stream = grpc.ServerStreamingServer[pb.X509SVIDResponse]

func newAgent(t testing.TB) *agent {
	t.Helper()
	short, err := os.MkdirTemp("", "w") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	a := &agent{t: t, pki: pkitest.NewPKI(t, "corp", nil), address: "unix://" + filepath.Join(short, "s"),
		changed: make(chan struct{})}
	a.start()
	t.Cleanup(func() { a.stop() })
	return a
}

func (a *agent) start() {
	a.t.Helper()
	l, err := net.Listen("unix", a.address[len("unix://"):])
	if err != nil {
		a.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(64 << 20))
	pb.RegisterSpiffeWorkloadAPIServer(server, a)
	go func() { _ = server.Serve(l) }()
	a.server = server
}

func (a *agent) stop() { a.server.Stop() }

// FetchX509SVID does what the agent says, and again when it says something else.
func (a *agent) FetchX509SVID(_ *pb.X509SVIDRequest, s stream) error {
	if md, _ := metadata.FromIncomingContext(s.Context()); len(md.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "no header")
	}
	a.mu.Lock()
	a.streams++
	a.mu.Unlock()
	for {
		a.mu.Lock()
		says, changed := a.says, a.changed
		a.mu.Unlock()
		if err := says(s); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

// say has every stream do this, now and from now on.
func (a *agent) say(says func(stream) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.says = says
	close(a.changed)
	a.changed = make(chan struct{})
}

// send has the agent give svids.
func (a *agent) send(svids ...*pb.X509SVID) {
	answer := &pb.X509SVIDResponse{Svids: svids}
	a.say(func(s stream) error { return s.Send(proto.CloneOf(answer)) })
}

func uris(ids ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, id := range ids {
			u, err := url.Parse(id)
			if err != nil {
				panic(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

func der(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, c.Raw...)
	}
	return out
}

func pkcs8(t testing.TB, key crypto.PrivateKey) []byte {
	t.Helper()
	out, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// issue makes a part of an answer: of me, but for what edits say.
func (a *agent) issue(edits ...func(*x509.Certificate)) (*pb.X509SVID, *x509.Certificate) {
	a.t.Helper()
	if edits == nil {
		edits = append(edits, uris(me))
	}
	key := pkitest.NewKey(a.t)
	chain := a.pki.Issue(a.t, key, func(c *x509.Certificate) {
		for _, e := range edits {
			e(c)
		}
	})
	id := me
	if len(chain[0].URIs) > 0 {
		id = chain[0].URIs[0].String()
	}
	return &pb.X509SVID{SpiffeId: id, X509Svid: der(chain...), X509SvidKey: pkcs8(a.t, key),
		Bundle: der(a.pki.Root.Cert)}, chain[0]
}

// rotate has the agent give another certificate of me.
func (a *agent) rotate() *x509.Certificate {
	svid, leaf := a.issue()
	a.send(svid)
	return leaf
}

func (a *agent) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.Write(p)
}

func (a *agent) logged() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.String()
}

func (a *agent) reasons() []credential.Reason {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]credential.Reason(nil), a.told...)
}

func (a *agent) opened() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams
}

// config is that of a source which loses no time.
func (a *agent) config() workloadapi.Config {
	cfg := workloadapi.Config{Address: a.address, Log: slog.New(slog.NewTextHandler(a, nil)),
		OnFailure: func(r credential.Reason) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.told = append(a.told, r)
		}}
	cfg.Hurry(300 * time.Millisecond)
	return cfg
}

// open returns a source that has material of me.
func (a *agent) open(cfg workloadapi.Config) *workloadapi.Source {
	a.t.Helper()
	s, err := cfg.Open(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { s.Close() })
	return s
}
