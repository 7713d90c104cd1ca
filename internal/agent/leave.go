package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/explain"
	"github.com/fealty-io/fealty/internal/verdict"
	"github.com/fealty-io/fealty/mesh"
)

// leaveTimeout bounds a request to leave over all coordinators.
const leaveTimeout = 2 * time.Minute

// leaveRounds is how often all coordinators are asked while an answer was lost: the
// reset of a connection that a ban cuts can overtake what the coordinator says, and
// once more when we are told why our certificate is refused.
const leaveRounds = 4

// leave ends the membership at a coordinator.
//
// Leaving bans our keys, and so cuts the very connection that the answer comes
// on. A sign after the request was sent that we are out is an answer too, also
// to a person who asks again.
func (a *Agent) leave(ctx context.Context) error {
	var failures []error
	for range leaveRounds {
		for _, address := range a.contact.Addresses() {
			err := a.contact.AskOne(ctx, address, func(ctx context.Context, _ string,
				conn grpc.ClientConnInterface) error {
				_, err := fealtyv1.NewAdmissionServiceClient(conn).Leave(ctx,
					&fealtyv1.LeaveRequest{Name: a.node.Me().ID.Name()})
				return err
			})
			inDate := a.contact.Presentable(ctx)
			if left(err, a.leaveSent, inDate) {
				a.log.LogAttrs(ctx, slog.LevelInfo, "left the cluster", slog.String("member", a.node.Me().ID.String()),
					slog.String("coordinator", address))
				return nil
			}
			if e, ok := verdict.Of(err); ok {
				return e
			}
			a.leaveSent = a.leaveSent || reached(err)
			failures = append(failures, &verdict.AddressError{Address: address, Err: err})
			if ctx.Err() != nil {
				break
			}
		}
		if !a.leaveSent {
			break
		}
	}
	if a.leaveSent {
		return explain.Wrap(errors.Join(failures...), explain.OutcomeUnknown, "method", "the request to leave")
	}
	return verdict.Summarize(a.node.Me().Cluster, failures)
}

// reached reports whether a call that failed with err may have been served.
func reached(err error) bool {
	if _, ok := errors.AsType[*mesh.NoEndpointsError](err); ok {
		return false
	}
	return !verdict.IsWorded(err) // a coordinator that gives a reason did nothing
}

// left reports whether err, what a request to leave came to, shows that the node is
// out. sent says that an earlier one may have been served, inDate that our
// certificate did not simply end.
func left(err error, sent, inDate bool) bool {
	if err == nil {
		return true
	}
	if h, ok := errors.AsType[*mesh.HandshakeError](err); ok {
		// Our keys are not accepted any more, and it was us who asked for that.
		return sent && inDate && h.Reason == mesh.ClientRejected
	}
	if e, ok := verdict.Explained(err); ok {
		switch e.Code {
		case explain.CallerBanned, explain.JoinBanned, explain.RenewEntryGone, explain.NotFound:
			return true // our keys are banned, or there is no such member
		}
		return false
	}
	// An answer without a reason, as of a connection that is cut.
	switch status.Code(err) {
	case codes.PermissionDenied:
		return true
	case codes.Unauthenticated:
		return inDate
	}
	return false
}
