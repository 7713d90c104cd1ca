package sds_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	corev3 "github.com/fealty-io/fealty/api/envoy/config/core/v3"
	tlsv3 "github.com/fealty-io/fealty/api/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/fealty-io/fealty/api/envoy/service/discovery/v3"
	secretv3 "github.com/fealty-io/fealty/api/envoy/service/secret/v3"
	"github.com/fealty-io/fealty/internal/workload/sds"
	"github.com/fealty-io/fealty/internal/workload/workloadtest"
	"github.com/fealty-io/fealty/test/logs"
)

// node is a node with a client of its SDS.
type node struct {
	*workloadtest.Node
	t      *testing.T
	ended  chan struct{}
	log    logs.Text
	client secretv3.SecretDiscoveryServiceClient
}

func serve(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, ended: make(chan struct{})}
	n.Node = workloadtest.New(t, slog.New(slog.DiscardHandler))
	s := sds.New(n.Callers, n.ended, n.log.Logger(slog.LevelInfo))
	n.client = secretv3.NewSecretDiscoveryServiceClient(n.Serve(func(to *grpc.Server) { s.Register(to) }))
	return n
}

type stream struct {
	grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	t *testing.T
}

func (n *node) stream() stream {
	n.t.Helper()
	s, err := n.client.StreamSecrets(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return stream{s, n.t}
}

func (s stream) ask(req *discoveryv3.DiscoveryRequest) {
	s.t.Helper()
	if err := s.Send(req); err != nil {
		s.t.Fatal(err)
	}
}

func (s stream) next() *discoveryv3.DiscoveryResponse {
	s.t.Helper()
	got, err := s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// refuses waits for the refusal of what was asked last. The proxy says that nothing more comes: a
// server that takes the request ends the stream then, and the test does not wait for ever.
func (s stream) refuses(what string) {
	s.t.Helper()
	if err := s.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
	for {
		switch got, err := s.Recv(); {
		case err == nil:
			s.t.Errorf("%s: answered with version %s", what, got.GetVersionInfo())
			continue
		case errors.Is(err, io.EOF):
			s.t.Errorf("%s: not refused, the stream went on until the proxy ended it", what)
		case status.Code(err) != codes.InvalidArgument:
			s.t.Errorf("%s: %v", what, err)
		}
		return
	}
}

// secrets returns what an answer brings, by name, and the names in their order.
func secrets(t *testing.T, got *discoveryv3.DiscoveryResponse) (map[string]*tlsv3.Secret, string) {
	t.Helper()
	all, names := make(map[string]*tlsv3.Secret), []string(nil)
	for _, r := range got.GetResources() {
		secret := new(tlsv3.Secret)
		if err := r.UnmarshalTo(secret); err != nil {
			t.Fatal(err)
		}
		all[secret.GetName()], names = secret, append(names, secret.GetName())
	}
	return all, strings.Join(names, " ")
}

const (
	idA     = "spiffe://test.example/workload/a"
	idB     = "spiffe://test.example/workload/b"
	cluster = "spiffe://test.example"
)

// A caller is given what is its own, by the names that it asks for, and no hint of what else there is.
func TestNames(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a", "b")
	a, _ := n.Certify("a"), n.Certify("b")
	for asked, want := range map[string]string{
		"":                                   idA + " " + idB + " " + cluster,
		sds.NameDefault:                      sds.NameDefault,
		sds.NameRoots:                        sds.NameRoots,
		idB:                                  idB,
		sds.NameDefault + " " + idA:          idA + " " + sds.NameDefault,
		cluster + " " + sds.NameRoots:        cluster + " " + sds.NameRoots,
		"spiffe://test.example/workload/c":   "",
		"spiffe://other.example":             "",
		"spiffe://test.example/workload/a/x": "",
	} {
		got, err := n.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: strings.Fields(asked)})
		if err != nil {
			t.Fatal(err)
		}
		if _, names := secrets(t, got); names != want {
			t.Errorf("asked for %q: %q, want %q", asked, names, want)
		}
	}
	got, err := n.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all, _ := secrets(t, got)
	pair, err := tls.X509KeyPair(all[idA].GetTlsCertificate().GetCertificateChain().GetInlineBytes(),
		all[idA].GetTlsCertificate().GetPrivateKey().GetInlineBytes())
	if err != nil || len(pair.Certificate) != 2 || !bytes.Equal(pair.Certificate[0], a.Chain[0].Raw) {
		t.Errorf("the certificate of a: %v, %d certificates", err, len(pair.Certificate))
	}
	roots := all[cluster].GetValidationContext().GetTrustedCa().GetInlineBytes()
	if strings.Count(string(roots), "BEGIN CERTIFICATE") != 1 || bytes.Contains(roots, []byte("PRIVATE")) {
		t.Errorf("the roots are %s", roots)
	}

	n.Register("b")
	if got, err = n.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{idA}}); err != nil {
		t.Fatal(err)
	}
	if len(got.GetResources()) > 0 {
		t.Error("it is given the certificate of a workload that it is no more")
	}
	n.Register()
	if _, err := n.client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{}); status.Code(err) != codes.PermissionDenied ||
		status.Convert(err).Message() != "no identity issued" {
		t.Errorf("registered by nobody: %v", err)
	}
}

// A stream is sent what it asked for last, once and at each change of it, until the caller is no
// workload any more.
func TestStream(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	s := n.stream()
	s.ask(&discoveryv3.DiscoveryRequest{ResourceNames: []string{idA}})
	<-n.Asked // there is none yet, and the proxy waits
	n.SetRoots(false)
	n.Certify("a") // without roots nothing is given
	n.SetRoots(true)
	first := s.next()
	if _, names := secrets(t, first); names != idA || first.GetVersionInfo() == "" || first.GetNonce() == "" {
		t.Fatalf("the first answer is %v", first)
	}
	ack := func(of *discoveryv3.DiscoveryResponse, names ...string) *discoveryv3.DiscoveryRequest {
		return &discoveryv3.DiscoveryRequest{ResourceNames: names, VersionInfo: of.GetVersionInfo(), ResponseNonce: of.GetNonce()}
	}
	s.ask(ack(first, idA))
	n.Touch() // nothing changed: were something sent, it would come before what follows
	n.Certify("a")
	second := s.next()
	if second.GetVersionInfo() == first.GetVersionInfo() || second.GetNonce() == first.GetNonce() {
		t.Errorf("renewed, the answer is %v after %v", second, first)
	}
	// An answer to what another one took the place of asks for nothing, whatever it names.
	s.ask(ack(first, cluster))
	s.ask(ack(second, idA, sds.NameRoots))
	third := s.next()
	if _, names := secrets(t, third); names != idA+" "+sds.NameRoots {
		t.Errorf("with another name: %q", names)
	}
	// A proxy that cannot use it is not sent it again and again. It writes one line of the log.
	refusal := ack(second, idA, sds.NameRoots)
	refusal.ResponseNonce = third.GetNonce()
	refusal.ErrorDetail = &discoveryv3.ErrorDetail{Message: "bad " + strings.Repeat("x", 5000) + "\nlevel=ERROR msg=forged"}
	refusal.Node = &corev3.Node{Id: "proxy"}
	s.ask(refusal)
	n.Register("a", "b")
	n.Certify("b")
	s.ask(ack(third, idB))
	fourth := s.next()
	if _, names := secrets(t, fourth); names != idB {
		t.Errorf("after a refusal: %q", names)
	}
	if log := n.log.String(); strings.Count(log, "\n") != 1 || len(log) > 600 || !strings.Contains(log, "node=proxy") {
		t.Errorf("the log is %q", log)
	}
	n.Register()
	if _, err := s.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("registered no more: %v", err)
	}
}

// A stream looks at its certificates when one was issued, and not for what others are registered for.
func TestOthersCostNoLook(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	n.Certify("a")
	s := n.stream()
	s.ask(&discoveryv3.DiscoveryRequest{ResourceNames: []string{idA}})
	first := s.next()
	n.Woken()
	n.Woken()
	looks := n.Looks()
	n.Register("a") // another set, in which this process is the same
	n.Woken()
	n.Woken()
	if more := n.Looks() - looks; more != 0 {
		t.Errorf("%d looks at certificates for changes of others", more)
	}
	n.Certify("a")
	if got := s.next(); got.GetVersionInfo() == first.GetVersionInfo() {
		t.Error("after that it is not the newest certificate")
	}
	n.SetRoots(false)
	n.Register("b") // which it was not, and has no certificate yet
	n.SetRoots(true)
	<-n.Asked
	n.Register()
	if _, err := s.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("registered no more: %v", err)
	}
}

// Streams end with the agent, and with a proxy that has no more to say.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	n.Certify("a")
	done := n.stream()
	done.ask(&discoveryv3.DiscoveryRequest{})
	done.next()
	if err := done.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := done.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the proxy ended it: %v", err)
	}
	s := n.stream()
	s.ask(&discoveryv3.DiscoveryRequest{})
	s.next()
	close(n.ended)
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the agent ended: %v", err)
	}
}

// A request that is none for secrets, or is too large, ends the stream before anything is asked.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	n := serve(t)
	n.Register("a")
	n.Certify("a")
	for name, req := range map[string]*discoveryv3.DiscoveryRequest{
		"another type": {TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener"},
		"many names":   {ResourceNames: make([]string, sds.MaxNames+1)},
		"a long name":  {ResourceNames: []string{strings.Repeat("x", sds.MaxNameBytes+1)}},
		"no SPIFFE ID": {ResourceNames: []string{"default", "spiffe://Test.example/workload/a"}},
		"a bad path":   {ResourceNames: []string{"spiffe://test.example/workload//a"}},
	} {
		if _, err := n.client.FetchSecrets(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		s := n.stream()
		s.ask(req)
		s.refuses(name + ", on a stream")
		s = n.stream()
		s.ask(&discoveryv3.DiscoveryRequest{})
		s.next()
		s.ask(req)
		s.refuses(name + ", as the second")
	}
	ok := &discoveryv3.DiscoveryRequest{
		TypeUrl:       "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
		ResourceNames: append(make([]string, sds.MaxNames-1), strings.Repeat("x", sds.MaxNameBytes)),
	}
	if _, err := n.client.FetchSecrets(t.Context(), ok); err != nil {
		t.Errorf("at the limits: %v", err)
	}
}

// Methods of the Workload API demand a header that proxies do not send.
func TestServes(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{
		"/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets":  true,
		"/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets":   true,
		"/envoy.service.secret.v3.SecretDiscoveryServiceX/FetchSecrets":  false,
		"/SpiffeWorkloadAPI/FetchX509SVID":                               false,
		"envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets":   false,
		"/x/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets": false,
	} {
		if sds.Serves(method) != want {
			t.Errorf("%s: %v", method, !want)
		}
	}
}
