package balancer

import (
	"context"
	"fmt"
	"iter"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc/resolver"
)

// Static resolves targets that list their endpoints, static:///HOST:PORT,HOST:PORT.
type Static struct{}

// Scheme returns "static".
func (Static) Scheme() string { return "static" }

// OverrideAuthority names the first endpoint to servers: they could not read a list.
func (Static) OverrideAuthority(target resolver.Target) string {
	first, _, _ := strings.Cut(target.Endpoint(), ",")
	return first
}

// Build tells cc the list, once.
func (Static) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver,
	error) {
	var set []resolver.Endpoint
	for at := range strings.SplitSeq(target.Endpoint(), ",") {
		if host, port, err := net.SplitHostPort(at); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%q is no HOST:PORT: list them as in static:///10.0.0.1:8443,10.0.0.2:8443", at)
		}
		set = append(set, resolver.Endpoint{Addresses: []resolver.Address{{Addr: at}}})
	}
	_ = cc.UpdateState(resolver.State{Endpoints: set}) // the same answer each time
	return still{}, nil
}

type still struct{}

func (still) ResolveNow(resolver.ResolveNowOptions) {}
func (still) Close()                                {}

// Directory resolves targets by something that tells when it changes.
type Directory struct {
	Name string // of the scheme

	// Follow yields the endpoints of a target, at once and each time they change, until ctx ends.
	// An error leaves those of before in use.
	Follow func(ctx context.Context, target resolver.Target) iter.Seq2[[]resolver.Endpoint, error]
}

// Scheme returns the name.
func (d Directory) Scheme() string { return d.Name }

// OverrideAuthority names the directory to servers: they could not read a list.
func (d Directory) OverrideAuthority(resolver.Target) string { return d.Name }

// Build starts to follow.
func (d Directory) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver,
	error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{cancel: cancel}
	f.running.Go(func() {
		for set, err := range d.Follow(ctx, target) {
			if err != nil {
				cc.ReportError(err)
				continue
			}
			_ = cc.UpdateState(resolver.State{Endpoints: set}) // the directory says when there is another
		}
	})
	return f, nil
}

type following struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (f *following) ResolveNow(resolver.ResolveNowOptions) {}

// Close waits until nothing is followed any more.
func (f *following) Close() {
	f.cancel()
	f.running.Wait()
}
