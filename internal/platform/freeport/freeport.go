// Package freeport finds free addresses for test servers that are started, killed and started again
// on the same address, and for servers that are not there.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports from first on, as many, are below those that the kernel gives to whoever asks for any
// (on Linux from 32768 on): to connections that go out, above all.
const (
	first = 10_000
	many  = 20_000
	tries = 100
)

// given has the ports that this process was given. It holds each one for UDP, on which none of these servers speaks:
// while it does, no other process gets the port from this package.
var (
	mu    sync.Mutex
	given = make(map[int]net.PacketConn) // guarded by mu
)

// Addr returns an address on 127.0.0.1, as HOST:PORT, on which nobody listens. The kernel gives
// its port to nobody, and Addr gives it to nobody else, neither in this process nor, while this one
// lives, in another, so that it is still free when a server that was killed is started again. The error says why
// nobody can listen there.
func Addr() (addr string, err error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := first + rand.IntN(many)
		if given[port] != nil {
			continue
		}
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var held net.PacketConn
		if held, err = net.ListenPacket("udp", addr); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			held.Close()
			continue
		}
		given[port] = held
		return addr, l.Close()
	}
	return "", fmt.Errorf("freeport: no port was free in %d tries: %w", tries, err)
}
