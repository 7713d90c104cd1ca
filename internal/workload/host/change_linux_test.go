package host_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	internalidentity "github.com/fealty-io/fealty/internal/identity"
	"github.com/fealty-io/fealty/internal/pki"
	"github.com/fealty-io/fealty/internal/pki/pkitest"
	"github.com/fealty-io/fealty/internal/platform/durable/durabletest"
	"github.com/fealty-io/fealty/internal/platform/watch"
	"github.com/fealty-io/fealty/internal/workload/host"
	"github.com/fealty-io/fealty/internal/workload/workloadtest"
	"github.com/fealty-io/fealty/snapshot"
)

// lone is a host on its own: what is assigned to it, and a coordinator that certifies whatever is asked.
type lone struct {
	tb      testing.TB
	auth    *pkitest.Authority
	socket  string
	changed watch.Signal
	stop    func()

	mu       sync.Mutex
	services []snapshot.Service // guarded by mu
}

func (l *lone) assign(all []snapshot.Service) {
	l.mu.Lock()
	l.services = all
	l.mu.Unlock()
	l.changed.Notify()
}

// Invoke is the coordinator.
func (l *lone) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	req, ok := args.(*fealtyv1.CertifyWorkloadsRequest)
	if !ok {
		return status.Error(codes.Unimplemented, "certificates alone")
	}
	for _, w := range req.GetWorkloads() {
		key, err := pki.ParseCSR(w.GetCsr())
		if err != nil {
			return err
		}
		id := l.auth.ID(l.tb, identity.Workload, w.GetWorkload())
		now := time.Now().Truncate(time.Second)
		chain, _ := l.auth.Issue(l.tb, id, pkitest.WithKey(foreign{key}),
			pkitest.WithValidity(now.Add(-internalidentity.Backdate), now.Add(time.Hour)),
			pkitest.WithTemplate(func(c *x509.Certificate) {
				c.Subject = pkix.Name{CommonName: internalidentity.VoucherName("data/node-a", l.auth.MeshCA().KeyID().String())}
			}))
		reply.(*fealtyv1.CertifyWorkloadsResponse).Certificates = append(reply.(*fealtyv1.CertifyWorkloadsResponse).Certificates,
			&fealtyv1.WorkloadCertificate{Chain: [][]byte{chain[0].Raw, chain[1].Raw, l.auth.Root().Cert.Raw}})
	}
	return nil
}

func (l *lone) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// foreign is a key that somebody else has.
type foreign struct{ crypto.PublicKey }

func (f foreign) Public() crypto.PublicKey { return f.PublicKey }
func (foreign) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("not mine")
}

// alone runs a host to which services are assigned.
func alone(tb testing.TB, services ...snapshot.Service) *lone {
	tb.Helper()
	folder, err := os.MkdirTemp("", "h") // the path of a socket is short
	if err == nil {
		err = os.Chmod(folder, 0o755)
	}
	if err != nil {
		tb.Fatal(err)
	}
	l := &lone{tb: tb, auth: pkitest.NewAuthority(tb, "test.example"), socket: filepath.Join(folder, "s"),
		services: services}
	bundle := l.auth.Bundle()
	listener, err := net.Listen("unix", l.socket)
	if err == nil {
		err = os.Chmod(l.socket, 0o666)
	}
	if err != nil {
		tb.Fatal(err)
	}
	h, err := host.New(host.Config{
		Me: l.auth.ID(tb, identity.Data, "node-a"), FS: durabletest.NewDisk().FS(), Dir: "node", Listener: listener,
		Registry: prometheus.NewRegistry(), Now: time.Now, Log: quiet,
		Node: host.Node{
			Services: func() ([]snapshot.Service, error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.services, nil
			},
			Trust:      func() *identity.Bundle { return bundle },
			ConfigKeys: func() []snapshot.ConfigKey { return nil },
			Changed:    l.changed.Wait,
			Ask: func(ctx context.Context, f func(context.Context, grpc.ClientConnInterface) error) error {
				return f(ctx, l)
			},
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			tb.Error(err)
		}
		os.RemoveAll(folder)
	})
	tb.Cleanup(l.stop)
	return l
}

// A connection that says nothing does not hold up the end of the agent until its time is over.
func TestStopsDespiteSilence(t *testing.T) {
	t.Parallel()
	l := alone(t)
	silent, err := net.Dial("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	raw, err := net.Dial("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	client, ctx := workloadtest.Over(t, raw)
	// Connections are accepted in their order, so this one tells that the other was.
	if _, err := client.FetchJWTSVID(ctx, &pb.JWTSVIDRequest{Audience: []string{"x"}}); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.stop()
	}()
	select {
	case <-ended: // while the other one is silent still
	case <-time.After(time.Minute):
		t.Error("it waits for who says nothing")
	}
}

// BenchmarkAllWorkloads measures how long after a node has a changed assignment each of a thousand
// processes, of a user and a workload of its own, has its new answer: when what is assigned is
// certified already, and when each needs another certificate first. The coordinator answers at
// once; the disk is memory.
func BenchmarkAllWorkloads(b *testing.B) {
	const workloads, firstUID = 1000, 200000
	if os.Getuid() != 0 {
		b.Skip("connects as a thousand users, which takes root")
	}
	for _, bc := range []struct {
		name    string
		service func(n, round int) snapshot.Service
	}{
		{"certified", func(n, round int) snapshot.Service {
			return assigned(fmt.Sprintf("s%d-%d", n, round), fmt.Sprintf("w%d", n), firstUID+n)
		}},
		{"new", func(n, round int) snapshot.Service {
			return assigned(fmt.Sprintf("s%d", n), fmt.Sprintf("w%d/%d", n, round), firstUID+n)
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			round := 0
			next := func() (all []snapshot.Service) {
				for n := range workloads {
					all = append(all, bc.service(n, round))
				}
				round++
				return all
			}
			l := alone(b, next()...)
			answers := make(chan time.Time, workloads)
			for n := range workloads {
				client, ctx := workloadtest.Over(b, workloadtest.As(b, firstUID+n, l.socket))
				s, err := client.FetchX509SVID(ctx, &pb.X509SVIDRequest{})
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					for {
						got, err := s.Recv()
						if err != nil {
							if b.Context().Err() == nil {
								panic(err) // else the others are waited for
							}
							return
						}
						if len(got.GetSvids()) != 1 {
							b.Errorf("%d identities", len(got.GetSvids()))
						}
						answers <- time.Now()
					}
				}()
			}
			for range workloads {
				<-answers
			}
			var took []time.Duration
			for b.Loop() {
				all := next()
				start := time.Now()
				l.assign(all)
				for range workloads {
					took = append(took, (<-answers).Sub(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
		})
	}
}

func assigned(service, id string, uid int) snapshot.Service {
	return snapshot.Service{Name: service, Parameters: []snapshot.Parameter{
		{Name: "spiffe:id", Value: id}, {Name: "spiffe:uid", Value: fmt.Sprint(uid)}}}
}
