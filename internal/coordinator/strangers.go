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
// call takes its place before its request is received; and what is larger comes in parts,
// once there is a reason to take it.

// newFirstSets are the places of who sets the first manifest. Whoever proves the setup
// token keeps its place.
func newFirstSets() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{What: "first sets", Most: firstSetsAtOnce,
		PerSource: firstSetsPerSource, Patience: answerTimeout, PerHolder: 1})
}

// newPresenters are the places of who shows a trust bundle of before a restore.
func newPresenters() *flowcontrol.Limiter {
	return flowcontrol.New(flowcontrol.Limits{What: "trust bundles", Most: presentersAtOnce,
		PerSource: presentersPerSource, Patience: answerTimeout})
}

// visitKey is the key of a place in the context of a call.
type visitKey struct{}

// beforeRequest takes what a call of method with one request needs before that is read.
// leave gives it back.
func (c *Coordinator) beforeRequest(ctx context.Context, method string) (in context.Context, leave func(error) error, err error) {
	addr := identity.FromContext(ctx).Addr
	switch method {
	case fealtyv1.VerifyService_Verify_FullMethodName:
		ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
		place, err := c.verifiers.Enter(ctx, addr, c.now())
		if err != nil {
			cancel()
			return nil, nil, err
		}
		return context.WithValue(place.Context(), visitKey{}, place), func(err error) error {
			defer cancel()
			defer place.Leave()
			return place.Reason(err)
		}, nil
	case fealtyv1.RestoreService_GetLinks_FullMethodName:
		if !c.limiter.allow(addr, c.now()) {
			return nil, nil, explain.New(explain.RateLimited, "what", "calls from "+flowcontrol.Source(addr), "limit",
				fmt.Sprintf("%v per second", c.limiter.rates.PerSource))
		}
	}
	return ctx, func(err error) error { return err }, nil
}

// visitOf returns the place that was taken before the request was read.
func visitOf(ctx context.Context) (*flowcontrol.Slot, error) {
	place, ok := ctx.Value(visitKey{}).(*flowcontrol.Slot)
	if !ok {
		return nil, explain.New(explain.Internal, "what", "a call without a place")
	}
	return place, nil
}

// placedStream is a stream under the context of its place.
type placedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s placedStream) Context() context.Context { return s.ctx }

// receiveParts receives what follows on whole until next says that it was the last, or
// size bytes are there, which is the most that it takes.
func receiveParts(ctx context.Context, c *Coordinator, whole []byte, size int, next func() (part []byte, more bool, err error)) ([]byte, error) {
	type got struct {
		part []byte
		more bool
	}
	if info, ok := mesh.FromContext(ctx); ok {
		info.Grant(int64(size) + int64(size)/partBytes*64) // with what frames the parts
	}
	for len(whole) < size {
		g, err := receive(ctx, c, func() (got, error) {
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
