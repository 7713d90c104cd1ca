// Package balancer decides which endpoints of a set a client uses.
//
// Where a set comes from is a resolver's business: a list ([Static]), DNS, or what a node was told
// of its peers ([Directory]). Its answers are hints. [Choose] leaves out what can be of no use,
// the balancing policy [Policy] spreads calls over what is ready, [Order] does so for clients that
// dial themselves, [Record] keeps how the latest attempt at each went, and [Journal] says in log
// lines when that changes. An endpoint that fails stays in its set and is tried again.
package balancer

import (
	"slices"

	"google.golang.org/grpc/resolver"
)

// MaxEndpoints bounds the addresses that one set has, whose number discovery decides.
const MaxEndpoints = 1024

// secure is the key of what discovery says about TLS.
type secure struct{}

// MarkSecure returns e with what discovery says of it: it speaks TLS, or it does not.
func MarkSecure(e resolver.Endpoint, is bool) resolver.Endpoint {
	e.Attributes = e.Attributes.WithValue(secure{}, is)
	return e
}

// Why [Choose] leaves out.
const (
	Plain  = "it advertises that it speaks no TLS"
	Beyond = "the set is full"
)

// LeftOut is an address that is not used, and why.
type LeftOut struct{ Address, Why string }

// Choose returns the endpoints of a set that a client with credentials uses, in their order, and
// the addresses of the others. An endpoint that says nothing of TLS is used: the handshake shows.
func Choose(set []resolver.Endpoint) (use []resolver.Endpoint, addresses []string, left []LeftOut) {
	known := make(map[string]bool)
	for _, e := range set {
		why := ""
		if is, ok := e.Attributes.Value(secure{}).(bool); ok && !is {
			why = Plain
		} else if len(known)+len(e.Addresses) > MaxEndpoints {
			why = Beyond
		}
		for _, a := range e.Addresses {
			if why == "" {
				known[a.Addr] = true
				addresses = append(addresses, a.Addr)
			} else if len(left) < MaxEndpoints {
				left = append(left, LeftOut{a.Addr, why})
			}
		}
		if why == "" && len(e.Addresses) > 0 {
			use = append(use, e)
		}
	}
	slices.Sort(addresses)
	return use, slices.Compact(addresses), left
}
