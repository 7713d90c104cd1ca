package ratelimit

import (
	"net"
	"net/netip"
	"strings"
)

// MaxShownBytes bounds what a peer sent and an error or a log line repeats; see [Clip].
const MaxShownBytes = 64

// Clip returns the first limit bytes of s at most, as valid UTF-8. The result does not
// keep the rest of s in memory.
func Clip(s string, limit int) string {
	if len(s) > limit {
		s = strings.Clone(s[:limit])
	}
	return strings.ToValidUTF8(s, "?")
}

// Host returns the host of a remote address "host:port", and addr itself if it is none.
func Host(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// Source returns what of a remote address counts as one source: an IPv4 address, or the /64
// of an IPv6 address, which is what one customer has (RFC 6177). Anything else counts
// by its text.
func Source(addr string) string {
	host := Host(addr)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return host
	}
	return p.String()
}

// networkOf returns the network that a source belongs to, a /24 or /48; see [Source].
func networkOf(source string) string {
	if p, err := netip.ParsePrefix(source); err == nil {
		return netip.PrefixFrom(p.Addr(), 48).Masked().String()
	}
	ip, err := netip.ParseAddr(source)
	if err != nil {
		return source
	}
	return netip.PrefixFrom(ip, 24).Masked().String()
}
