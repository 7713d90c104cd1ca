//go:build linux

package pgtest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/fealty-io/fealty/internal/store/storetest/proxytest"
)

// Proxy stands between a store and its server, and knows the server's protocol.
type Proxy struct {
	*proxytest.Proxy
}

// NewProxy listens on loopback and passes connections on to target. It ends with
// the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return &Proxy{proxytest.New(t, target)}
}

// When gives the next connection whose client executes the prepared statement
// the given fate; later ones pass.
func (p *Proxy) When(statement string, f proxytest.Fate) { p.WhenAgain(0, statement, f) }

// WhenAgain is When, after so many times.
func (p *Proxy) WhenAgain(times int, statement string, f proxytest.Fate) {
	// As it stands in a Bind message, after the portal's empty name.
	p.Proxy.When(times, []byte("\x00"+statement+"\x00"), f)
}

// Deafen drops all notices from now on, as a pooler does.
func (p *Proxy) Deafen() { p.Filter(withoutNotices) }

// withoutNotices returns the whole messages of data but notices, and what is
// left. A message is a type, a length that counts itself, and the body.
func withoutNotices(data []byte) (keep, rest []byte) {
	for len(data) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(data[1:]))
		if len(data) < n {
			break
		}
		if data[0] != 'A' {
			keep = append(keep, data[:n]...)
		}
		data = data[n:]
	}
	return keep, bytes.Clone(data)
}
