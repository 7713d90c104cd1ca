package identity

import (
	"context"
	"crypto/x509"
	"log/slog"
)

// Peer is who is on the other end of a connection, as far as the transport knows.
type Peer struct {
	ID   ID                // zero unless the peer is identified
	Err  error             // why a verified chain identifies nobody; matches [ErrNoIdentity]
	Leaf *x509.Certificate // the verified leaf; nil without one
	Key  KeyID             // of Leaf
	// Local holds the peer's credentials on a unix socket; nil on any other transport.
	// They are not an identity.
	Local *Local
	Addr  string // the remote address, for people; never trusted
}

// Local is what the kernel says of the process that opened a unix socket.
type Local struct {
	UID, GID uint32
	PID      int32
}

// Identified reports whether there is a verified chain, and exactly one identity of the
// cluster in it. An error always wins over an id. Of the others, those with neither Err nor
// Leaf showed no certificate: plaintext, one-way TLS or a unix socket.
func (p Peer) Identified() bool { return p.Err == nil && !p.ID.IsZero() }

// standing tells the three cases apart, for people who read a log.
func (p Peer) standing() string {
	switch {
	case p.Identified():
		return "identified"
	case p.Err != nil || p.Leaf != nil:
		return "unidentified"
	}
	return "insecure"
}

// LogValue shows who the peer is, and none of its certificate's bytes.
func (p Peer) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("standing", p.standing())}
	if p.Addr != "" {
		attrs = append(attrs, slog.String("addr", p.Addr))
	}
	if !p.ID.IsZero() {
		attrs = append(attrs, slog.String("id", p.ID.String()))
	}
	if !p.Key.IsZero() {
		attrs = append(attrs, slog.String("key", p.Key.String()))
	}
	if p.Local != nil {
		attrs = append(attrs, slog.Int64("uid", int64(p.Local.UID)), slog.Int64("pid", int64(p.Local.PID)))
	}
	if p.Err != nil {
		attrs = append(attrs, slog.String("err", p.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

type contextKey struct{}

// NewContext returns a context that carries p.
func NewContext(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the peer that ctx carries, or the zero Peer, which is not identified.
func FromContext(ctx context.Context) Peer {
	p, _ := ctx.Value(contextKey{}).(Peer)
	return p
}
