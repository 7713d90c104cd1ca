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
	// They are not an identity: a local peer stands as [Insecure].
	Local *Local
	Addr  string // the remote address, for people; never trusted
}

// Local is what the kernel says of the process that opened a unix socket.
type Local struct {
	UID, GID uint32
	PID      int32
}

// Standing is what may be concluded about a peer. The zero Standing is [Insecure].
type Standing int

const (
	// Insecure: no verified client chain. Plaintext, one-way TLS or a unix socket.
	Insecure Standing = iota
	// Identified: a verified chain, and exactly one identity of the cluster in it.
	Identified
	// Unidentified: a verified chain that identifies nobody here.
	Unidentified
)

func (s Standing) String() string {
	switch s {
	case Insecure:
		return "insecure"
	case Identified:
		return "identified"
	case Unidentified:
		return "unidentified"
	}
	return "invalid standing"
}

// Standing tells the three cases apart. An error always wins over an id.
func (p Peer) Standing() Standing {
	switch {
	case p.Err != nil:
		return Unidentified
	case !p.ID.IsZero():
		return Identified
	case p.Leaf != nil:
		return Unidentified
	}
	return Insecure
}

// LogValue shows who the peer is, and none of its certificate's bytes.
func (p Peer) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("standing", p.Standing().String())}
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

// FromContext returns the peer that ctx carries, or the zero Peer, which is [Insecure].
func FromContext(ctx context.Context) Peer {
	p, _ := ctx.Value(contextKey{}).(Peer)
	return p
}
