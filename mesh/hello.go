package mesh

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/pires/go-proxyproto"
)

// maxHelloBytes bounds the first message of a client, with what frames it. Those of Go
// have 1.6 KiB with a post-quantum key share.
const maxHelloBytes = 8 << 10

// maxFlightBytes bounds what a client sends from then to the end of the handshake: a
// chain of three certificates of 8 KiB each, and a signature.
const maxFlightBytes = 32 << 10

var (
	errHelloTooLong = errors.New("mesh: the first message of the handshake is too long")
	errFlightLong   = errors.New("mesh: the peer sends more than a handshake takes")
)

// readHello reads from r until the first message of a TLS handshake is whole, and
// returns what was read. Bytes that can be no such message are returned too: to refuse it costs
// nothing. spoke is called when something came.
func readHello(r io.Reader, spoke func()) ([]byte, error) {
	buf := make([]byte, 0, 512)
	for {
		switch whole, err := helloWhole(buf); {
		case err != nil:
			return nil, err
		case whole:
			return buf, nil
		case len(buf) >= maxHelloBytes:
			return nil, errHelloTooLong
		case len(buf) == cap(buf):
			buf = slices.Grow(buf, min(len(buf), maxHelloBytes-len(buf)))
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), maxHelloBytes)])
		if n > 0 {
			spoke()
		}
		if buf = buf[:len(buf)+n]; err != nil {
			return nil, err
		}
	}
}

// TLS records and messages (RFC 8446 §4, §5.1).
const (
	recordHandshake   = 22
	recordHeaderBytes = 5
	messageHello      = 1
)

// helloWhole reports whether buf holds a whole ClientHello, or what cannot become one.
func helloWhole(buf []byte) (bool, error) {
	var message []byte // its first four bytes: type and length
	got := 0           // bytes of the message, with those
	for {
		if len(buf) > 0 && buf[0] != recordHandshake {
			return true, nil
		}
		if len(buf) < recordHeaderBytes {
			return false, nil
		}
		size := int(binary.BigEndian.Uint16(buf[3:]))
		payload := buf[recordHeaderBytes:]
		if size == 0 || buf[1] != 3 {
			return true, nil
		}
		part := payload[:min(size, len(payload))]
		got += len(part)
		message = append(message, part[:min(4-len(message), len(part))]...)
		if len(message) > 0 && message[0] != messageHello {
			return true, nil
		}
		if len(message) == 4 {
			want := 4 + int(binary.BigEndian.Uint32(message)&0xffffff)
			if want > maxHelloBytes {
				return false, errHelloTooLong
			}
			if got >= want && len(part) == size {
				return true, nil
			}
		}
		if len(part) < size {
			return false, nil
		}
		buf = payload[size:]
	}
}

// proxied reads the header of version 2 of the PROXY protocol from r, and returns who
// the proxy speaks for; nil is the proxy itself, which looks whether we live.
func proxied(r *bufio.Reader) (net.Addr, error) {
	header, err := proxyproto.Read(r)
	if err != nil {
		return nil, err
	}
	if header.Version != 2 {
		return nil, fmt.Errorf("mesh: a header of version %d of the PROXY protocol, want 2", header.Version)
	}
	if header.Command.IsLocal() {
		return nil, nil
	}
	from, ok := header.SourceAddr.(*net.TCPAddr)
	if !ok || from == nil {
		return nil, errors.New("mesh: the header of the PROXY protocol names no source over TCP")
	}
	return from, nil
}

// isProxy reports whether addr is one of the proxies.
func isProxy(proxies []netip.Prefix, addr net.Addr) bool {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return false
	}
	ip := at.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// begunConn is a connection whose first bytes were read already. Until the handshake is
// over its client may send no more than one takes.
type begunConn struct {
	net.Conn
	from    net.Addr // who the client is
	head    []byte   // what was read, and is to be read again; owned by who reads
	waits   func()   // called when head is used up and more is to come; nil: was called
	left    int      // bytes that may come yet; owned by who reads
	settled bool     // the handshake is over; owned by who reads
}

func (c *begunConn) RemoteAddr() net.Addr { return c.from }

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	if c.waits != nil {
		c.waits()
		c.waits = nil
	}
	if c.settled {
		return c.Conn.Read(p)
	}
	if c.left == 0 {
		return 0, errFlightLong
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// CloseWrite lets a client that is refused read why; see linger.
func (c *begunConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
