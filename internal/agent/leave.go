package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/node/verdict"
	"github.com/fealty-io/fealty/mesh"
)

// leaveTimeout bounds a request to leave over all coordinators.
const leaveTimeout = 2 * time.Minute

// leaveRounds is how often all coordinators are asked while an answer was lost: the
// reset of a connection that a ban cuts can overtake what the coordinator says, and
// once more when we are told why our certificate is refused.
const leaveRounds = 4

// Leave ends the membership at a coordinator with the identity in the folder, and then removes that, for an agent
// that is not run. The caller closes the agent afterwards. It fails with the refusal of a coordinator, with
// [errcode.OutcomeUnknown] where no answer says whether the membership ended, and with [errcode.MemberExpired]
// where the certificate ended: nobody hears a member without one.
func (a *Agent) Leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if !a.contact.Presentable(ctx) {
		me := a.node.Me().ID
		e := errcode.New(errcode.MemberExpired, "member", me.String(), "expired", a.node.SVID().Leaf().NotAfter)
		e.Do = "start the agent, which renews first if it still may, and leave then; or have an admin run fealty " +
			"member remove " + string(me.Kind()) + "/" + me.Name() + ", and remove the folder here"
		return e
	}
	if err := a.leave(ctx); err != nil {
		return err
	}
	return a.forget()
}

// forget removes identity and snapshots. Nobody may write any more.
func (a *Agent) forget() error {
	if err := a.node.Store().Wipe(); err != nil {
		return fmt.Errorf("the node left its cluster, and its identity is not removed yet: %w", err)
	}
	return nil
}

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
		return errcode.Wrap(errors.Join(failures...), errcode.OutcomeUnknown, "method", "the request to leave")
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
		case errcode.CallerBanned, errcode.JoinBanned, errcode.RenewEntryGone, errcode.NotFound:
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
