package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/signed"
)

// Fenced makes the calls of one process of a member: each carries the life of the process, as a
// fenced call to a provider does, so that a coordinator serves the newest one alone. A refusal
// that says that another process is in charge ends this one: its [fence.Sender] is fenced, and no
// further call is made. It is a [grpc.ClientConnInterface], and may be used by several
// goroutines.
type Fenced struct {
	conn   grpc.ClientConnInterface
	sender atomic.Pointer[fence.Sender]
}

// NewFenced returns one over conn. It calls nobody before [Fenced.Begin].
func NewFenced(conn grpc.ClientConnInterface) *Fenced { return &Fenced{conn: conn} }

// Begin says which life it is of.
func (f *Fenced) Begin(sender *fence.Sender) { f.sender.Store(sender) }

// Life returns which one that is; the zero Life before it began.
func (f *Fenced) Life() fence.Life {
	if sender := f.sender.Load(); sender != nil {
		return sender.Life()
	}
	return fence.Life{}
}

// ErrNoLife is matched by a call before the process began a life.
var ErrNoLife = errors.New("this process began no life yet")

// Invoke makes a call. Once the process is fenced it fails without one, and its error matches
// [fence.ErrFenced].
func (f *Fenced) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	sender := f.sender.Load()
	if sender == nil {
		return fmt.Errorf("client: %s was not called: %w", method, ErrNoLife)
	}
	message, ok := args.(proto.Message)
	if !ok {
		return fmt.Errorf("client: %s was not called: its request is a %T, and no protobuf message", method, args)
	}
	request, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("client: %s was not called: %w", method, err)
	}
	// Of a token the coordinators look at the life alone: a call may be made at two of them.
	token, err := sender.Next(0, append([]byte(method+"\n"), request...))
	if err != nil {
		return err
	}
	life := sender.Life()
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	for key, value := range map[string]string{signed.TokenKey: token.String(),
		signed.LineageKey: life.Lineage.String(), signed.GrantKey: life.Grant} {
		md.Delete(key)
		if value != "" {
			md.Set(key, value)
		}
	}
	return sender.Heard(heard(f.conn.Invoke(metadata.NewOutgoingContext(ctx, md), method, args, reply, opts...)))
}

// NewStream is not for a process that may be fenced: nothing that it asks is a stream.
func (f *Fenced) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "client: a process that may be fenced makes unary calls alone")
}

// refusedError is a refusal of the fence, with the status of the call.
type refusedError struct {
	reason fence.Reason
	err    error
}

func (e *refusedError) Error() string              { return e.err.Error() }
func (e *refusedError) Unwrap() error              { return e.err }
func (e *refusedError) Is(target error) bool       { return e.reason.Matches(target) }
func (e *refusedError) GRPCStatus() *status.Status { return status.Convert(e.err) }

// heard returns the error of a call, with its reason if the fence refused it. Another
// FAILED_PRECONDITION is none: coordinators answer with it for other things too.
func heard(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for info := range errorinfo.All(s, signed.ErrorDomain) {
		return &refusedError{fence.Reason(info.GetReason()), err}
	}
	return err
}
