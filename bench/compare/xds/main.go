// Command xds is the parts of the comparison that speak xDS. The product has some of the same messages, and a program may
// know each only once, so that they are in a program of their own.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fealty-io/fealty/bench/compare/internal/part"
)

func main() {
	parts := map[string]part.Handler{"serve-xds": new(xdsServer), "agents-xds": part.NewListeners(new(xdsAgents))}
	h, ok := parts[os.Getenv(part.Variable)]
	if !ok {
		fmt.Fprintf(os.Stderr, "xds: %s is %q: compare starts this program\n", part.Variable, os.Getenv(part.Variable))
		os.Exit(2)
	}
	if err := part.Be(h, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "xds:", err)
		os.Exit(1)
	}
}

// xdsServer is go-control-plane with the incremental protocol (delta), and a cache that all streams share: its
// quickest one. Each record is a virtual host. It is asked for no identity beyond TLS, signs nothing and stores nothing.
type xdsServer struct {
	server  *grpc.Server
	cache   *cachev3.LinearCache
	cancel  context.CancelFunc
	running sync.WaitGroup
	version uint32
}

func (s *xdsServer) Do(ctx context.Context, o part.Order) (part.Answer, error) {
	switch o.Do {
	case "start":
		i, err := part.LoadIssuer(o.Dir)
		if err != nil {
			return part.Answer{}, err
		}
		config, err := i.ServerTLS(o.Dir)
		if err != nil {
			return part.Answer{}, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return part.Answer{}, err
		}
		ctx, s.cancel = context.WithCancel(ctx)
		s.cache = cachev3.NewLinearCache(resource.VirtualHostType)
		if err := s.change(part.Records); err != nil {
			return part.Answer{}, err
		}
		s.server = grpc.NewServer(part.AsCoordinators(config)...)
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.server, serverv3.NewServer(ctx, s.cache, nil))
		s.running.Go(func() { _ = s.server.Serve(l) })
		return part.Answer{Target: l.Addr().String()}, nil
	case "change":
		return part.Answer{}, s.change(o.N)
	}
	return part.Answer{}, fmt.Errorf("a server of xDS cannot %q", o.Do)
}

func (s *xdsServer) change(n int) error {
	s.version++
	changed := make(map[string]types.Resource, n)
	for i := range n {
		name := part.NameOf(i)
		changed[name] = &routev3.VirtualHost{Name: name, Domains: []string{part.MatchOf(i)},
			PerRequestBufferLimitBytes: wrapperspb.UInt32(s.version)}
	}
	return s.cache.UpdateResources(changed, nil)
}

func (s *xdsServer) Close() error {
	if s.server != nil {
		s.cancel()
		s.server.Stop()
	}
	s.running.Wait()
	return nil
}

type xdsAgents struct{ part.Certified }

func (a *xdsAgents) Open(ctx context.Context, i int) (func() error, func(), error) {
	conn, err := a.Dial(i)
	if err != nil {
		return nil, nil, err
	}
	end := func() { conn.Close() }
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: fmt.Sprint("agent-", i)}, TypeUrl: resource.VirtualHostType,
			ResourceNamesSubscribe: []string{"*"}})
	}
	next := func() error {
		news, err := stream.Recv()
		if err != nil {
			return err
		}
		// The protocol has each answer acknowledged.
		return stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.VirtualHostType, ResponseNonce: news.GetNonce()})
	}
	if err == nil {
		err = next()
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return next, end, nil
}
