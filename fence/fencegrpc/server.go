package fencegrpc

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/signed"
)

// Rule says how the calls of one method are fenced.
type Rule struct {
	// Resource returns the resource that a request acts on. Nil: the method changes
	// nothing, and is not fenced; what it answers may be out of date.
	Resource func(request any) string

	// Domain returns the domain that a request says its resource is in. Nil: it says none.
	Domain func(request any) string

	// Removes: after a call that succeeded the resource is gone for good, and forgotten.
	Removes bool
}

// Server fences the methods of a service: their calls reach the service only when its
// receiver may obey them, one at a time for each resource, before anything of them was
// looked at.
type Server struct {
	// Gate decides. Required.
	Gate *fence.Gate

	// Holder returns the name of the caller, from its certificate. An error with a gRPC status
	// is answered with its code, any other one with Unauthenticated. Required.
	Holder func(ctx context.Context) (string, error)

	// Rules has a rule for each method, by its full name "/package.Service/Method". A call
	// of another one is refused: a method that was forgotten is open to no zombie. Required.
	Rules map[string]Rule

	// Authority is whose grants count; the zero Authority has none.
	Authority fence.Authority

	// Refused hears of every refusal, before the sender does: the place for logs, metrics
	// and alarms ([fence.Reason.Alarm]). Nil: nobody hears. It does not block.
	Refused func(ctx context.Context, err *fence.RefusedError)
}

// Unary is a [grpc.UnaryServerInterceptor].
func (s *Server) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	rule, ok := s.Rules[info.FullMethod]
	if !ok {
		return nil, noRule(info.FullMethod)
	}
	if rule.Resource == nil {
		return handler(ctx, request)
	}
	holder, err := s.Holder(ctx)
	if err != nil {
		code := codes.Unauthenticated
		if own, ok := status.FromError(err); ok { // such as PermissionDenied for a certificate of nobody
			code = own.Code()
		}
		return nil, status.Errorf(code, "%s: nobody is known on the other end: %v", info.FullMethod, err)
	}
	claim, err := s.claim(ctx, holder, rule, request)
	if err != nil {
		return nil, s.refused(ctx, &fence.RefusedError{Reason: fence.ReasonMalformed, Holder: holder, Resource: claim.Resource,
			Detail: err.Error()})
	}
	var response any
	var answer error
	do := s.Gate.Do
	if rule.Removes {
		do = s.Gate.Remove
	}
	acted := false
	err = do(ctx, claim, func(ctx context.Context) error {
		acted = true
		response, answer = handler(ctx, request)
		return answer
	})
	if acted {
		return response, answered(answer)
	}
	if refused, ok := errors.AsType[*fence.RefusedError](err); ok {
		return nil, s.refused(ctx, refused)
	}
	switch {
	case errors.Is(err, fence.ErrBusy):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, status.Error(codes.Unavailable, "the attempt was not made, as its mark could not be saved")
}

// Stream is a [grpc.StreamServerInterceptor]. A stream has no one request to fence: those
// of methods that change nothing pass, and all others are refused.
func (s *Server) Stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if rule, ok := s.Rules[info.FullMethod]; !ok || rule.Resource != nil {
		return noRule(info.FullMethod)
	}
	return handler(service, stream)
}

func noRule(method string) error {
	return status.Errorf(codes.Unimplemented, "%s is refused, as there is %v for it: name it in the server's rules", method, ErrNoRule)
}

func (s *Server) claim(ctx context.Context, holder string, rule Rule, request any) (fence.Claim, error) {
	c := fence.Claim{Holder: holder, Resource: rule.Resource(request)}
	if rule.Domain != nil {
		c.Domain = rule.Domain(request)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	err := c.Read(s.Authority, md.Get(signed.TokenKey), md.Get(signed.LineageKey), md.Get(signed.GrantKey))
	return c, err
}

func (s *Server) refused(ctx context.Context, err *fence.RefusedError) error {
	if s.Refused != nil {
		s.Refused(ctx, err)
	}
	return refusal(err.Reason)
}

// answered keeps code and detail of fencing for fencing: a service that answers with them
// for something else, such as what another fenced service told it, would make its client
// stop for good, or send again what was done.
func answered(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	p := proto.CloneOf(s.Proto())
	p.Details = slices.DeleteFunc(p.Details, func(d *anypb.Any) bool {
		var info errdetails.ErrorInfo
		return d.MessageIs(&info) && (d.UnmarshalTo(&info) != nil || info.GetDomain() == signed.ErrorDomain)
	})
	if s.Code() == codes.FailedPrecondition {
		p.Code = int32(codes.Internal)
		p.Message = "the service answered FAILED_PRECONDITION, which is for fencing alone: " + p.GetMessage()
	}
	return status.ErrorProto(p)
}
