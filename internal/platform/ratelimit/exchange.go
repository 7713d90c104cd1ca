package ratelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/mesh"
)

// Bounds on one exchange with a caller.
const (
	// MaxMessageBytes bounds a received gRPC message: a manifest (1 MiB) with its
	// signatures is the largest.
	MaxMessageBytes = 1<<20 + 64<<10
	// MaxHeaderBytes bounds the headers of one call: ours send next to none.
	MaxHeaderBytes = 16 << 10
	// PartBytes bounds one part of what a stranger may not send in one message; see
	// [ReceiveParts].
	PartBytes = 32 << 10
	// AnswerTimeout bounds the wait for a caller's answer to a challenge, and
	// ExchangeTimeout all of an exchange, from challenge to grant.
	AnswerTimeout   = 10 * time.Second
	ExchangeTimeout = 30 * time.Second
)

// ReceiveParts receives what follows on whole until next says that it was the last, or
// size bytes are there, which is the most that it takes: the connection of ctx may send as
// much from now on. Each part has from 1 to [PartBytes] bytes.
//
// Errors: that of next; that of ctx, which next is not waited for beyond; and
// [errcode.RequestField] for a part of another size.
func ReceiveParts(ctx context.Context, readers *Readers, whole []byte, size int,
	next func() (part []byte, more bool, err error)) ([]byte, error) {
	type got struct {
		part []byte
		more bool
	}
	if info, ok := mesh.FromContext(ctx); ok {
		info.Grant(int64(size) + int64(size)/PartBytes*64) // with what frames the parts
	}
	for len(whole) < size {
		g, err := Receive(ctx, readers, func() (got, error) {
			part, more, err := next()
			return got{part, more}, err
		})
		if err != nil {
			return nil, err
		}
		if len(g.part) == 0 || len(g.part) > PartBytes || len(whole)+len(g.part) > size {
			return nil, errcode.New(errcode.RequestField, "field", "part",
				"problem", fmt.Sprintf("it has %d bytes after %d, want from 1 to %d, and %d in all",
					len(g.part), len(whole), PartBytes, size))
		}
		if whole = append(whole, g.part...); !g.more {
			break
		}
	}
	return whole, nil
}
