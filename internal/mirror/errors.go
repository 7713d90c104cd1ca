package mirror

import (
	"errors"
	"fmt"
)

// Reason says why a source had no news, in one word: a metric label.
type Reason string

// The reasons. All mean the same for a node: no news from this source.
const (
	Unreachable  Reason = "unreachable"   // the network, TLS, the file system
	Status       Reason = "status"        // an HTTP status that is not 200
	TooLarge     Reason = "too_large"     // more bytes than announced, or than any may have
	Truncated    Reason = "truncated"     // fewer bytes than announced
	Slow         Reason = "slow"          // below the least rate, or past a deadline
	WrongBytes   Reason = "wrong_bytes"   // not what its name says
	Malformed    Reason = "malformed"     // not of its format
	OtherCluster Reason = "other_cluster" // the tree of another cluster
	Absent       Reason = "absent"        // nothing for this (scope, subject)
)

// Error says why a source had no news. It is matched by errors.As.
type Error struct {
	Reason Reason
	Name   string // of the file
	Detail string
	Err    error // may be nil
}

func (e *Error) Error() string {
	text := fmt.Sprintf("mirror: %s: %s", e.Name, e.Detail)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

func malformed(name, detail string) error {
	return &Error{Reason: Malformed, Name: name, Detail: detail}
}

// ReasonOf returns the reason of err; Unreachable for what has none.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Unreachable
}
