package coordinator

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/flowcontrol"
	"github.com/fealty-io/fealty/mesh"
)

// What clients without a certificate cost is bounded before their requests are read.
// Their connections have a server of their own, whose windows and messages are small; a
// call takes its slot before its request is received; and what is larger comes in parts,
// once there is a reason to take it.

// newFirstSets are the places of who sets the first manifest. Whoever proves the setup
// token keeps its slot.
func newFirstSets() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{What: "first sets", Most: firstSetsAtOnce,
		PerSource: firstSetsPerSource, Patience: answerTimeout, PerHolder: 1})
}

// newPresenters bounds the callers that show a trust bundle of before a restore.
func newPresenters() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{What: "trust bundles", Most: presentersAtOnce,
		PerSource: presentersPerSource, Patience: answerTimeout})
}

// slotKey is the key of a slot in the context of a call.
type slotKey struct{}

// beforeRequest takes what a call of method with one request needs before that is read.
// leave gives it back.
func (c *Coordinator) beforeRequest(ctx context.Context, method string) (in context.Context, leave func(error) error, err error) {
	addr := identity.FromContext(ctx).Addr
	switch method {
	case fealtyv1.VerifyService_Verify_FullMethodName:
		ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
		slot, err := c.verifiers.Enter(ctx, addr, c.now())
		if err != nil {
			cancel()
			return nil, nil, err
		}
		return context.WithValue(slot.Context(), slotKey{}, slot), func(err error) error {
			defer cancel()
			defer slot.Leave()
			return slot.Reason(err)
		}, nil
	case fealtyv1.RestoreService_GetLinks_FullMethodName:
		if !c.limiter.allow(addr, c.now()) {
			return nil, nil, explain.New(explain.RateLimited, "what", "calls from "+flowcontrol.Source(addr), "limit",
				fmt.Sprintf("%v per second", c.limiter.rates.PerSource))
		}
	}
	return ctx, func(err error) error { return err }, nil
}

// slotOf returns the slot that was taken before the request was read.
func slotOf(ctx context.Context) (*flowcontrol.Slot, error) {
	slot, ok := ctx.Value(slotKey{}).(*flowcontrol.Slot)
	if !ok {
		return nil, explain.New(explain.Internal, "what", "a call without a slot")
	}
	return slot, nil
}

// slotStream is a stream under the context of its slot.
type slotStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s slotStream) Context() context.Context { return s.ctx }

// receiveParts receives what follows on whole until next says that it was the last, or
// size bytes are there, which is the most that it takes.
func receiveParts(ctx context.Context, readers *flowcontrol.Readers, whole []byte, size int, next func() (part []byte, more bool, err error)) ([]byte, error) {
	type got struct {
		part []byte
		more bool
	}
	if info, ok := mesh.FromContext(ctx); ok {
		info.Grant(int64(size) + int64(size)/partBytes*64) // with what frames the parts
	}
	for len(whole) < size {
		g, err := flowcontrol.Receive(ctx, readers, func() (got, error) {
			part, more, err := next()
			return got{part, more}, err
		})
		if err != nil {
			return nil, err
		}
		if len(g.part) == 0 || len(g.part) > partBytes || len(whole)+len(g.part) > size {
			return nil, explain.New(explain.RequestField, "field", "part", "problem", fmt.Sprintf("it has %d bytes after %d, want from 1 to %d, and %d in all", len(g.part), len(whole), partBytes, size))
		}
		if whole = append(whole, g.part...); !g.more {
			break
		}
	}
	return whole, nil
}
