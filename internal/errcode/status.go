package errcode

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/internal/platform/errorinfo"
)

// Domain marks the google.rpc.ErrorInfo of a status as Fealty's own.
const Domain = "fealty"

// GRPCStatus returns what a peer is told: the entry's gRPC code, the first two
// lines, and an ErrorInfo with the code as reason and the fields as metadata.
// The cause is not in it. grpc-go calls this on an error that a handler returns.
func (e *Error) GRPCStatus() *status.Status {
	entry, ok := Lookup(e.Code)
	if !ok {
		entry = unknown(e.Code)
	}
	fields, reason := bounded(e.Fields), e.Code
	if entry.Of != "" {
		fields[exactField], reason = string(e.Code), entry.Of
	}
	// Rendered again, since the lines of e may quote the cause.
	message := Fill(entry.What, fields) + " (" + Fill(entry.Why, fields) + ")"
	return errorinfo.With(status.New(entry.GRPC, clean(message, 2*maxValueBytes)), &errdetails.ErrorInfo{
		Reason:   clean(string(reason), maxKeyBytes),
		Domain:   Domain,
		Metadata: fields,
	})
}

// exactField names the code that the reason of an ErrorInfo is the wider one of.
const exactField = "exact"

// bounded returns the fields cleaned and cut to the bounds; fields come from the
// caller, who may have set the map by hand, or from a peer.
func bounded(fields map[string]string) map[string]string {
	out := make(map[string]string, min(len(fields), maxFields))
	size := 0
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		k, v := clean(key, maxKeyBytes), clean(fields[key], maxValueBytes)
		if len(out) == maxFields || size+len(k)+len(v) > maxAllBytes {
			break
		}
		size += len(k) + len(v)
		out[k] = v
	}
	return out
}

// FromStatus returns the Error that a peer sent with err, a status of grpc-go,
// and false if it sent none. The texts are those of this release; a code that it
// does not know comes with the peer's message. A peer's text is bounded and safe to
// show.
func FromStatus(err error) (*Error, bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return nil, false
	}
	for info := range errorinfo.All(s, Domain) {
		if info.GetReason() == "" {
			continue
		}
		e := &Error{
			Code:   Code(clean(info.GetReason(), maxKeyBytes)),
			Fields: bounded(info.GetMetadata()),
			cause:  err,
			told:   true,
		}
		exact := Code(e.Fields[exactField])
		if delete(e.Fields, exactField); exact.of() == e.Code {
			e.Code = exact
		}
		entry, known := Lookup(e.Code)
		if !known {
			entry = unknown(e.Code)
			e.Fields["message"] = clean(s.Message(), maxValueBytes)
		}
		// Not render: the cause is the status, which says the same once more.
		e.What, e.Why = Fill(entry.What, e.Fields), Fill(entry.Why, e.Fields)
		e.Do = Fill(entry.Do, e.Fields)
		return e, true
	}
	return nil, false
}

// Of returns the Error that explains err best: the first one in its chain, the
// one that a peer sent, or one made from its gRPC status or the end of a
// context. It returns nil for nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := FromStatus(err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Wrap(err, Interrupted)
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(err, WaitRanOut)
	}
	s, ok := status.FromError(err)
	if !ok {
		return Wrap(err, Internal)
	}
	if s.Code() == codes.ResourceExhausted {
		if m := tooLarge.FindStringSubmatch(s.Message()); m != nil {
			return Wrap(err, MessageTooLarge, "got", m[1], "max", m[2])
		}
	}
	return Wrap(err, codeFor(s.Code()), "problem", s.Message(), "reason", s.Message())
}

// tooLarge is how grpc-go words that a message is above a limit, of this side or
// of the peer, which refuses it before any handler.
var tooLarge = regexp.MustCompile(`larger than max \(([0-9]{1,20}) vs\. ([0-9]{1,20})\)`)

// codeFor returns the code for a status that came without one.
func codeFor(c codes.Code) Code {
	switch c {
	case codes.Canceled:
		return Interrupted
	case codes.DeadlineExceeded:
		// The request may have reached the peer, so it is not known whether it
		// did what it was asked.
		return OutcomeUnknown
	case codes.Unavailable:
		return Unreachable
	case codes.Unauthenticated:
		return Unauthenticated
	case codes.PermissionDenied:
		return Denied
	case codes.NotFound:
		return NotFound
	case codes.AlreadyExists, codes.Aborted:
		return Conflict
	case codes.InvalidArgument:
		return RequestField
	}
	return Internal
}

// ExitCode returns the exit status for err: 0 for nil. A code of a newer peer
// gets the status that its gRPC code calls for, and a case that a peer told that of the wider code: that
// the peer was refused somewhere does not mean that the caller was.
func ExitCode(err error) Exit {
	e := Of(err)
	if e == nil {
		return ExitOK
	}
	entry, ok := Lookup(e.Code)
	if !ok {
		entry, _ = Lookup(codeFor(status.Code(e.cause)))
	}
	if wider, ok := Lookup(entry.Of); ok && e.told {
		entry = wider
	}
	return entry.Exit
}
