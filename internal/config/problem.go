package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fealty-io/fealty/internal/document"
)

// ErrInvalid is matched by every error of this package that says that config is not
// what it has to be.
var ErrInvalid = errors.New("invalid config")

// RuleInUse is the rule of a problem with a deletion of what others refer to.
const RuleInUse = "in-use"

// A Problem is one thing that is wrong with a record or a set of them.
type Problem struct {
	Record Key // empty where it is not known, or holds what must not be shown
	document.Problem
}

// Error returns record, place, field, what is wrong and what to do, in one line.
func (p *Problem) Error() string {
	s := ""
	if p.Line > 0 {
		s = fmt.Sprintf("line %d, column %d: ", p.Line, p.Column)
	}
	if p.Record != (Key{}) {
		s += p.Record.String() + ": "
	}
	if p.Field != "" {
		s += p.Field + ": "
	}
	s += p.What
	if p.Do != "" {
		s += ": " + p.Do
	}
	return s
}

// Is reports that a problem makes config invalid: errors.Is(p, ErrInvalid).
func (p *Problem) Is(target error) bool { return target == ErrInvalid }

// An InvalidError holds what is wrong, at most [MaxProblems] problems, in the order
// of the text or, without one, of the records.
type InvalidError struct {
	Problems []*Problem
}

// Error returns the first problem, and how many more there are.
func (e *InvalidError) Error() string {
	switch len(e.Problems) {
	case 0:
		return ErrInvalid.Error()
	case 1:
		return fmt.Sprintf("%v: %v", ErrInvalid, e.Problems[0])
	default:
		return fmt.Sprintf("%v: %v (and %d more problems)", ErrInvalid, e.Problems[0], len(e.Problems)-1)
	}
}

// Is reports whether target is [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the problems.
func (e *InvalidError) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
}

// invalid returns the error of problems, or nil if there are none.
func invalid(problems []*Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b *Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return &InvalidError{Problems: problems[:min(len(problems), MaxProblems)]}
}
