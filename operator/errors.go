package operator

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What errors of this package match.
var (
	// ErrInvalid is matched by every [*InvalidError]: the demand cannot be, and was not sent.
	ErrInvalid = errors.New("invalid demand")

	// ErrHeld: the demand drops almost everything that the tenant had. What was stated before stands. Who means it
	// states it again: the third in a row is believed, one in a cycle of the shard.
	ErrHeld = errors.New("the demand is held")

	// ErrRefused: the shard refused the demand, and what was stated before stands.
	ErrRefused = errors.New("the demand is refused")

	// ErrUnready: when ctx ended, the shard did not know yet what the tenant has, as after its start.
	ErrUnready = errors.New("the shard is not ready to take demand")

	// ErrOvertaken: a process that was started later stated demand for the tenant. This one changes nothing any more.
	ErrOvertaken = errors.New("a newer process speaks for the tenant")

	// ErrReplaced: another session of the tenant took the place of this one.
	ErrReplaced = errors.New("another session of the tenant took the place of this one")

	// ErrDenied: the shard does not take this process for an operator of its cluster.
	ErrDenied = errors.New("the shard does not serve this caller")

	// ErrUnreachable: there is no session with the shard.
	ErrUnreachable = errors.New("the shard is not reached")

	// ErrProtocol: the other end broke the protocol, or is of a release that does not know it.
	ErrProtocol = errors.New("the protocol was broken")

	// ErrClosed: the operator was closed, or its Run is over.
	ErrClosed = errors.New("the operator has ended")
)

// InvalidError says what of a demand cannot be. Nothing of it was sent. It matches [ErrInvalid].
type InvalidError struct {
	Row     int    // from 0; -1 if it is about no row
	Field   string // such as "count"
	Problem string // what is wrong with the field, such as "is 0, want 1 to 1000000"
}

func (e *InvalidError) Error() string {
	if e.Row < 0 {
		return fmt.Sprintf("operator: the demand was not sent: its %s %s", e.Field, e.Problem)
	}
	return fmt.Sprintf("operator: the demand was not sent: its %s in row %d %s", e.Field, e.Row, e.Problem)
}

// Is reports that an InvalidError matches [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// DemandError says that a shard did not take a demand. What was stated before stands. It matches [ErrHeld],
// [ErrRefused], [ErrUnready] or [ErrOvertaken].
type DemandError struct {
	Tenant, Shard string
	Problem       string // why it was refused, in the shard's words; blank for the others
	kind          error
}

func (e *DemandError) Error() string {
	switch {
	case errors.Is(e.kind, ErrHeld):
		return fmt.Sprintf("operator: shard %s holds the demand of tenant %s, as it drops almost everything: what was stated "+
			"before stands; state it again if it is meant", e.Shard, e.Tenant)
	case errors.Is(e.kind, ErrOvertaken):
		return fmt.Sprintf("operator: shard %s heard of the demand of tenant %s from a process that was started later: end this "+
			"one, or that one", e.Shard, e.Tenant)
	}
	verb := "refused"
	if errors.Is(e.kind, ErrUnready) {
		verb = "did not take"
	}
	return fmt.Sprintf("operator: shard %s %s the demand of tenant %s: %.500q", e.Shard, verb, e.Tenant, e.Problem)
}

// Is reports that a DemandError matches its kind.
func (e *DemandError) Is(target error) bool { return target == e.kind }

// SessionError says why there is no session with a shard, or none any more. It matches [ErrReplaced], [ErrDenied],
// [ErrProtocol] or [ErrUnreachable]; the cause, such as a [*mesh.HandshakeError], is behind it.
type SessionError struct {
	Target, Tenant string
	kind, err      error
}

func (e *SessionError) Error() string {
	problem := e.err.Error()
	var told interface{ GRPCStatus() *status.Status }
	if errors.As(e.err, &told) {
		problem = told.GRPCStatus().Message()
	}
	return fmt.Sprintf("operator: tenant %s at the shard at %s: %v: %.1000s", e.Tenant, e.Target, e.kind, problem)
}

// Unwrap returns the cause.
func (e *SessionError) Unwrap() error { return e.err }

// Is reports that a SessionError matches its kind.
func (e *SessionError) Is(target error) bool { return target == e.kind }

// sessionError says what kind of an end err is.
func (o *Operator) sessionError(err error) error {
	e := &SessionError{Target: o.cfg.Target, Tenant: o.tenant, kind: ErrUnreachable, err: err}
	switch status.Code(err) {
	case codes.Aborted:
		e.kind = ErrReplaced
	case codes.PermissionDenied:
		e.kind = ErrDenied
	case codes.InvalidArgument, codes.Unimplemented:
		e.kind = ErrProtocol
	}
	return e
}

// broken says how the shard broke the protocol.
func (o *Operator) broken(form string, args ...any) error {
	return &SessionError{Target: o.cfg.Target, Tenant: o.tenant, kind: ErrProtocol, err: fmt.Errorf(form, args...)}
}
