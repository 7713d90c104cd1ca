package mesh_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/mesh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// answers serves whoever gets to it.
type answers struct {
	healthpb.UnimplementedHealthServer
}

func (answers) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{}, nil
}

// A guard that is told whom to serve serves nobody else, over gRPC and over HTTP: not another kind or name, not a
// certificate with no name or with two, and not who shows none. Each refusal is told to the server.
func TestClients(t *testing.T) {
	a := pkitest.NewAuthority(t, cluster)
	issued := func(uris ...string) tls.Certificate {
		chain, key := a.IssueRaw(t, func(c *x509.Certificate) {
			for _, u := range uris {
				parsed, err := url.Parse(u)
				if err != nil {
					t.Fatal(err)
				}
				c.URIs = append(c.URIs, parsed)
			}
		})
		return pkitest.TLS(chain, key)
	}
	member := func(path string) tls.Certificate { return issued("spiffe://" + cluster + "/" + path) }
	clients := map[string]tls.Certificate{"data/web-1": member("data/web-1"), "data/db-1": member("data/db-1"),
		"shard/web-1": member("shard/web-1"), "nobody": issued(),
		"both": issued("spiffe://"+cluster+"/data/web-1", "spiffe://"+cluster+"/data/web-2"), "stranger": {}}
	unnamed := map[string]codes.Code{"nobody": codes.PermissionDenied, "both": codes.PermissionDenied,
		"stranger": codes.Unauthenticated}
	for _, row := range []struct {
		name   string
		expect credential.Expect
		served []string
	}{
		{"an id", credential.ExactID(a.ID(t, identity.Data, "db-1")), []string{"data/db-1"}},
		{"one of two", credential.AnyOf(a.ID(t, identity.Data, "db-1"), a.ID(t, identity.Shard, "web-1")),
			[]string{"data/db-1", "shard/web-1"}},
		{"a kind", credential.AnyOfKind(identity.Data), []string{"data/db-1", "data/web-1"}},
		{"names of a kind", credential.AnyNamed(identity.Data, "web-*"), []string{"data/web-1"}},
		{"handlers decide", credential.Expect{}, []string{"data/db-1", "data/web-1", "shard/web-1", "nobody", "both", "stranger"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var mu sync.Mutex
			told := 0
			guard, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c0")), Clients: row.expect,
				OnRefused: func(err error) {
					mu.Lock()
					defer mu.Unlock()
					if _, ok := errors.AsType[*mesh.DeniedError](err); ok {
						told++
					}
				}})
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(guard.ServerOptions()...)
			healthpb.RegisterHealthServer(server, answers{})
			calls, pages := listening(t), listening(t)
			go server.Serve(calls)
			defer server.Stop()
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- mesh.ServeHTTP(ctx, guard, pages, &http.Server{Handler: http.HandlerFunc(
					func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })})
			}()
			refused := 0
			for name, cert := range clients {
				want, page := codes.OK, http.StatusNoContent
				if !slices.Contains(row.served, name) {
					if want = unnamed[name]; want == codes.OK {
						want = codes.PermissionDenied
					}
					page = map[codes.Code]int{codes.PermissionDenied: 403, codes.Unauthenticated: 401}[want]
					refused += 2
				}
				cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
				if len(cert.Certificate) > 0 {
					cfg.Certificates = []tls.Certificate{cert}
				}
				conn, err := grpc.NewClient("passthrough:///"+calls.Addr().String(),
					grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
				if err != nil {
					t.Fatal(err)
				}
				_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
				conn.Close()
				if status.Code(err) != want {
					t.Errorf("%s calls: %v, want %v", name, err, want)
				}
				web := cfg.Clone()
				web.NextProtos = nil
				transport := &http.Transport{TLSClientConfig: web}
				answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("https://" + pages.Addr().String())
				if err != nil {
					t.Errorf("%s asks for a page: %v", name, err)
					continue
				}
				answer.Body.Close()
				transport.CloseIdleConnections()
				if answer.StatusCode != page {
					t.Errorf("%s asks for a page: %s, want %d", name, answer.Status, page)
				}
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if told != refused {
				t.Errorf("the server was told of %d refusals, want %d", told, refused)
			}
		})
	}
	for name, bad := range map[string]credential.Expect{"no kind": credential.AnyOfKind("lord"),
		"no names": credential.AnyNamed(identity.Data, ""), "no pattern": credential.AnyNamed(identity.Data, "web-["),
		"nobody": credential.ExactID(identity.ID{})} {
		if _, err := mesh.NewGuard(mesh.GuardConfig{Source: credential.Static(material(t, a, identity.Coordinator, "c0")), Clients: bad}); err == nil {
			t.Errorf("%s: a guard was made", name)
		}
	}
}

func listening(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
