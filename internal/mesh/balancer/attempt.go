package balancer

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"time"
)

// ReachTimeout bounds how long one of several endpoints is waited for to be reached.
const ReachTimeout = 5 * time.Second

// Attempt is what one request was told by the endpoints that were tried for it: none is tried
// twice.
type Attempt struct {
	mu     sync.Mutex
	failed map[string]error // by endpoint; guarded by mu
}

type attemptKey struct{}

// NewAttempt returns an attempt, and ctx with it.
func NewAttempt(ctx context.Context) (*Attempt, context.Context) {
	a := new(Attempt)
	return a, context.WithValue(ctx, attemptKey{}, a)
}

// First notes that endpoint failed after it was connected to, and reports whether it had not
// failed before.
func (a *Attempt) First(endpoint string, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, again := a.failed[endpoint]
	a.failed = put(a.failed, endpoint, err)
	return !again
}

// Connect connects to one of set, each of which is tried at most once in the attempt of ctx. Else
// it returns the failures of that attempt, by endpoint.
func (o *Order) Connect(ctx context.Context, set []string, now func() time.Time,
	connect func(ctx context.Context, endpoint string) (net.Conn, error)) (net.Conn, map[string]error) {
	set = set[:min(len(set), MaxEndpoints)]
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	if !ok {
		a = new(Attempt)
	}
	for _, at := range o.Of(set, now()) {
		if a.tried(at) {
			continue
		}
		conn, err := connect(ctx, at)
		if err == nil {
			return conn, nil
		}
		o.Failed(at, now())
		if a.First(at, err); ctx.Err() != nil {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return nil, maps.Clone(a.failed)
}

// tried reports whether endpoint failed.
func (a *Attempt) tried(endpoint string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.failed[endpoint]
	return ok
}

// Lookup asks DNS for the endpoints of a host:port.
func Lookup(ctx context.Context, addr string) ([]string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) != nil {
		return []string{addr}, nil
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err == nil && len(found) == 0 {
		err = errors.New("it leads to no endpoint")
	}
	for i, f := range found {
		found[i] = net.JoinHostPort(f, port)
	}
	return found, err
}
