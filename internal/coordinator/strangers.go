package coordinator

import (
	"context"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
)

// The cost of clients without a certificate is bounded before their requests are read.
// Their connections have a server of their own, whose windows and messages are small; a
// call takes its slot before its request is received; and what is larger comes in parts,
// once there is a reason to take it.

// beforeRequest takes what a call of method with one request needs before that is read.
// leave gives it back.
func (c *Coordinator) beforeRequest(ctx context.Context, method string) (in context.Context, leave func(error) error,
	err error) {
	addr := identity.FromContext(ctx).Addr
	switch method {
	case fealtyv1.VerifyService_Verify_FullMethodName:
		return c.parts.Shown.Verification.Enter(ctx, addr)
	case fealtyv1.RestoreService_GetLinks_FullMethodName:
		if err := c.limiter.Admit("calls", addr, c.now()); err != nil {
			return nil, nil, err
		}
	}
	return ctx, func(err error) error { return err }, nil
}

// slotStream is a stream under the context of its slot.
type slotStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s slotStream) Context() context.Context { return s.ctx }
