// Package fencegrpc fences a gRPC service with a few lines at either end: see [Server] and
// [Client].
//
// The token of a call travels in its metadata, as fealty-fence-token, with fealty-fence-lineage
// and fealty-fence-grant where the sender has them, and a refusal in the detail of its status
// (google.rpc.ErrorInfo, of the domain fence.fealty.io), so that clients in any language can
// tell what happened. FAILED_PRECONDITION is for fencing alone: a fenced service answers
// with it for nothing else.
package fencegrpc

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/signed"
)

// codeOf is the status of a refusal. A reason that the sender is not in charge, or that it has
// been there before, has the code that is for nothing else.
func codeOf(r fence.Reason) codes.Code {
	switch r {
	case fence.ReasonStale, fence.ReasonMoved, fence.ReasonClone, fence.ReasonOwner, fence.ReasonDuplicate:
		return codes.FailedPrecondition
	case fence.ReasonUngranted:
		return codes.PermissionDenied
	case fence.ReasonUnpromised, fence.ReasonLate:
		return codes.Aborted
	case fence.ReasonFull:
		return codes.ResourceExhausted
	}
	return codes.InvalidArgument // domain, malformed
}

// refusal is what a sender hears: the reason, and no mark.
func refusal(reason fence.Reason) error {
	return errorinfo.With(status.New(codeOf(reason), "refused by the fence: "+string(reason)),
		&errdetails.ErrorInfo{Reason: string(reason), Domain: signed.ErrorDomain}).Err()
}

// RefusedError is a refusal as its sender sees it. It matches [fence.ErrRefused], and
// [fence.ErrFenced] and [fence.ErrEnded] by its reason, and keeps the status of the call.
type RefusedError struct {
	Reason fence.Reason
	err    error
}

func (e *RefusedError) Error() string { return e.err.Error() }

// Unwrap returns the error of the call.
func (e *RefusedError) Unwrap() error { return e.err }

// GRPCStatus returns the status of the call.
func (e *RefusedError) GRPCStatus() *status.Status { return status.Convert(e.err) }

// Is reports what a refusal matches.
func (e *RefusedError) Is(target error) bool { return e.Reason.Matches(target) }

// heard returns the error of a fenced call, with its reason if it is a refusal. A
// receiver that answers FAILED_PRECONDITION and does not say why has fenced the sender:
// to go on acting would be the worse mistake.
func heard(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for info := range errorinfo.All(s, signed.ErrorDomain) {
		// One under another code is not the fence's own.
		if reason := fence.Reason(info.GetReason()); s.Code() == codeOf(reason) {
			return &RefusedError{Reason: reason, err: err}
		}
	}
	if s.Code() == codes.FailedPrecondition {
		return &RefusedError{Reason: fence.ReasonStale, err: err}
	}
	return err
}

// ErrNoRule is matched where a method was called that no rule names.
var ErrNoRule = errors.New("no fencing rule")
