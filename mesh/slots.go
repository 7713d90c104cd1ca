package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// FullError says that a server has as many connections as it may.
type FullError struct {
	Limit      int
	Strangers  bool   // the limit is for clients without a certificate
	Handshakes bool   // the limit is for handshakes under way
	Of         string // the source, identity or key that the limit is for; blank: all together
}

func (e *FullError) Error() string {
	var what string
	switch {
	case e.Handshakes:
		what = "handshakes are under way"
	case e.Strangers:
		what = "clients without a certificate are connected"
	case e.Of != "":
		return fmt.Sprintf("mesh: %s has %d connections, which is the limit for one identity: close one that is not needed", e.Of, e.Limit)
	default:
		return fmt.Sprintf("mesh: %d clients are connected, which is the limit: try again later, or raise it", e.Limit)
	}
	if e.Of != "" {
		return fmt.Sprintf("mesh: %d %s from %s, which is the limit for one source: try again later", e.Limit, what, e.Of)
	}
	return fmt.Sprintf("mesh: %d %s, which is the limit: try again later", e.Limit, what)
}

// slots are what connections of one sort take while they last.
type slots struct {
	all, each int       // limits, all together and for each holder
	full      FullError // what is full

	mu     sync.Mutex
	taken  int            // guarded by mu
	taking map[string]int // by holder, none of them zero; guarded by mu
}

func newSlots(all, each int, full FullError) *slots {
	return &slots{all: all, each: each, full: full, taking: make(map[string]int)}
}

// take takes a slot for holder, or for nobody that is counted if it is blank.
// The function that it returns gives the slot back, once.
func (s *slots) take(holder string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.full
	switch {
	case holder != "" && s.taking[holder] >= s.each:
		full.Limit, full.Of = s.each, holder
		return nil, &full
	case s.taken >= s.all:
		full.Limit = s.all
		return nil, &full
	}
	s.taken++
	if holder != "" {
		s.taking[holder]++
	}
	return sync.OnceFunc(func() { s.giveBack(holder) }), nil
}

func (s *slots) giveBack(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if holder == "" {
		return
	}
	if s.taking[holder]--; s.taking[holder] == 0 {
		delete(s.taking, holder)
	}
}

// sourceOf returns what connections are counted by: an IPv4 address, a /64 of
// IPv6, or the kind of network of another address.
func sourceOf(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.Network()
	}
	ip := at.Addr().Unmap()
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}
