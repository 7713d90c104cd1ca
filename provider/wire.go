package provider

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/fence/fencegrpc"
	"github.com/fealty-io/fealty/internal/platform/errorinfo"
	"github.com/fealty-io/fealty/internal/provider"
)

// errorDomain is the domain of the ErrorInfo of what is not the fence's to refuse.
const errorDomain = "provider.fealty.io"

// reasonListAnew is the reason of one where a revision is too old.
const reasonListAnew = "list-anew"

var wireStates = map[State]fealtyv1.MachineState{
	Speculative: fealtyv1.MachineState_MACHINE_STATE_SPECULATIVE,
	Creating:    fealtyv1.MachineState_MACHINE_STATE_CREATING,
	Idle:        fealtyv1.MachineState_MACHINE_STATE_IDLE,
	Configuring: fealtyv1.MachineState_MACHINE_STATE_CONFIGURING,
	Configured:  fealtyv1.MachineState_MACHINE_STATE_CONFIGURED,
	Draining:    fealtyv1.MachineState_MACHINE_STATE_DRAINING,
	Deleting:    fealtyv1.MachineState_MACHINE_STATE_DELETING,
	Failed:      fealtyv1.MachineState_MACHINE_STATE_FAILED,
}

func toWire(m Machine) *fealtyv1.ProviderMachine {
	return &fealtyv1.ProviderMachine{Id: m.ID, Profile: m.Profile, Domain: m.Domain, State: wireStates[m.State],
		Tenant: m.Tenant, Priority: m.Priority, Operation: m.Operation, LastError: m.LastError, PricePerHour: m.PricePerHour,
		InterruptionProbability: m.InterruptionProbability}
}

// fromWire returns a machine that is not checked yet. A state that this release does not
// know has its name in the API, which no check lets pass.
func fromWire(w *fealtyv1.ProviderMachine) Machine {
	m := Machine{ID: w.GetId(), Profile: w.GetProfile(), Domain: w.GetDomain(), State: State(w.GetState().String()),
		Tenant: w.GetTenant(), Priority: w.GetPriority(), Operation: w.GetOperation(), LastError: w.GetLastError(),
		PricePerHour:            w.GetPricePerHour(),
		InterruptionProbability: w.GetInterruptionProbability()}
	for state, wire := range wireStates {
		if wire == w.GetState() {
			m.State = state
		}
	}
	return m
}

// statusOf returns what an error of [Machines], or of this package, is on the wire. internal says that the
// status tells the caller only that the provider failed.
func statusOf(err error) (_ error, internal bool) {
	var code codes.Code
	switch {
	case errors.Is(err, ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, ErrRejected):
		code = codes.InvalidArgument
	case errors.Is(err, ErrUnavailable):
		code = codes.Unavailable
	case errors.Is(err, ErrListAnew):
		return detailed(codes.OutOfRange, err.Error(), errorDomain, reasonListAnew), false
	default:
		return status.Error(codes.Internal, "provider: it failed, and its log says why"), true
	}
	return status.Error(code, strings.ToValidUTF8(err.Error()[:min(len(err.Error()), provider.MaxLastError)], "")), false
}

func detailed(code codes.Code, text, domain, reason string) error {
	return errorinfo.With(status.New(code, text), &errdetails.ErrorInfo{Domain: domain, Reason: reason}).Err()
}

// outcomeOf says what kind of outcome the error of a call is. Whether it is fenced comes
// before everything else: its status, or its text, may look like another one.
func outcomeOf(err error) error {
	if errors.Is(err, fence.ErrFenced) {
		return ErrFenced
	}
	if refused, ok := errors.AsType[*fencegrpc.RefusedError](err); ok {
		switch refused.Reason {
		case fence.ReasonLate, fence.ReasonDuplicate, fence.ReasonFull:
			return ErrUnavailable
		}
		return ErrRejected
	}
	if errorinfo.Reason(err, errorDomain) == reasonListAnew {
		return ErrListAnew
	}
	switch status.Code(err) {
	case codes.NotFound:
		return ErrNotFound
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		return ErrUnavailable
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated, codes.OutOfRange,
		codes.AlreadyExists:
		return ErrRejected
	}
	return ErrInternal
}

// callError is what a method of [Client] returns: the outcome, and all that is known of it.
type callError struct {
	method  string
	machine string
	outcome error
	err     error
}

func (e *callError) Error() string {
	text := "provider: " + e.method
	if e.machine != "" {
		text += " of machine " + e.machine
	}
	return text + ": " + e.outcome.Error() + ": " + e.err.Error()
}

// Unwrap returns both, so that either is matched.
func (e *callError) Unwrap() []error { return []error{e.outcome, e.err} }
