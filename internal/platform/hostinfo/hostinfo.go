// Package hostinfo collects what a machine reports about itself for people who search for it: host
// name, operating system and addresses.
//
// Nothing is decided by it, so values of the wrong form are left out and not refused.
package hostinfo

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
)

// Bounds on what a machine says.
const (
	MaxHost      = 253 // RFC 1035 §3.1, as text
	MaxOS        = 64
	MaxAddresses = 8
)

// Facts are what a machine says of itself. The zero value says nothing.
type Facts struct {
	Host      string   `json:"host,omitempty"`
	OS        string   `json:"os,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// IsZero reports whether nothing is said.
func (f Facts) IsZero() bool { return f.Host == "" && f.OS == "" && len(f.Addresses) == 0 }

// Seen is what a machine said of itself when it came, and from where it came. Its fields
// stand in the record of a member.
type Seen struct {
	Machine     Facts  `json:"machine,omitzero"`
	SeenAddress string `json:"seen_address,omitempty"`
}

// Here returns the facts of this machine, as far as the system tells them.
func Here() Facts {
	f := Facts{OS: runtime.GOOS + "/" + runtime.GOARCH}
	if host, err := os.Hostname(); err == nil {
		f.Host = host
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return Clean(f)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() || len(f.Addresses) == MaxAddresses {
			continue
		}
		f.Addresses = append(f.Addresses, n.IP.String())
	}
	return Clean(f)
}

// Clean returns what of f is of the form: a host name of letters, digits, dots, dashes
// and underscores, an operating system in printable ASCII, and addresses that are
// some, each once and in their one spelling. Its result holds no memory of f.
func Clean(f Facts) Facts {
	var out Facts
	if len(f.Host) <= MaxHost && strings.IndexFunc(f.Host, notOfHost) < 0 {
		out.Host = strings.Clone(f.Host)
	}
	if len(f.OS) <= MaxOS && strings.IndexFunc(f.OS, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		out.OS = strings.Clone(f.OS)
	}
	for _, text := range f.Addresses[:min(len(f.Addresses), MaxAddresses)] {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			continue
		}
		if s := a.Unmap().String(); !slices.Contains(out.Addresses, s) {
			out.Addresses = append(out.Addresses, s)
		}
	}
	return out
}

func notOfHost(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '-' || r == '_')
}

// Source returns the address of host:port without the port, or "" for what is none.
func Source(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return ""
	}
	return ap.Addr().Unmap().WithZone("").String()
}
