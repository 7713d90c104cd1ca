package store

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

var (
	// ErrNotFound: the key does not exist, or the Tx was not applied.
	ErrNotFound = errors.New("not found in the store")

	// ErrConflict is matched by every *ConflictError. Nothing was written.
	ErrConflict = errors.New("store conflict")

	// ErrUnknownOutcome: the write may have happened or may yet happen. It is
	// wrapped together with the reason, such as ctx's error.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown: ask Outcome, or read before going on")

	// ErrCompacted is matched by every *CompactedError.
	ErrCompacted = errors.New("changes no longer kept")

	// ErrVoided: Outcome was asked for this Tx ID before it was applied, and
	// answered that it never will be. Commit again under a new ID.
	ErrVoided = errors.New("transaction ID is void: its outcome was asked before it arrived; commit under a new ID")

	// ErrInvalid is matched by every refusal of arguments: *KeyError,
	// *LimitError, *ReusedError and others. Nothing was written; trying again
	// cannot help.
	ErrInvalid = errors.New("not valid for the store")

	// ErrClosed: the store was closed before the call began, or while it waited.
	ErrClosed = errors.New("store is closed")

	// ErrRefused is matched by every *RefusedError.
	ErrRefused = errors.New("the store takes no writes")

	// ErrFull is matched by a *RefusedError for want of space, and by one of a database
	// that was made read-only, as hosted ones are that run full.
	ErrFull = errors.New("the store has no space left, or was made read-only")

	// ErrNotEmpty: only an empty store can be raised.
	ErrNotEmpty = errors.New("store is not empty")

	// ErrForged: a sealed value was not sealed under this key by this
	// Authenticator.
	ErrForged = errors.New("record is forged: its authentication code does not match")
)

// invalidError is a refusal without fields worth a type of their own.
type invalidError string

func invalid(format string, args ...any) error { return invalidError(fmt.Sprintf(format, args...)) }

func (e invalidError) Error() string        { return "store: " + string(e) }
func (e invalidError) Is(target error) bool { return target == ErrInvalid }

// ConflictError says which condition did not hold. It matches [ErrConflict].
type ConflictError struct {
	Key  string
	Want Revision // version that the condition asked for; 0: must not exist
	Got  Revision // version found; 0: does not exist
}

func (e *ConflictError) Error() string {
	describe := func(v Revision) string {
		if v == 0 {
			return "absent"
		}
		return fmt.Sprintf("at version %d", v)
	}
	return fmt.Sprintf("store: %q is %s, not %s as expected: someone else wrote it first; read it and decide again",
		e.Key, describe(e.Got), describe(e.Want))
}

func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Reason is why a database that is read takes no writes.
type Reason int

const (
	NoSpace    Reason = iota + 1 // its disk or quota is used up
	ReadOnly                     // it is a replica, or it or its disk was made read-only
	Forbidden                    // the user that writes may not, or not any more
	FileGone                     // its file was moved, removed or replaced while it was open
	DiskFailed                   // its disk answers writes with an error
)

// Reasons returns all of them.
func Reasons() []Reason { return []Reason{NoSpace, ReadOnly, Forbidden, FileGone, DiskFailed} }

// String says it in the words of a sentence that ends with it.
func (r Reason) String() string {
	switch r {
	case NoSpace:
		return "it has no space left"
	case ReadOnly:
		return "it is read-only"
	case Forbidden:
		return "its user may not write"
	case FileGone:
		return "its file was moved, removed or replaced while it was open"
	case DiskFailed:
		return "its disk fails writes"
	}
	return "of an unknown reason"
}

// RefusedError says why a database that is read did not take a write. Nothing was
// written, unless it stands beside [ErrUnknownOutcome]. It matches [ErrRefused].
type RefusedError struct {
	Reason Reason
	Err    error // of the database
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v, because %v: %v", ErrRefused, e.Reason, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// Said returns the words of the database about it: at most [MaxSaidBytes], printable, on one line.
func (e *RefusedError) Said() string {
	if e.Err == nil {
		return ""
	}
	return plainWords(e.Err.Error())
}

func (e *RefusedError) Is(target error) bool {
	return target == ErrRefused || target == ErrFull && (e.Reason == NoSpace || e.Reason == ReadOnly)
}

// ReasonOf returns why a database did not take a write; 0 if err says nothing of that.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*RefusedError](err); ok {
		return e.Reason
	}
	if errors.Is(err, ErrFull) {
		return NoSpace
	}
	return 0
}

// Outage is why a database does neither what a read nor what a write asks for.
type Outage int

const (
	Unreachable  Outage = iota + 1 // no server can be reached, or none answers in time
	Locked                         // somebody else holds a lock on it
	LoginRefused                   // the server does not let this user in, or not to the store
	Overloaded                     // the server takes no more connections or requests
	Standby                        // the server that answers is a standby, or one of several that is read-only
	Unsuitable                     // the server that answers cannot hold the store
	Unreadable                     // its disk answers reads with an error, or its file is none of a store
)

// Outages returns all of them.
func Outages() []Outage {
	return []Outage{Unreachable, Locked, LoginRefused, Overloaded, Standby, Unsuitable, Unreadable}
}

// String says it in the words of a sentence that ends with it.
func (o Outage) String() string {
	switch o {
	case Unreachable:
		return "it cannot be reached"
	case Locked:
		return "somebody else holds a lock on it"
	case LoginRefused:
		return "it does not let the coordinator in"
	case Overloaded:
		return "it takes no more connections or requests"
	case Standby:
		return "the server that answers is a standby, or read-only"
	case Unsuitable:
		return "the server that answers cannot hold the store"
	case Unreadable:
		return "its disk fails reads"
	}
	return "it does not answer, and does not say why"
}

// OutageError says why a database did not do what was asked. Nothing was written. Its text is that of Err.
type OutageError struct {
	Outage Outage

	// Said are the words of the server, or of the system where no server answered: at most
	// [MaxSaidBytes], printable, on one line. No password is in them.
	Said string

	Err error // of the engine
}

func (e *OutageError) Error() string { return e.Err.Error() }
func (e *OutageError) Unwrap() error { return e.Err }

// MaxSaidBytes bounds the words of a server that are told.
const MaxSaidBytes = 240

// NewOutage returns err as an [*OutageError]. Of said it keeps what may be told: secrets are taken out, what
// does not print is a space, and what is too long is cut. Err with an outage or a [Reason] already is returned as it is.
func NewOutage(o Outage, said string, err error, secrets ...string) error {
	if OutageOf(err) != 0 || ReasonOf(err) != 0 {
		return err
	}
	for _, s := range secrets {
		if len(s) >= 4 { // a shorter one is found in words that do not hold it
			said = strings.ReplaceAll(said, s, "…")
		}
	}
	return &OutageError{Outage: o, Said: plainWords(said), Err: err}
}

// plainWords returns of what a server said what may be told: at most MaxSaidBytes, on one line.
func plainWords(said string) string {
	said = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, said)
	said = strings.Join(strings.Fields(said), " ")
	if len(said) > MaxSaidBytes {
		cut := MaxSaidBytes - len("…")
		for !utf8.RuneStart(said[cut]) {
			cut--
		}
		said = said[:cut] + "…"
	}
	return said
}

// OutageOf returns why a database did not do what was asked; 0 if err says nothing of that.
func OutageOf(err error) Outage {
	if e, ok := errors.AsType[*OutageError](err); ok {
		return e.Outage
	}
	return 0
}

// CompactedError says which changes can no longer be told. It matches
// [ErrCompacted].
type CompactedError struct {
	After   Revision // what the caller asked to follow
	Oldest  Revision // least revision that can be followed
	Current Revision // newest commit; After above it means that the database went back
}

func (e *CompactedError) Error() string {
	if e.After > e.Current {
		return fmt.Sprintf("store: no changes after revision %d: the newest is %d, so the database was restored or replaced; list again and follow from there",
			e.After, e.Current)
	}
	return fmt.Sprintf("store: changes after revision %d are no longer kept, the oldest to follow is %d: list again and follow from there",
		e.After, e.Oldest)
}

func (e *CompactedError) Is(target error) bool { return target == ErrCompacted }

// KeyError says why a key, prefix or transaction ID is refused. It matches
// [ErrInvalid].
type KeyError struct {
	Key     string
	Problem string // continues "the key"
}

func (e *KeyError) Error() string {
	key, more := e.Key, ""
	if len(key) > 64 {
		key, more = key[:64], "…"
	}
	return fmt.Sprintf("store: key %q%s %s: want 1 to %d bytes of printable ASCII; write binary names in hex",
		key, more, e.Problem, MaxKeyBytes)
}

func (e *KeyError) Is(target error) bool { return target == ErrInvalid }

// LimitError says which limit was passed. It matches [ErrInvalid].
type LimitError struct {
	What     string
	Got, Max int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("store: %d %s, at most %d allowed: split it", e.Got, e.What, e.Max)
}

func (e *LimitError) Is(target error) bool { return target == ErrInvalid }

// ReusedError says that a Tx came with the ID of a different one that was
// applied before. It matches [ErrInvalid].
type ReusedError struct {
	ID      string
	Applied Revision // of the first Tx with this ID
}

func (e *ReusedError) Error() string {
	return fmt.Sprintf("store: transaction ID %q was used at revision %d for a different transaction: give every transaction an ID of its own",
		e.ID, e.Applied)
}

func (e *ReusedError) Is(target error) bool { return target == ErrInvalid }
