package delivery

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
)

// News is a message to members. One that many are sent is encoded once for all of their streams, and
// they share its bytes, whoever of them reads slowly: nobody may change it, nor the message that it
// was made of. It is a message itself, so that a server without [Codec] encodes it as any other.
type News struct {
	*fealtyv1.ConnectResponse
	wire func() (mem.BufferSlice, error) // its bytes, made once; nil: it is encoded as it is sent
}

// newsFor returns a message to one member.
func newsFor(m *fealtyv1.ConnectResponse) *News { return &News{ConnectResponse: m} }

// newsForMany returns a message that many members may be sent.
func newsForMany(m *fealtyv1.ConnectResponse) *News {
	return &News{m, sync.OnceValues(func() (mem.BufferSlice, error) {
		raw, err := inProto().Marshal(m)
		if err != nil {
			return nil, err
		}
		// Bytes of the collector's: those of a pool would go back to it after the first stream.
		own := mem.SliceBuffer(raw.Materialize())
		raw.Free()
		return mem.BufferSlice{own}, nil
	})}
}

// Codec encodes what a server of members sends, and decodes what it receives: each as gRPC does, but
// [News] for many only once.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a [Codec].
func NewCodec() Codec { return Codec{inProto()} }

func inProto() encoding.CodecV2 { return encoding.GetCodecV2(proto.Name) }

// Marshal returns m in its bytes.
func (c Codec) Marshal(m any) (mem.BufferSlice, error) {
	n, ok := m.(*News)
	switch {
	case !ok:
		return c.CodecV2.Marshal(m)
	case n.wire == nil:
		return c.CodecV2.Marshal(n.ConnectResponse)
	}
	return n.wire()
}

// trustNews are the messages that bring a trust bundle to members.
type trustNews struct {
	of                     *bundle.View
	changes, links, bundle *News
}

// newsOf returns the messages of t. They are made once as long as no other bundle is in force.
func (c *Delivery) newsOf(t *bundle.View) *trustNews {
	if n := c.trust.Load(); n != nil && n.of == t {
		return n
	}
	n := &trustNews{of: t, changes: newsForMany(t.ChangesMessage()), links: newsForMany(t.LinksMessage()),
		bundle: newsForMany(&fealtyv1.ConnectResponse{News: &fealtyv1.ConnectResponse_Snapshot{Snapshot: t.Message()}})}
	c.trust.Store(n)
	return n
}

// memberStream is a member's stream, as a listener.
type memberStream struct{ grpc.ServerStream }

func (s memberStream) Send(n *News) error { return s.SendMsg(n) }
