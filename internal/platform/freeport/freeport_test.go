package freeport_test

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fealty-io/fealty/internal/platform/freeport"
)

// No address is given twice, each can be listened on, and none has a port that the
// kernel gives to a connection. Each stays this process's: another one that asks finds its port held.
func TestAddr(t *testing.T) {
	kernels := 32768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if kernels, err = strconv.Atoi(strings.Fields(string(text))[0]); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[string]bool)
	for range 800 { // of which some would be the same
		addr, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		if port, err := strconv.Atoi(text); err != nil || port >= kernels || seen[addr] {
			t.Fatalf("%s: seen before: %v; the kernel's begin at %d; %v", addr, seen[addr], kernels, err)
		}
		seen[addr] = true
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if other, err := net.ListenPacket("udp", addr); err == nil {
			other.Close()
			t.Fatalf("another process would be given %s", addr)
		}
	}
}
