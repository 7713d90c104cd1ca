// Package freeport finds free addresses for test servers that are started, killed and started again
// on the same address.
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

var (
	mu    sync.Mutex
	given = make(map[int]bool) // guarded by mu
)

// Addr returns an address on 127.0.0.1, as HOST:PORT, on which nobody listens. The kernel gives
// its port to nobody, and Addr gives it to nobody else in this process, so that it is still
// free when a server that was killed is started again. The error says why nobody can listen
// there.
func Addr() (addr string, err error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := first + rand.IntN(many)
		if given[port] {
			continue
		}
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			given[port] = true
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("freeport: no port was free in %d tries: %w", tries, err)
}
