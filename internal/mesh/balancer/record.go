package balancer

import (
	"net"
	"slices"
	"sync"
)

// Record remembers how the latest attempt at each endpoint went. gRPC reports a connection's
// failure to the calls that wait for it as text; this keeps the error itself. The zero value is
// empty.
//
// An attempt replaces what is known when it ends, not when it starts: meanwhile gRPC still fails
// calls for the attempt before.
type Record struct {
	mu     sync.Mutex
	failed map[string]error  // by endpoint; guarded by mu
	dialed map[string]string // endpoints of connections whose hands are yet to be shaken; guarded by mu
}

// Dialed notes that conn was made to endpoint.
func (r *Record) Dialed(endpoint string, conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialed = put(r.dialed, ends(conn), endpoint)
}

// Take returns the endpoint that conn was made to, and forgets it.
func (r *Record) Take(conn net.Conn) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if endpoint, ok := r.dialed[ends(conn)]; ok {
		delete(r.dialed, ends(conn))
		return endpoint
	}
	return conn.RemoteAddr().String()
}

// ends names a connection: several endpoints may be behind one address.
func ends(conn net.Conn) string { return conn.LocalAddr().String() + " " + conn.RemoteAddr().String() }

// Ended notes how an attempt ended; nil is success.
func (r *Record) Ended(endpoint string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failed, endpoint)
		return
	}
	r.failed = put(r.failed, endpoint, err)
}

// put is m[key] = value, in an empty map once m is full.
func put[V any](m map[string]V, key string, value V) map[string]V {
	if _, known := m[key]; m == nil || !known && len(m) >= MaxEndpoints {
		m = make(map[string]V)
	}
	m[key] = value
	return m
}

// Keep forgets the endpoints that are not among these: they are no part of the set any more.
func (r *Record) Keep(endpoints []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range r.failed {
		if !slices.Contains(endpoints, e) {
			delete(r.failed, e)
		}
	}
}

// Failures returns what failed, sorted by endpoint.
func (r *Record) Failures() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ByEndpoint(r.failed)
}

// ByEndpoint returns failures, sorted by endpoint.
func ByEndpoint(failed map[string]error) []error {
	endpoints := make([]string, 0, len(failed))
	for e := range failed {
		endpoints = append(endpoints, e)
	}
	slices.Sort(endpoints)
	errs := make([]error, len(endpoints))
	for i, e := range endpoints {
		errs[i] = failed[e]
	}
	return errs
}
